"""Running mean and variance: the scale in which an agent sees observations and returns."""

from typing import NamedTuple

import jax.numpy as jnp

from lsac.types import Array


class Moments(NamedTuple):
    """Of everything seen so far. All float32, so that they can travel as part of a policy."""

    mean: Array
    variance: Array
    samples: Array


def empty(shape: tuple[int, ...]) -> Moments:
    """Of nothing yet: mean 0 and variance 1 leave a number as it is; the first batch replaces both."""
    return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), jnp.zeros((), jnp.float32))


def merged(moments: Moments, batch: Array) -> Moments:
    """With [N, …] more samples. With w = N / (samples + N), the share of the batch, and d = batch mean − mean:

    mean ← mean + w d,  variance ← (1 − w) variance + w · batch variance + w (1 − w) d².

    No sum over all samples is kept, and a batch is seen from the mean so far, so that float32 is accurate enough.
    """
    samples = moments.samples + batch.shape[0]
    share = batch.shape[0] / samples
    batch = batch - moments.mean[None]
    difference = jnp.mean(batch, axis=0)
    spread = jnp.var(batch, axis=0) - moments.variance + (1.0 - share) * difference**2
    return Moments(moments.mean + share * difference, moments.variance + share * spread, samples)


def normalised(moments: Moments, x: Array, clip: float) -> Array:
    """(x − mean) / std, kept within ± clip. What never varied is 0 where it is as always."""
    return jnp.clip((x - moments.mean) / jnp.sqrt(moments.variance + 1e-8), -clip, clip)


def root_mean_square(moments: Moments) -> Array:
    """√E x², which, unlike the std, does not vanish where all samples are alike."""
    return jnp.sqrt(moments.variance + moments.mean**2 + 1e-8)
