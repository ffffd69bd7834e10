"""The progress display of a run: a live line on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lsac.train.logger import Progress


def mean_of(progress_lines: list[dict], name: str) -> float | None:
    values = [line[name] for line in progress_lines if name in line]
    return sum(values) / len(values) if values else None


class Display:
    """A context manager; `watch` shows a Progress."""

    def __init__(self, stream: TextIO | None = None, every: float = 10.0):
        self.console = Console(file=stream, highlight=False)
        self._live = Live(console=self.console, refresh_per_second=8) if self.console.is_terminal else None
        self._every, self._last_print = every, 0.0
        self._started = time.monotonic()
        self._first_step: int | None = None
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
        if self._live:
            self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def watch(self, progress: Progress) -> None:
        reward = mean_of(progress.lines, "rollout/ep_rew_mean")
        if reward is not None:
            self._reward = reward
        evaluation = mean_of(progress.lines, "eval/mean_reward")
        if evaluation is not None:
            self._evaluation = f"evaluation {evaluation:,.1f} of step {progress.lines[0]['step']:,}"
        if self._first_step is None:
            self._first_step = progress.step
        self._fps = progress.fps or self._fps
        now = time.monotonic()
        if self._live:
            self._live.update(Text(self._line(progress)))
        elif now - self._last_print >= self._every or progress.step >= progress.steps:
            self._last_print = now
            self.say(self._line(progress))

    def _line(self, progress: Progress) -> str:
        done = progress.step / progress.steps
        parts = [f"step {progress.step:,}/{progress.steps:,} ({done:.0%})", f"{self._fps:,.0f} steps/s"]
        if self._reward is not None:
            parts.append(f"return {self._reward:,.1f}")
        if self._evaluation:
            parts.append(self._evaluation)
        covered = progress.step - (self._first_step or 0)
        if covered > 0 and done < 1:
            left = (time.monotonic() - self._started) * (progress.steps - progress.step) / covered
            parts.append(f"{duration(left)} left")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
