"""Probability densities as pure functions of one sample."""

import jax
import jax.numpy as jnp

from lsac.types import Array, Key


def normal_log_prob(x: Array, mean: Array, log_std: Array) -> Array:
    """Log density of a diagonal Gaussian, summed over the last axis."""
    z = (x - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def tanh_log_det(u: Array) -> Array:
    """log |d tanh(u)/du|, summed; log(1 − tanh²u) in the form that keeps its digits for large |u|."""
    return jnp.sum(2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u)), axis=-1)


def tanh_normal_sample(mean: Array, log_std: Array, key: Key) -> tuple[Array, Array]:
    """A reparameterised action in (−1, 1) and its log density."""
    u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    return jnp.tanh(u), normal_log_prob(u, mean, log_std) - tanh_log_det(u)
