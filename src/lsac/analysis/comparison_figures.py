"""Figures across tasks: aggregates with their intervals, performance profiles, probability of improvement."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsac.analysis.aggregate import AGGREGATES, TOO_NARROW, marked
from lsac.analysis.comparison import Compared, Comparison
from lsac.analysis.figures import STYLE, WIDTHS, Look, plain, save

PAIRS = 12
"""With more pairs of labels, the figure shows those of the first label."""
LETTERS = 40
"""Letters in a line of a label."""
NOTE = "normalised final scores; 95 % stratified bootstrap interval over seeds"


def draw_comparison(comparison: Comparison, out: Path, name: str, look: Look) -> list[Path]:
    """Aggregates and profiles of a suite, and the probabilities of improvement if several labels are compared."""
    written = _draw_aggregates(comparison, out / f"{name}-aggregates", look)
    written += _draw_profiles(comparison, out / f"{name}-profiles", look)
    if len(comparison.labels) > 1:
        written += _draw_improvements(comparison, out / f"{name}-improvement", look)
    return written


def _draw_aggregates(comparison: Comparison, path: Path, look: Look) -> list[Path]:
    labels = comparison.labels
    numbers = [compared.aggregates for compared in labels]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTHS[2], 0.9 + 0.24 * len(labels)), layout="constrained")
        for i, name in enumerate(AGGREGATES):
            axes = figure.add_subplot(1, len(AGGREGATES), i + 1)
            for y, (compared, found) in enumerate(zip(labels, numbers, strict=True)):
                _draw_interval(axes, y, found[name], compared)
            _finish_rows(axes, [marked(x.label, x.doubtful) for x in labels] if i == 0 else [], len(labels))
            axes.set_title(name, loc="left")
        return _finish(figure, comparison, path, look, any(x.doubtful for x in labels))


def _draw_interval(axes: Axes, y: int, found: tuple[float, float, float], compared: Compared) -> None:
    point, low, high = found
    axes.plot([low, high], [y, y], color=compared.style.colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([point], [y], marker=compared.style.marker or "o", ms=5, color=compared.style.colour)


def _finish_rows(axes: Axes, names: list[str], count: int) -> None:
    axes.set_yticks(range(len(names)), [plain(textwrap.fill(name, LETTERS)) for name in names])
    if not names:
        axes.tick_params(left=False, labelleft=False)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)
    axes.locator_params(axis="x", nbins=4)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_profiles(comparison: Comparison, path: Path, look: Look) -> list[Path]:
    thresholds, found = comparison.thresholds, comparison.profiles
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTHS[look.columns], 2.8), layout="constrained")
        axes = figure.add_subplot()
        for compared, share, low, high in found:
            style = compared.style
            axes.fill_between(thresholds, low, high, color=style.colour, alpha=0.15, linewidth=0)
            marks: dict[str, Any] = {"marker": style.marker, "ms": 4, "markevery": len(thresholds) // 8}
            axes.plot(
                thresholds,
                share,
                color=style.colour,
                linewidth=1.5,
                label=plain(marked(compared.label, compared.doubtful)),
                **marks,
            )
        axes.set_xlabel("normalised score τ")
        axes.set_ylabel("share of runs with a score above τ")
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=min(4, len(found)), frameon=False)
        return _finish(figure, comparison, path, look, any(x.compared.doubtful for x in found))


def _draw_improvements(comparison: Comparison, path: Path, look: Look) -> list[Path]:
    pairs = comparison.improvements
    pairs = pairs if len(pairs) <= PAIRS else [pair for pair in pairs if pair.ours is comparison.labels[0]]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTHS[look.columns], 0.9 + 0.2 * len(pairs)), layout="constrained")
        axes = figure.add_subplot()
        for y, pair in enumerate(pairs):
            _draw_interval(axes, y, pair.chance, pair.ours)
        names = [marked(f"{pair.ours.label} over {pair.theirs.label}", pair.doubtful) for pair in pairs]
        _finish_rows(axes, names, len(pairs))
        axes.axvline(0.5, color="#444444", linestyle=":", linewidth=1)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks(np.linspace(0, 1, 5))
        axes.set_title("probability of improvement", loc="left")
        return _finish(figure, comparison, path, look, any(pair.doubtful for pair in pairs))


def _finish(figure: Figure, comparison: Comparison, path: Path, look: Look, doubtful: bool) -> list[Path]:
    words = [f"{comparison.suite}, {len(comparison.envs)} tasks; {NOTE}"]
    if doubtful:
        words.append(TOO_NARROW.removesuffix("."))
    figure.set_figheight(figure.get_figheight() + 0.14 * len(words))
    figure.supxlabel(plain(";\n".join(words)), x=0.01, ha="left", fontsize=7, color="#444444")
    return save(figure, path, look.formats)
