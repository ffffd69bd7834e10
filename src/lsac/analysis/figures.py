"""Learning curves: one figure for an environment, or a grid of several."""

import math
import textwrap
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from lsac.analysis.colours import Style, styles
from lsac.analysis.load import Curve, Run
from lsac.analysis.reference import MILLION, best_public, bounds_of, paper_return, task_of, until
from lsac.analysis.stats import BANDS, FEW_SEEDS, band, centre, smooth

STYLE: dict[Any, Any] = {
    **{"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "legend.fontsize": 8, "axes.linewidth": 0.6},
    **{"pdf.fonttype": 42, "svg.hashsalt": "lsac"},  # TrueType, as publishers demand; equal data, equal file
}
FORMATS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Formats of figures, with the metadata that would differ from day to day."""
DPI = 200
WIDTHS: dict[int, float] = {1: 3.4, 2: 7.0}
"""Inches of one and of two columns of a paper."""
FEW_LINES = 15
"""With at most this many seeds in a panel, every one is shown."""
REACH = 0.2
"""Bands may exceed the data by this share of its range; what is beyond is cut off."""
CUT_OFF, FIRST_UPDATE, SINGLE_SEEDS = "band cut off at the axis limits", "dotted: first update", "thin: single seeds"
TOO_NARROW = f"with fewer than {FEW_SEEDS} seeds, a bootstrap interval is narrower than the data allow"
ANYTHING = (-math.inf, math.inf)
PUBLIC_COLOUR = "#444444"
TITLE_LETTERS = 32
"""Letters in a line of a panel's title."""


class Look(NamedTuple):
    """How figures are drawn."""

    band: str = "t"
    columns: int = 2
    formats: tuple[str, ...] = ("png", "svg")
    smooth: bool = False
    """smooth returns over the window of the task's suite"""
    published: bool = False
    """draw the numbers of the paper and the best public curve"""


class Line(NamedTuple):
    """A run in a figure."""

    run: Run
    label: str
    style: Style

    @property
    def env(self) -> str:
        return self.run.env


def lines_of(runs: list[Run], labels: list[str]) -> list[Line]:
    """Runs with their labels and styles; what has the same label on several environments has the same style."""
    found = styles([(name, run.algorithm, run.env) for name, run in zip(labels, runs, strict=True)])
    return [Line(run, name, found[name]) for run, name in zip(runs, labels, strict=True)]


def by_env(lines: list[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.env, []).append(line)
    return groups


def returns_of(line: Line, smoothed: bool) -> tuple[str, Curve]:
    """The returns that are drawn, with their name."""
    title, curve = line.run.returns()
    if smoothed:
        curve = curve._replace(values=smooth(curve.values, task_of(line.env).window))
    return title, curve


class Centre(NamedTuple):
    """The curve of a run over its seeds, and the limits of its band."""

    middle: np.ndarray
    limits: tuple[np.ndarray, np.ndarray] | None


def centre_of(values: np.ndarray, kind: str, bounds: tuple[float, float] = ANYTHING, log: bool = False) -> Centre:
    """Curve and band of values [S, T]. With `log`, those of the logarithms: a band around the mean itself would reach
    below 0. The band ends at `bounds`, beyond which there are no values, unless there are."""
    if log:
        middle, limits = centre_of(np.log(values), kind)
        return Centre(np.exp(middle), (np.exp(limits[0]), np.exp(limits[1])) if limits else None)
    if values.size and (values.min() < bounds[0] or values.max() > bounds[1]):  # a wrapper may change rewards
        bounds = ANYTHING
    found = band(values, kind)
    clipped = (np.clip(found[0], *bounds), np.clip(found[1], *bounds)) if found else None
    return Centre(centre(values, kind), clipped)


# one panel


class Drawn(NamedTuple):
    """The smallest and largest value of what was drawn: of the data, and of its band."""

    data: tuple[float, float]
    band: tuple[float, float]


class Drawing(NamedTuple):
    """How the curves of one panel are drawn."""

    kind: str
    each_seed: bool
    bounds: tuple[float, float] = ANYTHING
    log: bool = False


def draw(axes: Axes, curve: Curve, line: Line, how: Drawing, dashes: str = "-") -> Drawn:
    """Draws the middle and its band and, if wanted, every seed."""
    steps = curve.steps
    middle, limits = centre_of(curve.values, how.kind, how.bounds, how.log)
    alone = len(steps) == 1  # a line of one point cannot be seen
    colour = line.style.colour
    if how.each_seed and len(curve.values) > 1:
        marker = "o" if alone else ""
        axes.plot(steps, curve.values.T, dashes, marker=marker, ms=2, color=colour, alpha=0.3, linewidth=0.6)
    if limits:
        axes.fill_between(steps, *limits, color=colour, alpha=0.15 if how.each_seed else 0.1, linewidth=2 * alone)
    marker = "o" if alone else line.style.marker
    every = max(1, len(steps) // 8)
    axes.plot(steps, middle, dashes, marker=marker, ms=4, markevery=every, color=colour, linewidth=1.5)
    data = _ends(curve.values if how.each_seed else middle)
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
            colours.setdefault(step, []).append(line.style.colour)
    for step, found in colours.items():
        colour = found[0] if len(colours) > 1 and len(found) == 1 else "#444444"
        axes.axvline(step, color=colour, linestyle=":", linewidth=1)
    return bool(colours)


def _panel(axes: Axes, lines: list[Line], look: Look) -> set[str]:
    """Draws the returns on one environment; returns what the caption has to say of it."""
    returns = [returns_of(line, look.smooth) for line in lines]
    last, each_seed = max(curve.steps[-1] for _, curve in returns), shows_seeds(lines)
    env, task = lines[0].env, task_of(lines[0].env)
    how = Drawing(look.band, each_seed, bounds_of(env))
    drawn = [draw(axes, curve, line, how) for line, (_, curve) in zip(lines, returns, strict=True)]
    said: set[str] = set()
    if look.published:
        said = draw_published(axes, lines, drawn, last)
    if fit(axes, drawn):
        said.add(CUT_OFF)
    if each_seed and any(len(line.run.seeds) > 1 for line in lines):
        said.add(SINGLE_SEEDS)
    if look.smooth:
        said.add(f"mean over {task.window} points")
    finish_axes(axes, plain(textwrap.fill(env, TITLE_LETTERS)), last)
    titles = {title for title, _ in returns}
    axes.set_ylabel(titles.pop() if len(titles) == 1 else "return")
    if titles:
        episodes = [line.label for line, (title, _) in zip(lines, returns, strict=True) if title == "episode return"]
        said.add(f"{', '.join(episodes)} on {env}: return of training episodes")
    return said | ({FIRST_UPDATE} if mark_updates(axes, lines, last) else set())


def draw_published(axes: Axes, lines: list[Line], drawn: list[Drawn], last: int) -> set[str]:
    """Draws the paper's returns of the algorithms, and the best public curve as far as the runs go, as level line if it
    is a single number; adds what was drawn and returns what the caption has to say of it."""
    task, said = task_of(lines[0].env), set()
    for algorithm, line in {line.run.algorithm: line for line in reversed(lines)}.items():
        if paper := paper_return(task, algorithm):
            axes.axhline(paper.mean, color=line.style.colour, linestyle="-.", linewidth=0.9)
            drawn.append(Drawn((paper.mean, paper.mean), (paper.mean, paper.mean)))
            said.add("dash-dotted: maxima in the LSAC paper, whose data budgets differ")
    if curve := best_public(task, MILLION):
        name = f"{curve.method.name}, {task.name} after {curve.method.budget}"
        if found := until(curve, last):
            axes.plot(*found, "--", color=PUBLIC_COLOUR, linewidth=0.9)
            ends, name = _ends(found[1]), f"{curve.method.name}, {task.name}"
        else:
            axes.axhline(float(curve.mean[-1]), color=PUBLIC_COLOUR, linestyle="--", linewidth=0.9)
            ends = (float(curve.mean[-1]), float(curve.mean[-1]))
        drawn.append(Drawn(ends, ends))
        said.add(f"dashed: best public run ({name})")
    return said


def shows_seeds(lines: list[Line]) -> bool:
    return sum(len(line.run.seeds) for line in lines) <= FEW_LINES


# whole figures


def draw_curves(lines: list[Line], path: Path, look: Look) -> list[Path]:
    """Learning curves, a panel for each environment; `path` has no suffix."""
    envs = by_env(lines)
    width = WIDTHS[look.columns]
    across = 1 if look.columns == 1 else {4: 2}.get(len(envs), min(len(envs), 3))
    down = -(-len(envs) // across)
    with matplotlib.rc_context(STYLE):
        height = down * (2.2 if look.columns == 1 else 3.6 if across == 1 else 2.1)
        figure = Figure(figsize=(width, height), layout="constrained")
        said: set[str] = set()
        for i, here in enumerate(envs.values()):
            said |= _panel(figure.add_subplot(down, across, i + 1), here, look)
        return finish(figure, lines, path, look, said)


def finish(figure: Figure, lines: list[Line], path: Path, look: Look, said: set[str], title: str = "") -> list[Path]:
    """Adds the legend and the caption, which make the figure higher, and saves it in all formats."""
    seeds = {len(line.run.seeds) for line in lines}
    count = "n seeds" if len(seeds) > 1 else f"n = {max(seeds)} seeds"
    middle = "median" if look.band == "median" else "mean"
    words = ["1 seed"] if seeds == {1} else [", ".join(x for x in (middle, BANDS[look.band], count) if x)]
    if look.band in ("bootstrap", "median") and any(1 < number < FEW_SEEDS for number in seeds):
        said = said | {TOO_NARROW}
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
    looks = [same[0].style for same in entries.values()]
    handles = [Line2D([], [], color=x.colour, marker=x.marker, ms=4, linewidth=1.5) for x in looks]
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
        _lay_out(figure)
        for file, format in zip(written, formats, strict=True):
            figure.set_dpi(DPI)
            canvas = _canvas(format)(figure)
            getattr(canvas, f"print_{format}")(file, metadata=FORMATS[format])
    return written


def _lay_out(figure: Figure) -> None:
    """Lays out the figure once for all formats: `savefig` would do so for each, and draw it once more, which takes
    longer than all the rest of a report."""
    figure.set_dpi(DPI)
    engine = figure.get_layout_engine()
    if engine is not None:
        FigureCanvasAgg(figure)
        engine.execute(figure)
        figure.set_layout_engine("none")


def _canvas(format: str) -> type[Any]:
    if format == "png":
        return FigureCanvasAgg
    if format == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        return FigureCanvasSVG
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    return FigureCanvasPdf
