"""Running statistics, with which agents normalise observations, returns and rewards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lsac.types import Array


class Moments(NamedTuple):
    """Moments of all samples so far. All are float32, so that they can be part of a policy snapshot."""

    mean: Array
    variance: Array
    samples: Array


def empty(shape: tuple[int, ...]) -> Moments:
    """The moments before the first sample: mean 0 and variance 1, which the first batch replaces."""
    return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), jnp.zeros((), jnp.float32))


def merged(moments: Moments, batch: Array) -> Moments:
    """Adds [N, …] samples. With w = N / (samples + N), the share of the batch, and d = batch mean − mean:

    mean ← mean + w d,  variance ← (1 − w) variance + w · batch variance + w (1 − w) d².

    No sum over all samples is kept, and the batch is measured relative to the mean, so that float32 stays accurate
    over any number of samples and for means far from 0: the std of 2e6 samples around 1e4 is right to 1e-5. What
    float32 cannot do is follow a late drift whose step w d is below a rounding error of the mean.
    """
    samples = moments.samples + batch.shape[0]
    share = batch.shape[0] / samples
    batch = batch - moments.mean[None]
    difference = jnp.mean(batch, axis=0)
    spread = jnp.var(batch, axis=0) - moments.variance + (1.0 - share) * difference**2
    return Moments(moments.mean + share * difference, moments.variance + share * spread, samples)


def normalised(moments: Moments, x: Array, clip: float) -> Array:
    """(x − mean) / std, clipped to ± clip, for x [..., shape]. A constant feature maps to 0 while it stays constant."""
    shape = (1,) * (x.ndim - moments.mean.ndim) + moments.mean.shape
    mean, variance = moments.mean.reshape(shape), moments.variance.reshape(shape)
    return jnp.clip((x - mean) / jnp.sqrt(variance + 1e-8), -clip, clip)


def root_mean_square(moments: Moments) -> Array:
    """√E x², which, unlike the std, does not vanish if all samples are equal."""
    return jnp.sqrt(moments.variance + moments.mean**2 + 1e-8)


class ReturnStatistics(NamedTuple):
    """Statistics of the discounted return so far, G_t = r_t + γ G_{t−1}, which starts anew with every episode."""

    current: Array  # [E] G of every simulator
    moments: Moments  # of all G so far
    largest: Array  # the largest |G| so far


def no_returns(simulators: int) -> ReturnStatistics:
    """The statistics before the first step."""
    return ReturnStatistics(jnp.zeros(simulators, jnp.float32), empty(()), jnp.zeros((), jnp.float32))


def with_rewards(statistics: ReturnStatistics, reward: Array, first: Array, gamma: float) -> ReturnStatistics:
    """Adds the rewards [T, E] of successive steps; `first` [T, E] marks the first step of an episode."""

    # Each step is the affine map G → r + decay · G; composing them in pairs takes log T rounds.
    def both(earlier: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[Array, Array]:
        return step[0] * earlier[0], step[1] + step[0] * earlier[1]

    decay, sums = jax.lax.associative_scan(both, (jnp.where(first, 0.0, gamma), reward))
    returns = sums + decay * statistics.current[None]
    moments = merged(statistics.moments, returns.reshape(-1))
    return ReturnStatistics(returns[-1], moments, jnp.maximum(statistics.largest, jnp.max(jnp.abs(returns))))


def reward_scale(statistics: ReturnStatistics, bound: float) -> Array:
    """What rewards are divided by: the std of G, or more where the largest |G| would then exceed `bound`."""
    return jnp.maximum(jnp.sqrt(statistics.moments.variance + 1e-8), statistics.largest / bound)
