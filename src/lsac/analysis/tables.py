"""The numbers of runs as a table: CSV with all of them; Markdown and LaTeX for people."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.analysis.figures import Line
from lsac.analysis.stats import interval

Interval = tuple[float, float, float]
"""mean, lower and upper limit"""
COLUMNS: tuple[str, ...] = ("run", "label", "algorithm", "env", "seeds", "return", "step")
COLUMNS += ("final_mean", "final_low95", "final_high95", "last_tenth_mean", "last_tenth_low95", "last_tenth_high95")
COLUMNS += ("max_of_mean", "steps_per_second")
HEADINGS = ("environment", "run", "seeds", "return", "steps", "final", "last 10 % of the points")
NOTE = "Mean [95 % t-interval over seeds] of the return, of evaluation or training episodes."
LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}


class Row(NamedTuple):
    line: Line
    kind: str
    """evaluation return or episode return"""
    step: int
    final: Interval
    last_tenth: Interval
    """of the mean over the last 10 % of the points, at least one"""
    max_of_mean: float
    speed: float


def write_tables(lines: list[Line], path: Path) -> list[Path]:
    """Writes one row per run in each of the three formats; `path` has no suffix."""
    envs = list(dict.fromkeys(line.run.experiment.env for line in lines))
    rows = [_row(line) for line in sorted(lines, key=lambda line: envs.index(line.run.experiment.env))]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *map(_numbers, rows)])
    path.with_suffix(".md").write_text(_markdown(rows))
    path.with_suffix(".tex").write_text(_latex(rows))
    return [path.with_suffix(suffix) for suffix in (".csv", ".md", ".tex")]


def _row(line: Line) -> Row:
    kind, curve = line.run.returns()
    tenth = max(1, len(curve.steps) // 10)
    fps = line.run.curve("time/fps").values[:, 1:]  # the first line includes the start
    return Row(
        line,
        kind,
        int(curve.steps[-1]),
        interval(curve.values[:, -1]),
        interval(curve.values[:, -tenth:].mean(axis=1)),
        float(curve.values.mean(axis=0).max()),
        float(np.median(fps)) if fps.size else math.nan,
    )


def _numbers(row: Row) -> list[str]:
    run = row.line.run
    head = [run.where, row.line.label, run.algorithm, run.experiment.env, len(run.seeds), row.kind, row.step]
    return [*map(str, head)] + [f"{number:.8g}" for number in (*row.final, *row.last_tenth, row.max_of_mean, row.speed)]


def _texts(row: Row) -> list[str]:
    run = row.line.run
    head = [run.experiment.env, row.line.label, str(len(run.seeds)), row.kind.removesuffix(" return"), f"{row.step:,}"]
    return head + [_shown(found) for found in (row.final, row.last_tenth)]


def _shown(found: Interval) -> str:
    """Mean [low, high]; a single seed has no interval."""
    mean, low, high = (f"{x:.1f}" if abs(x) >= 10 else f"{x:.3g}" for x in found)
    return mean if math.isnan(found[1]) else f"{mean} [{low}, {high}]"


def _markdown(rows: list[Row]) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(_texts, rows)]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in cells), "", NOTE, ""])


def _latex(rows: list[Row]) -> str:
    def line(words: list[str], numbers: list[str]) -> str:
        cells = ["".join(LATEX.get(char, char) for char in word) for word in words]
        return " & ".join([*cells, *(f"${number}$" for number in numbers)]) + r" \\"

    texts = [_texts(row) for row in rows]
    body = [line(text[:5], text[5:]) for text in texts]
    begin = [f"% {NOTE}", r"\begin{tabular}{llrlrrr}", r"\hline", line(list(HEADINGS), []), r"\hline"]
    return "\n".join([*begin, *body, r"\hline", r"\end{tabular}", ""])
