"""Pieces of HTML. Labels, ids and everything that a run's files hold are text, and escaped here."""

import base64
from html import escape

from lsac.analysis.colours import Style
from lsac.analysis.page.plots import Plot
from lsac.analysis.tables import Table

LONG = 40
"""Cells of more letters may be wrapped."""
ROWS = 8
"""A plot with more rows of labels is as wide as the page and as high as they need."""
MARKS = {
    "circle": '<circle cx="14" cy="6" r="3.5"/>',
    "square": '<rect x="10.5" y="2.5" width="7" height="7"/>',
    "triangle-up": '<path d="M14 2l4 7.5h-8z"/>',
    "diamond": '<path d="M14 1.5l4.5 4.5-4.5 4.5-4.5-4.5z"/>',
    "triangle-down": '<path d="M14 10l4-7.5h-8z"/>',
    "cross": '<path d="M12.8 2h2.4v2.8H18v2.4h-2.8V10h-2.4V7.2H10V4.8h2.8z"/>',
    "x": '<path d="M10.5 3.9l1.4-1.4L14 4.6l2.1-2.1 1.4 1.4L15.4 6l2.1 2.1-1.4 1.4L14 7.4l-2.1 2.1-1.4-1.4L12.6 6z"/>',
}
"""The markers of Plotly, for the labels of the controls."""


def section(key: str, title: str, *parts: str) -> str:
    return f'<section id="{key}"><h2>{escape(title)}</h2>\n' + "\n".join(parts) + "\n</section>"


def paragraph(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def plot(of: Plot) -> str:
    """The place of a plot; the script draws it when it comes near the screen."""
    words = escape(f"{of.title}: {of.y or 'with intervals'}. The numbers are in the tables of this page.")
    many = of.rows > ROWS
    height = f' style="height: {6 + 1.5 * of.rows:g}rem"' if many else ""
    frame = f'<div class="plot"{height} id="{of.id}" data-plot="{of.id}" role="img" aria-label="{words}"></div>'
    kind = ' class="wide"' if many else ""
    return f"<figure{kind}><h3>{escape(of.title)}</h3>{frame}</figure>"


def plots(of: list[Plot], large: bool = False) -> str:
    return f'<div class="plots{" large" if large else ""}">' + "\n".join(map(plot, of)) + "</div>"


def table(of: Table, heading: bool = True) -> str:
    """A table with links to its files, which are part of the page. Rows of a label can be hidden with it."""
    texts = of.texts()
    words = [any(isinstance(row[shown.columns[0]], str) for row in of.rows) for shown in of.shown]
    head = "".join(
        f'<th scope="col"{"" if word else _NUMBER}>{escape(shown.heading)}</th>'
        for shown, word in zip(of.shown, words, strict=True)
    )
    body = []
    for row, cells in zip(of.rows, texts, strict=True):
        label = f' data-label="{escape(str(row["label"]))}"' if "label" in row else ""
        body.append(f"<tr{label}>{''.join(_cell(*x) for x in zip(cells, words, strict=True))}</tr>")
    files = " · ".join(
        download(f"{of.name}.{suffix}", kind, text)
        for suffix, kind, text in (("csv", "text/csv", of.csv()), ("tex", "application/x-tex", of.latex()))
    )
    name = escape(of.title)
    above = f"<h3>{name}</h3>" if heading else ""
    return (
        f'{above}<div class="scroll" role="region" aria-label="{name}" tabindex="0">'
        f'<table id="table-{of.name}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        f'{paragraph(of.note)}<p class="files">{files}</p>'
    )


_NUMBER = ' class="number"'


def _cell(text: str, word: bool) -> str:
    kind = ("" if len(text) <= LONG else ' class="long"') if word else _NUMBER
    return f"<td{kind}>{escape(text)}</td>"


def download(name: str, kind: str, text: str) -> str:
    """A link to a file that is inside the page."""
    return f'<a download="{escape(name)}" href="{embedded(kind, text.encode())}">{escape(name)}</a>'


def embedded(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def swatch(style: Style) -> str:
    """The line and marker of a label."""
    mark = MARKS.get(style.symbol, "")
    line = f'<path d="M1 6h26" stroke="{style.colour}" stroke-width="2.5"/>'
    return f'<svg class="swatch" width="28" height="12" aria-hidden="true" fill="{style.colour}">{line}{mark}</svg>'


def checkbox(name: str, text: str, value: str = "yes", checked: bool = True, before: str = "") -> str:
    given = " checked" if checked else ""
    box = f'<input type="checkbox" name="{name}" value="{escape(value)}"{given} autocomplete="off">'
    return f"<label>{box} {before}{escape(text)}</label>"


def choice(name: str, text: str, options: dict[str, str]) -> str:
    """A list to choose from; the first is chosen."""
    inside = "".join(f'<option value="{escape(value)}">{escape(shown)}</option>' for value, shown in options.items())
    return f'<label>{escape(text)} <select name="{name}" autocomplete="off">{inside}</select></label>'


def details(title: str, inside: str, key: str = "") -> str:
    named = f' id="{escape(key)}"' if key else ""
    return f"<details{named}><summary>{escape(title)}</summary>{inside}</details>"
