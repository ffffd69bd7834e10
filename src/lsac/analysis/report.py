"""The report of runs: learning curves, diagnostics and tables."""

from pathlib import Path

from lsac.analysis.diagnostics import draw_diagnostics
from lsac.analysis.figures import Look, draw_curves, lines_of
from lsac.analysis.load import Run
from lsac.analysis.names import file_names, label
from lsac.analysis.tables import write_tables


def curve_of_run(run: Run, path: Path) -> Path:
    """Draws the learning curve of one run as PNG."""
    (written,) = draw_curves(lines_of([run], label([run])), path.with_suffix(""), Look())
    return written


def write_report(runs: list[Run], labels: list[str], out: Path, look: Look) -> list[Path]:
    """Writes curves and diagnostics per environment, one figure with the curves of all, and the tables."""
    lines = lines_of(runs, labels)
    names = file_names([run.experiment.env for run in runs])
    written = []
    for env, name in names.items():
        here = [line for line in lines if line.run.experiment.env == env]
        written += draw_curves(here, out / name, look)
        written += draw_diagnostics(here, out / f"{name}-diagnostics", look)
    if len(names) > 1:
        written += draw_curves(lines, out / "curves", look)
    return written + write_tables(lines, out / "table")
