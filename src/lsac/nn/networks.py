"""Networks. Every field of a module is an array or is declared static, so that plain `jax.jit`, `vmap`, `grad` and
`scan` work on it."""

import copy
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

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
    "gelu": jax.checkpoint(jax.nn.gelu),  # its slope is computed again, which costs less than to store and read it
    "elu": jax.nn.elu,
    "tanh": jnp.tanh,
    "mish": mish,
}

Activation: TypeAlias = Annotated[str, OneOf(tuple(ACTIVATIONS))]
"""The type of an option that names an activation."""


ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16"]
"""The type of an option that chooses the dtype of wide layers; parameters are always float32."""


def compute_dtype(option: ComputeDtype) -> str:
    """The dtype that an option means on this machine: auto is bfloat16 on a GPU, where it is fast, else float32."""
    if option != "auto":
        return option
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


class Linear(eqx.Module):
    """y = W x + b in the dtype of x, with weights and bias initialised from U(−1/√in, 1/√in).

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
        return jnp.inner(x, self.weight.astype(x.dtype)) + self.bias.astype(x.dtype)

    def to_float32(self, x: Array) -> Array:
        """The same with a float32 result that is not rounded to the dtype of x."""
        return jnp.inner(x, self.weight.astype(x.dtype), preferred_element_type=jnp.float32) + self.bias


class MLP(eqx.Module):
    """A multilayer perceptron. Parameters, input and output are float32; between the first product and the last,
    numbers have `compute_dtype`. The input is not rounded: a small difference of two states can matter."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, sizes: Sequence[int], activation: str, key: Key, compute_dtype: str = "float32"):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(n, m, k) for n, m, k in zip(sizes, sizes[1:], keys, strict=False))
        self.activation, self.compute_dtype = activation, compute_dtype

    def __call__(self, x: Array) -> Array:
        activate, first, last = ACTIVATIONS[self.activation], self.layers[0], self.layers[-1]
        if len(self.layers) == 1:
            return last(x)
        x = activate(first(x).astype(self.compute_dtype))
        for layer in self.layers[1:-1]:
            x = activate(layer(x))
        return last.to_float32(x)


def in_float32(network: Module) -> Module:
    """A network whose multilayer perceptrons compute in float32, as acting does."""
    tree: Any = network

    def exact(node: Any) -> Any:
        if not isinstance(node, MLP):
            return node
        changed = copy.copy(node)
        object.__setattr__(changed, "compute_dtype", "float32")  # modules cannot be changed otherwise
        return changed

    return jax.tree.map(exact, tree, is_leaf=lambda node: isinstance(node, MLP))


class Critic(eqx.Module):
    """Q(s, a): one number per state-action pair."""

    mlp: MLP

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], activation: str, key: Key):
        self.mlp = MLP((obs_dim + action_dim, *hidden, 1), activation, key)

    def __call__(self, obs: Array, action: Array) -> Array:
        return self.mlp(jnp.concatenate([obs, action]))[0]


class GaussianCritic(eqx.Module):
    """The return Z(s, a) ~ N(Q, σ²): its mean and its standard deviation."""

    mlp: Any
    """a network of [obs, action] with two outputs"""
    scale: float = eqx.field(static=True, default=1.0)
    """Q is this many times the first output"""
    shift: float = eqx.field(static=True, default=0.0)
    """σ is softplus of the second output plus this"""

    def __call__(self, obs: Array, action: Array) -> tuple[Array, Array]:
        mean, raw = self.mlp(jnp.concatenate([obs, action]))
        return self.scale * mean, jax.nn.softplus(raw + self.shift)


def gaussian_critic(obs_dim: int, action_dim: int, hidden: Sequence[int], activation: str, key: Key) -> GaussianCritic:
    return GaussianCritic(MLP((obs_dim + action_dim, *hidden, 2), activation, key))


class GaussianActor(eqx.Module):
    """State → mean and log std of a Gaussian, whose samples tanh maps to actions."""

    mlp: Any
    """a network of obs with two outputs per dimension of the action"""
    log_std_min: float = eqx.field(static=True)
    log_std_max: float = eqx.field(static=True)

    def __call__(self, obs: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.mlp(obs), 2)
        return mean, jnp.clip(log_std, self.log_std_min, self.log_std_max)


def gaussian_actor(
    obs_dim: int,
    action_dim: int,
    hidden: Sequence[int],
    activation: str,
    key: Key,
    log_std_bounds: tuple[float, float],
) -> GaussianActor:
    return GaussianActor(MLP((obs_dim, *hidden, 2 * action_dim), activation, key), *log_std_bounds)


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


def orthogonal(key: Key, shape: tuple[int, int], scale: float = 1.0) -> Array:
    """A random matrix whose rows or columns, whichever are fewer, are orthogonal and have the norm `scale`.

    The same as `jax.nn.initializers.orthogonal`, without LAPACK: on a CPU with few cores, a program with several of its
    calls may wait for ever, because the calls wait for threads that they hold themselves (JAX 0.10).
    """
    drawn = jax.random.normal(key, (max(shape), min(shape))).T

    def add(found: Array, i: Array) -> tuple[Array, None]:
        row = drawn[i]
        for _ in range(2):  # once leaves too much rounding error
            row = row - (found @ row) @ found
        return found.at[i].set(row / jnp.linalg.norm(row)), None

    found, _ = jax.lax.scan(add, jnp.zeros_like(drawn), jnp.arange(len(drawn)))
    return scale * (found if shape[0] < shape[1] else found.T)


def redrawn(mlp: MLP, draw: Callable[..., Array], key: Key, last_scale: float = 1.0) -> MLP:
    """Reinitialises a network: zero biases, and weights that `draw` draws as [in, out], scaled in the last layer."""
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
