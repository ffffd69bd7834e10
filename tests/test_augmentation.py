"""Random shifts, against NumPy: padding an image with its edge and cutting out every possible part of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.nn.augmentation import random_shift

KEY = jax.random.key(0)
shifts = jax.jit(jax.vmap(random_shift, in_axes=(None, 0, None)), static_argnums=2)


def parts(image, pad):
    """All images [(2 pad + 1)², H, W, C] that padding by repeated edges and cutting can give."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    places = range(2 * pad + 1)
    return np.stack([padded[i : i + height, j : j + width] for i in places for j in places])


@pytest.mark.parametrize(("shape", "pad"), [((20, 20, 3), 4), ((7, 11, 2), 3), ((11, 7, 1), 1), ((2, 3, 1), 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_every_shifted_image_is_cut_from_the_padded_one(shape, pad, dtype):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    found = np.asarray(shifts(jnp.asarray(image), jax.random.split(KEY, 200), pad))
    assert found.dtype == dtype
    assert found.shape == (200, *shape)
    possible = {part.tobytes() for part in parts(image, pad)}
    assert {one.tobytes() for one in found} <= possible


def test_all_shifts_are_equally_likely():
    # 9 shifts, 9000 draws: each 1000 times, with a standard deviation of 30
    image = np.arange(25, dtype=np.uint8).reshape(5, 5, 1)
    found = np.asarray(shifts(jnp.asarray(image), jax.random.split(KEY, 9000), 1))
    counts = [np.sum(np.all(found == part, axis=(1, 2, 3))) for part in parts(image, 1)]
    assert np.sum(counts) == 9000
    assert np.abs(np.array(counts) - 1000).max() < 130


def test_the_nine_shifts_of_four_pixels():
    image = jnp.asarray([[1, 2], [3, 4]], jnp.uint8)[:, :, None]
    found = {tuple(one.ravel().tolist()) for one in np.asarray(shifts(image, jax.random.split(KEY, 200), 1))}
    up = {(1, 1, 1, 1), (1, 2, 1, 2), (2, 2, 2, 2)}
    level = {(1, 1, 3, 3), (1, 2, 3, 4), (2, 2, 4, 4)}
    down = {(3, 3, 3, 3), (3, 4, 3, 4), (4, 4, 4, 4)}
    assert found == up | level | down


def test_rows_and_columns_move_independently():
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 1)).astype(np.uint8)
    found = np.asarray(shifts(jnp.asarray(image), jax.random.split(KEY, 2000), 2))
    assert len(np.unique(found.reshape(2000, -1), axis=0)) == 25


def test_all_channels_move_together():
    plane = np.random.default_rng(0).integers(0, 256, (9, 9, 1)).astype(np.uint8)
    found = np.asarray(shifts(jnp.asarray(np.repeat(plane, 3, axis=2)), jax.random.split(KEY, 50), 4))
    assert np.all(found == found[..., :1])


def test_without_padding_nothing_moves():
    image = np.random.default_rng(0).integers(0, 256, (6, 5, 2)).astype(np.uint8)
    found = np.asarray(shifts(jnp.asarray(image), jax.random.split(KEY, 20), 0))
    np.testing.assert_array_equal(found, np.broadcast_to(image, found.shape))
