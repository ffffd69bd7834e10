"""Networks whose weight rows and features are unit vectors, after SimbaV2 (Lee et al., 2025, arXiv 2502.15280).

Features are divided by their norm after every layer but the last two, so that a layer's output does not depend on the
size of its weights. Rows of weights therefore live on spheres: `on_spheres` keeps them there under any optimiser or
sampler. The gains, the biases and the last layer are ordinary parameters.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.nn.networks import Linear, orthogonal
from lsac.types import Array, Key

SHIFT = 3.0
"""A constant input beside the others, so that the direction of the input also tells its size."""
EXPANSION = 4
"""A block's hidden layer is this many times as wide as its features."""


def unit(x: Array) -> Array:
    """x / ‖x‖ along the last axis; the norm is computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.sum(wide**2, axis=-1, keepdims=True) + 1e-12)).astype(x.dtype)


class UnitLinear(eqx.Module):
    """y = W x without bias; the rows of W are unit vectors, orthogonal at first where there are few enough."""

    weight: Array

    def __init__(self, size_in: int, size_out: int, key: Key):
        self.weight = unit(orthogonal(key, (size_out, size_in)))

    def __call__(self, x: Array) -> Array:
        return jnp.inner(x, self.weight.astype(x.dtype))


class Gain(eqx.Module):
    """Multiplies each feature by a learned number that starts at `first`.

    It is stored in units of first / size: steps of an optimiser, which are about equal for all parameters, then change
    it by the share step / size.
    """

    stored: Array
    first: float = eqx.field(static=True)
    size: float = eqx.field(static=True)

    def __init__(self, width: int, first: float, size: float):
        self.stored = jnp.full((width,), size, jnp.float32)
        self.first, self.size = first, size

    def __call__(self, x: Array) -> Array:
        return x * (self.stored * (self.first / self.size)).astype(x.dtype)


class Block(eqx.Module):
    """h ← unit(h + α (unit(W₂ relu(g W₁ h)) − h)): moves the features a learned part of the way to new ones."""

    into: UnitLinear
    gain: Gain
    out: UnitLinear
    share: Gain

    def __init__(self, width: int, blocks: int, key: Key):
        first, second = jax.random.split(key)
        inner = EXPANSION * width
        self.into, self.out = UnitLinear(width, inner, first), UnitLinear(inner, width, second)
        self.gain = Gain(inner, (2.0 / inner) ** 0.5, (2.0 / inner) ** 0.5)
        self.share = Gain(width, 1.0 / (blocks + 1.0), width**-0.5)

    def __call__(self, h: Array) -> Array:
        new = unit(self.out(jax.nn.relu(self.gain(self.into(h)))))
        return unit(h + self.share(new - h))


class SphereNet(eqx.Module):
    """x → h₀ = unit(g W₀ unit([x, 3])), then blocks, then a linear layer of the features g W₃ h.

    Parameters, input and output are float32; between the first product and the last, numbers have `compute_dtype`.
    """

    embed: UnitLinear
    embed_gain: Gain
    blocks: tuple[Block, ...]
    head: UnitLinear
    head_gain: Gain
    last: Linear
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, size_in: int, width: int, blocks: int, size_out: int, key: Key, compute_dtype: str = "float32"):
        keys = jax.random.split(key, blocks + 3)
        self.embed = UnitLinear(size_in + 1, width, keys[0])
        self.embed_gain = Gain(width, (2.0 / width) ** 0.5, (2.0 / width) ** 0.5)
        self.blocks = tuple(Block(width, blocks, key) for key in keys[3:])
        self.head, self.head_gain = UnitLinear(width, width, keys[1]), Gain(width, 1.0, 1.0)
        self.last = Linear(width, size_out, keys[2])
        self.compute_dtype = compute_dtype

    def __call__(self, x: Array) -> Array:
        x = unit(jnp.append(x, SHIFT))
        h = unit(self.embed_gain(self.embed(x).astype(self.compute_dtype)))
        for block in self.blocks:
            h = block(h)
        return self.last.to_float32(self.head_gain(self.head(h)))


def _is_unit(x: Any) -> bool:
    return isinstance(x, UnitLinear)


def retracted(params: Any, updates: Any) -> Any:
    """Updates after which rows of unit vectors are unit vectors again: θ ← unit(θ + P u), with P u = u − (u·θ) θ.

    Only the part of a step that is tangent to the sphere moves a row. As the steps go to 0, Langevin dynamics with such
    steps has the law exp(−β L) relative to the uniform measure on the spheres. Other parameters move as they are told.
    """

    def move(layer: Any, update: Any) -> Any:
        if not _is_unit(layer):
            return update
        weight, step = layer.weight, update.weight
        tangent = step - jnp.sum(step * weight, axis=-1, keepdims=True) * weight
        return eqx.tree_at(lambda x: x.weight, update, unit(weight + tangent) - weight)

    return jax.tree.map(move, params, updates, is_leaf=_is_unit)


def unbounded(params: Any) -> list[Array]:
    """The arrays of parameters that are not rows of unit vectors."""
    layers = jax.tree.leaves(params, is_leaf=_is_unit)
    return [x for x in layers if not _is_unit(x)]


def on_spheres(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """An optimiser or sampler whose steps keep unit vectors on their spheres."""
    inner = optax.with_extra_args_support(inner)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        updates, state = inner.update(grads, state, params, **extra)
        return retracted(params, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)
