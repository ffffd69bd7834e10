"""Learning curves: one figure for an environment, or a grid of several."""

import math
import textwrap
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from lsac.analysis.load import Curve, Run
from lsac.analysis.stats import BANDS, band

COLOURS: tuple[str, ...] = ("#2458a6", "#c8501e", "#2e7d4f", "#7a4fa3", "#8a6d1b", "#b03060", "#3a8fa8", "#555555")
COLOURS += ("#e0a000", "#7fb800", "#d17fc4", "#00c2a8")
STYLE: dict[Any, Any] = {
    **{"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "legend.fontsize": 8, "axes.linewidth": 0.6},
    **{"pdf.fonttype": 42, "svg.hashsalt": "lsac"},  # TrueType, as publishers demand; equal data, equal file
}
FORMATS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Formats of figures, with the metadata that would differ from day to day."""
WIDTHS: dict[int, float] = {1: 3.4, 2: 7.0}
"""Inches of one and of two columns of a paper."""
FEW_LINES = 15
"""With at most this many seeds in a panel, every one is shown."""
REACH = 0.2
"""Bands may exceed the data by this share of its range; what is beyond is cut off."""
CUT_OFF, FIRST_UPDATE, SINGLE_SEEDS = "band cut off at the axis limits", "dotted: first update", "thin: single seeds"


class Look(NamedTuple):
    """How figures are drawn."""

    band: str = "t"
    columns: int = 2
    formats: tuple[str, ...] = ("png",)


class Line(NamedTuple):
    """A run in a figure."""

    run: Run
    label: str
    colour: str


def lines_of(runs: list[Run], labels: list[str]) -> list[Line]:
    """Runs with their labels and colours; what has the same label on several environments has the same colour."""
    order = {name: i for i, name in enumerate(dict.fromkeys(labels))}
    return [Line(run, name, COLOURS[order[name] % len(COLOURS)]) for run, name in zip(runs, labels, strict=True)]


# one panel


class Drawn(NamedTuple):
    """The smallest and largest value of what was drawn: of the data, and of its band."""

    data: tuple[float, float]
    band: tuple[float, float]


def draw(
    axes: Axes, curve: Curve, line: Line, kind: str, each_seed: bool, style: str = "-", log: bool = False
) -> Drawn:
    """Draws the mean and its band and, if wanted, every seed. With `log`, those of the logarithms: a band around the
    mean itself would reach below 0."""
    steps, values = curve.steps, np.log(curve.values) if log else curve.values
    found = [values.mean(axis=0), *(band(values, kind) or ())]
    mean, *limits = [np.exp(x) for x in found] if log else found
    marker = "o" if len(steps) == 1 else ""  # a line of one point cannot be seen
    colour = line.colour
    if each_seed and len(values) > 1:
        axes.plot(steps, curve.values.T, style, marker=marker, ms=2, color=colour, alpha=0.3, linewidth=0.6)
    if limits:
        width = 2 if marker else 0
        axes.fill_between(steps, *limits, color=colour, alpha=0.15 if each_seed else 0.1, linewidth=width)
    axes.plot(steps, mean, style, marker=marker, ms=4, color=colour, linewidth=1.5)
    data = _ends(curve.values if each_seed else mean)
    return Drawn(data, _ends(np.stack(limits)) if limits else data)


def _ends(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)


def fit(axes: Axes, drawn: list[Drawn], log: bool = False) -> bool:
    """Chooses a y axis that shows all data and what is near of the bands; returns whether it cuts off a band."""
    ends = np.array([[*x.data, *x.band] for x in drawn])
    if log:
        ends = np.log10(ends)
    ends = ends[np.isfinite(ends).all(axis=1)]
    if not len(ends):
        return False
    low, high, band_low, band_high = (*_range(ends[:, :2]), *_range(ends[:, 2:]))
    span = high - low
    if span <= 1e-6 * max(abs(low), abs(high)):  # constant, or too close for an axis
        span = 1.0 if log else abs(high) or 1.0
    bottom = max(min(low, band_low), low - REACH * span) - 0.04 * span
    top = min(max(high, band_high), high + REACH * span) + 0.04 * span
    if log:
        axes.set_yscale("log")
        axes.minorticks_off()
    axes.set_ylim(*(10.0**x if log else x for x in (bottom, top)))
    return band_low < bottom or band_high > top


def _range(ends: np.ndarray) -> tuple[float, float]:
    return float(ends.min()), float(ends.max())


def finish_axes(axes: Axes, title: str, last_step: int) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("environment steps per seed")
    last_step = max(last_step, 10)
    axes.set_xlim(-0.01 * last_step, 1.01 * last_step)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def mark_updates(axes: Axes, lines: list[Line], last_step: int) -> bool:
    """Marks the steps at which updates began, where they can be told from 0; returns whether there is one."""
    colours: dict[int, list[str]] = {}
    for line in lines:
        step = line.run.first_update() or 0
        if 0.01 * last_step < step < last_step:
            colours.setdefault(step, []).append(line.colour)
    for step, found in colours.items():
        colour = found[0] if len(colours) > 1 and len(found) == 1 else "#444444"
        axes.axvline(step, color=colour, linestyle=":", linewidth=1)
    return bool(colours)


def _panel(axes: Axes, lines: list[Line], look: Look) -> set[str]:
    """Draws the returns on one environment; returns what the caption has to say of it."""
    returns = [line.run.returns() for line in lines]
    last, each_seed = max(curve.steps[-1] for _, curve in returns), shows_seeds(lines)
    drawn = [draw(axes, curve, line, look.band, each_seed) for line, (_, curve) in zip(lines, returns, strict=True)]
    said = {CUT_OFF} if fit(axes, drawn) else set()
    if each_seed and any(len(line.run.seeds) > 1 for line in lines):
        said.add(SINGLE_SEEDS)
    env = lines[0].run.experiment.env
    finish_axes(axes, env, last)
    titles = {title for title, _ in returns}
    axes.set_ylabel(titles.pop() if len(titles) == 1 else "return")
    if titles:
        episodes = [line.label for line, (title, _) in zip(lines, returns, strict=True) if title == "episode return"]
        said.add(f"{', '.join(episodes)} on {env}: return of training episodes")
    return said | ({FIRST_UPDATE} if mark_updates(axes, lines, last) else set())


def shows_seeds(lines: list[Line]) -> bool:
    return sum(len(line.run.seeds) for line in lines) <= FEW_LINES


# whole figures


def draw_curves(lines: list[Line], path: Path, look: Look) -> list[Path]:
    """Learning curves, a panel for each environment; `path` has no suffix."""
    envs = list(dict.fromkeys(line.run.experiment.env for line in lines))
    width = WIDTHS[look.columns]
    across = 1 if look.columns == 1 else {4: 2}.get(len(envs), min(len(envs), 3))
    down = -(-len(envs) // across)
    with matplotlib.rc_context(STYLE):
        height = down * (2.2 if look.columns == 1 else 3.6 if across == 1 else 2.1)
        figure = Figure(figsize=(width, height), layout="constrained")
        said: set[str] = set()
        for i, env in enumerate(envs):
            here = [line for line in lines if line.run.experiment.env == env]
            said |= _panel(figure.add_subplot(down, across, i + 1), here, look)
        return finish(figure, lines, path, look, said)


def finish(figure: Figure, lines: list[Line], path: Path, look: Look, said: set[str], title: str = "") -> list[Path]:
    """Adds the legend and the caption, which make the figure higher, and saves it in all formats."""
    seeds = {len(line.run.seeds) for line in lines}
    count = "n seeds" if len(seeds) > 1 else f"n = {max(seeds)} seeds"
    words = ["1 seed"] if seeds == {1} else [", ".join(x for x in ("mean", BANDS[look.band], count) if x)]
    text = textwrap.wrap("; ".join([*words, *sorted(said)]), int(figure.get_figwidth() * 20))
    rows = _legend(figure, lines, title) + bool(title)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows + 0.14 * len(text))
    figure.supxlabel(plain("\n".join(text)), x=0.01, ha="left", fontsize=7, color="#444444")
    return save(figure, path, look.formats)


def _legend(figure: Figure, lines: list[Line], title: str) -> int:
    """One legend for all panels, above them, in as many columns as its labels leave room for; returns its rows."""
    entries: dict[str, list[Line]] = {}
    for line in lines:
        entries.setdefault(line.label, []).append(line)
    mixed = len({len(line.run.seeds) for line in lines}) > 1
    letters = int(figure.get_figwidth() * 14)
    texts = [textwrap.fill(_text(name, same, mixed), letters - 7) for name, same in entries.items()]
    handles = [Line2D([], [], color=same[0].colour, linewidth=1.5) for same in entries.values()]
    columns = max(1, min(len(texts), letters // (max(map(len, texts)) + 7)))
    style = {"frameon": False, "ncols": columns, "handlelength": 1.5, "alignment": "left", "title_fontsize": 9}
    figure.legend(handles, [plain(text) for text in texts], loc="outside upper left", title=title or None, **style)
    return -(-len(texts) // columns) * max(text.count("\n") + 1 for text in texts)


def plain(text: str) -> str:
    """The text as it is: between dollars, Matplotlib would read a formula."""
    return text.replace("$", r"\$")


def _text(name: str, lines: list[Line], with_seeds: bool) -> str:
    """The label of a curve in the legend, with what a reader must know of it."""
    seeds, notes = sorted({len(line.run.seeds) for line in lines}), []
    if with_seeds:
        notes.append(f"n = {seeds[0]}" if len(seeds) == 1 else f"n = {seeds[0]} to {seeds[-1]}")
    if all(line.run.first_update() is None for line in lines):
        notes.append("no updates were made")
    return f"{name} ({', '.join(notes)})" if notes else name


def save(figure: Figure, path: Path, formats: tuple[str, ...]) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{format}") for format in formats]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a folder's name may have any letter
        for file, format in zip(written, formats, strict=True):
            figure.savefig(file, dpi=200, metadata=FORMATS[format])
    return written
