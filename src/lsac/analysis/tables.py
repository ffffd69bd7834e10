"""A table and its files: CSV with all columns; Markdown and LaTeX, and HTML on the page, with those for people."""

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

Value = str | int | float
Names = tuple[str, ...]
NAN = math.nan
NOTHING = (NAN, NAN, NAN)
"""A value that is not known, and the limits of its interval."""
THOUSANDS = re.compile(r"(?<=\d),(?=\d)")
"""A comma between digits, after which LaTeX would leave a space in a formula."""
LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "·": r"$\cdot$"}
LATEX |= {"±": r"$\pm$", "−": "$-$", "α": r"$\alpha$", "γ": r"$\gamma$", "×": r"$\times$", "≤": r"$\le$"}


class Shown(NamedTuple):
    """A column for people, made of one column of the CSV file, or of three: a value and the limits of its interval."""

    heading: str
    columns: tuple[str, ...]


def one_each(headings: Names, columns: Names) -> tuple[Shown, ...]:
    """Columns for people that are those of the CSV file under other headings."""
    return tuple(Shown(heading, (name,)) for heading, name in zip(headings, columns, strict=True))


class Table(NamedTuple):
    name: str
    """of its files"""
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[dict[str, Value]]
    shown: tuple[Shown, ...]

    def texts(self) -> list[list[str]]:
        """The cells for people."""
        return [[_cell([row[name] for name in shown.columns]) for shown in self.shown] for row in self.rows]

    def csv(self) -> str:
        text = io.StringIO()
        rows = [[_exact(row[name]) for name in self.columns] for row in self.rows]
        csv.writer(text, lineterminator="\n").writerows([self.columns, *rows])
        return text.getvalue()

    def markdown(self) -> str:
        headings = [shown.heading for shown in self.shown]
        lines = [headings, ["---"] * len(headings), *self.texts()]
        cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
        return "\n".join([*("| " + " | ".join(line) + " |" for line in cells), "", self.note, ""])

    def latex(self) -> str:
        kinds = ["l" if self._has_words(shown) else "r" for shown in self.shown]
        begin = [f"% {self.note}", f"\\begin{{tabular}}{{{''.join(kinds)}}}", r"\hline"]
        headings = " & ".join(_latex(shown.heading) for shown in self.shown) + r" \\"
        body = [
            " & ".join(
                _latex(cell) if kind == "l" or not cell else f"${THOUSANDS.sub('{,}', cell)}$"
                for kind, cell in zip(kinds, row, strict=True)
            )
            + r" \\"
            for row in self.texts()
        ]
        return "\n".join([*begin, headings, r"\hline", *body, r"\hline", r"\end{tabular}", ""])

    def _has_words(self, shown: Shown) -> bool:
        return any(isinstance(row[shown.columns[0]], str) for row in self.rows)


def write_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """Writes each table as CSV, Markdown and LaTeX."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for suffix, text in ((".csv", table.csv()), (".md", table.markdown()), (".tex", table.latex())):
            written.append(out / f"{table.name}{suffix}")
            written[-1].write_text(text, encoding="utf-8", newline="")
    return written


def _exact(value: Value) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _cell(values: list[Value]) -> str:
    """A value, or value [low, high]; what is not known is empty, and a single seed has no interval."""
    texts = [value if isinstance(value, str) else number(value) for value in values]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if len(texts) == 3 and texts[1] else texts[0]


def number(value: float) -> str:
    """A number for people; empty if it is not known."""
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return ""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _latex(text: str) -> str:
    return "".join(LATEX.get(char, char) for char in text)
