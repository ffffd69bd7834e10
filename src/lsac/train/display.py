"""The progress display of a run: a live bar on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lsac.runs.wording import counted
from lsac.train.logger import EPISODE_WINDOW, Progress
from lsac.train.refresh import Fitting


def mean_of(progress_lines: list[dict], name: str) -> float | None:
    values = [line[name] for line in progress_lines if name in line]
    return sum(values) / len(values) if values else None


class Display:
    """A context manager; `watch` shows a Progress, `fitting` the progress of a refresh."""

    def __init__(self, stream: TextIO | None = None, every: float = 10.0):
        self.console = Console(file=stream, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=8) if self.console.is_terminal else None
        self._every, self._last_print = every, 0.0
        self._progress: Progress | None = None
        self._told = True  # whether the newest progress was shown
        self._reward: float | None = None
        self._evaluation = ""
        self._fps = 0.0

    def __enter__(self) -> "Display":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._told and self._progress and self._progress.step >= self._progress.steps:
            self._show(at_once=True)
        if self._live:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def watch(self, progress: Progress) -> None:
        reward = mean_of(progress.lines, "rollout/ep_rew_mean")
        if reward is not None:
            self._reward = reward
        evaluation = mean_of(progress.lines, "eval/mean_reward")
        if evaluation is not None:
            self._evaluation = f"evaluation {evaluation:,.1f} (step {progress.lines[0]['step']:,})"
        self._fps = progress.fps or self._fps
        self._progress, self._told = progress, False
        self._show()  # the last line waits for evaluations that have not ended

    def fitting(self, fitting: Fitting) -> None:
        if self._live or fitting.done < fitting.steps:
            self._show(at_once=fitting.done == 0, fitting=fitting if fitting.done < fitting.steps else None)

    def _show(self, at_once: bool = False, fitting: Fitting | None = None) -> None:
        if self._live:
            rows = [row for row in (self._progress and self._bar(self._progress), fitting and _fit_bar(fitting)) if row]
            details = [Text(self._details(self._progress))] if self._progress else []
            self._live.update(Group(*rows, *details))
        elif at_once or time.monotonic() - self._last_print >= self._every:
            if not (fitting and at_once):  # the line of a fit that begins must not delay that of the next steps
                self._last_print = time.monotonic()
            if fitting:
                self.say(_fit_text(fitting))
            elif self._progress:
                self._told = True
                self.say(f"{_steps(self._progress)} ({_percent(self._progress)}) · {self._details(self._progress)}")

    def _bar(self, progress: Progress) -> Table:
        return _bar(_steps(progress), progress.step, progress.steps, _percent(progress))

    def _details(self, progress: Progress) -> str:
        seeds = len(progress.lines)
        parts = []
        if self._fps:
            parts.append(f"{self._fps:,.0f} steps/s" + (f" over {counted(seeds, 'seed')}" if seeds > 1 else ""))
        if self._reward is not None:
            parts.append(f"training return ({EPISODE_WINDOW} episodes) {self._reward:,.1f}")
        if self._evaluation:
            parts.append(self._evaluation)
        if progress.seconds_left is not None and progress.step < progress.steps:
            parts.append(f"{duration(progress.seconds_left)} left")
        return " · ".join(parts)


def _steps(progress: Progress) -> str:
    per_seed = " per seed" if len(progress.lines) > 1 else ""
    return f"step {progress.step:,}/{progress.steps:,}{per_seed}"


def _percent(progress: Progress) -> str:
    return f"{progress.step / progress.steps:.0%}"


def _fit_text(fitting: Fitting) -> str:
    return f"{fitting.title}: {fitting.done:,}/{fitting.steps:,} steps"


def _fit_bar(fitting: Fitting) -> Table:
    return _bar(_fit_text(fitting), fitting.done, fitting.steps, f"{fitting.done / fitting.steps:.0%}")


def _bar(title: str, done: int, total: int, percent: str) -> Table:
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    row.add_row(title, ProgressBar(total=total, completed=done), percent)
    return row


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
