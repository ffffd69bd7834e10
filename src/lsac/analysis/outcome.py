"""What an analysis leaves in the folder of a run: a table, a figure, and a file that describes them."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lsac.analysis.figures import STYLE, save
from lsac.errors import InputError
from lsac.runs.datafile import require_inside

FOLDER = "analysis"
SEED_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a4fa3", "#555555")
"""The first six are of the palette of Okabe and Ito, which people who lack one kind of cone can tell apart."""


def colour(index: int) -> str:
    """The colour of a seed, or of another kind of line, by its place."""
    return SEED_COLOURS[index % len(SEED_COLOURS)]


class Outcome(NamedTuple):
    title: str
    caption: str
    """how the numbers were made"""
    sentences: list[str]
    """the main numbers, for the terminal"""
    columns: Sequence[str]
    rows: list[Sequence[Any]]
    size: tuple[float, float]
    """of the figure, in inches"""
    draw: Callable[[Figure], None]


def write_outcome(run: Path, name: str, outcome: Outcome, command: str) -> list[Path]:
    """Writes NAME.csv, NAME.png, NAME.svg and NAME.json into the folder `analysis` of a run."""
    path = run / FOLDER / name
    try:
        table, about, *figures = (path.with_suffix(suffix) for suffix in (".csv", ".json", ".png", ".svg"))
        for written in (table, about, *figures):
            require_inside(written, run)
        path.parent.mkdir(exist_ok=True)
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([outcome.columns, *([_shown(x) for x in row] for row in outcome.rows)])
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=outcome.size, layout="constrained")
            outcome.draw(figure)
            drawn = save(figure, path, ("png", "svg"))
        described = {"title": outcome.title, "caption": outcome.caption, "command": command}
        about.write_text(json.dumps(described, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be written ({error.strerror})") from None
    return [table, *drawn, about]


def _shown(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, (float, np.floating)) else str(value)
