"""The autoencoder of SAC+AE: an encoder turns images into codes, which actor and critics see, and a decoder turns codes
into images. Here are these two, their loss, and how layers are initialised. DrQ has the encoder alone.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.nn.convolutions import RELU_GAIN, Conv, ConvTranspose, ImageEncoder, encoded_size
from lsac.nn.networks import Linear, orthogonal
from lsac.types import Array, Key, Pixels

BITS = 5
"""The decoder is trained on images of this many bits per channel."""

Module = TypeVar("Module")
Layer = TypeVar("Layer", Linear, Conv, ConvTranspose)


# networks


class Seen(NamedTuple):
    """An observation after the convolutions, or a batch of them."""

    features: Array  # [..., F]
    vector: Array  # [..., O]


class Convolutions(eqx.Module):
    """What actor and critics share: for one observation or a batch."""

    layers: ImageEncoder
    compute_dtype: str = eqx.field(static=True)

    def __call__(self, obs: Pixels) -> Seen:
        image = obs.image.astype(jnp.float32) / 255.0
        return Seen(self.layers(image.astype(self.compute_dtype)), obs.vector)


class Projection(eqx.Module):
    """Features → code: tanh(LayerNorm(W x + b))."""

    linear: Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, features: int, size: int, key: Key):
        self.linear, self.norm = Linear(features, size, key), eqx.nn.LayerNorm(size)

    def __call__(self, features: Array) -> Array:
        return jnp.tanh(self.norm(self.linear.to_float32(features)))


def state_of(projection: Projection, seen: Seen) -> Array:
    """[code + O] the code of an image and the rest of the observation."""
    return jnp.concatenate([projection(seen.features), seen.vector])


class Encoder(eqx.Module):
    convs: Convolutions
    projection: Projection

    def __call__(self, obs: Pixels) -> Array:
        """[B, code + O], for a batch."""
        return jax.vmap(partial(state_of, self.projection))(self.convs(obs))


class Decoder(eqx.Module):
    """Codes → images, the encoder in reverse: three transposed convolutions with stride 1, and one with stride 2."""

    linear: Linear
    layers: tuple[ConvTranspose, ...]
    image_shape: tuple[int, ...] = eqx.field(static=True)
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, code: int, image_shape: Sequence[int], filters: int, key: Key, compute_dtype: str = "float32"):
        *sides, channels = image_shape
        extra = int(any(side % 2 == 0 for side in sides))  # stride 2 lost the last row of an even side
        inner, last = jnp.zeros((3, 3, filters, filters)), jnp.zeros((3, 3, filters, channels))
        self.linear = Linear(code, encoded_size(image_shape, filters), key)
        self.layers = (
            *(ConvTranspose(inner, jnp.zeros(filters), 1) for _ in range(3)),
            ConvTranspose(last, jnp.zeros(channels), 2, extra),
        )
        self.image_shape, self.compute_dtype = tuple(image_shape), compute_dtype

    def __call__(self, codes: Array) -> Array:
        """[B, H, W, channels] the images of codes [B, code]."""
        height, width = self.image_shape[:2]
        x = jax.nn.relu(jax.vmap(self.linear)(codes.astype(self.compute_dtype)))
        x = x.reshape(len(x), (height - 3) // 2 - 5, (width - 3) // 2 - 5, -1)
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)[:, :height, :width].astype(jnp.float32)


def drawn(layer: Layer, key: Key) -> Layer:
    """The layer with biases of 0 and an orthogonal matrix as weights. That of a convolution is the centre of its
    kernel, with gain √2, and the rest of the kernel is 0 (delta-orthogonal: Xiao et al., 2018, arXiv 1806.05393)."""
    if isinstance(layer, Linear):
        size_out, size_in = layer.weight.shape
        weight = orthogonal(key, (size_out, size_in))
    else:
        height, width, size_in, size_out = layer.weight.shape
        centre = orthogonal(key, (size_in, size_out), RELU_GAIN)
        weight = jnp.zeros_like(layer.weight).at[height // 2, width // 2].set(centre)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros_like(layer.bias)))


def initialised(module: Module, key: Key) -> Module:
    """The module with every layer `drawn`."""

    def is_layer(x: object) -> bool:
        return isinstance(x, (Linear, Conv, ConvTranspose))

    parts, structure = jax.tree.flatten(module, is_leaf=is_layer)
    keys = jax.random.split(key, len(parts))
    return jax.tree.unflatten(structure, [drawn(x, k) if is_layer(x) else x for x, k in zip(parts, keys, strict=True)])


# the loss


def quantised(image: Array, key: Key) -> Array:
    """Images of uint8 with 5 bits per channel, made continuous by uniform noise of one level, in [−½, ½)."""
    levels = 2**BITS
    level = jnp.floor(image.astype(jnp.float32) / (256 // levels))
    return (level + jax.random.uniform(key, image.shape)) / levels - 0.5


class Autoencoder(NamedTuple):
    encoder: Encoder
    decoder: Decoder


def autoencoder_loss(
    autoencoder: Autoencoder, obs: Pixels, key: Key, code_penalty: float, decoder_penalty: float
) -> tuple[Array, Array]:
    """E[(image − decoded)² + λ_z ½ |z|²] + λ_θ ½ |θ|², z the code, θ the decoder. Also returns the first term.

    The gradient of the last term, λ_θ θ, passes through Adam, as PyTorch's `weight_decay` does.
    """
    encoder, decoder = autoencoder
    codes = jax.vmap(encoder.projection)(encoder.convs(obs).features)
    error = jnp.mean((decoder(codes) - quantised(obs.image, key)) ** 2)
    of_code = 0.5 * jnp.mean(jnp.sum(codes**2, axis=1))
    of_decoder = 0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(decoder)), jnp.zeros(()))
    return error + code_penalty * of_code + decoder_penalty * of_decoder, error
