"""The report of runs: learning curves, diagnostics, comparisons, tables, and the page that shows them."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.analysis import comparison, results
from lsac.analysis.comparison_figures import draw_comparison
from lsac.analysis.diagnostics import draw_diagnostics
from lsac.analysis.efficiency import efficiency
from lsac.analysis.figures import Line, Look, by_env, draw_curves, lines_of
from lsac.analysis.load import Run
from lsac.analysis.names import file_names, label
from lsac.analysis.page.analyses import read_inside
from lsac.analysis.page.document import Content, write_page
from lsac.analysis.provenance import provenance
from lsac.analysis.reference import Reference, references
from lsac.analysis.tables import write_tables
from lsac.analysis.text import encodable
from lsac.errors import LsacError

EVALUATIONS = "evaluations.csv"


class Going(NamedTuple):
    """A report of runs that have not finished: its figures can wait, its page is renewed."""

    reload: int
    """seconds until the page loads itself again"""
    state: str
    """a sentence on the runs"""


def curve_of_run(run: Run, path: Path) -> Path:
    """Draws the learning curve of one run as PNG."""
    (written,) = draw_curves(lines_of([run], label([run])), path.with_suffix(""), Look(formats=("png",)))
    return written


def write_report(
    runs: list[Run],
    labels: list[str],
    out: Path,
    look: Look,
    known: list[Reference] | None = None,
    going: Going | None = None,
) -> list[Path]:
    """Writes the figures of each environment and of all, the tables, the evaluations of every seed, and the page."""
    for run in runs:
        run.returns()  # says so if there are none, before anything is written
    with np.errstate(invalid="ignore", over="ignore"):  # returns may be infinite, and what is computed of them is not
        return _write_report(runs, labels, out, look, references() if known is None else known, going)


def _write_report(
    runs: list[Run], labels: list[str], out: Path, look: Look, known: list[Reference], going: Going | None
) -> list[Path]:
    lines = lines_of(runs, labels)
    compared, missing = comparison.compare(lines, known), comparison.not_compared(lines, known)
    optional = (results.published_numbers(lines), results.ablations(lines))
    tables = [results.returns(lines), *comparison.tables_of(compared), *(table for table in optional if table)]
    tables += [efficiency(lines), provenance(lines)]
    content = Content(lines, compared, missing, tables, look, *(going or ()))
    written = [write_page(content, out / "index.html")]
    written += [] if going else draw_figures(lines, compared, out, look)
    written += [] if going else copy_analyses(lines, out, look.formats)
    return [*written, *write_tables(tables, out), _write_evaluations(lines, out / EVALUATIONS)]


def draw_figures(lines: list[Line], compared: list[comparison.Comparison], out: Path, look: Look) -> list[Path]:
    written = []
    envs = by_env(lines)
    names = file_names(list(envs))
    for env, here in envs.items():
        written += draw_curves(here, out / names[env], look)
        written += draw_diagnostics(here, out / f"{names[env]}-diagnostics", look)
    if len(envs) > 1:
        written += draw_curves(lines, out / "curves", look)
    for each in compared:
        written += draw_comparison(each, out, file_names([each.suite.lower()])[each.suite.lower()], look)
    return written


def copy_analyses(lines: list[Line], out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Copies the figures that `lsac analyse` has left in the folders of the runs."""
    written: list[Path] = []
    for line in lines:
        for i, run in enumerate(line.run.parts, start=1):
            which = f"-{i}" if line.run.others else ""
            for file in sorted(run.path.glob("analysis/*.json")):
                title = encodable(f"{line.env}-{line.label}{which}-{file.stem}")
                for suffix in formats:
                    written += _copy(file.with_suffix(f".{suffix}"), run.path, out, title)
    return written


def _copy(picture: Path, folder: Path, out: Path, title: str) -> list[Path]:
    """Copies a picture of a run, if there is one that is no link out of it."""
    written = out / f"{file_names([title])[title]}{picture.suffix}"
    try:
        content = read_inside(picture, folder)
    except (LsacError, OSError):  # the page says what is wrong with it
        return []
    if not content:
        return []
    written.write_bytes(content)
    return [written]


def _write_evaluations(lines: list[Line], path: Path) -> Path:
    """Every evaluation of every seed, one per row."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("label", "env", "seed", "step", "seconds", "mean_reward"))
        for line in lines:
            curve = line.run.evaluations()
            for i, seed in enumerate(line.run.seeds):
                head = (line.label, line.env, seed)
                columns = zip(curve.steps.tolist(), curve.seconds[i].tolist(), curve.values[i].tolist(), strict=True)
                writer.writerows((*head, step, f"{seconds:.8g}", f"{value:.8g}") for step, seconds, value in columns)
    return path
