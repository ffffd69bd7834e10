"""The picture of a study: scores in the order of the trials, and over each option."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from lsac.sweeps.spaces import Choice, Range, Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

COLUMNS = 3
ENDED, EARLY, BEST = "#2458a6", "#9a9a9a", "#c8501e"
STYLE: Any = {"font.size": 8}
LETTERS = 18
"""Letters of labels that fit below a panel, side by side."""


def draw(space: Space, trials: "list[FrozenTrial]", path: Path) -> Path:
    """Draws one panel for the order of the trials and one for each option; returns the path."""
    with matplotlib.rc_context(STYLE):
        figure_of(space, trials).savefig(path, dpi=150)
    return path


def figure_of(space: Space, trials: "list[FrozenTrial]") -> Figure:
    complete = [
        (trial, float(trial.value)) for trial in trials if trial.value is not None and trial.state.name == "COMPLETE"
    ]
    early = [
        (trial, trial.intermediate_values[max(trial.intermediate_values)])
        for trial in trials
        if trial.state.name == "PRUNED" and trial.intermediate_values
    ]
    best = max(complete, key=lambda pair: pair[1])
    rows = -(-(1 + len(space)) // COLUMNS)
    figure = Figure(figsize=(7.0, 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    kinds = (
        (complete, "o", ENDED, "to the end"),
        (early, "x", EARLY, "stopped early (last evaluation)"),
        ([best], "*", BEST, "best"),
    )
    for points, marker, colour, label in kinds:
        if not points:
            continue
        values = [value for _, value in points]
        size = 70 if marker == "*" else 18
        panels[0].scatter([t.number for t, _ in points], values, size, colour, marker=marker, label=label)
        for axes, (name, range_) in zip(panels[1:], space.items(), strict=False):
            at = [_place(t.params[name], range_) for t, _ in points]
            axes.scatter(at, values, size, colour, marker=marker)
    panels[0].set_xlabel("trial")
    panels[0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.legend(loc="outside upper center", ncols=len(kinds), frameon=False)
    for axes, (name, range_) in zip(panels[1:], space.items(), strict=False):
        axes.set_xlabel(name.replace("_", "-"))
        _scale(axes, range_)
    for axes in panels[: 1 + len(space)]:
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.set_ylabel("score")
    for axes in panels[1 + len(space) :]:
        axes.set_visible(False)
    return figure


def _place(value: float | str, range_: Range | Choice) -> float | str:
    """Where a value is drawn: one of several at its number."""
    return list(map(str, range_.values)).index(str(value)) if isinstance(range_, Choice) else value


def _scale(axes: Axes, range_: Range | Choice) -> None:
    """The horizontal axis of an option, with labels that do not touch."""
    if isinstance(range_, Choice):
        names = list(map(str, range_.values))
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
        if sum(map(len, names)) > LETTERS:
            axes.tick_params(axis="x", rotation=30)
        return
    if range_.log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_xlim()
    decades = range_.log and high >= 10 * low
    several = (1.0,) if high >= 100 * low else (1.0, 3.0)
    axes.xaxis.set_major_locator(LogLocator(subs=several, numticks=4) if decades else MaxNLocator(3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.5g}".replace("e-0", "e-").replace("e+0", "e"))
