"""What a run tells of itself: the numbers since the last line, and the lines that they become.

Numbers of the updates stay on the device until a line is due. What is not yet told goes into every checkpoint, so that
a resumed run tells the same.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect.groups import Episode
from lsac.runs.datafile import Record
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.runs.metrics import Line, MetricsLog
from lsac.train.learner import Refreshed
from lsac.types import Sample

EPISODE_WINDOW = 100
"""Episodes that `rollout/ep_rew_mean` averages over."""


class Progress(NamedTuple):
    """What a watcher is told with every line."""

    step: int
    steps: int
    fps: float
    """environment steps per second, of all seeds together"""
    lines: list[Line]


Watch = Callable[[Progress], None]
Inspect = Callable[[Sample], dict[str, np.ndarray]]
"""What the simulator says of generated transitions [S, N, width], one number per seed and name."""


class Journal:
    """The numbers of one run, all its seeds; without a folder only a watcher hears of them."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder | None,
        watch: Watch,
        say: Callable[[str], None],
        inspect: Inspect | None,
    ):
        self._experiment, self._folder, self._watch, self._say = experiment, folder, watch, say
        self._inspect, self._inspectors = inspect, ThreadPoolExecutor(1)
        self._inspection: tuple[int, Future[dict[str, np.ndarray]]] | None = None
        self._window: list[dict[str, jax.Array]] = []  # of every chunk since the last line
        self._learned_to = 0  # the step at which its last chunk ends
        self._rare: dict[str, np.ndarray] = {}  # of refreshes, inspections and saves since the last line
        self._episodes: list[deque[Episode]] = [deque(maxlen=EPISODE_WINDOW) for _ in range(experiment.seeds)]
        self.told_at = -1  # the step of the last line that was not of an evaluation
        self._log: MetricsLog | None = None
        self._seconds_before = 0.0  # that the run took until it was resumed

    def open(self, step: int) -> None:
        """Time counts from here on. A resumed run has its lines already, see `cut`."""
        if self._folder and self._log is None:
            self._log = MetricsLog(self._folder.path, self._experiment.seed_list, self._say)
        self._last_time, self._last_step = time.monotonic(), step
        self._started = self._last_time - self._seconds_before

    def close(self) -> None:
        self._inspectors.shutdown(cancel_futures=True)
        if self._log:
            self._log.close()

    # What is to be told

    def learned(self, metrics: dict[str, jax.Array], until: int) -> None:
        """The numbers of a chunk's updates, one per seed."""
        self._window.append(metrics)
        self._learned_to = until

    def played(self, episodes: list[list[Episode]]) -> None:
        for kept, new in zip(self._episodes, episodes, strict=True):
            kept.extend(new)

    def saved(self, seconds: float) -> None:
        self._rare["time/checkpoint_seconds"] = np.full(self._experiment.seeds, seconds)

    def refreshed(self, step: int, new: Refreshed) -> None:
        """The numbers of a refresh; a thread asks the simulator about what it generated."""
        self._finish_inspection()
        self._rare |= new.numbers
        if self._inspect is not None:
            self._inspection = step, self._inspectors.submit(self._inspect, new.sample)

    def _finish_inspection(self) -> None:
        if self._inspection:
            try:
                self._rare |= self._inspection[1].result()
            except Exception as error:  # a diagnostic must not end a healthy run
                self._say(f"warning: generated transitions could not be inspected ({error!r})")
            self._inspection = None

    def first_bad(self, row: int) -> tuple[list[str], int]:
        """Which numbers of a seed are not finite in the first chunk where any is not, and the step at its end."""
        window = jax.device_get(self._window)
        for i, metrics in enumerate(window):
            if names := [name for name, values in metrics.items() if not np.isfinite(values[row])]:
                return names, self._learned_to - (len(window) - 1 - i) * self._experiment.chunk
        return ["policy"], self._learned_to

    # Lines

    def write(self, step: int, updates: int) -> None:
        """One line per seed, of all since the last; all of it is finite, or the run would have ended."""
        e, now = self._experiment, time.monotonic()
        fps = (step - self._last_step) * e.seeds / max(now - self._last_time, 1e-9)
        self._last_time, self._last_step, self.told_at = now, step, step
        if self._inspection and self._inspection[0] < step:  # it had the time since the last line
            self._finish_inspection()
        window, rare = jax.device_get(self._window), self._rare
        self._window, self._rare = [], {}
        lines = []
        for row, seed in enumerate(e.seed_list):
            line = {**self._head(step, seed), "time/fps": round(fps, 1)}
            if self._episodes[row]:
                line["rollout/ep_rew_mean"] = float(np.mean([ep.reward for ep in self._episodes[row]]))
                line["rollout/ep_len_mean"] = float(np.mean([ep.length for ep in self._episodes[row]]))
            if window:
                line |= {f"train/{k}": float(np.mean([m[k][row] for m in window])) for k in sorted(window[0])}
                line["train/n_updates"] = updates
            told = {k if "/" in k else f"train/{k}": float(values[row]) for k, values in sorted(rare.items())}
            line |= {k: value for k, value in told.items() if np.isfinite(value)}
            lines.append(line)
        self._emit(lines, step, fps)

    def write_evaluation(self, began: int, numbers: list[dict[str, float]], step: int) -> None:
        """One line per seed of an evaluation, with the step at which it began; the run is at `step` by now."""
        lines = [
            {**self._head(began, seed), **{f"eval/{name}": value for name, value in row.items()}}
            for seed, row in zip(self._experiment.seed_list, numbers, strict=True)
        ]
        self._emit(lines, step, 0.0)

    def _head(self, step: int, seed: int) -> Line:
        return {"step": step, "seed": seed, "seconds": round(time.monotonic() - self._started, 3)}

    def _emit(self, lines: list[Line], step: int, fps: float) -> None:
        if self._log:
            self._log.write(lines)
        self._watch(Progress(step, self._experiment.steps, fps, lines))

    # Checkpoints hold no clock: a run that was stopped and resumed leaves the same files as one that was not.

    def record(self) -> Record:
        """What is not told yet, and how many lines are, after all of them have reached the disk."""
        assert self._log is not None
        self._finish_inspection()
        window = jax.device_get(self._window)
        return {
            "logged_at": self.told_at,
            "metrics_lines": self._log.lines(),
            "window": {name: [metrics[name].tolist() for metrics in window] for name in (window or [{}])[0]},
            "rare": {name: values.tolist() for name, values in self._rare.items() if not name.startswith("time/")},
            "episodes": [list(episodes) for episodes in self._episodes],
        }

    def restore(self, record: Record, step: int, told_at: int) -> None:
        """Takes over what had not been told at `step`."""
        window: dict[str, list[Any]] = record["window"]
        self._window = [
            {name: np.asarray(values[i], np.float32) for name, values in window.items()}  # type: ignore[misc]
            for i in range(len(next(iter(window.values()), [])))
        ]
        self._learned_to = step
        self._rare = {name: np.asarray(values) for name, values in record["rare"].items()}
        self._episodes = [
            deque((Episode(*x) for x in episodes), maxlen=EPISODE_WINDOW) for episodes in record["episodes"]
        ]
        self.told_at = told_at

    def cut(self, lines: int, step: int) -> None:
        """Drops the lines that were written after a checkpoint at `step`: they will be written again."""
        if self._folder:
            self._log = MetricsLog(self._folder.path, self._experiment.seed_list, self._say, lines, step)
            self._seconds_before = self._log.seconds
