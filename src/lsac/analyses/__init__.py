"""Analyses of finished or stopped runs: each reads a run's folder and returns a table and a figure.

An analysis is a module with `Options`, the arguments of its command, `HELP`, its help, and `analyse(options, say)`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from lsac.analysis.outcome import Outcome

Say = Callable[[str], None]


class Analysis(Protocol):
    HELP: str
    Options: type[Any]

    def analyse(self, options: Any, say: Say) -> Outcome: ...


NAMES: dict[str, str] = {
    "q-bias": "values of the critics against returns of the exploring policy",
    "coverage": "where an agent has been in a two-goal maze, and which goals and routes it takes",
    "actions": "density of replay, generated and refined actions (LSAC)",
    "synthetic": "generated transitions against those of the replay and the simulator (LSAC)",
    "stability": "returns of all seeds, and their spread",
    "posterior": "spread, correlation and calibration of the chains (LSAC)",
    "imagination": "frames that the world model predicts, beside the true ones (Dreamer)",
}
"""Every analysis, with what it shows."""


def find(name: str) -> Analysis:
    return cast(Analysis, import_module(f"{__name__}.{name.replace('-', '_')}"))
