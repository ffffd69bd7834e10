"""The picture of a study: scores in the order of the trials, and over each option."""

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

from lsac.sweeps.spaces import Range, Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

COLUMNS = 3
ENDED, EARLY, BEST = "#2458a6", "#9a9a9a", "#c8501e"


def draw(space: Space, trials: "list[FrozenTrial]", path: Path) -> Path:
    """Draws one panel for the order of the trials and one for each option; returns the path."""
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
    with matplotlib.rc_context({"font.size": 8}):
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
            for axes, name in zip(panels[1:], space, strict=False):
                axes.scatter([t.params[name] for t, _ in points], values, size, colour, marker=marker)
        panels[0].set_xlabel("trial")
        figure.legend(loc="outside upper center", ncols=len(kinds), frameon=False)
        for axes, (name, values_of) in zip(panels[1:], space.items(), strict=False):
            axes.set_xlabel(name.replace("_", "-"))
            if isinstance(values_of, Range) and values_of.log:
                axes.set_xscale("log")
        for axes in panels[: 1 + len(space)]:
            axes.grid(alpha=0.3, linewidth=0.5)
            axes.set_ylabel("score")
        for axes in panels[1 + len(space) :]:
            axes.set_visible(False)
        figure.savefig(path, dpi=150)
    return path
