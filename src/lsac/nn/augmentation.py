"""Random changes of an image that do not change which action is right."""

import jax
import jax.numpy as jnp

from lsac.types import Array, Key


def random_shift(image: Array, key: Key, pad: int = 4) -> Array:
    """An image [H, W, C], moved by up to `pad` pixels in each direction; what enters repeats the pixels of the edge.

    The same as padding every side with `pad` repetitions of its edge and cutting out an image of the same size, whose
    corner is uniform among the (2 pad + 1)² possible ones.
    """
    height, width = image.shape[:2]
    down, right = jax.random.randint(key, (2,), 0, 2 * pad + 1) - pad
    rows, columns = (
        jnp.clip(jnp.arange(height) + down, 0, height - 1),
        jnp.clip(jnp.arange(width) + right, 0, width - 1),
    )
    return image[rows][:, columns]
