"""A learned embedding of states and actions that actor and critics see beside them: SALE, from TD7 (Fujimoto et al.,
2023, arXiv 2306.02451).

Two encoders are trained to predict the next state's embedding: z_s = N(f(s)), z_sa = g(z_s, a), with the loss
‖z_sa − z_s'‖², whose target is constant, and N(x) = x / mean|x|. Critics see [N(U[s, a]), z_s, z_sa] and the actor
[N(V s), z_s]. All chains share one embedding, which is not sampled. They see a frozen copy, and their target networks
an older one; both change, together with the target networks, once in a while.

An observation with its embedding is one vector [s, z_s], so that the rest of the agent need not know of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.nn.networks import MLP, Linear
from lsac.nn.optimisers import adam, descend
from lsac.types import Array, EnvSpec, Key, Transition

WIDTH = 256
"""Width of the encoders' layers and of the embeddings."""
LEARNING_RATE = 3e-4

Make = Callable[[int, tuple[int, ...], Key], Any]
"""size of the input, widths of the hidden layers, key → network"""


def by_mean_size(x: Array) -> Array:
    """N(x) = x / mean |x|."""
    return x / jnp.maximum(jnp.mean(jnp.abs(x)), 1e-8)


class Encoders(eqx.Module):
    of_state: MLP
    of_pair: MLP

    def __init__(self, spec: EnvSpec, key: Key):
        keys = jax.random.split(key)
        hidden = (WIDTH, WIDTH, WIDTH)
        self.of_state = MLP((spec.obs_dim, *hidden), "elu", keys[0])
        self.of_pair = MLP((WIDTH + spec.action_dim, *hidden), "elu", keys[1])

    def state(self, obs: Array) -> Array:
        """z_s"""
        return by_mean_size(self.of_state(obs))

    def pair(self, state: Array, action: Array) -> Array:
        return self.of_pair(jnp.concatenate([state, action]))


class Embedding(NamedTuple):
    trained: Encoders
    frozen: Encoders  # what actor and critics see
    target: Encoders  # what target networks see
    opt: optax.OptState


def optimiser() -> optax.GradientTransformation:
    return adam(LEARNING_RATE)


def init(spec: EnvSpec, key: Key) -> Embedding:
    encoders = Encoders(spec, key)
    return Embedding(encoders, encoders, encoders, optimiser().init(encoders))


def loss(encoders: Encoders, batch: Transition) -> Array:
    """The mean squared error of the predicted next embedding."""

    def error(obs: Array, action: Array, next_obs: Array) -> Array:
        predicted = encoders.pair(encoders.state(obs), action)
        return jnp.mean((predicted - jax.lax.stop_gradient(encoders.state(next_obs))) ** 2)

    return jnp.mean(jax.vmap(error)(batch.obs, batch.action, batch.next_obs))


def trained(embedding: Embedding, batch: Transition) -> tuple[Embedding, Array]:
    """One gradient step on a batch of plain observations; also returns the loss."""
    step = descend(optimiser(), loss, embedding.trained, embedding.opt, batch, has_aux=False)
    return embedding._replace(trained=step.params, opt=step.opt), step.loss


def renewed(embedding: Embedding) -> Embedding:
    """The copies after a change: target networks see what critics saw, and critics what is trained."""
    return embedding._replace(target=embedding.frozen, frozen=embedding.trained)


def embedded(of_state: MLP, obs: Array) -> Array:
    """[s, z_s] of one observation; `of_state` is f."""
    return jnp.concatenate([obs, by_mean_size(of_state(obs))])


def embedded_batch(embedding: Embedding, batch: Transition) -> Transition:
    """A batch [..., B] whose observations and next observations are those that critics and their targets see."""

    def of_all(encoders: Encoders, obs: Array) -> Array:
        flat = jax.vmap(lambda o: embedded(encoders.of_state, o))(obs.reshape(-1, obs.shape[-1]))
        return flat.reshape(*obs.shape[:-1], -1)

    now, then = of_all(embedding.frozen, batch.obs), of_all(embedding.target, batch.next_obs)
    return batch._replace(obs=now, next_obs=then)


def pairs_seen(encoders: Encoders) -> Callable[[Array, Array], tuple[Array, Array]]:
    """What critics see of a batch of embedded observations and its actions: ([s, z_s, z_sa], a)."""

    def see(obs: Array, action: Array) -> tuple[Array, Array]:
        pair = jax.vmap(lambda o, a: encoders.pair(o[-WIDTH:], a))(obs, action)
        return jnp.concatenate([obs, pair], axis=-1), action

    return see


class Beside(eqx.Module):
    """A network that sees a normalised linear layer of the plain inputs, beside their embeddings.

    The inputs are [s, embeddings, a]; `after` is the size of a, and `before` that of s.
    """

    first: Linear
    rest: Any
    before: int = eqx.field(static=True)
    after: int = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        obs, embeddings, action = jnp.split(x, [self.before, x.shape[0] - self.after])
        return self.rest(jnp.concatenate([by_mean_size(self.first(jnp.concatenate([obs, action]))), embeddings]))


def critic_input(spec: EnvSpec, hidden: tuple[int, ...], make: Make, key: Key) -> Beside:
    return _beside(spec.obs_dim, spec.action_dim, 2, hidden, make, key)


def actor_input(spec: EnvSpec, hidden: tuple[int, ...], make: Make, key: Key) -> Beside:
    return _beside(spec.obs_dim, 0, 1, hidden, make, key)


def _beside(before: int, after: int, embeddings: int, hidden: tuple[int, ...], make: Make, key: Key) -> Beside:
    """The first hidden layer is that of the plain inputs, the others are those of the rest."""
    first_key, rest_key = jax.random.split(key)
    first = Linear(before + after, hidden[0], first_key)
    return Beside(first, make(hidden[0] + embeddings * WIDTH, hidden[1:], rest_key), before, after)
