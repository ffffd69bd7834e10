"""Residual networks with batch normalisation and unit rows, after FlashSAC and XQC.

A network is a function of one input. In training, its layers are normalised by the mean and variance of the batch:
`vmap` over the batch has the name `AXIS`. Elsewhere it uses running statistics.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.nn.networks import Linear
from lsac.nn.spheres import EXPANSION, UnitLinear
from lsac.types import Array, Key

AXIS = "batch"
RATE = 0.01
"""Weight of a batch in the running statistics."""
EPSILON = 1e-5


class BatchNorm(eqx.Module):
    """g (x − mean) / std + b, with the statistics of the batch in training, and running ones elsewhere.

    A network that is vmapped over its batch cannot return the statistics of the batch. They leave it with the gradient:
    that by the running statistics is defined as their distance from those of the batch, whatever the loss, and
    `with_new_statistics` turns it into their update.
    """

    gain: Array
    bias: Array
    mean: Array
    variance: Array

    def __init__(self, width: int):
        self.gain, self.bias = jnp.ones(width), jnp.zeros(width)
        self.mean, self.variance = jnp.zeros(width), jnp.ones(width)

    def __call__(self, x: Array, train: bool) -> Array:
        wide, mean, variance = x.astype(jnp.float32), self.mean, self.variance
        if train:
            mean = jax.lax.pmean(wide, AXIS)
            variance = jax.lax.pmean((wide - mean) ** 2, AXIS)
            share = 1.0 / jax.lax.psum(jnp.ones(()), AXIS)
            distances = share * (self.mean - mean), share * (self.variance - variance)
            wide = _noted(wide, self.mean, self.variance, jax.lax.stop_gradient(distances))
        y = (wide - mean) * jax.lax.rsqrt(variance + EPSILON) * self.gain + self.bias
        return y.astype(x.dtype)


@jax.custom_vjp
def _noted(x: Array, mean: Array, variance: Array, distances: tuple[Array, Array]) -> Array:
    """x; its gradient by the running statistics is their distance from those of the batch."""
    return x


def _forward(x: Array, mean: Array, variance: Array, distances: tuple[Array, Array]) -> tuple[Array, Any]:
    return x, distances


def _backward(distances: tuple[Array, Array], gradient: Array) -> tuple[Array, Array, Array, Any]:
    # Every sample of the batch contributes its share, so the result needs the axis of the batch, which `gradient` has.
    by_mean, by_variance = (jnp.where(jnp.isnan(gradient), x, x) for x in distances)
    return gradient, by_mean, by_variance, jax.tree.map(jnp.zeros_like, distances)


_noted.defvjp(_forward, _backward)


class Block(eqx.Module):
    """h ← h + relu(BN(W₂ relu(BN(W₁ h))))"""

    into: UnitLinear
    into_norm: BatchNorm
    out: UnitLinear
    out_norm: BatchNorm

    def __init__(self, width: int, key: Key):
        first, second = jax.random.split(key)
        self.into, self.out = UnitLinear(width, EXPANSION * width, first), UnitLinear(EXPANSION * width, width, second)
        self.into_norm, self.out_norm = BatchNorm(EXPANSION * width), BatchNorm(width)

    def __call__(self, h: Array, train: bool) -> Array:
        inner = jax.nn.relu(self.into_norm(self.into(h), train))
        return h + jax.nn.relu(self.out_norm(self.out(inner), train))


class BatchNormNet(eqx.Module):
    """x → BN(x), a linear layer, blocks, division by the root mean square, and a linear layer."""

    input_norm: BatchNorm
    embed: UnitLinear
    blocks: tuple[Block, ...]
    last: Linear
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, size_in: int, width: int, blocks: int, size_out: int, key: Key, compute_dtype: str = "float32"):
        keys = jax.random.split(key, blocks + 2)
        self.input_norm, self.embed = BatchNorm(size_in), UnitLinear(size_in, width, keys[0])
        self.blocks = tuple(Block(width, key) for key in keys[2:])
        self.last = Linear(width, size_out, keys[1])
        self.compute_dtype = compute_dtype

    def __call__(self, x: Array, train: bool = False) -> Array:
        h = self.embed(self.input_norm(x, train)).astype(self.compute_dtype)
        for block in self.blocks:
            h = block(h, train)
        wide = h.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2) + EPSILON)
        return self.last.to_float32(wide.astype(h.dtype))


class InTraining(eqx.Module):
    """A network that is normalised by its batch."""

    network: BatchNormNet

    def __call__(self, x: Array) -> Array:
        return self.network(x, train=True)


def _is_norm(x: Any) -> bool:
    return isinstance(x, BatchNorm)


def _with_statistics(layer: Any, other: Any, factor: float) -> Any:
    """A layer with the statistics of another, times a factor."""
    if not _is_norm(layer):
        return layer
    return eqx.tree_at(lambda x: (x.mean, x.variance), layer, (factor * other.mean, factor * other.variance))


def without_statistics(grads: Any) -> Any:
    """Gradients, or parameters, in which those of running statistics are 0."""
    return jax.tree.map(lambda x: _with_statistics(x, x, 0.0), grads, is_leaf=_is_norm)


def with_new_statistics(updates: Any, grads: Any) -> Any:
    """Updates in which running statistics move towards those of the batch, and not as the optimiser says."""
    return jax.tree.map(lambda x, g: _with_statistics(x, g, -RATE), updates, grads, is_leaf=_is_norm)


def trained(tree: Any) -> list[Array]:
    """The arrays of a tree of parameters, or of their moments, without running statistics."""
    layers = jax.tree.leaves(tree, is_leaf=_is_norm)
    return [leaf for x in layers for leaf in ((x.gain, x.bias) if _is_norm(x) else (x,))]
