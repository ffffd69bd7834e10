"""Probability densities as pure functions of one sample."""

import jax
import jax.numpy as jnp
import optax

from lsac.types import Array, Key


def normal_log_prob(x: Array, mean: Array, log_std: Array) -> Array:
    """Log density of a diagonal Gaussian, summed over the last axis."""
    z = (x - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def normal_kl(mean: Array, log_std: Array, other_mean: Array, other_log_std: Array) -> Array:
    """KL(first ‖ other) of two diagonal Gaussians, summed over the last axis."""
    spread = jnp.exp(2.0 * (log_std - other_log_std)) + ((mean - other_mean) * jnp.exp(-other_log_std)) ** 2
    return jnp.sum(other_log_std - log_std + 0.5 * (spread - 1.0), axis=-1)


def tanh_log_det(u: Array) -> Array:
    """log |d tanh(u)/du|, summed; log(1 − tanh²u) in a form that is accurate for large |u|."""
    return jnp.sum(2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u)), axis=-1)


def gaussian_return_loss(
    mean: Array, std: Array, mean_target: Array, sample_target: Array, bound: Array, scale: Array, eps: float
) -> Array:
    """KL divergence of a Gaussian return from its target, with one target for the mean and another for the std.

    Its gradient is ω times the batch mean of −(y_Q − Q)/(σ² + ε) ∇Q − ((clip(y_Z) − Q)² − σ²)/(σ³ + ε) ∇σ, where
    clip(y_Z) is y_Z clipped to Q ± b and everything except ∇Q and ∇σ is treated as a constant. Only this gradient is
    meaningful: the value of the loss is not the KL divergence.
    """
    q, sigma = jax.lax.stop_gradient((mean, std))
    clipped = jnp.clip(sample_target, q - bound, q + bound)
    mean_pull = jax.lax.stop_gradient((mean_target - q) / (sigma**2 + eps))
    std_pull = jax.lax.stop_gradient(((clipped - q) ** 2 - sigma**2) / (sigma**3 + eps))
    return -jax.lax.stop_gradient(scale) * jnp.mean(mean_pull * mean + std_pull * std)


def huber_return_loss(
    mean: Array, std: Array, mean_target: Array, sample_target: Array, bound: Array, scale: Array, eps: float
) -> Array:
    """The loss that the released code of DSAC-T minimises in place of `gaussian_return_loss`.

    Its gradient is the batch mean of ρ [clip(Q − y_Q, ±50) ∇Q + (σ² − H(Q − clip(y_Z)))/(σ + ε) ∇σ], where
    ρ = ω/(σ² + ε) clipped to [0.1, 10] and H is the Huber loss, ½ e² up to |e| = 50. σ² therefore converges to half
    the mean squared error.
    """
    q, sigma = jax.lax.stop_gradient((mean, std))
    clipped = jnp.clip(sample_target, q - bound, q + bound)
    ratio = jax.lax.stop_gradient(jnp.clip(scale / (sigma**2 + eps), 0.1, 10.0))
    std_push = jax.lax.stop_gradient((sigma**2 - optax.huber_loss(q, clipped, delta=50.0)) / (sigma + eps))
    return jnp.mean(ratio * (optax.huber_loss(mean, jax.lax.stop_gradient(mean_target), delta=50.0) + std_push * std))


def bin_centres(bound: float, bins: int) -> Array:
    """[bins] evenly spaced from −bound to bound."""
    return jnp.linspace(-bound, bound, bins)


def histogram(y: Array, bound: float, bins: int, smoothing: float = 0.75) -> Array:
    """[..., bins] probabilities of a Gaussian around y, whose std is `smoothing` times the width of a bin.

    A scalar target as a smooth histogram (HL-Gauss: Farebrother et al., 2024, arXiv 2403.03950). y is clipped to
    ± bound, and what falls outside the bins is left out.
    """
    width = 2.0 * bound / (bins - 1)
    edges = bin_centres(bound + width / 2.0, bins + 1).reshape((1,) * y.ndim + (-1,))
    below = jax.scipy.stats.norm.cdf((edges - jnp.clip(y, -bound, bound)[..., None]) / (smoothing * width))
    mass = jnp.diff(below, axis=-1)
    return mass / jnp.sum(mass, axis=-1, keepdims=True)


def tanh_normal_sample(mean: Array, log_std: Array, key: Key) -> tuple[Array, Array]:
    """A reparameterised action in (−1, 1) and its log density."""
    u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    return jnp.tanh(u), normal_log_prob(u, mean, log_std) - tanh_log_det(u)
