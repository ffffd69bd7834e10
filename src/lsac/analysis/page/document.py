"""Assembles the page from its sections, the script and the library that draws the plots."""

import base64
import hashlib
import json
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from lsac.analysis.comparison import Comparison
from lsac.analysis.figures import Line, Look, by_env
from lsac.analysis.page import fragments
from lsac.analysis.page.analyses import analyses_section
from lsac.analysis.page.plots import (
    SEED_LINES,
    Plot,
    comparison_plots,
    diagnostic_plots,
    return_plot,
    statistics,
    words,
)
from lsac.analysis.page.provenance import provenance_section
from lsac.analysis.page.thinning import LIMIT
from lsac.analysis.stats import FEW_SEEDS
from lsac.analysis.tables import Table
from lsac.version import __version__


class Content(NamedTuple):
    """What a page shows."""

    lines: list[Line]
    comparisons: list[Comparison]
    not_compared: list[str]
    """why suites have no comparison"""
    tables: list[Table]
    look: Look
    reload: int = 0
    """seconds after which the page loads itself again; 0 is never"""
    state: str = ""
    """a sentence on runs that are still going"""


def page(content: Content) -> str:
    """The whole page."""
    curves, diagnostics, comparisons = _plots(content)
    plots = [*curves, *(plot for group in diagnostics.values() for plot in group), *comparisons]
    sections = _sections(content, curves, diagnostics, comparisons)
    data = {"plots": [plot.data() for plot in plots], "reload": content.reload}
    plotly, script = _plotly(), _file("page.js")
    return Template(_file("template.html")).substitute(
        title="lsac report",
        summary=escape(_summary(content)),
        navigation=" ".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in sections),
        controls=_controls(content),
        sections="\n".join(fragments.section(key, title, text) for key, title, text in sections),
        footer=escape(_footer()),
        style=_file("page.css"),
        script_hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (plotly, script)),
        data=_json(data),
        plotly=plotly,
        script=script,
    )


def write_page(content: Content, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")  # a browser that loads it again finds the old page or the new one
    aside.write_text(page(content), encoding="utf-8")
    aside.replace(path)
    return path


def _plots(content: Content) -> tuple[list[Plot], dict[str, list[Plot]], list[Plot]]:
    envs = by_env(content.lines)
    curves = [return_plot(env, here, content.look, i) for i, (env, here) in enumerate(envs.items())]
    diagnostics = {env: diagnostic_plots(here, content.look, i) for i, (env, here) in enumerate(envs.items())}
    comparisons = [plot for i, each in enumerate(content.comparisons) for plot in comparison_plots(each, i)]
    return curves, diagnostics, comparisons


def _sections(
    content: Content, curves: list[Plot], diagnostics: dict[str, list[Plot]], comparisons: list[Plot]
) -> list[tuple[str, str, str]]:
    """Id, title and HTML of each section that has something to show."""
    by_name = {table.name: table for table in content.tables}

    def tables(*names: str) -> str:
        return "\n".join(fragments.table(by_name[name], heading=len(names) > 1) for name in names if name in by_name)

    details = [fragments.details(env, fragments.plots(plots)) for env, plots in diagnostics.items() if plots]
    found = [
        ("curves", "Learning curves", _curves_note(content) + fragments.plots(curves, large=True)),
        ("returns", "Returns", tables("table")),
        ("across", "Across tasks", _across(content, tables("across-tasks", "improvement"), comparisons)),
        ("published", "Published numbers", tables("published")),
        ("ablations", "Ablations", tables("ablations")),
        ("efficiency", "Efficiency", tables("efficiency")),
        ("diagnostics", "Diagnostics", "\n".join(details)),
        ("analyses", "Analyses", analyses_section(content.lines)),
        ("made", "How each number was made", provenance_section(content.lines, by_name["provenance"])),
    ]
    return [each for each in found if each[2]]


def _across(content: Content, tables: str, plots: list[Plot]) -> str:
    reasons = "".join(map(fragments.paragraph, content.not_compared))
    return reasons + (tables + fragments.plots(plots) if content.comparisons else "")


def _curves_note(content: Content) -> str:
    text = (
        "Evaluation returns; training episodes are among the diagnostics. Curves of more than "
        f"{LIMIT} points are thinned: of every interval of steps, the smallest and the largest value are kept. Bands "
        "end where no return can be, and a fifth of the data's range beyond the data. Single seeds can be shown where "
        f"a plot has at most {SEED_LINES}. A logarithmic scale shows positive values only. Wall-clock is that of a "
        f"run, which trains all its seeds at the same time. With fewer than {FEW_SEEDS} seeds, a bootstrap interval is "
        "narrower than the data allow."
    )
    without = [line for line in content.lines if not len(line.run.evaluations().steps)]
    if without:
        names = ", ".join(f"{line.label} on {line.env}" for line in without)
        text += f" Without evaluations: {names}."
    return fragments.paragraph(text)


def _controls(content: Content) -> str:
    styles = {line.label: line.style for line in content.lines}
    labels = "".join(fragments.checkbox("label", name, name, before=fragments.swatch(x)) for name, x in styles.items())
    kinds = {kind: words(kind) for kind in statistics(content.look)}
    return (
        f"<fieldset><legend>Curves</legend>{labels}</fieldset><fieldset>"
        + fragments.choice("x", "over", {"steps": "steps", "hours": "wall-clock"})
        + fragments.choice("scale", "scale", {"linear": "linear", "log": "logarithmic"})
        + fragments.choice("statistic", "show", kinds)
        + fragments.checkbox("seeds", "single seeds")
        + fragments.checkbox("published", "published", checked=content.look.published)
        + "</fieldset>"
    )


def _summary(content: Content) -> str:
    runs = sum(len(line.run.parts) for line in content.lines)
    seeds = sum(len(line.run.seeds) for line in content.lines)
    envs = len({line.env for line in content.lines})
    counts = [(runs, "run"), (len(content.lines), "curve"), (envs, "environment"), (seeds, "seed")]
    text = ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"{text}, counting a seed once for each curve. {content.state}".strip()


def _footer() -> str:
    return f"Made by lsac {__version__}. This page needs no network and sends nothing. Plots: Plotly (MIT licence)."


def _file(name: str) -> str:
    return resources.files("lsac.analysis.page").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # only a page needs it

    # an HTML parser would end the script at a closing tag, wherever that stands in it
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    """JSON that an HTML parser leaves alone."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
