"""Convolutions against loops in NumPy."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import f32

from lsac.errors import InputError
from lsac.nn.convolutions import (
    LAYOUT,
    Conv,
    ConvTranspose,
    Geometry,
    ImageEncoder,
    by_products,
    centred,
    convolution,
    encoded_size,
    in_turn,
    orthogonal_conv,
)

KEY = jax.random.key(0)


def looped(x, weight, bias, stride):
    """A convolution without padding, pixel by pixel."""
    kernel = weight.shape[0]
    height, width = ((side - kernel) // stride + 1 for side in x.shape[:2])
    made = np.zeros((height, width, weight.shape[3]))
    for i, j in itertools.product(range(height), range(width)):
        patch = x[i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        made[i, j] = np.einsum("uvc,uvcd->d", patch, weight) + bias
    return made


def looped_transpose(x, weight, bias, stride, extra):
    """Every pixel adds its weights, mirrored, to the part of the result that begins at `stride` times its place."""
    kernel = weight.shape[0]
    height, width = ((side - 1) * stride + kernel + extra for side in x.shape[:2])
    made = np.zeros((height, width, weight.shape[3])) + bias
    for i, j in itertools.product(range(x.shape[0]), range(x.shape[1])):
        part = np.einsum("c,uvcd->uvd", x[i, j], weight[::-1, ::-1])
        made[i * stride : i * stride + kernel, j * stride : j * stride + kernel] += part
    return made


def drawn(*shapes):
    rng = np.random.default_rng(sum(shapes[0]))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "channels"),
    [((6, 6, 1), 3, 1, 1), ((7, 5, 2), 3, 2, 4), ((8, 8, 3), 3, 2, 2), ((9, 10, 2), 4, 3, 3), ((3, 3, 2), 3, 1, 5)],
)
def test_a_convolution_is_that_of_a_loop(shape, kernel, stride, channels):
    x, weight, bias = drawn(shape, (kernel, kernel, shape[2], channels), (channels,))
    made = Conv(f32(*weight), f32(*bias), stride)(jnp.asarray(x))
    np.testing.assert_allclose(made, looped(x, weight, bias, stride), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "extra", "channels"),
    [
        *[((1, 1, 2), 3, 1, 0, 2), ((4, 3, 2), 3, 1, 0, 3), ((3, 5, 1), 3, 2, 1, 2)],
        *[((2, 2, 3), 5, 2, 0, 1), ((3, 3, 2), 6, 2, 0, 2), ((2, 3, 2), 2, 3, 2, 2)],
    ],
)
def test_a_transposed_convolution_is_that_of_a_loop(shape, kernel, stride, extra, channels):
    x, weight, bias = drawn(shape, (kernel, kernel, shape[2], channels), (channels,))
    made = ConvTranspose(f32(*weight), f32(*bias), stride, extra)(jnp.asarray(x))
    assert made.shape[:2] == tuple((side - 1) * stride + kernel + extra for side in shape[:2])
    np.testing.assert_allclose(made, looped_transpose(x, weight, bias, stride, extra), rtol=1e-4, atol=1e-5)


def test_a_transposed_convolution_is_the_transpose_of_a_convolution():
    # ⟨conv x, y⟩ = ⟨x, transposed y⟩, with the weights mirrored and the channels exchanged
    x, weight, y = drawn((7, 9, 2), (3, 3, 2, 4), (3, 4, 4))
    one = Conv(f32(*weight), jnp.zeros(4), 2)(jnp.asarray(x))
    other = ConvTranspose(f32(*weight[::-1, ::-1].transpose(0, 1, 3, 2)), jnp.zeros(2), 2)(jnp.asarray(y))
    np.testing.assert_allclose(np.sum(np.asarray(one) * y), np.sum(x * np.asarray(other)), rtol=1e-4)


@pytest.mark.parametrize("kind", [Conv, ConvTranspose])
def test_a_convolution_computes_in_the_dtype_of_its_input(kind):
    x, weight, bias = drawn((5, 5, 2), (3, 3, 2, 4), (4,))
    module = kind(f32(*weight), f32(*bias), 2)
    rough = module(jnp.asarray(x, jnp.bfloat16))
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_allclose(rough.astype(jnp.float32), module(jnp.asarray(x)), atol=0.15)


@pytest.mark.parametrize(("size_in", "size_out", "kernel"), [(9, 32, 3), (32, 32, 3), (1, 32, 3), (2, 3, 4)])
def test_weights_are_orthogonal_with_their_gain_and_biases_are_zero(size_in, size_out, kernel):
    conv = orthogonal_conv((size_in, size_out), kernel, 2, KEY, gain=1.5)
    assert conv.weight.shape == (kernel, kernel, size_in, size_out)
    assert conv.stride == 2
    rows = np.asarray(conv.weight).reshape(-1, size_out)
    gram = rows.T @ rows if len(rows) >= size_out else rows @ rows.T
    np.testing.assert_allclose(gram, 2.25 * np.eye(len(gram)), atol=1e-5)
    np.testing.assert_array_equal(conv.bias, np.zeros(size_out))


def test_an_encoder_is_four_convolutions_with_relu():
    encoder = ImageEncoder(2, KEY, filters=3)
    image = drawn((16, 18, 2))[0]
    made = image.astype(np.float64)
    for i, conv in enumerate(encoder.convs):
        made = np.maximum(looped(made, np.asarray(conv.weight), np.asarray(conv.bias), 1 if i else 2), 0.0)
    features = encoder(jnp.asarray(image))
    assert features.shape == (encoded_size((16, 18, 2), filters=3),) == (1 * 2 * 3,)
    np.testing.assert_allclose(features, made.reshape(-1), rtol=1e-4, atol=1e-6)


def test_weights_of_an_encoder_have_the_gain_of_relu():
    encoder = ImageEncoder(9, KEY, filters=8)
    assert [conv.weight.shape for conv in encoder.convs] == [(3, 3, 9, 8), *[(3, 3, 8, 8)] * 3]
    drawn_weights = [np.asarray(conv.weight).reshape(-1, 8) for conv in encoder.convs]
    for rows in drawn_weights:
        np.testing.assert_allclose(rows.T @ rows, 2.0 * np.eye(8), atol=1e-5)
    assert np.abs(drawn_weights[1] - drawn_weights[2]).max() > 0.1


@pytest.mark.parametrize(
    ("shape", "filters", "layers"),
    [
        *[((84, 84, 9), 32, 4), ((64, 64, 3), 32, 4), ((20, 20, 1), 4, 4), ((15, 15, 2), 8, 4)],
        *[((16, 23, 1), 2, 4), ((33, 20, 3), 2, 2), ((3, 4, 1), 5, 1)],
    ],
)
def test_encoded_size_is_the_real_size(shape, filters, layers):
    made = jax.eval_shape(lambda x: ImageEncoder(shape[2], KEY, filters, layers)(x), jnp.zeros(shape))
    assert made.shape == (encoded_size(shape, filters, layers),)


def test_the_published_encoder_has_39200_features():
    assert encoded_size((84, 84, 9)) == 32 * 35 * 35 == 39_200


@pytest.mark.parametrize("shape", [(14, 84, 3), (84, 14, 3), (1, 1, 1)])
def test_an_image_without_room_for_four_convolutions_is_refused(shape):
    with pytest.raises(
        InputError,
        match=f"^images of {shape[0]} × {shape[1]} pixels are too small: the encoder needs at least 15 × 15$",
    ):
        encoded_size(shape)


def test_a_centred_image_lies_between_minus_and_plus_one_half():
    image = jnp.asarray([[[0, 51, 102, 255]]], jnp.uint8)
    assert centred(image).dtype == jnp.float32
    np.testing.assert_allclose(centred(image), [[[-0.5, -0.3, -0.1, 0.5]]], atol=1e-6)


# batches and seeds

GEOMETRIES = [Geometry(1), Geometry(2), Geometry(1, (2, 3), 2), Geometry(2, (1, 0))]


def plain(geometry):
    strides, dilations = ((n, n) for n in (geometry.stride, geometry.dilation))

    def convolve(x, weight):
        pads = [geometry.pads] * 2
        return jax.lax.conv_general_dilated(x, weight, strides, pads, dilations, dimension_numbers=LAYOUT)

    return convolve


def of_seeds(convolve, weights, images):
    """The loss of every seed's convolution of its images, and the gradients for weights and images."""

    def loss(weight, x):
        return jnp.sum(jnp.sin(convolve(x, weight)))

    return jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))(weights, images)


def seeds(count=3):
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.random.normal(keys[0], (count, 3, 3, 2, 4)), jax.random.normal(keys[1], (count, 5, 8, 7, 2))


@pytest.mark.parametrize("way", [by_products, in_turn])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_all_seeds_have_the_convolutions_and_gradients_of_the_compilers_own(way, geometry):
    weights, images = seeds()
    found = of_seeds(way(geometry), weights, images)
    expected = of_seeds(plain(geometry), weights, images)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


@pytest.mark.parametrize(("way", "groups"), [(by_products, set()), (in_turn, {"1"}), (plain, {"1", "3"})])
def test_no_seed_makes_a_grouped_convolution(way, groups):
    program = jax.jit(lambda *args: of_seeds(way(Geometry(2)), *args)).lower(*seeds()).as_text()
    assert set(re.findall(r"(?:feature|batch)_group_count = (\d+)", program)) == groups


def test_images_that_are_mapped_alone_become_one_batch():
    weights, images = seeds()
    convolve = in_turn(Geometry(1))
    program = jax.jit(jax.vmap(lambda x: convolve(x, weights[0]))).lower(images)
    assert "while" not in program.as_text()
    found = jax.vmap(lambda x: convolve(x, weights[0]))(images)
    expected = jnp.stack([plain(Geometry(1))(x, weights[0]) for x in images])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_way_is_chosen_by_the_device(monkeypatch):
    assert convolution(Geometry(1)).__qualname__.startswith("by_products")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert convolution(Geometry(1)) is in_turn(Geometry(1))


def test_a_network_takes_any_number_of_leading_axes():
    encoder = ImageEncoder(2, jax.random.key(0), filters=4)
    images = jax.random.normal(jax.random.key(1), (2, 3, 20, 18, 2))
    found = encoder(images)
    assert found.shape == (2, 3, encoded_size((20, 18), 4))
    np.testing.assert_allclose(found[1, 2], encoder(images[1, 2]), rtol=1e-5, atol=1e-6)
