"""The replay buffer on the device, and rollouts for on-policy agents."""
