"""The recurrent state-space model: Hafner et al., *Learning Latent Dynamics for Planning from Pixels*, ICML 2019 (arXiv
1811.04551). Written for one sequence: the caller maps it over a batch.

A state has a deterministic part h, the memory of a GRU, and a stochastic part z. h follows from the previous state and
action. The prior p(z | h) predicts z, the posterior q(z | h, embedding) also sees the observation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.nn.distributions import normal_kl
from lsac.nn.networks import MLP, Linear, orthogonal, redrawn
from lsac.types import Array, Key

MIN_STD = 0.1
"""Smallest std of prior and posterior."""


class State(NamedTuple):
    deterministic: Array
    stochastic: Array

    @property
    def features(self) -> Array:
        """What all heads read."""
        return jnp.concatenate([self.stochastic, self.deterministic], axis=-1)


class Normal(NamedTuple):
    """A diagonal Gaussian."""

    mean: Array
    std: Array

    def sample(self, noise: Array) -> Array:
        """A reparameterised sample from standard normal noise."""
        return self.mean + self.std * noise

    def kl(self, other: "Normal") -> Array:
        """KL(self ‖ other), summed over the last axis."""
        return normal_kl(self.mean, jnp.log(self.std), other.mean, jnp.log(other.std))


def dense(sizes: Sequence[int], key: Key, compute_dtype: str = "float32") -> MLP:
    """An MLP with ELU, Glorot-uniform weights and zero biases, as Keras initialises it."""
    key, weight_key = jax.random.split(key)
    return redrawn(MLP(sizes, "elu", key, compute_dtype), jax.nn.initializers.glorot_uniform(), weight_key)


class Gru(eqx.Module):
    """A gated recurrent unit: Cho et al., 2014 (arXiv 1406.1078), with the reset gate after the product, as in Keras.

    Products have `compute_dtype`, the state is float32.
    """

    from_input: Linear
    from_state: Linear
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, size_in: int, size: int, key: Key, compute_dtype: str = "float32"):
        input_key, state_key = jax.random.split(key)
        self.from_input = dense((size_in, 3 * size), input_key).layers[0]
        recurrent = orthogonal(state_key, (3 * size, size))
        shape = jax.eval_shape(lambda key: Linear(size, 3 * size, key), state_key)
        self.from_state = eqx.tree_at(lambda x: (x.weight, x.bias), shape, (recurrent, jnp.zeros(3 * size)))
        self.compute_dtype = compute_dtype

    def __call__(self, state: Array, x: Array) -> Array:
        """h' = u h + (1 − u) tanh(W x + r (U h)) with the update gate u and the reset gate r."""
        by_input = self.from_input.to_float32(x.astype(self.compute_dtype))
        by_state = self.from_state.to_float32(state.astype(self.compute_dtype))
        (u_x, r_x, new_x), (u_h, r_h, new_h) = jnp.split(by_input, 3), jnp.split(by_state, 3)
        update, reset = jax.nn.sigmoid(u_x + u_h), jax.nn.sigmoid(r_x + r_h)
        return update * state + (1.0 - update) * jnp.tanh(new_x + reset * new_h)


class Sizes(NamedTuple):
    deterministic: int
    stochastic: int
    units: int
    """width of hidden layers"""


class Rssm(eqx.Module):
    joined: MLP
    gru: Gru
    of_prior: MLP
    of_posterior: MLP
    sizes: Sizes = eqx.field(static=True)

    def __init__(self, sizes: Sizes, embedding: int, action_dim: int, key: Key, compute_dtype: str = "float32"):
        keys, (deterministic, stochastic, units) = jax.random.split(key, 4), sizes
        self.joined = dense((stochastic + action_dim, units), keys[0])
        self.gru = Gru(units, deterministic, keys[1], compute_dtype)
        self.of_prior = dense((deterministic, units, 2 * stochastic), keys[2], compute_dtype)
        self.of_posterior = dense((deterministic + embedding, units, 2 * stochastic), keys[3], compute_dtype)
        self.sizes = sizes

    def initial(self) -> State:
        """The state before an episode."""
        return State(jnp.zeros(self.sizes.deterministic), jnp.zeros(self.sizes.stochastic))

    def advance(self, state: State, action: Array) -> Array:
        """The deterministic part of the next state."""
        x = jax.nn.elu(self.joined(jnp.concatenate([state.stochastic, action])))
        return self.gru(state.deterministic, x)

    def prior(self, deterministic: Array) -> Normal:
        """p(z | h)."""
        return _normal(self.of_prior(deterministic))

    def posterior(self, deterministic: Array, embedding: Array) -> Normal:
        """q(z | h, embedding)."""
        return _normal(self.of_posterior(jnp.concatenate([deterministic, embedding])))

    def predict(self, state: State, action: Array, noise: Array) -> State:
        """A sample of the next state, without its observation."""
        deterministic = self.advance(state, action)
        return State(deterministic, self.prior(deterministic).sample(noise))

    def observe(self, state: State, action: Array, embedding: Array, noise: Array) -> State:
        """A sample of the next state, given its observation."""
        deterministic = self.advance(state, action)
        return State(deterministic, self.posterior(deterministic, embedding).sample(noise))


def _normal(outputs: Array) -> Normal:
    mean, raw = jnp.split(outputs, 2)
    return Normal(mean, jax.nn.softplus(raw) + MIN_STD)


class Observed(NamedTuple):
    """The states of a sequence [T, …]."""

    states: State
    """samples of the posterior"""
    posterior: Normal
    prior: Normal
    predicted: State
    """samples of what the previous actions led to, without its observation; at the start of an episode, of the state
    in which the episode before it ended"""


def observe(rssm: Rssm, embedding: Array, action: Array, first: Array, key: Key) -> Observed:
    """The states of a sequence from its embeddings [T, …], and the actions [T, A] that were chosen there.

    At the first step, and wherever `first` [T] says that an episode starts, the state before is the initial one and
    the action before is 0.
    """
    begin = rssm.advance(rssm.initial(), jnp.zeros_like(action[0]))
    before = jnp.concatenate([jnp.zeros_like(action[:1]), action[:-1]])
    noise = jax.random.normal(key, (2, len(action), rssm.sizes.stochastic))

    def step(state: State, now: tuple[Array, ...]) -> tuple[State, tuple[State, Normal, Array]]:
        embedding, before, first, noise = now
        followed = rssm.advance(state, before)
        deterministic = jnp.where(first, begin, followed)
        posterior = rssm.posterior(deterministic, embedding)
        state = State(deterministic, posterior.sample(noise))
        return state, (state, posterior, followed)

    _, (states, posterior, followed) = jax.lax.scan(step, rssm.initial(), (embedding, before, first, noise[0]))
    predicted = State(followed, jax.vmap(rssm.prior)(followed).sample(noise[1]))
    return Observed(states, posterior, jax.vmap(rssm.prior)(states.deterministic), predicted)
