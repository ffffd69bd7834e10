"""Frames of images in the host's memory: the device gets those that the updates of a chunk read, ahead of them.

Which frames an update reads is decided by its key and by the rest of the replay, not by what was learned. The same
functions of the replay therefore tell the slots in advance, on the host's processor, while the device still learns from
the chunk before.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lsac.replay import ring as rb
from lsac.types import Agent, Array, Key

Ahead = tuple[Any, ...]
"""The frames of a chunk's updates [S, updates, …], an array for every read that an update makes of the replay."""
COPYING = 8
"""Most threads that copy frames; more do not fill the memory's bandwidth."""


def supplied(replay: rb.Replay, frames: Sequence[Array]) -> rb.Replay:
    """The replay of one update whose reads return these frames, in their order."""
    left = list(frames)

    def read(slots: Array) -> Array:
        found = left.pop(0)
        assert found.shape[: slots.ndim] == slots.shape, "an update reads other frames than were sent ahead"
        return found

    return rb.reading(replay, read)


class HostFrames:
    """The frames of all seeds [S, capacity, H, W, channels] in host memory, and the slots that updates will read."""

    def __init__(self, agent: Agent, layout: rb.Layout, seeds: int, capacity: int, stride: int, updates: int):
        self._agent, self._layout, self._stride, self._updates = agent, layout, stride, updates
        column = dict(layout.columns)[rb.FRAME]
        self.ring = np.zeros((seeds, capacity, *column.shape), column.dtype)
        self._cpu = jax.local_devices(backend="cpu")[0]
        axes = rb.seed_axes(layout, stride)
        self._add = jax.jit(jax.vmap(rb.add, (axes, 0), axes), donate_argnums=0)
        self._slots = jax.jit(jax.vmap(_slots_of(agent, updates), (axes, 0, None)))
        self._threads = ThreadPoolExecutor(min(COPYING, os.cpu_count() or 1), "frames")
        with jax.default_device(self._cpu):
            self._replay = rb.make(layout, capacity, stride, seeds, frames=False)  # all but the frames

    def shapes(self) -> Ahead:
        """Shapes and dtypes of what `ahead` returns."""
        seeds = self.ring.shape[0]
        each = _shapes_ahead(self._agent, self._layout, self._updates)
        return tuple(jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype) for x in each)

    def add(self, chunk: rb.Stored, added: int) -> None:
        """Stores a chunk [S, n, …] after `added` transitions of each seed."""
        count = chunk[rb.PACKED].shape[1]
        first = added % self.ring.shape[1]
        self.ring[:, first : first + count] = chunk[rb.FRAME]
        self._replay = self._add(self._replay, jax.device_put(rb.without_frames(chunk), self._cpu))

    def ahead(self, keys: Key, first: int) -> Ahead:
        """The frames that the next updates read, of which `first` is the count of the first one."""
        slots = self._slots(self._replay, jax.device_put(keys, self._cpu), np.int32(first))
        return tuple(self._copied(np.asarray(x)) for x in slots)

    def _copied(self, slots: np.ndarray) -> np.ndarray:
        # a new array for every chunk: JAX may still be sending the last one, or use its memory as it is
        found = np.empty((*slots.shape, *self.ring.shape[2:]), self.ring.dtype)

        def copy(seed: int, update: int) -> None:
            np.take(self.ring[seed], slots[seed, update], axis=0, out=found[seed, update], mode="clip")

        work = [self._threads.submit(copy, *place) for place in np.ndindex(*slots.shape[:2])]
        for each in work:
            each.result()
        return found

    def restore(self, stored: rb.Stored, total: int) -> None:
        """Restores the arrays [S, capacity, …] of a replay after `total` transitions were added to it."""
        self.ring = stored[rb.FRAME]
        others = jax.device_put(rb.without_frames(stored), self._cpu)
        with jax.default_device(self._cpu):
            self._replay = rb.holding(self._layout, others, total, self._stride)


def nbytes_ahead(agent: Agent, layout: rb.Layout, updates: int) -> int:
    """The size of the frames that one seed's updates of a chunk read."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in _shapes_ahead(agent, layout, updates))


def _shapes_ahead(agent: Agent, layout: rb.Layout, updates: int) -> Ahead:
    frame = dict(layout.columns)[rb.FRAME]
    replay, key = jax.eval_shape(lambda: (rb.make(layout, 1, frames=False), jax.random.key(0)))
    slots = jax.eval_shape(_slots_of(agent, updates), replay, key, jax.ShapeDtypeStruct((), jnp.int32))
    return tuple(jax.ShapeDtypeStruct((*x.shape, *frame.shape), frame.dtype) for x in slots)


def _slots_of(agent: Agent, updates: int) -> Callable[..., tuple[Array, ...]]:
    """The function of one seed that returns the slots [updates, …] of every read of frames."""
    shapes = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))

    def slots_of(replay: rb.Replay, key: Key, first: Array) -> tuple[Array, ...]:
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)  # the slots do not depend on it
        counts = first + jnp.arange(updates, dtype=jnp.int32)
        return jax.vmap(lambda count: reads(agent, state, replay, jax.random.fold_in(key, count)))(counts)

    return slots_of


def reads(agent: Agent, state: Any, replay: rb.Replay, key: Key) -> tuple[Array, ...]:
    """The slots of every read of frames that an update makes."""
    found: list[Array] = []
    frame = dict(replay.layout.columns)[rb.FRAME]

    def read(slots: Array) -> Array:
        found.append(slots)
        return jnp.zeros((*slots.shape, *frame.shape), frame.dtype)

    agent.update(state, rb.reading(replay, read), key)
    return tuple(found)
