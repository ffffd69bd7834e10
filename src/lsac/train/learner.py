"""The device side of a run: every seed's agent and replay, advanced by one compiled program per chunk."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.collect import snapshot
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Sample

RING_AXES: tuple[Any, Any, Any] = (0, None, None)
"""vmap axes of rows, size and head: one head serves all seeds, so that writing stays a slice and no scatter."""


JUDGED = 256
"""Visits per seed at which critics are judged."""


class Refreshed(NamedTuple):
    """The agents after their rare, long work, and what is told of it."""

    state: Any
    numbers: dict[str, np.ndarray]
    sample: Sample


class Learner:
    """Holds [S, …] states and replays. Calls return at once; the device works on."""

    def __init__(
        self, agent: Agent, spec: EnvSpec, seeds: list[int], capacity: int, chunk: int, updates: int, stride: int = 1
    ):
        self.traces = 0
        self.updates = 0
        layout = rb.Layout(*spec)
        axes: Any = rb.Replay(*RING_AXES, layout, stride)

        def learn(
            state: Any, replay: rb.Replay, rows: Array, key: Key, first: Array
        ) -> tuple[Any, rb.Replay, Array, Array, Metrics]:
            self.traces += 1
            replay = rb.add(replay, rows)

            def step(state: Any, count: Array) -> tuple[Any, Metrics]:
                return agent.update(state, replay, jax.random.fold_in(key, count))

            state, metrics = jax.lax.scan(step, state, first + jnp.arange(updates, dtype=jnp.int32))
            means = jax.tree.map(lambda m: jnp.mean(m, axis=0), metrics)
            policy = snapshot.flatten(agent.policy(state))
            numbers = jnp.concatenate([policy, jnp.stack(jax.tree.leaves(means))])
            return state, replay, policy, jnp.all(jnp.isfinite(numbers)), means

        self._chunk_updates = updates
        self.refresh_every = agent.refresh_every
        self._learn: Any = jax.jit(
            jax.vmap(learn, in_axes=(0, axes, 0, 0, None), out_axes=(0, axes, 0, 0, 0)), donate_argnums=(0, 1)
        )
        self._store = jax.jit(jax.vmap(rb.add, in_axes=(axes, 0), out_axes=axes), donate_argnums=0)
        self._refresh: Any = None
        if agent.refresh is not None and agent.generate is not None:
            self._refresh = jax.jit(jax.vmap(agent.refresh, in_axes=(0, axes, 0)))
            self._generate: Any = jax.jit(jax.vmap(agent.generate), donate_argnums=0)
            self._rare_keys = {
                purpose: jnp.stack([streams.root(seed, purpose) for seed in seeds])
                for purpose in (streams.REFRESH, streams.GENERATE)
            }
        self.refreshed_at = 0
        """the step of this run's last refresh, or 0"""
        self.generated_at = 0
        """the step whose key made what is generated, perhaps in an earlier run of a model; 0 if there is nothing"""
        self._critics: Any = None
        if agent.critics is not None and agent.value is not None:
            part = jax.vmap(agent.critics)
            self._critics = jax.jit(lambda state: jax.tree.map(jnp.copy, part(state)))
            self._value = jax.jit(jax.vmap(jax.vmap(agent.value, in_axes=(None, 0, 0))))
        self._obs_dim = spec.obs_dim
        self._snapshot = jax.jit(jax.vmap(lambda state: snapshot.flatten(agent.policy(state))))
        self._keys = jnp.stack([streams.root(seed, streams.LEARN) for seed in seeds])
        init_keys = jnp.stack([streams.root(seed, streams.INIT) for seed in seeds])
        self._compact = agent.compact
        self._whole = jax.eval_shape(jax.vmap(agent.init), init_keys)
        self.state = jax.jit(jax.vmap(agent.init))(init_keys)
        self.replay = self._empty(layout, len(seeds), capacity, stride)
        self.policies: Array = self._snapshot(self.state)
        self.finite: Array = jnp.ones(len(seeds), bool)  # whether policies and losses are numbers still
        self._rows = jax.ShapeDtypeStruct((len(seeds), chunk, layout.width), jnp.float32)

    @staticmethod
    @partial(jax.jit, static_argnums=(0, 1, 2, 3))
    def _empty(layout: rb.Layout, seeds: int, capacity: int, stride: int) -> rb.Replay:
        zero = jnp.zeros((), jnp.int32)
        return rb.Replay(jnp.zeros((seeds, capacity, layout.width), jnp.float32), zero, zero, layout, stride)

    def compile(self, refresh: bool) -> None:
        """Compiles the one program that training repeats, and the refresh if there will be one, ahead of the data."""
        first = jax.ShapeDtypeStruct((), jnp.int32)
        self._learn = self._learn.lower(self.state, self.replay, self._rows, self._keys, first).compile()
        if refresh and self._refresh is not None:
            keys = self._rare_keys[streams.REFRESH]
            lowered = self._refresh.lower(self.kept(), self.replay, keys)
            self._refresh, self._generate = (
                lowered.compile(),
                self._generate.lower(lowered.out_info[0], keys).compile(),
            )

    def store(self, rows: np.ndarray) -> None:
        """Adds transitions [S, chunk, width] without learning from them yet."""
        self.replay = self._store(self.replay, jnp.asarray(rows))

    def learn(self, rows: np.ndarray) -> Metrics:
        """Adds transitions and makes a chunk's updates; returns the [S] mean of every metric, still on the device."""
        self.state, self.replay, self.policies, self.finite, metrics = self._learn(
            self.state, self.replay, jnp.asarray(rows), self._keys, jnp.asarray(self.updates, jnp.int32)
        )
        self.finite.copy_to_host_async()
        self.policies.copy_to_host_async()  # queued right behind these updates, so that it never waits for the next
        self.updates += self._chunk_updates
        return metrics

    def critics(self) -> Any:
        """A copy of the critics as they are now, to be judged when the episodes they are judged by are over."""
        return self._critics(self.state) if self._critics else None

    def judge(self, critics: Any, visits: list[np.ndarray]) -> list[dict[str, float]]:
        """Every seed's values at its visits beside the returns that followed: means, and the bias between them."""
        if critics is None:
            return [{} for _ in visits]
        kept = [v[np.linspace(0, len(v) - 1, JUDGED).astype(int)] if len(v) else None for v in visits]
        filler = np.zeros((JUDGED, next((v.shape[1] for v in visits), 1)), np.float32)
        table = np.stack([filler if v is None else v for v in kept])
        values = jax.device_get(self._value(critics, table[..., : self._obs_dim], table[..., self._obs_dim : -1]))
        results: list[dict[str, float]] = []
        for row, v in enumerate(kept):
            means = {} if v is None else {name: float(x[row].mean()) for name, x in values.items()}
            if v is not None:
                means["mc_return"] = float(v[:, -1].mean())
                means["q_bias"] = means["q"] - means["mc_return"]
            results.append(means)
        return results

    def refreshed(self, step: int) -> Refreshed:
        """The agent's rare, long work; waits for it, so that the seconds it took can be told.

        Until the result is adopted the learner has what a checkpoint keeps, and cannot learn: D' goes first, or there
        would be two of it.
        """
        jax.block_until_ready(self.state)
        started = time.monotonic()
        self.state = self.kept()
        state, metrics, real = self._refresh(self.state, self.replay, self._keys_at(streams.REFRESH, step))
        state, generated = self._generate(state, self._keys_at(streams.GENERATE, step))
        numbers, sample = jax.device_get((metrics, Sample(real, generated)))
        numbers["time/refresh_seconds"] = np.full(len(self._keys), time.monotonic() - started, np.float32)
        return Refreshed(state, numbers, sample)

    def adopt(self, refreshed: Refreshed, step: int) -> None:
        self.state, self.refreshed_at, self.generated_at = refreshed.state, step, step

    def _keys_at(self, purpose: int, step: int) -> Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, step))(self._rare_keys[purpose])

    def kept(self) -> Any:
        """The part of the states that a checkpoint keeps: all but what can be generated again."""
        return self._compact(self.state)

    def like(self) -> Any:
        """Shapes of what a checkpoint keeps."""
        return self._compact(self._whole)

    def restore(
        self, kept: Any, rows: np.ndarray, total: int, updates: int, refreshed_at: int = 0, generated_at: int = 0
    ) -> None:
        """Puts back what a checkpoint kept and the newest of the `total` transitions that were ever stored."""
        capacity = self.replay.rows.shape[1]
        ring = np.zeros(self.replay.rows.shape, np.float32)
        count = min(rows.shape[1], capacity)
        if count:
            ring[:, np.arange(total - count, total) % capacity] = rows[:, -count:]
        size, head = jnp.asarray(min(total, capacity), jnp.int32), jnp.asarray(total % capacity, jnp.int32)
        self.replay = rb.Replay(jnp.asarray(ring), size, head, self.replay.layout, self.replay.stride)
        if generated_at:
            self.state = jax.tree.map(jnp.asarray, kept)  # what it was is gone before anything is generated
            self.set_state(self._generate(self.state, self._keys_at(streams.GENERATE, generated_at))[0], generated_at)
        else:  # nothing was generated yet: the parts that are left out are as they were in the beginning
            self.set_state(
                jax.tree.map(
                    lambda part, first: first if part is None else part,
                    kept,
                    self.state,
                    is_leaf=lambda part: part is None,
                )
            )
        self.updates, self.refreshed_at = updates, refreshed_at
        jax.block_until_ready(self.state)

    def inherit(self, state: Any, generated_at: int) -> None:
        """Begins with the states of a model, whole or as a checkpoint keeps them."""
        if len(jax.tree.leaves(state)) == len(jax.tree.leaves(self.state)):
            self.set_state(state, generated_at)
        else:
            seeds, _, width = self._rows.shape
            self.restore(state, np.zeros((seeds, 0, width), np.float32), 0, 0, generated_at=generated_at)

    def set_state(self, state: Any, generated_at: int = 0) -> None:
        self.state, self.generated_at = jax.tree.map(jnp.asarray, state), generated_at
        self.policies = self._snapshot(self.state)
