"""Networks. Every field of a module is an array or is declared static, so that plain `jax.jit`, `vmap`, `grad` and
`scan` work on it."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.nn.distributions import tanh_normal_sample
from lsac.options import OneOf
from lsac.types import Array, Key

Module = TypeVar("Module")

WIDE_LOG_STD = (-20.0, 2.0)
"""Bounds of the log std of an action before tanh, as in published SAC code."""
NARROW_LOG_STD = (-20.0, 0.5)
"""The same in the published code of DSAC-T and LSAC."""


def mish(x: Array) -> Array:
    """x tanh(log(1 + eˣ)), with one exponential: tanh(log(1 + e)) = (e² + 2e)/(e² + 2e + 2)."""
    e = jnp.exp(jnp.minimum(x, 20.0))  # for larger x the ratio is 1
    rise = e * (e + 2.0)
    return x * (rise / (rise + 2.0))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "mish": mish,
}

Activation: TypeAlias = Annotated[str, OneOf(tuple(ACTIVATIONS))]
"""The type of an option that names an activation."""


class Linear(eqx.Module):
    """y = W x + b, with weights and bias initialised from U(−1/√in, 1/√in).

    W is stored as [out, in], so that the product that computes its gradient over a batch needs no transpose.
    """

    weight: Array
    bias: Array

    def __init__(self, size_in: int, size_out: int, key: Key):
        weight_key, bias_key = jax.random.split(key)
        bound = size_in**-0.5
        self.weight = jax.random.uniform(weight_key, (size_out, size_in), minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(bias_key, (size_out,), minval=-bound, maxval=bound)

    def __call__(self, x: Array) -> Array:
        return jnp.inner(x, self.weight) + self.bias


class MLP(eqx.Module):
    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], activation: str, key: Key):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(n, m, k) for n, m, k in zip(sizes, sizes[1:], keys, strict=False))
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        activate = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = activate(layer(x))
        return self.layers[-1](x)


class Critic(eqx.Module):
    """Q(s, a): one number per state-action pair."""

    mlp: MLP

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], activation: str, key: Key):
        self.mlp = MLP((obs_dim + action_dim, *hidden, 1), activation, key)

    def __call__(self, obs: Array, action: Array) -> Array:
        return self.mlp(jnp.concatenate([obs, action]))[0]


class GaussianCritic(eqx.Module):
    """The return Z(s, a) ~ N(Q, σ²): its mean and its standard deviation."""

    mlp: MLP

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], activation: str, key: Key):
        self.mlp = MLP((obs_dim + action_dim, *hidden, 2), activation, key)

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        mean, raw = self.mlp(jnp.concatenate([obs, action]))
        return mean, jax.nn.softplus(raw)


class GaussianActor(eqx.Module):
    """State → mean and log std of a Gaussian, whose samples tanh maps to actions."""

    mlp: MLP
    log_std_min: float = eqx.field(static=True)
    log_std_max: float = eqx.field(static=True)

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        activation: str,
        key: Key,
        log_std_bounds: tuple[float, float],
    ):
        self.mlp = MLP((obs_dim, *hidden, 2 * action_dim), activation, key)
        self.log_std_min, self.log_std_max = log_std_bounds

    def __call__(self, obs: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.mlp(obs), 2)
        return mean, jnp.clip(log_std, self.log_std_min, self.log_std_max)


def ensemble(make: Callable[[Key], Module], size: int, key: Key) -> Module:
    """`size` independently initialised modules, stacked along a new first axis."""
    return jax.vmap(make)(jax.random.split(key, size))


def q_values(critics: Callable, obs: Array, action: Array) -> Array:
    """[K, B] values of K stacked critics on a batch."""
    return jax.vmap(lambda critic: jax.vmap(critic)(obs, action))(critics)


def min_q(critics: Callable, obs: Array, action: Array) -> Array:
    """[B] min_k Q_k(s, a)."""
    return jnp.min(q_values(critics, obs, action), axis=0)


def sample_actions(actor: GaussianActor, obs: Array, key: Key) -> tuple[Array, Array]:
    """One action per observation of a batch, [B, A], and the log densities, [B]."""
    mean, log_std = jax.vmap(actor)(obs)
    return tanh_normal_sample(mean, log_std, key)


def redrawn(mlp: MLP, draw: Callable[..., Array], key: Key, last_scale: float = 1.0) -> MLP:
    """Reinitialises a network: zero biases, and weights from one of `jax.nn.initializers`, scaled in the last layer."""
    keys = jax.random.split(key, len(mlp.layers))
    scales = [1.0] * (len(mlp.layers) - 1) + [last_scale]
    layers = tuple(
        eqx.tree_at(
            lambda x: (x.weight, x.bias),
            layer,
            (scale * draw(k, layer.weight.shape[::-1]).T, jnp.zeros_like(layer.bias)),
        )
        for layer, k, scale in zip(mlp.layers, keys, scales, strict=True)
    )
    return eqx.tree_at(lambda x: x.layers, mlp, layers)


def select(now: Array, new: Module, old: Module) -> Module:
    """`new` if `now` is true, else `old`: for updates that are applied only at some steps."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(now, a, b), new, old)


def polyak(targets: Module, online: Module, tau: float) -> Module:
    return jax.tree.map(lambda old, new: old + tau * (new - old), targets, online)
