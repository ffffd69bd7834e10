"""Langevin Soft Actor-Critic: the agent, its chains of critics, its generator of transitions."""
