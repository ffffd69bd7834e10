"""The replay buffer: a ring of transitions on the device, one per seed.

A transition has named columns, each with its own shape and dtype. All float32 vectors and scalars are packed into one
array, so that sampling a batch is one gather and copying a chunk to the device one transfer. Every other column (the
flag `first`, and frames) has its own array. Agents read with `sample`, `indices` and `take`, `n_step`, `sequences` and
`everything`; no other module uses the arrays of a `Replay`.

Every frame is stored once, with the step whose action was chosen from it. Images are put together when transitions are
read (see frames.py): the frame after a step is the frame of the next one. The frame after the last step of an episode
is therefore not stored. It is not needed after a termination. In place of a step that ends by truncation the one before
it is sampled; only where that is none, in an episode of one step, its own image stands for the next.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lsac.nn.normalisation import Moments, normalised
from lsac.replay import frames
from lsac.types import Array, EnvSpec, Key, Pixels, Transition

T = TypeVar("T")
Stored: TypeAlias = dict[str, Any]
"""Transitions as they are sent and stored: NumPy or JAX arrays by name, with the same leading axes."""
PACKED = "vectors"
"""The array that holds all float32 vectors and scalars, [..., width]."""
FIRST = "first"
"""Name of the flag of transitions whose `obs` is the first of an episode."""
FRAME = "frame"
"""Name of the newest frame of the image in `obs`."""
OBS_CLIP = 10.0
"""Normalised observations are clipped to ± this."""


class Column(NamedTuple):
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def packed(self) -> bool:
        return self.dtype == "float32" and len(self.shape) <= 1

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class Layout(NamedTuple):
    """The columns of a transition, in order."""

    columns: tuple[tuple[str, Column], ...]
    frame_stack: int = 1
    """frames that an image is made of"""

    @property
    def has_frames(self) -> bool:
        return FRAME in dict(self.columns)

    @property
    def width(self) -> int:
        return sum(column.size for _, column in self.columns if column.packed)

    def fields(self) -> dict[str, slice]:
        """The slice of each packed column in `vectors`."""
        slices, stop = {}, 0
        for name, column in self.columns:
            if column.packed:
                start, stop = stop, stop + column.size
                slices[name] = slice(start, stop)
        return slices

    def arrays(self) -> dict[str, Column]:
        """Shape and dtype of one transition in each stored array."""
        apart = {name: column for name, column in self.columns if not column.packed}
        return {PACKED: Column((self.width,))} | apart

    def empty(self, *leading: int) -> Stored:
        """NumPy arrays of zeros for transitions with these leading axes."""
        return {name: np.zeros((*leading, *c.shape), c.dtype) for name, c in self.arrays().items()}

    def views(self, stored: Stored) -> dict[str, Any]:
        """All columns of stored transitions; those of NumPy arrays are writable views."""
        columns, slices = dict(self.columns), self.fields()
        return {name: x for name, x in stored.items() if name != PACKED} | {
            name: stored[PACKED][..., where] if columns[name].shape else stored[PACKED][..., where.start]
            for name, where in slices.items()
        }

    def transitions(self, stored: Stored) -> Transition:
        """The transitions with these arrays, without images."""
        views = self.views(stored)
        return Transition(**{name: views[name] for name in Transition._fields})

    def unpack(self, vectors: Array) -> Transition:
        """[..., width] → fields."""
        return self.transitions({PACKED: vectors})

    def pack(self, transition: Transition) -> Array:
        reward, discount = transition.reward[..., None], transition.discount[..., None]
        return jnp.concatenate([transition.obs, transition.action, reward, discount, transition.next_obs], axis=-1)


def layout_of(spec: EnvSpec) -> Layout:
    obs, scalar = Column(spec.obs_shape), Column(())
    columns = (
        ("obs", obs),
        ("action", Column((spec.action_dim,))),
        ("reward", scalar),
        ("discount", scalar),
        ("next_obs", obs),
        (FIRST, Column((), "bool")),
    )
    if spec.frame is None:
        return Layout(columns)
    return Layout((*columns, (FRAME, Column(spec.frame, "uint8"))), spec.frame_stack)


ReadFrames: TypeAlias = Callable[[Array], Array]
"""slots [...] → frames [..., H, W, channels]"""


class Replay(eqx.Module):
    """A ring of transitions from `stride` simulators in turn: slots i and i + stride hold successive steps of one.

    The first `size` slots are filled; `head` is the slot of the next transition.
    """

    _stored: Stored
    size: Array
    head: Array
    layout: Layout = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)
    overwritten: Array | None = None
    """with frames: whether any were overwritten, so that the images of the oldest steps are no longer complete"""
    moments: Moments | None = None
    """if set, observations are normalised with these moments whenever transitions are read"""
    reward_scale: Array | None = None
    """if set, rewards are divided by it whenever transitions are read"""
    frames_in: ReadFrames | None = eqx.field(static=True, default=None)
    """if set, the replay has no frames of its own and reads those in some slots with this function"""

    @property
    def capacity(self) -> int:
        return int(self._stored[PACKED].shape[-2])


def make(layout: Layout, capacity: int, stride: int = 1, seeds: int | None = None, frames: bool = True) -> Replay:
    """An empty replay; with `seeds`, a stack of replays that share size and head. Without `frames`, it has no array for
    them: see `reading`."""
    leading = (capacity,) if seeds is None else (seeds, capacity)
    arrays = layout.arrays() if frames else without_frames(layout.arrays())
    stored = {name: jnp.zeros((*leading, *c.shape), c.dtype) for name, c in arrays.items()}
    overwritten = jnp.zeros((), bool) if layout.has_frames else None
    return Replay(stored, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), layout, stride, overwritten)


def without_frames(stored: dict[str, T]) -> dict[str, T]:
    """The arrays, or columns, that are not frames."""
    return {name: x for name, x in stored.items() if name != FRAME}


def reading(replay: Replay, frames_in: ReadFrames) -> Replay:
    """A replay without frames of its own, which reads them with a function."""
    return dataclasses.replace(replay, frames_in=frames_in)


def holding(layout: Layout, stored: Stored, total: int, stride: int = 1) -> Replay:
    """A replay whose arrays are `stored`, after `total` transitions were added."""
    capacity = stored[PACKED].shape[-2]
    size, head = jnp.asarray(min(total, capacity), jnp.int32), jnp.asarray(total % capacity, jnp.int32)
    overwritten = jnp.asarray(total > capacity) if layout.has_frames else None
    return Replay(jax.tree.map(jnp.asarray, stored), size, head, layout, stride, overwritten)


def placed(layout: Layout, newest: Stored, total: int, capacity: int) -> Stored:
    """The arrays [S, capacity, …] of seeds after `total` transitions, of which the `newest` [S, n, …] are given."""
    seeds, given = newest[PACKED].shape[:2]
    count = min(given, capacity)
    ring = layout.empty(seeds, capacity)
    if count:
        for name, values in newest.items():
            ring[name][:, np.arange(total - count, total) % capacity] = values[:, -count:]
    return ring


def in_order(ring: Stored, total: int) -> Stored:
    """The inverse of `placed`: the newest transitions [S, n, …] of arrays [S, capacity, …], oldest first."""
    capacity = ring[PACKED].shape[1]
    if total <= capacity:
        return {name: values[:, :total] for name, values in ring.items()}
    return {name: np.roll(values, -(total % capacity), axis=1) for name, values in ring.items()}


def stored_of_seeds(replay: Replay) -> Stored:
    """The arrays [S, capacity, …] of a replay of several seeds, on the host."""
    return jax.tree.map(np.asarray, replay._stored)


def seed_axes(layout: Layout, stride: int) -> Any:
    """`vmap` axes of a stack of replays: all seeds share one head, so that a write is a slice and not a scatter."""
    axes: dict[str, Any] = {"_stored": 0, "size": None, "head": None, "overwritten": None}
    return Replay(**axes, layout=layout, stride=stride)


def nbytes(layout: Layout, capacity: int, frames: bool = True) -> int:
    """The size of a replay, or of all of it but its frames."""
    arrays = layout.arrays() if frames else without_frames(layout.arrays())
    return sum(column.size * np.dtype(column.dtype).itemsize for column in arrays.values()) * capacity


def add(replay: Replay, chunk: Stored) -> Replay:
    """Writes T transitions at the head. T is constant and divides the capacity, so a write never wraps around."""
    capacity, count = replay.capacity, chunk[PACKED].shape[0]
    if capacity % count:
        raise ValueError(f"a chunk of {count} transitions does not divide a capacity of {capacity}")
    write = jax.lax.dynamic_update_slice_in_dim
    return dataclasses.replace(
        replay,
        _stored={name: write(old, chunk[name], replay.head, axis=0) for name, old in replay._stored.items()},
        size=jnp.minimum(replay.size + count, capacity),
        head=(replay.head + count) % capacity,
        overwritten=None if replay.overwritten is None else replay.overwritten | (replay.size + count > capacity),
    )


def indices(replay: Replay, key: Key, shape: tuple[int, ...]) -> Array:
    """Slots drawn uniformly, with replacement, from the filled part.

    With frames, only from slots whose images are complete. In place of a step that ends its episode by truncation, the
    step before it is drawn, if there is one.
    """
    if not replay.layout.has_frames:
        return jax.random.randint(key, shape, 0, replay.size)
    ring, first_age = _ring(replay), _incomplete(replay, replay.layout.frame_stack)
    age = jax.random.randint(key, shape, first_age, jnp.maximum(replay.size - replay.stride, first_age + 1))
    index = (replay.head - replay.size + age) % replay.capacity
    truncated = frames.is_last(ring, index) & (_column(replay, "discount", index) > 0)
    return jnp.where(truncated & ~ring.first[index], frames.before(ring, index), index)


def _incomplete(replay: Replay, steps: int) -> Array:
    """The number of oldest transitions whose images lack frames: none, or `steps` of each simulator once frames were
    overwritten."""
    some = jnp.asarray(steps * replay.stride, jnp.int32)
    return jnp.zeros_like(some) if replay.overwritten is None else jnp.where(replay.overwritten, some, 0)


def take(replay: Replay, index: Array) -> Transition:
    """The transitions in these slots."""
    return seen(replay, _with_images(replay, _read(replay, index), index, index))


def _read(replay: Replay, index: Array) -> Transition:
    """The transitions in these slots as they are stored, without images."""
    return replay.layout.unpack(_apart(replay._stored[PACKED][index]))


def _apart(read: Array) -> Array:
    """Keeps the compiler from joining a read with what follows. Otherwise the last bits of an update depend on the
    capacity, and a run that is made longer differs from one that was longer from the start."""
    return jax.lax.optimization_barrier(read)


def _with_images(replay: Replay, transition: Transition, index: Array, last: Array) -> Transition:
    """Adds, if there are frames, the images of the slots `index`, and those after the slots `last`."""
    if not replay.layout.has_frames:
        return transition
    ring, count = _ring(replay), replay.layout.frame_stack
    slots = (frames.stacked(ring, slot, count) for slot in (index, frames.after(ring, last)))
    image, next_image = (frames.joined(_frames(replay, slot)) for slot in slots)
    obs, next_obs = Pixels(image, transition.obs), Pixels(next_image, transition.next_obs)
    return transition._replace(obs=obs, next_obs=next_obs)


def _frames(replay: Replay, slots: Array) -> Array:
    return _apart(replay._stored[FRAME][slots] if replay.frames_in is None else replay.frames_in(slots))


def _ring(replay: Replay) -> frames.Ring:
    return frames.Ring(replay._stored[FIRST], replay.stride)


def _column(replay: Replay, name: str, index: Array) -> Array:
    """A column of scalars in these slots."""
    return replay._stored[PACKED][index, replay.layout.fields()[name].start]


def sample(replay: Replay, key: Key, batch: int) -> Transition:
    """A batch drawn uniformly, with replacement, from the filled part."""
    return take(replay, indices(replay, key, (batch,)))


def n_step(replay: Replay, index: Array, count: int) -> Transition:
    """The transitions over the `count` steps [B] that begin in these slots: `reward` is the discounted sum of their
    rewards, `discount` the product of their discounts, and `next_obs` the observation after the last.

    They stop at a termination, before a truncated step whose next image is not stored, else after it, and at the newest
    transition.
    """
    ring, steps = _ring(replay), jnp.arange(count).reshape(-1, *[1] * index.ndim)
    slots = (index[None] + replay.stride * steps) % replay.capacity
    each = _read(replay, slots)
    age = ((index - replay.head + replay.size) % replay.capacity)[None] + replay.stride * steps
    complete = age < replay.size
    if replay.layout.has_frames:
        complete &= (each.discount == 0) | (age < replay.size - replay.stride) & ~frames.is_last(ring, slots)
    follows = jnp.concatenate([jnp.ones_like(complete[:1]), (complete & ~ring.first[slots])[1:]])
    begun = jnp.concatenate([jnp.ones_like(complete[:1]), (each.discount > 0)[:-1]])
    taken = jnp.cumprod(follows & begun, axis=0).astype(bool)
    decay = jnp.cumprod(jnp.where(taken, each.discount, 1.0), axis=0)
    before = jnp.concatenate([jnp.ones_like(decay[:1]), decay[:-1]])
    reward = jnp.sum(jnp.where(taken, before * each.reward, 0.0), axis=0)
    last = (index + replay.stride * (jnp.sum(taken, axis=0) - 1)) % replay.capacity
    begin, end = (_read(replay, slot) for slot in (index, last))
    joined = begin._replace(reward=reward, discount=decay[-1], next_obs=end.next_obs)
    return seen(replay, _with_images(replay, joined, index, last))


def everything(replay: Replay) -> tuple[Transition, Array]:
    """The transitions in all slots, filled or not, without images, and the flag `first` of each."""
    return seen(replay, replay.layout.transitions(replay._stored)), replay._stored[FIRST]


def filled(replay: Replay) -> Array:
    """[N] whether a slot holds a transition."""
    return jnp.arange(replay.capacity) < replay.size


class Sequences(NamedTuple):
    steps: Transition
    """[B, T, …] successive steps of one simulator each; with images, `next_obs` is only their vectors"""
    first: Array
    """[B, T] whether a step is the first of an episode"""


def sequences(replay: Replay, key: Key, batch: int, length: int) -> Sequences:
    """Windows of `length` successive steps, drawn uniformly; needs at least stride · length transitions.

    A window never joins the newest transitions to the oldest. It may span several episodes, whose starts `first` marks.
    """
    span, oldest = replay.stride * (length - 1), _incomplete(replay, replay.layout.frame_stack - 1)
    start = jax.random.randint(key, (batch,), oldest, jnp.maximum(replay.size - span, oldest + 1))
    age = start[:, None] + replay.stride * jnp.arange(length)[None]  # 0 is the oldest transition
    index = (replay.head - replay.size + age) % replay.capacity
    steps = _read(replay, index)
    if replay.layout.has_frames:
        slots = frames.stacked(_ring(replay), index, replay.layout.frame_stack)
        steps = steps._replace(obs=Pixels(frames.joined(_frames(replay, slots)), steps.obs))
    return Sequences(seen(replay, steps), replay._stored[FIRST][index])


def raw(replay: Replay) -> Replay:
    """The same replay without normalised observations and scaled rewards."""
    return dataclasses.replace(replay, moments=None, reward_scale=None)


def seen(replay: Replay, transition: Transition) -> Transition:
    """A transition with its observations normalised and its reward scaled, as far as the replay asks for it."""
    if replay.reward_scale is not None:
        transition = transition._replace(reward=transition.reward / replay.reward_scale)
    moments = replay.moments
    if moments is None:
        return transition
    obs, next_obs = (normalised(moments, x, OBS_CLIP) for x in (transition.obs, transition.next_obs))
    return transition._replace(obs=obs, next_obs=next_obs)
