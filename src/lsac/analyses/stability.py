"""How far the seeds of a run agree: one learning curve per seed, and their spread."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure

from lsac.analyses import Say
from lsac.analysis.figures import finish_axes
from lsac.analysis.load import Curve, load_run
from lsac.analysis.outcome import Outcome, colour
from lsac.errors import InputError
from lsac.runs.wording import counted

HELP = """Draw the learning curve of every seed, and the spread of the seeds at every evaluation.

Needs metrics only. Without evaluations, the returns of training episodes are drawn.

Examples:
  lsac analyse stability runs/cheetah
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""


def analyse(options: Options, say: Say) -> Outcome:
    run = load_run(options.run)
    kind, curve = run.returns()
    values, seeds = curve.values, run.seeds
    if len(seeds) < 2:
        raise InputError(f"analyse stability: {options.run} has one seed, a spread needs at least two")
    mean, std, low, high = summary(values)
    columns = ["step", "mean", "std", "min", "max", *(f"seed_{seed}" for seed in seeds)]
    rows: list[Any] = [
        [int(step), *map(float, (mean[t], std[t], low[t], high[t], *values[:, t]))]
        for t, step in enumerate(curve.steps)
    ]
    tenth = max(1, len(curve.steps) // 10)
    late = values[:, -tenth:].mean(axis=1)
    worst, best = (seeds[int(i)] for i in (late.argmin(), late.argmax()))
    sentence = (
        f"{run.name}, {counted(len(seeds), 'seed')}: {kind} over the last tenth {late.mean():.1f} ± "
        f"{late.std(ddof=1):.1f} (std over seeds), from {late.min():.1f} (seed {worst}) to {late.max():.1f} "
        f"(seed {best})"
    )
    caption = f"{run.name}. One line per seed; band: minimum to maximum; thick: mean. Right: std over seeds."
    draw = lambda figure: _draw(figure, curve, seeds, kind)  # noqa: E731
    return Outcome("Stability over seeds", caption, [sentence], columns, rows, (7.0, 2.8), draw)


def summary(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, std, minimum and maximum over seeds of values [S, T]."""
    return values.mean(axis=0), values.std(axis=0, ddof=1), values.min(axis=0), values.max(axis=0)


def _draw(figure: Figure, curve: Curve, seeds: tuple[int, ...], kind: str) -> None:
    left, right = figure.subplots(1, 2)
    mean, std, low, high = summary(curve.values)
    marker = "o" if len(curve.steps) == 1 else ""
    left.fill_between(curve.steps, low, high, color="#888888", alpha=0.15, linewidth=0)
    for i, (seed, values) in enumerate(zip(seeds, curve.values, strict=True)):
        left.plot(curve.steps, values, marker=marker, color=colour(i), linewidth=0.8, label=f"seed {seed}")
    left.plot(curve.steps, mean, marker=marker, color="#222222", linewidth=1.8)
    right.plot(curve.steps, std, marker=marker, color="#222222")
    for axes, title in ((left, kind), (right, "std over seeds")):
        finish_axes(axes, title, int(curve.steps[-1]))
    if len(seeds) <= 12:
        left.legend(frameon=False, ncols=2)
