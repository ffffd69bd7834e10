"""The plots of the page, as data that its script hands to Plotly."""

import html
import math
from typing import Any, NamedTuple

import numpy as np

from lsac.analysis.aggregate import AGGREGATES, marked
from lsac.analysis.colours import transparent
from lsac.analysis.comparison import Compared, Comparison
from lsac.analysis.diagnostics import Panel, panels_of
from lsac.analysis.figures import ANYTHING, REACH, Line, Look, centre_of
from lsac.analysis.load import EPISODES, EVALUATIONS, Curve
from lsac.analysis.names import published
from lsac.analysis.page.thinning import kept
from lsac.analysis.reference import MILLION, best_public, bounds_of, paper_return, task_of, until
from lsac.analysis.stats import BANDS, smooth

SEED_LINES = 60
"""A plot with more seeds shows none of them alone."""
Item = dict[str, Any]
"""A curve of a plot: label, role, statistic, `steps`, `hours` and `y`, and what Plotly needs to draw it"""


class Plot(NamedTuple):
    id: str
    title: str
    y: str
    items: list[Item]
    over_time: bool = True
    """whether x is steps or wall-clock time; else the layout says what it is"""
    layout: dict[str, Any] = {}  # noqa: RUF012  never changed
    rows: int = 0
    """rows of labels on the y axis, which need room of their own"""

    def data(self) -> dict[str, Any]:
        return self._asdict()


def statistics(look: Look) -> list[str]:
    """Kinds of bands that the page offers: the one that was asked for, and the median."""
    return list(dict.fromkeys((look.band, "median")))


def words(kind: str) -> str:
    middle = "median" if kind == "median" else "mean"
    return f"{middle}, {BANDS[kind]}" if BANDS[kind] else middle


# learning curves


def return_plot(env: str, lines: list[Line], look: Look, number: int) -> Plot:
    """Evaluations on one environment, with published curves; training episodes if nothing was evaluated."""
    metric = EVALUATIONS if any(len(line.run.evaluations().steps) for line in lines) else EPISODES
    there = [line for line in lines if len(line.run.curve(metric).steps)]
    curves = [line.run.curve(metric) for line in there]
    if look.smooth:
        curves = [curve._replace(values=smooth(curve.values, task_of(env).window)) for curve in curves]
    how = Drawing(statistics(look), _bounds(curves, bounds_of(env)), _seeds_fit(there))
    items = [item for line, curve in zip(there, curves, strict=True) for item in _items(line, curve, how)]
    items += _published(env, there, metric)
    y = "evaluation return" if metric == EVALUATIONS else "return of training episodes"
    return Plot(f"returns-{number}", env, y, items)


def _seeds_fit(lines: list[Line]) -> bool:
    return sum(len(line.run.seeds) for line in lines) <= SEED_LINES


class Drawing(NamedTuple):
    """How the curves of a plot are drawn."""

    kinds: list[str]
    bounds: tuple[float, float]
    each_seed: bool
    dash: str = "solid"


def _bounds(curves: list[Curve], bounds: tuple[float, float]) -> tuple[float, float]:
    """The ends of bands: those of the data, and a share of their range beyond, as in the figures."""
    values = [curve.values[np.isfinite(curve.values)] for curve in curves]
    values = [x for x in values if x.size]
    if not values:
        return bounds
    low, high = min(float(x.min()) for x in values), max(float(x.max()) for x in values)
    if not bounds[0] <= low <= high <= bounds[1]:
        bounds = ANYTHING
    return max(bounds[0], low - REACH * (high - low)), min(bounds[1], high + REACH * (high - low))


def _items(line: Line, curve: Curve, how: Drawing) -> list[Item]:
    """The band, the seeds and the middle of a curve, in the order in which they are drawn."""
    hours = curve.seconds.mean(axis=0) / 3600
    found: list[Item] = []
    for kind in how.kinds:
        middle, limits = centre_of(curve.values, kind, how.bounds)
        columns = [middle, *(limits or ())]
        at = kept(*columns)
        x = {"steps": _numbers(curve.steps[at]), "hours": _numbers(hours[at])}
        if limits:
            low, high = (_numbers(limit[at]) for limit in limits)
            around = {name: values + values[::-1] for name, values in x.items()}
            found.append(_item(line, "band", kind, around | {"y": high + low[::-1]}, how.dash))
        found.append(_item(line, "middle", kind, x | {"y": _numbers(middle[at])}, how.dash))
    if how.each_seed and len(line.run.seeds) > 1:
        for i, seed in enumerate(line.run.seeds):
            at = kept(curve.values[i])
            x = {"steps": _numbers(curve.steps[at]), "hours": _numbers(curve.seconds[i, at] / 3600)}
            found.append(_item(line, "seed", "", x | {"y": _numbers(curve.values[i, at])}, how.dash, seed))
    return found


def _item(
    line: Line, role: str, statistic: str, columns: dict[str, list[float | None]], dash: str, seed: int | None = None
) -> Item:
    colour, name = line.style.colour, html.escape(line.label)
    item: Item = {"label": line.label, "role": role, "statistic": statistic, **columns}
    if role == "band":
        area = {"fill": "toself", "fillcolor": transparent(colour, 0.16), "line": {"width": 0}, "mode": "lines"}
        return item | {"trace": area | {"hoverinfo": "skip"}}
    seeds = len(line.run.seeds)
    who = f"seed {seed}" if seed is not None else f"{words(statistic).split(',')[0]} of {seeds} seeds"
    who = who if seeds > 1 else f"seed {line.run.seeds[0]}"
    alone = len(columns["y"]) == 1
    marks = bool(line.style.symbol) or alone
    trace: Item = {"mode": "lines+markers" if marks and role == "middle" else "lines", "hover": f"<b>{name}</b>, {who}"}
    trace["line"] = {"color": colour, "width": 2.2 if role == "middle" else 1, "dash": dash}
    trace["marker"] = {"color": colour, "symbol": line.style.symbol or "circle", "size": 7, "maxdisplayed": 9}
    if role == "seed":
        trace |= {"opacity": 0.45, "mode": "markers" if alone else "lines"}
    return item | {"trace": trace}


def _published(env: str, lines: list[Line], metric: str) -> list[Item]:
    """The paper's numbers as level lines, for the algorithms that are there, and the best public curve."""
    if metric != EVALUATIONS:
        return []
    task, found = task_of(env), []
    last = max((int(line.run.evaluations().steps[-1]) for line in lines), default=0)
    hours = max((float(line.run.evaluations().seconds[:, -1].max()) / 3600 for line in lines), default=0.0)
    ends = {"steps": [0, last], "hours": _numbers(np.array([0.0, hours]))}
    for algorithm in dict.fromkeys(line.run.algorithm for line in lines):
        if paper := paper_return(task, algorithm):
            name = f"paper: {published(algorithm)} on {paper.task}, {paper.mean:g} ± {paper.half_width:g}"
            text = f"{html.escape(name)}<br>{html.escape(paper.budget)}"
            style = next(line.style for line in lines if line.run.algorithm == algorithm)
            line_style = {"color": style.colour, "width": 1.2, "dash": "dashdot"}
            trace = {"mode": "lines", "line": line_style, "hover": text}
            found.append(
                {"role": "published", "label": "", "statistic": "", **ends, "y": [paper.mean] * 2, "trace": trace}
            )
    if curve := best_public(task, MILLION):
        parts = (f"best public: {curve.method.name}", curve.method.budget, curve.method.protocol, curve.method.source)
        text = "<br>".join(map(html.escape, parts))
        part = until(curve, last)
        columns: Item = ends | {"y": [float(curve.mean[-1])] * 2}
        if part:
            columns = {"steps": _numbers(part[0]), "hours": [], "y": _numbers(part[1])}
        trace = {"mode": "lines", "line": {"width": 1.5, "dash": "dash"}, "marker": {"size": 4}, "hover": text}
        found.append({"role": "published", "label": "", "statistic": "", **columns, "trace": trace})
    return found


# diagnostics


def diagnostic_plots(lines: list[Line], look: Look, number: int) -> list[Plot]:
    """Returns of training episodes on an environment, and a plot for each metric that its runs have."""
    episodes = Panel("return of training episodes", EPISODES, bounds=bounds_of(lines[0].env))
    there = [line for line in lines if len(line.run.episodes().steps)]
    panels = [*([(episodes, there)] if there else []), *panels_of(lines)]
    plots = []
    for i, (panel, here) in enumerate(panels):
        names = [(name, dash) for name, dash in ((panel.metric, "solid"), (panel.dashed, "dash")) if name]
        curves = [(line, line.run.curve(name), dash) for name, dash in names for line in here]
        how = Drawing([look.band], _bounds([curve for _, curve, _ in curves], panel.bounds), False)
        items = []
        for line, curve, dash in curves:
            items += _items(line, curve, how._replace(dash=dash)) if len(curve.steps) else []
        for item in items:
            item["statistic"] = ""  # one statistic, whatever is chosen for returns
        title = panel.title_of(here).replace("\n", ": ")
        plots.append(Plot(f"diagnostic-{number}-{i}", title, panel.metric, items))
    return plots


# across tasks


def comparison_plots(comparison: Comparison, number: int) -> list[Plot]:
    plots = [_aggregate_plot(comparison, name, f"aggregate-{number}-{i}") for i, name in enumerate(AGGREGATES)]
    plots.append(_profile_plot(comparison, f"profile-{number}"))
    if len(comparison.labels) > 1:
        plots.append(_improvement_plot(comparison, f"improvement-{number}"))
    return plots


def _aggregate_plot(comparison: Comparison, name: str, key: str) -> Plot:
    items = [_bar(x, html.escape(marked(x.label, x.doubtful)), x.aggregates[name]) for x in comparison.labels]
    axis = {"type": "category", "autorange": "reversed", "automargin": True}
    layout = {"yaxis": axis, "xaxis": {"title": {"text": name}}}
    return Plot(key, f"{comparison.suite}: {name}", "", items, False, layout, len(items))


def _improvement_plot(comparison: Comparison, key: str) -> Plot:
    items = []
    for pair in comparison.improvements:
        name = marked(f"{pair.ours.label} over {pair.theirs.label}", pair.doubtful)
        items.append(_bar(pair.ours, html.escape(name), pair.chance))
    layout = {"yaxis": {"type": "category", "autorange": "reversed", "automargin": True}}
    layout["xaxis"] = {"range": [-0.04, 1.04], "title": {"text": "probability of improvement"}}
    return Plot(key, f"{comparison.suite}: probability of improvement", "", items, False, layout, len(items))


def _bar(compared: Compared, name: str, found: tuple[float, float, float]) -> Item:
    """A point with its interval, if it has one."""
    point, low, high = found
    colour = compared.style.colour
    error = {"type": "data", "symmetric": False, "array": [high - point], "arrayminus": [point - low], "color": colour}
    known = math.isfinite(high - low)
    limits = f" [{low:.3f}, {high:.3f}]" if known else ", no interval"
    trace: Item = {"mode": "markers"} | ({"error_x": error | {"thickness": 3, "width": 5}} if known else {})
    trace["marker"] = {"color": colour, "size": 9, "symbol": compared.style.symbol or "circle"}
    trace["hovertemplate"] = f"{name}<br>{point:.3f}{limits}<extra></extra>"
    return {"label": compared.label, "role": "point", "statistic": "", "x": [point], "y": [name], "trace": trace}


def _profile_plot(comparison: Comparison, key: str) -> Plot:
    x, items = _numbers(comparison.thresholds), []
    for compared, share, low, high in comparison.profiles:
        colour, name = compared.style.colour, html.escape(compared.label)
        area = {"fill": "toself", "fillcolor": transparent(colour, 0.16), "line": {"width": 0}, "hoverinfo": "skip"}
        around = {"x": x + x[::-1], "y": _numbers(high) + _numbers(low)[::-1]}
        items.append(
            {"label": compared.label, "role": "band", "statistic": "", **around, "trace": area | {"mode": "lines"}}
        )
        trace: Item = {
            "mode": "lines+markers" if compared.style.symbol else "lines",
            "line": {"color": colour, "width": 2.2},
        }
        trace["marker"] = {"color": colour, "symbol": compared.style.symbol or "circle", "size": 7, "maxdisplayed": 9}
        trace["hovertemplate"] = f"<b>{name}</b><br>%{{y:.2f}} of the runs above %{{x:.2f}}<extra></extra>"
        items.append(
            {"label": compared.label, "role": "point", "statistic": "", "x": x, "y": _numbers(share), "trace": trace}
        )
    layout = {"xaxis": {"title": {"text": "normalised score τ"}}, "yaxis": {"range": [-0.02, 1.02]}}
    return Plot(key, f"{comparison.suite}: performance profile", "share of runs above τ", items, False, layout)


def _numbers(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, which knows no others than finite ones: six digits are more than a screen shows."""
    if np.issubdtype(values.dtype, np.integer):
        return [int(x) for x in values]
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in values.tolist()]
