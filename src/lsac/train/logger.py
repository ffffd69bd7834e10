"""The logger of a run: collects metrics and writes them as lines.

Metrics of the updates stay on the device until a line is due. Metrics that are not yet written are part of every
checkpoint, so that a resumed run writes the same lines.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect.wire import Episode
from lsac.runs.datafile import Record
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.runs.metrics import Line, MetricsLog
from lsac.train.refresh import Fitting, Refreshed, Refresher, Report
from lsac.types import Metrics

EPISODE_WINDOW = 100
"""Number of episodes over which `rollout/ep_rew_mean` is averaged."""


class Progress(NamedTuple):
    """The argument of callbacks and progress displays, passed with every line of metrics."""

    step: int
    steps: int
    """environment steps per seed at the end of the run"""
    fps: float
    """environment steps per second, of all seeds together"""
    lines: list[Line]
    """one line of metrics per seed"""
    seconds_left: float | None = None
    """estimate of the remaining time; None before the first updates, and before the first of several refreshes"""


Watch = Callable[[Progress], None]
Say = Callable[[str], None]


class Observer(NamedTuple):
    """Functions that are called while a run proceeds."""

    watch: Watch = lambda progress: None
    """called with every line of metrics"""
    say: Say = lambda text: None
    """called with messages for the user"""
    fitting: Report = lambda fitting: None
    """called while an agent's generator is fitted"""
    after_chunk: Callable[[int], None] = lambda step: None
    """called with the step after every chunk"""
    began: Callable[[Any], None] = lambda loop: None
    """called with the `Loop` before its first step"""
    ended: Callable[[Any], None] = lambda loop: None
    """called with the `Loop` at the end of the run, also after an error; its simulators are still open"""


class Logger:
    """The logger of one run with all its seeds; without a folder, it only calls `watch`."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder | None,
        observer: Observer,
        refresher: Refresher,
    ):
        self._experiment, self._folder = experiment, folder
        self._watch, self._say, self._report = observer.watch, observer.say, observer.fitting
        self._time_left = TimeLeft(experiment, refresher)
        self._window: list[dict[str, jax.Array | np.ndarray]] = []  # metrics of every chunk since the last line
        self._learned_to = 0  # the step at which the last chunk of the window ends
        self._infrequent: dict[str, np.ndarray] = {}  # metrics of refreshes and saves since the last line
        self._episodes: list[deque[Episode]] = [deque(maxlen=EPISODE_WINDOW) for _ in range(experiment.seeds)]
        self.logged_at = -1  # the step of the last line, evaluations not counted
        self._log: MetricsLog | None = None
        self._seconds_before = 0.0  # duration of the run before it was resumed

    def open(self, step: int) -> None:
        """Starts the clock and opens metrics.jsonl, unless `cut` has opened it for a resumed run."""
        if self._folder and self._log is None:
            self._log = MetricsLog(self._folder.path, self._experiment.seed_list, self._say)
        self._last_time, self._last_step = time.monotonic(), step
        self._started = self._last_time - self._seconds_before
        self._time_left.start(step)

    def close(self) -> None:
        if self._log:
            self._log.close()

    # Collecting

    def learned(self, metrics: Metrics, until: int) -> None:
        """Adds the metrics of a chunk's updates, one value per seed."""
        self._window.append({**metrics})
        self._learned_to = until

    def played(self, episodes: list[list[Episode]]) -> None:
        for recent, new in zip(self._episodes, episodes, strict=True):
            recent.extend(new)

    def record(self, name: str, value: float) -> None:
        """Adds a number of the user to the next line of every seed."""
        self._infrequent[name] = np.full(self._experiment.seeds, float(value))

    def diagnosed(self, numbers: dict[str, np.ndarray]) -> None:
        """Adds the diagnostics of the agents, one value per seed, to the next line."""
        self._infrequent |= numbers

    def saved(self, seconds: float) -> None:
        self._infrequent["time/checkpoint_seconds"] = np.full(self._experiment.seeds, seconds)

    def fitting(self, fitting: Fitting) -> None:
        self._report(fitting)

    def refreshed(self, new: Refreshed) -> None:
        """Adds the metrics of a refresh."""
        self._infrequent |= new.numbers
        self._time_left.refreshed(float(new.numbers["time/refresh_seconds"][0]))

    def first_bad(self, seed_index: int) -> tuple[list[str], int]:
        """The metrics of a seed that are not finite in the first such chunk, and the step at its end."""
        window = jax.device_get(self._window)
        for i, metrics in enumerate(window):
            if names := [name for name, values in metrics.items() if not np.isfinite(values[seed_index])]:
                return names, self._learned_to - (len(window) - 1 - i) * self._experiment.chunk_steps
        return ["policy"], self._learned_to

    # Writing

    def write(self, step: int, updates: int) -> None:
        """Writes one line per seed with all metrics since the last; they are finite, because the run ends otherwise."""
        e, now = self._experiment, time.monotonic()
        fps = (step - self._last_step) * e.seeds / max(now - self._last_time, 1e-9)
        self._last_time, self._last_step, self.logged_at = now, step, step
        window, rare = jax.device_get(self._window), self._infrequent
        self._window, self._infrequent = [], {}
        lines = []
        for i, seed in enumerate(e.seed_list):
            line = {**self._head(step, seed), "time/fps": round(fps, 1)}
            if self._episodes[i]:
                line["rollout/ep_rew_mean"] = float(np.mean([ep.reward for ep in self._episodes[i]]))
                line["rollout/ep_len_mean"] = float(np.mean([ep.length for ep in self._episodes[i]]))
            if window:
                line |= {f"train/{k}": float(np.mean([m[k][i] for m in window])) for k in sorted(window[0])}
                line["train/n_updates"] = updates
            infrequent = {k if "/" in k else f"train/{k}": float(values[i]) for k, values in sorted(rare.items())}
            line |= {k: value for k, value in infrequent.items() if np.isfinite(value)}
            lines.append(line)
        self._time_left.advance(step, updates)
        self._emit(lines, step, fps)

    def write_evaluation(self, began: int, numbers: list[dict[str, float]], step: int) -> None:
        """Writes one line per seed for an evaluation that began at step `began`, while the run is at `step`."""
        lines = [
            {**self._head(began, seed), **{f"eval/{name}": value for name, value in found.items()}}
            for seed, found in zip(self._experiment.seed_list, numbers, strict=True)
        ]
        self._emit(lines, step, 0.0)

    def _head(self, step: int, seed: int) -> Line:
        return {"step": step, "seed": seed, "seconds": round(time.monotonic() - self._started, 3)}

    def _emit(self, lines: list[Line], step: int, fps: float) -> None:
        if self._log:
            self._log.write(lines)
        self._watch(Progress(step, self._experiment.total_steps, fps, lines, self._time_left.at(step)))

    # Checkpoints contain no times: a run that was stopped and resumed leaves the same files as one that was not.

    def unwritten(self) -> Record:
        """The metrics that are not yet written."""
        window = jax.device_get(self._window)
        return {
            "logged_at": self.logged_at,
            "window": {name: [metrics[name].tolist() for metrics in window] for name in (window or [{}])[0]},
            "rare": {
                name: values.tolist() for name, values in self._infrequent.items() if not name.startswith("time/")
            },
            "episodes": [list(episodes) for episodes in self._episodes],
        }

    def lines(self) -> int:
        """The number of lines that are safely on the disk."""
        assert self._log is not None
        return self._log.lines()

    def restore(self, record: Record, step: int, logged_at: int) -> None:
        """Restores the metrics that were not yet written at `step`."""
        window: dict[str, list[Any]] = record["window"]
        chunks = range(len(next(iter(window.values()), [])))
        self._window = [{name: np.asarray(x[i], np.float32) for name, x in window.items()} for i in chunks]
        self._learned_to = step
        self._infrequent = {name: np.asarray(values) for name, values in record["rare"].items()}
        self._episodes = [
            deque((Episode(*x) for x in episodes), maxlen=EPISODE_WINDOW) for episodes in record["episodes"]
        ]
        self.logged_at = logged_at

    def cut(self, lines: int, step: int) -> None:
        """Removes the lines that were written after a checkpoint at `step`: they will be written again."""
        if self._folder:
            self._log = MetricsLog(self._folder.path, self._experiment.seed_list, self._say, lines, step)
            self._seconds_before = self._log.seconds


class TimeLeft:
    """Estimates the remaining time of a run from the speed of its latest lines and the duration of its refreshes.

    Compilation and the first steps, which make no updates, do not count: they are no measure of the rest.
    """

    def __init__(self, experiment: Experiment, refresher: Refresher):
        self._experiment, self._refresher = experiment, refresher
        self._refreshes: list[float] = []
        self._lines: deque[tuple[float, int]] = deque(maxlen=20)  # times without those of refreshes, and steps

    def start(self, step: int) -> None:
        self._lines.append((self._now(), step))

    def refreshed(self, seconds: float) -> None:
        self._refreshes.append(seconds)

    def advance(self, step: int, updates: int) -> None:
        if updates == 0 and self._experiment.planned_updates(step):
            self._lines.clear()
        self._lines.append((self._now(), step))

    def at(self, step: int) -> float | None:
        e = self._experiment
        (began, first), (now, last) = self._lines[0], self._lines[-1]
        refreshes = self._refresher.left(step, e.total_steps, e.learning_starts)
        if last <= first or (refreshes and not self._refreshes):
            return None
        each = sum(self._refreshes) / max(len(self._refreshes), 1)
        return (e.total_steps - step) * (now - began) / (last - first) + refreshes * each

    def _now(self) -> float:
        return time.monotonic() - sum(self._refreshes)
