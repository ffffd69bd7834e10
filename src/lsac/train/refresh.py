"""Schedule and keys of an agent's refresh, its infrequent, expensive work; what of its result a checkpoint stores."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.replay import ring as rb
from lsac.train.devices import Devices
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


class Fitting(NamedTuple):
    """Progress of a refresh."""

    title: str
    done: int
    steps: int
    """gradient steps of the whole fit; what follows it takes a little longer"""


Inspect = Callable[[Sample], dict[str, np.ndarray]]
"""Compares generated transitions with the simulator: for each metric, one number per seed."""
Report = Callable[[Fitting], None]
"""Called between two pieces of a fit; an error that it raises ends the fit."""


class Schedule(NamedTuple):
    """The steps at which a refresh is due: the first at `every`, the next after `growth` times the steps so far,
    rounded down to a multiple of `every`, but at least after `every`."""

    every: int
    """0 if there are no refreshes"""
    growth: float = 0.0

    def until(self, step: int) -> tuple[int, int]:
        """The number of refreshes that are due at `step` or earlier, and the step of the last of them; 0 and 0 if there
        are none."""
        count = at = 0
        while self.every:
            apart = max(1, int(self.growth * at / self.every))  # in units of `every`; constant for a while
            more = (step - at) // (apart * self.every)
            if self.growth:
                more = min(more, max(1, math.ceil(((apart + 1) / self.growth - at / self.every) / apart)))
            if more <= 0:
                break
            count, at = count + more, at + more * apart * self.every
        return count, at


class Refresher:
    """Schedule, keys and counters of `Agent.refresh` for all seeds. Without a refresh, nothing is ever due."""

    def __init__(self, agent: Agent, layout: rb.Layout, seeds: list[int], axes: rb.Replay):
        self._refresh, self._layout, self._devices = agent.refresh, layout, Devices(len(seeds))
        self.schedule = Schedule(agent.refresh.every, agent.refresh.growth) if agent.refresh else Schedule(0)
        self.refreshed_at = 0
        """the step of this run's last refresh; 0 before the first"""
        self.generated_at = 0
        """the step whose key generated the current data, possibly in an earlier run of a model; 0 if there is none"""
        if agent.refresh is not None:
            over_seeds, judge = self._devices.over_seeds, agent.refresh.judge
            self._begin: Any = over_seeds(agent.refresh.begin, (0, axes, 0))
            self._advance: Any = over_seeds(agent.refresh.advance, (0, axes, None), donate=0)
            self._finish: Any = over_seeds(agent.refresh.finish)
            self._generate: Any = over_seeds(agent.refresh.generate, donate=0)
            self._judge: Any = over_seeds(judge, donate=0) if judge else None
            self._keys = {
                purpose: self._devices.put(jnp.stack([streams.root(seed, purpose) for seed in seeds]))
                for purpose in (streams.REFRESH, streams.GENERATE)
            }

    def last(self, step: int, chunk: int, learning_starts: int) -> int:
        """The step of the last refresh that is due at `step` or earlier; 0 if there is none."""
        _, last = self.schedule.until(step)
        last = -(-last // chunk) * chunk
        return last if last >= max(learning_starts, 1) else 0

    def left(self, step: int, end: int, learning_starts: int) -> int:
        """The number of refreshes after `step`, of a run that ends at `end`."""
        done, planned = (self.schedule.until(at)[0] for at in (max(step, learning_starts - 1), end - 1))
        return max(0, planned - done)

    def compile(self, kept: Any, replay: rb.Replay) -> None:
        if self._refresh is not None:
            begin = self._begin.lower(kept, replay, self._keys[streams.REFRESH])
            advance = self._advance.lower(begin.out_info, replay, jnp.asarray(0, jnp.int32))
            finish = self._finish.lower(kept, advance.out_info)
            generate = self._generate.lower(finish.out_info[0], self._keys[streams.GENERATE])
            self._begin, self._advance = begin.compile(), advance.compile()
            self._finish, self._generate = finish.compile(), generate.compile()

    def run(self, kept: Any, replay: rb.Replay, step: int, report: Report = lambda fitting: None) -> Refreshed:
        """Fits and generates, and blocks until both are done, so that they can be timed.

        The caller passes compact states and drops its complete ones first: two synthetic buffers may not fit.
        """
        jax.block_until_ready(kept)
        started = time.monotonic()
        work = self._fit(kept, replay, step, report)
        state, metrics, real = self._finish(kept, work)
        del work
        state, generated = self._generate(state, self._keys_at(streams.GENERATE, step))
        numbers, real, generated = jax.device_get((metrics, self._layout.pack(real), self._layout.pack(generated)))
        seeds = len(self._keys[streams.REFRESH])
        numbers["time/refresh_seconds"] = np.full(seeds, time.monotonic() - started, np.float32)
        return Refreshed(state, numbers, Sample(real, generated))

    def judged(self, refreshed: Refreshed, found: dict[str, np.ndarray]) -> Refreshed:
        """Tells the agents what an inspection of the generated transitions has found, and adds it to the metrics."""
        state, numbers = refreshed.state, refreshed.numbers | found
        if self._judge is not None and "dynamics_error" in found:
            state, metrics = self._judge(state, self._devices.put(np.asarray(found["dynamics_error"], np.float32)))
            numbers |= jax.device_get(metrics)
        return refreshed._replace(state=state, numbers=numbers)

    def _fit(self, kept: Any, replay: rb.Replay, step: int, report: Report) -> Any:
        assert self._refresh is not None
        title, steps, pieces = self._refresh.title, self._refresh.steps, self._refresh.pieces
        report(Fitting(title, 0, steps))
        work = self._begin(kept, replay, self._keys_at(streams.REFRESH, step))
        for piece in range(pieces):
            work = jax.block_until_ready(self._advance(work, replay, jnp.asarray(piece, jnp.int32)))
            report(Fitting(title, steps * (piece + 1) // pieces, steps))
        return work

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
