"""Neural networks and the mathematics around them: layers, distributions, optimisers, samplers, diffusion."""
