"""Images from a ring in which every frame is stored once: an image is a stack of successive frames of one episode.

At the start of an episode, its first frame takes the place of those before it.
"""

from typing import NamedTuple

import jax.numpy as jnp

from lsac.types import Array


class Ring(NamedTuple):
    first: Array
    """[N] whether the frame in a slot is the first of an episode"""
    stride: int
    """slots between two successive frames of one simulator"""


def before(ring: Ring, slot: Array) -> Array:
    """The slots of the previous steps."""
    return (slot - ring.stride) % ring.first.shape[0]


def _following(ring: Ring, slot: Array) -> Array:
    return (slot + ring.stride) % ring.first.shape[0]


def is_last(ring: Ring, slot: Array) -> Array:
    """Whether the next step in the ring belongs to another episode."""
    return ring.first[_following(ring, slot)]


def after(ring: Ring, slot: Array) -> Array:
    """The slots of the next frames; at the end of an episode, whose last frame is not stored, the same slots."""
    return jnp.where(is_last(ring, slot), slot, _following(ring, slot))


def stacked(ring: Ring, slot: Array, count: int) -> Array:
    """[..., count] the slots of the frames of an image, oldest first."""
    found = [slot]
    for _ in range(count - 1):
        found.append(jnp.where(ring.first[found[-1]], found[-1], before(ring, found[-1])))
    return jnp.stack(found[::-1], axis=-1)


def joined(frames: Array) -> Array:
    """Frames [..., count, H, W, channels] as images [..., H, W, count · channels]."""
    moved = jnp.moveaxis(frames, -4, -2)
    return moved.reshape(*moved.shape[:-2], -1)
