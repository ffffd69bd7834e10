"""The device side of a run: every seed's agent and replay, advanced by one compiled program per chunk."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.collect import snapshot
from lsac.replay import ring as rb
from lsac.train.devices import Devices, unroll
from lsac.train.host_frames import Ahead, HostFrames, supplied
from lsac.train.refresh import Refresher, completed
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Values


class Critics(NamedTuple):
    """The part of the agents' states that values are computed from; for all seeds, with a leading axis S."""

    critics: Any
    alpha: Array | None
    """weight of the entropy bonus, if values are soft"""


class Learned(NamedTuple):
    """The result of a chunk's updates; for all seeds, every field has a leading axis S."""

    state: Any
    replay: rb.Replay
    policy: Array
    """[P] snapshot of the policy"""
    finite: Array
    """whether the policy and all metrics are finite"""
    metrics: Metrics
    """means over the chunk's updates"""


def learn_chunk(agent: Agent, updates: int) -> Callable[..., Learned]:
    """The program of one seed and one chunk: stores the transitions, then scans the agent's updates.

    `compiled_chunk` runs it for all seeds: jit(vmap(scan(update))).
    """
    store = _store(agent)

    def learn(state: Any, replay: rb.Replay, chunk: rb.Stored, key: Key, first: Array, ahead: Ahead) -> Learned:
        state, replay = store(state, replay, chunk)

        names: list[str] = []

        def update(state: Any, inputs: tuple[Array, Ahead]) -> tuple[Any, Array]:
            count, frames = inputs
            read = supplied(replay, frames) if frames else replay
            state, metrics = agent.update(state, read, jax.random.fold_in(key, count))
            names[:] = metrics
            return state, jnp.stack(list(metrics.values()))  # one array: on a GPU, storing it is one kernel

        counts = first + jnp.arange(updates, dtype=jnp.int32)
        state, metrics = jax.lax.scan(update, state, (counts, ahead), unroll=unroll())
        means = dict(zip(names, jnp.mean(metrics, axis=0), strict=True))
        policy = snapshot.flatten(agent.policy(state))
        numbers = jnp.concatenate([policy, jnp.stack(list(means.values()))])
        return Learned(state, replay, policy, jnp.all(jnp.isfinite(numbers)), means)

    return learn


def compiled_chunk(agent: Agent, updates: int, axes: rb.Replay, devices: Devices) -> Any:
    """The program that training repeats: one chunk of all seeds, with donated buffers."""
    result: Any = Learned
    in_axes, out_axes = (0, axes, 0, 0, None, 0), result(0, axes, 0, 0, 0)
    return devices.over_seeds(learn_chunk(agent, updates), in_axes, out_axes, donate=(0, 1))


class Sizes(NamedTuple):
    """Sizes of a learner's arrays and programs."""

    capacity: int
    """transitions of one seed's replay"""
    chunk: int
    """transitions of one seed that are added at once"""
    updates: int
    """updates per chunk"""
    stride: int = 1
    """simulators per seed"""
    frames_on_host: bool = False
    """whether frames are kept in the host's memory"""


class Learner:
    """Holds the states and replays [S, …]. Calls return at once, before the device has finished."""

    def __init__(self, agent: Agent, spec: EnvSpec, seeds: list[int], sizes: Sizes):
        layout = rb.layout_of(spec)
        self._axes = axes = rb.seed_axes(layout, sizes.stride)
        self.devices = devices = Devices(len(seeds))
        self.updates = 0
        self.added = 0
        """transitions of each seed that were added to its replay so far"""
        self._sizes, self._observes = sizes, agent.observe is not Agent._field_defaults["observe"]
        self._learn = compiled_chunk(agent, sizes.updates, axes, devices)
        self._store = devices.over_seeds(_store(agent), (0, axes, 0), (0, axes), donate=(0, 1))
        self.refresher = Refresher(agent, layout, seeds, axes)
        self._critics: Any = None
        if agent.values is not None:
            self._critics = devices.over_seeds(_read_critics(agent.values))
        self._diagnostics = devices.over_seeds(agent.diagnostics) if agent.diagnostics else None
        self._snapshot = devices.over_seeds(lambda state: snapshot.flatten(agent.policy(state)))
        self._keys = devices.put(jnp.stack([streams.root(seed, streams.LEARN) for seed in seeds]))
        init_keys = jnp.stack([streams.root(seed, streams.INIT) for seed in seeds])
        self.state = devices.over_seeds(agent.init)(devices.put(init_keys))
        self._whole = jax.eval_shape(lambda: self.state)
        s, on_device = sizes, not sizes.frames_on_host
        self._frames = None if on_device else HostFrames(agent, layout, len(seeds), s.capacity, s.stride, s.updates)
        self.replay = devices.made(lambda: rb.make(layout, s.capacity, s.stride, len(seeds), on_device), axes)
        self.policies: Array = self._snapshot(self.state)
        self.finite: Array = jnp.ones(len(seeds), bool)

    def compile(self, refresh: bool) -> None:
        """Compiles, before there is any data, the program that training repeats and, with `refresh`, the refresh."""
        first, seeds = jax.ShapeDtypeStruct((), jnp.int32), len(self._keys)
        chunk = self._of_device(jax.eval_shape(lambda: self.replay.layout.empty(seeds, self._sizes.chunk)))
        ahead = self._frames.shapes() if self._frames else ()
        self._learn = self._learn.lower(self.state, self.replay, chunk, self._keys, first, ahead).compile()
        if refresh:
            self.refresher.compile(self.kept(), self.replay)

    def store(self, chunk: rb.Stored) -> None:
        """Adds transitions [S, chunk, …] without making updates."""
        if self._frames:
            self._frames.add(chunk, self.added)
        self.state, self.replay = self._store(self.state, self.replay, self.devices.put(self._of_device(chunk)))
        self.added += self._sizes.chunk
        if self._observes:
            self.policies = self._snapshot(self.state)

    def learn(self, chunk: rb.Stored) -> Metrics:
        """Adds transitions and makes a chunk's updates; returns the mean [S] of every metric, on the device."""
        ahead: Ahead = ()
        if self._frames:
            self._frames.add(chunk, self.added)
            ahead = self._frames.ahead(self._keys, self.updates)
        learned: Learned = self._learn(
            self.state,
            self.replay,
            self.devices.put(self._of_device(chunk)),
            self._keys,
            jnp.asarray(self.updates, jnp.int32),
            self.devices.put(ahead),
        )
        self.state, self.replay, self.policies, self.finite, metrics = learned
        self.finite.copy_to_host_async()
        self.policies.copy_to_host_async()  # queued before the next updates, so it does not wait for them
        self.updates += self._sizes.updates
        self.added += self._sizes.chunk
        return metrics

    def critics(self) -> Critics | None:
        """A copy of the current critics, for diagnostics that are computed after the episodes of an evaluation."""
        return self._critics(self.state) if self._critics else None

    def diagnostics(self) -> dict[str, np.ndarray]:
        """The agents' own diagnostics [S] of their present states, which may wait for the device."""
        return jax.device_get(self._diagnostics(self.state)) if self._diagnostics else {}

    def kept(self) -> Any:
        """The compact states, which a checkpoint stores: everything that cannot be generated again."""
        return self.refresher.compact(self.state)

    def like(self) -> Any:
        """Shapes and dtypes of the compact states."""
        return self.refresher.compact(self._whole)

    def transitions(self) -> rb.Stored:
        """The transitions [S, n, …] in the replay, oldest first, on the host."""
        stored = rb.stored_of_seeds(self.replay)
        return rb.in_order(stored | {rb.FRAME: self._frames.ring} if self._frames else stored, self.added)

    def restore(self, kept: Any, newest: rb.Stored, total: int, updates: int, generated_at: int) -> None:
        """Restores compact states, and the newest of the `total` transitions that were added so far."""
        layout, sizes, devices = self.replay.layout, self._sizes, self.devices
        del self.replay  # the memory may not hold it beside the restored one
        stored = rb.placed(layout, newest, total, sizes.capacity)
        if self._frames:
            self._frames.restore(stored, total)
        stored = devices.put(self._of_device(stored))
        self.replay = devices.put(rb.holding(layout, stored, total, sizes.stride), self._axes)
        self.start_from(kept, generated_at)
        self.updates, self.added = updates, total
        jax.block_until_ready(self.state)

    def start_from(self, kept: Any, generated_at: int) -> None:
        """Starts from the compact states of a checkpoint or a model; what they lack is generated again."""
        first, self.state = self.state, self.devices.put(kept)
        self.refresher.generated_at = generated_at
        if generated_at:
            del first  # two synthetic buffers may not fit
            self.set_state(self.refresher.generated(self.state, generated_at))
        else:
            self.set_state(completed(self.state, first))

    def _of_device(self, stored: rb.Stored) -> rb.Stored:
        """The arrays that are kept on the device."""
        return rb.without_frames(stored) if self._frames else stored

    def set_state(self, state: Any) -> None:
        self.state = state
        self.policies = self._snapshot(self.state)


def _read_critics(values: Values) -> Callable[[Any], Critics]:
    def read(state: Any) -> Critics:
        found = Critics(values.critics(state), values.entropy.alpha(state) if values.entropy else None)
        return jax.tree.map(jnp.copy, found)

    return read


def _store(agent: Agent) -> Callable[..., tuple[Any, rb.Replay]]:
    def store(state: Any, replay: rb.Replay, chunk: rb.Stored) -> tuple[Any, rb.Replay]:
        state = agent.observe(state, replay.layout.transitions(chunk), chunk[rb.FIRST])
        return state, rb.add(replay, chunk)

    return store
