"""Schedule and keys of an agent's refresh, its infrequent, expensive work; what of its result a checkpoint stores."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.replay import ring as rb
from lsac.types import Agent, Array


class Sample(NamedTuple):
    """Real and generated transitions [S, N, width] for comparison, packed as in the replay."""

    real: np.ndarray
    generated: np.ndarray


class Refreshed(NamedTuple):
    """The agents after a refresh, its metrics and a sample of its data."""

    state: Any
    numbers: dict[str, np.ndarray]
    sample: Sample


class Refresher:
    """Schedule, keys and counters of `Agent.refresh` for all seeds. Without a refresh, nothing is ever due."""

    def __init__(self, agent: Agent, layout: rb.Layout, seeds: list[int], axes: rb.Replay):
        self._refresh, self._layout = agent.refresh, layout
        self.every = agent.refresh.every if agent.refresh else 0
        self.refreshed_at = 0
        """the step of this run's last refresh; 0 before the first"""
        self.generated_at = 0
        """the step whose key generated the current data, possibly in an earlier run of a model; 0 if there is none"""
        if agent.refresh is not None:
            self._fit: Any = jax.jit(jax.vmap(agent.refresh.fit, in_axes=(0, axes, 0)))
            self._generate: Any = jax.jit(jax.vmap(agent.refresh.generate), donate_argnums=0)
            self._keys = {
                purpose: jnp.stack([streams.root(seed, purpose) for seed in seeds])
                for purpose in (streams.REFRESH, streams.GENERATE)
            }

    def last(self, step: int, chunk: int, learning_starts: int) -> int:
        """The step of the last refresh that is due at `step` or earlier; 0 if there is none."""
        last = -(-(step // self.every * self.every) // chunk) * chunk if self.every else 0
        return last if last > learning_starts else 0

    def compile(self, kept: Any, replay: rb.Replay) -> None:
        if self._refresh is not None:
            lowered = self._fit.lower(kept, replay, self._keys[streams.REFRESH])
            generate = self._generate.lower(lowered.out_info[0], self._keys[streams.GENERATE])
            self._fit, self._generate = lowered.compile(), generate.compile()

    def run(self, kept: Any, replay: rb.Replay, step: int) -> Refreshed:
        """Fits and generates, and blocks until both are done, so that they can be timed.

        The caller passes compact states and drops its complete ones first: two synthetic buffers may not fit.
        """
        jax.block_until_ready(kept)
        started = time.monotonic()
        state, metrics, real = self._fit(kept, replay, self._keys_at(streams.REFRESH, step))
        state, generated = self._generate(state, self._keys_at(streams.GENERATE, step))
        numbers, real, generated = jax.device_get((metrics, self._layout.pack(real), self._layout.pack(generated)))
        seeds = len(self._keys[streams.REFRESH])
        numbers["time/refresh_seconds"] = np.full(seeds, time.monotonic() - started, np.float32)
        return Refreshed(state, numbers, Sample(real, generated))

    def done(self, step: int) -> None:
        self.refreshed_at = self.generated_at = step

    def compact(self, state: Any) -> Any:
        """The part of a state that a checkpoint stores: everything that cannot be generated again."""
        return self._refresh.compact(state) if self._refresh else state

    def generated(self, kept: Any, step: int) -> Any:
        """A compact state, completed with the data that was generated at that step."""
        return self._generate(kept, self._keys_at(streams.GENERATE, step))[0]

    def _keys_at(self, purpose: int, step: int) -> Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, step))(self._keys[purpose])


def completed(kept: Any, first: Any) -> Any:
    """Completes a compact state before its first refresh with the missing parts of the initial state."""
    return jax.tree.map(
        lambda part, begun: begun if part is None else part, kept, first, is_leaf=lambda part: part is None
    )
