"""The replay: a ring of transitions on the device, one per seed.

A transition is one float32 row, `obs | action | reward | discount | next_obs`, so that a batch is one gather,
a chunk from the simulators one transfer, and a checkpoint one array.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.types import Array, EnvSpec, Key, Transition


class Layout(NamedTuple):
    """Where each field of a transition stands in a row."""

    obs_dim: int
    action_dim: int

    @property
    def width(self) -> int:
        return 2 * self.obs_dim + self.action_dim + 2

    def fields(self) -> dict[str, slice]:
        sizes = (self.obs_dim, self.action_dim, 1, 1, self.obs_dim)
        stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return {
            name: slice(stop - size, stop) for name, size, stop in zip(Transition._fields, sizes, stops, strict=True)
        }

    def unpack(self, rows: Array) -> Transition:
        """[…, width] → fields; reward and discount lose their last axis."""
        parts = {name: rows[..., where] for name, where in self.fields().items()}
        return Transition(**parts)._replace(reward=parts["reward"][..., 0], discount=parts["discount"][..., 0])

    def pack(self, transition: Transition) -> Array:
        reward, discount = transition.reward[..., None], transition.discount[..., None]
        return jnp.concatenate([transition.obs, transition.action, reward, discount, transition.next_obs], axis=-1)


class Replay(eqx.Module):
    """`rows[:size]` are filled; `head` is where the next row goes.

    Rows come from `stride` simulators in turn: what follows row i in its own simulator is row i + stride.
    """

    rows: Array
    size: Array
    head: Array
    layout: Layout = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)


def make(spec: EnvSpec, capacity: int, stride: int = 1) -> Replay:
    layout = Layout(spec.obs_dim, spec.action_dim)
    zero = jnp.zeros((), jnp.int32)
    return Replay(jnp.zeros((capacity, layout.width), jnp.float32), zero, zero, layout, stride)


def nbytes(spec: EnvSpec, capacity: int, seeds: int) -> int:
    return Layout(spec.obs_dim, spec.action_dim).width * 4 * capacity * seeds


def add(replay: Replay, rows: Array) -> Replay:
    """Writes [T, width] rows at the head. T divides the capacity and is always the same: a write never wraps."""
    capacity, count = replay.rows.shape[0], rows.shape[0]
    if capacity % count:
        raise ValueError(f"a chunk of {count} rows does not divide a capacity of {capacity}")
    start = (replay.head, jnp.zeros((), jnp.int32))
    return Replay(
        jax.lax.dynamic_update_slice(replay.rows, rows, start),
        jnp.minimum(replay.size + count, capacity),
        (replay.head + count) % capacity,
        replay.layout,
        replay.stride,
    )


def sample(replay: Replay, key: Key, batch: int) -> Transition:
    """A batch drawn uniformly, with replacement, from the filled part."""
    index = jax.random.randint(key, (batch,), 0, replay.size)
    return replay.layout.unpack(replay.rows[index])
