"""The live table of a sweep on a terminal; elsewhere, a line whenever something has happened."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lsac.runs.experiment import Experiment
from lsac.sweeps.runs import progress
from lsac.train.display import duration

WAITING, RUNNING = "waiting", "running"
STYLES = {"finished": "green", "failed": "red", RUNNING: "bold", WAITING: "dim", "stopped": "yellow", "pruned": "dim"}


class Row(NamedTuple):
    name: str
    folder: Path
    experiment: Experiment
    state: str

    def cells(self) -> list[str]:
        """State, step, rate, return and time left."""
        now = progress(self.folder)
        step = f"{now.step:,}/{self.experiment.total_steps:,}"
        active = self.state == RUNNING
        rate = f"{now.rate:,.0f} steps/s" if active and now.rate else ""
        value = "" if now.value is None else f"{now.value:,.1f}" + ("" if now.evaluated else " (training)")
        left = now.seconds_left(self.experiment) if active else None
        return [self.state, step, rate, value, "" if left is None else duration(left)]


class Board(ExitStack):
    """A context manager that shows rows."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0):
        super().__init__()
        self.console = Console(file=stream, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._states: dict[str, str] = {}
        self._every, self._last, self._last_drawn = every, time.monotonic(), 0.0

    def __enter__(self) -> "Board":
        super().__enter__()
        if self._live:
            self.enter_context(self._live)
        return self

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def show(self, rows: Sequence[Row], at_once: bool = False) -> None:
        if self._live:
            if at_once or time.monotonic() - self._last_drawn >= 1.0:
                self._last_drawn = time.monotonic()
                self._live.update(_table(rows, self.console.height - 4), refresh=True)
            return
        due = time.monotonic() - self._last >= self._every
        self._last = time.monotonic() if due else self._last
        for row in rows:
            before = self._states.get(row.name, WAITING)
            if row.state != before or (due and row.state == RUNNING):
                self.say(_line(row))
        self._states = {row.name: row.state for row in rows}


def _line(row: Row) -> str:
    state, step, rate, value, left = row.cells()
    parts = [f"step {step}", rate, value and f"return {value}", left and f"{left} left"]
    return f"{row.name}: {state} · " + " · ".join(filter(None, parts))


def _table(rows: Sequence[Row], height: int) -> Table:
    """All rows, or those that fit on the screen: the ones that run first, then those that failed."""
    counts = {state: sum(row.state == state for row in rows) for state in STYLES}
    title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("experiment", "state", "step", "rate", "return", "time left"):
        table.add_column(name, justify="right" if name in ("step", "rate", "return", "time left") else "left")
    order = [RUNNING, "failed", "stopped", "finished", "pruned", WAITING]
    kept = rows if len(rows) <= height else sorted(rows, key=lambda row: order.index(row.state))[: max(1, height - 1)]
    for row in kept:
        table.add_row(row.name, *row.cells(), style=STYLES[row.state])
    if len(kept) < len(rows):
        table.add_row(f"and {len(rows) - len(kept)} more")
    return table
