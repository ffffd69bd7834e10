"""Convolutional networks of images [..., H, W, channels], with any number of leading axes: call them on whole batches.

A convolution is computed in one of two ways, whichever is fast on the device, with the same result up to rounding.

On a CPU, as one matrix product of the image's patches (`by_products`): inside a loop, as all updates are, the
compiler's own convolution took ten times as long. Elsewhere, by that convolution, one seed after the other (`in_turn`):
the programs of several seeds are made by `vmap`, and a convolution whose weights have a seed axis would become a
grouped one, which is slow, while the images of one seed alone keep a GPU busy.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.errors import InputError
from lsac.nn.networks import orthogonal
from lsac.types import Array, Key

LAYOUT = ("NHWC", "HWIO", "NHWC")
RELU_GAIN = 2.0**0.5


class Geometry(NamedTuple):
    """A square convolution: between the numbers of an image, `dilation` − 1 zeros are inserted, and `pads` rows and
    columns of zeros are added before and after them."""

    stride: int
    pads: tuple[int, int] = (0, 0)
    dilation: int = 1


def convolution(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """The convolution of images [B, H, W, in] with weights [height, width, in, out]."""
    device = jax.config.values["jax_default_device"]
    on_cpu = (device.platform if isinstance(device, jax.Device) else jax.default_backend()) == "cpu"
    return by_products(geometry) if on_cpu else in_turn(geometry)


def by_products(geometry: Geometry) -> Callable[[Array, Array], Array]:
    stride, (before, after), dilation = geometry
    if dilation > 1 and stride == 1:
        return spread_by_products(geometry)

    def convolve(x: Array, weight: Array) -> Array:
        side, none = (before, after, dilation - 1), (0, 0, 0)
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), (none, side, side, none))
        kernel, batch, channels = weight.shape[0], x.shape[0], x.shape[3]
        rows, columns = ((n - kernel) // stride for n in x.shape[1:3])  # of the result, less one

        def shifted(i: int, j: int) -> Array:
            stop = (batch, i + stride * rows + 1, j + stride * columns + 1, channels)
            return jax.lax.slice(x, (0, i, j, 0), stop, (1, stride, stride, 1))

        patches = [shifted(i, j) for i in range(kernel) for j in range(kernel)]
        return jnp.concatenate(patches, axis=-1) @ weight.reshape(-1, weight.shape[-1])

    return convolve


def spread_by_products(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """The same without products with the zeros between the numbers of an image: every number is multiplied by the whole
    kernel, and what overlaps is added."""
    _, (before, after), dilation = geometry

    def add(parts: Array, axis: int) -> Array:
        """[..., kernel, ...] → the sum of what every row of the kernel adds along an axis, which is left of its own."""
        kernel, count = parts.shape[3], dilation * (parts.shape[axis] - 1)
        size, zero = count + before + after - kernel + 2, jnp.zeros((), parts.dtype)
        rows = []
        for i, row in enumerate(jnp.split(parts, kernel, axis=3)):
            at = before - i
            around = (at, size - 1 - at - count, dilation - 1)
            pads = [around if n == axis else (0, 0, 0) for n in range(parts.ndim - 1)]
            rows.append(jax.lax.pad(jnp.squeeze(row, 3), zero, pads))
        total: Array = sum(rows[1:], rows[0])
        return total

    def convolve(x: Array, weight: Array) -> Array:
        height, width, size_in, size_out = weight.shape
        products = x @ jnp.transpose(weight, (2, 0, 1, 3)).reshape(size_in, -1)
        return add(add(products.reshape(*x.shape[:3], height, width, size_out), 1), 2)

    return convolve


@cache
def in_turn(geometry: Geometry) -> Callable[[Array, Array], Array]:
    def plain(x: Array, weight: Array) -> Array:
        strides, dilations = ((n, n) for n in (geometry.stride, geometry.dilation))
        pads = [geometry.pads] * 2
        return jax.lax.conv_general_dilated(x, weight, strides, pads, dilations, dimension_numbers=LAYOUT)

    forward = _in_turn(plain)
    backward = _in_turn(lambda x, weight, grads: jax.vjp(plain, x, weight)[1](grads))
    whole = jax.custom_vjp(lambda x, weight: forward(x, weight))
    whole.defvjp(lambda x, weight: (forward(x, weight), (x, weight)), lambda saved, grads: backward(*saved, grads))
    return whole


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of which `vmap` makes a loop; if only the images are mapped, it makes one larger batch of them.

    Mapping a network over a batch instead of calling it on the batch would compute its gradient image by image.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    def rule(size: int, is_mapped: Sequence[bool], *args: Array) -> tuple[Any, Any]:
        if list(is_mapped) == [True, False]:
            images, weight = args
            found = mapped(images.reshape(-1, *images.shape[2:]), weight)
            found = found.reshape(size, -1, *found.shape[1:])
        else:
            own = [x for x, own in zip(args, is_mapped, strict=True) if own]

            def one(own: Sequence[Array]) -> Any:
                given = iter(own)
                return mapped(*(next(given) if own else x for x, own in zip(args, is_mapped, strict=True)))

            found = jax.lax.map(one, own)
        return found, jax.tree.map(lambda _: True, found)

    mapped.def_vmap(rule)
    return mapped


def _on_batch(convolve: Callable[[Array, Array], Array], x: Array, weight: Array) -> Array:
    """Convolves images with any number of leading axes."""
    made = convolve(x.reshape(-1, *x.shape[-3:]), weight.astype(x.dtype))
    return made.reshape(*x.shape[:-3], *made.shape[1:])


class Conv(eqx.Module):
    """A convolution without padding, in the dtype of its input."""

    weight: Array
    """[height, width, channels in, channels out]"""
    bias: Array
    stride: int = eqx.field(static=True)

    def __call__(self, x: Array) -> Array:
        made = _on_batch(convolution(Geometry(self.stride)), x, self.weight)
        return made + _like(self.bias, made)


class ConvTranspose(eqx.Module):
    """A transposed convolution, in the dtype of its input: a side n becomes (n − 1) stride + kernel + `extra`."""

    weight: Array
    """[height, width, channels in, channels out]"""
    bias: Array
    stride: int = eqx.field(static=True)
    extra: int = eqx.field(static=True, default=0)
    """rows and columns added below and to the right"""

    def __call__(self, x: Array) -> Array:
        edge = self.weight.shape[0] - 1
        made = _on_batch(convolution(Geometry(1, (edge, edge + self.extra), self.stride)), x, self.weight)
        return made + _like(self.bias, made)


def _like(bias: Array, x: Array) -> Array:
    """A bias with the dtype and the number of axes of x."""
    return bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def orthogonal_conv(channels: tuple[int, int], kernel: int, stride: int, key: Key, gain: float = 1.0) -> Conv:
    """A convolution from `channels[0]` to `channels[1]` channels, with orthogonal weights and zero biases."""
    size_in, size_out = channels
    weight = orthogonal(key, (kernel * kernel * size_in, size_out), gain)
    return Conv(weight.reshape(kernel, kernel, size_in, size_out), jnp.zeros(size_out), stride)


class ImageEncoder(eqx.Module):
    """Convolutions of 3×3 with ReLU, the first with stride 2: images in [−½, ½] become vectors of features."""

    convs: tuple[Conv, ...]

    def __init__(self, channels: int, key: Key, filters: int = 32, layers: int = 4):
        sizes = [channels, *[filters] * layers]
        self.convs = tuple(
            orthogonal_conv(pair, 3, 1 if i else 2, k, RELU_GAIN)
            for i, (pair, k) in enumerate(zip(itertools.pairwise(sizes), jax.random.split(key, layers), strict=True))
        )

    def __call__(self, image: Array) -> Array:
        for conv in self.convs:
            image = jax.nn.relu(conv(image))
        return image.reshape(*image.shape[:-3], math.prod(image.shape[-3:]))


def encoded_size(image_shape: Sequence[int], filters: int = 32, layers: int = 4) -> int:
    """The number of features of an `ImageEncoder` for images of this shape."""
    height, width = ((side - 3) // 2 + 1 - 2 * (layers - 1) for side in image_shape[:2])
    if min(height, width) < 1:
        least = 2 * (2 * (layers - 1)) + 3
        size = f"{image_shape[0]} × {image_shape[1]}"
        raise InputError(f"images of {size} pixels are too small: the encoder needs at least {least} × {least}")
    return height * width * filters


def centred(image: Array) -> Array:
    """An image of numbers from 0 to 255, in [−½, ½]."""
    return image.astype(jnp.float32) / 255.0 - 0.5
