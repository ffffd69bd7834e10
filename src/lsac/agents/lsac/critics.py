"""The networks of LSAC: critics, which predict a distribution of the return, and actors.

A critic is a network of state and action and a head that turns its outputs into mean and std of the return. The network
is a multilayer perceptron or one on spheres, the head a Gaussian or a histogram.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.agents.dsact import returns
from lsac.agents.lsac import embedding
from lsac.agents.lsac.config import Config
from lsac.nn.batch_norm import BatchNormNet, InTraining
from lsac.nn.distributions import bin_centres
from lsac.nn.networks import MLP, GaussianActor, GaussianCritic, compute_dtype
from lsac.nn.spheres import SphereNet
from lsac.types import Array, EnvSpec, Key

SPHERE_SCALE = 5.0
"""Q of a Gaussian head is this many times the output of a network on spheres, whose last layer starts small."""
ACTOR_BLOCKS = 1
"""Blocks of an actor on spheres."""


class HistogramCritic(eqx.Module):
    """The return as probabilities of bins that divide [−bound, bound]: their mean and std."""

    mlp: Any
    """a network of [obs, action] with one output per bin"""
    bound: float = eqx.field(static=True)

    def logits(self, obs: Array, action: Array) -> Array:
        return self.mlp(jnp.concatenate([obs, action]))

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        logits = self.logits(obs, action)
        probability, centre = jax.nn.softmax(logits), bin_centres(self.bound, logits.shape[0])
        mean = jnp.sum(probability * centre)
        return mean, jnp.sqrt(jnp.sum(probability * (centre - mean) ** 2) + 1e-8)


Critic = GaussianCritic | HistogramCritic


def make_critic(config: Config, spec: EnvSpec, key: Key) -> Critic:
    outputs = config.bins if config.head == "histogram" else 2
    dtype = compute_dtype(config.compute_dtype)

    def make(size_in: int, hidden: tuple[int, ...], key: Key) -> Any:
        if config.network == "mlp":
            return MLP((size_in, *hidden, outputs), config.activation, key, dtype)
        residual = SphereNet if config.network == "sphere" else BatchNormNet
        return residual(size_in, config.width, config.blocks, outputs, key, dtype)

    if config.embedding:
        network = embedding.critic_input(spec, config.hidden, make, key)
    else:
        network = make(spec.obs_dim + spec.action_dim, config.hidden, key)
    if config.head == "histogram":
        return HistogramCritic(network, config.value_bound)
    scale = SPHERE_SCALE if config.network == "sphere" else 1.0
    return GaussianCritic(network, scale, inverse_softplus(config.std_init) if config.std_init else 0.0)


def inverse_softplus(y: float) -> float:
    """log(eʸ − 1), also where eʸ is too large for a float."""
    return y + math.log(-math.expm1(-y))


def make_actor(config: Config, spec: EnvSpec, key: Key) -> GaussianActor:
    outputs = 2 * spec.action_dim

    def make(size_in: int, hidden: tuple[int, ...], key: Key) -> Any:
        if config.actor_network == "sphere":
            return SphereNet(size_in, config.width, ACTOR_BLOCKS, outputs, key)
        return MLP((size_in, *hidden, outputs), config.activation, key, compute_dtype(config.compute_dtype))

    if config.embedding:
        network = embedding.actor_input(spec, config.hidden, make, key)
    else:
        network = make(spec.obs_dim, config.hidden, key)
    return GaussianActor(network, config.log_std_min, config.log_std_max)


def plain(obs: Array, action: Array) -> tuple[Array, Array]:
    """What critics see of a batch without an embedding."""
    return obs, action


class Reading(NamedTuple):
    """How the K critics of a chain are combined: κ times the lowest mean and 1 − κ times the average."""

    pessimism: Any = 1.0
    """κ; a number, or an array if it depends on the state of the agent"""
    see: Callable[[Array, Array], tuple[Array, Array]] = plain
    """obs, action → what critics see of them"""
    beside: tuple[Array, Array] | None = None
    """with batch normalisation, a batch that shares its statistics with the one that is asked for"""

    def q(self, critics: Any, obs: Array, action: Array) -> Array:
        """[B] values of a batch."""
        return self._mixed(returns(critics, *self.see(obs, action))[0])

    def predicted(self, critics: Any, obs: Array, action: Array) -> tuple[Array, Array]:
        """[B] mean of the return, and the std that the critic with the lowest mean predicts."""
        seen = self.see(obs, action)
        if self.beside is not None:
            critics, seen = in_training(critics), joined(seen, self.beside)
        mean, std = (x[:, : len(obs)] for x in returns(critics, *seen))
        least = jnp.argmin(mean, axis=0)[None]
        return self._mixed(mean), jnp.take_along_axis(std, least, axis=0)[0]

    def _mixed(self, mean: Array) -> Array:
        lowest = jnp.min(mean, axis=0)
        if isinstance(self.pessimism, float) and self.pessimism == 1.0:
            return lowest
        return lowest + (1.0 - self.pessimism) * (jnp.mean(mean, axis=0) - lowest)


def joined(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Observations and actions of two batches, one after the other."""
    obs, action = (jnp.concatenate(pair) for pair in zip(one, other, strict=True))
    return obs, action


def in_training(critic: Any) -> Any:
    """A critic, or several stacked ones, that batch normalisation treats as in training; others stay as they are."""

    def switched(network: Any) -> Any:
        return InTraining(network) if isinstance(network, BatchNormNet) else network

    return jax.tree.map(switched, critic, is_leaf=lambda x: isinstance(x, BatchNormNet))


LOWEST = Reading()
"""The minimum over the critics of a chain."""
