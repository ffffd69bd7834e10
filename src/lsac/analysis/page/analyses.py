"""What `lsac analyse` has written into the folders of runs, with its picture inside the page."""

import json
from html import escape
from pathlib import Path
from typing import Any

from lsac.analysis.figures import Line
from lsac.analysis.page import fragments
from lsac.analysis.text import encodable
from lsac.errors import LsacError
from lsac.runs.datafile import read_json, require_inside

LIMIT = 16 * 2**20
"""Bytes of a picture or table that becomes part of the page."""


def analyses_section(lines: list[Line]) -> str:
    """A figure for every analysis of the runs, with its caption, command and table."""
    found = []
    for line in lines:
        for run in line.run.parts:
            for file in sorted(run.path.glob("analysis/*.json")):
                found.append(_figure(line, run.path, file))
    return f'<div class="plots large">{"".join(found)}</div>' if found else ""


def _figure(line: Line, folder: Path, file: Path) -> str:
    try:
        require_inside(file, folder)
        notes = encodable(read_json(file))
        picture, table = (read_inside(file.with_suffix(suffix), folder) for suffix in (".png", ".csv"))
    except (LsacError, OSError) as error:
        name, problem = encodable(file.stem), encodable(str(error))
        return f"<figure><h3>{escape(name)}</h3>{fragments.paragraph(problem)}</figure>"
    notes, name = notes if isinstance(notes, dict) else {}, encodable(file.stem)
    title = f"{_text(notes.get('title')) or name} · {line.label}, {line.env}"
    parts = [f"<h3>{escape(title)}</h3>"]
    if picture:
        source = fragments.embedded("image/png", picture)
        parts.append(f'<img src="{source}" alt="{escape(title)}" loading="lazy">')
    command = _text(notes.get("command"))
    made = f" <code>{escape(command)}</code>" if command else ""
    parts.append(f"<figcaption>{escape(_text(notes.get('caption')))}{made}</figcaption>")
    if table:
        link = fragments.download(f"{name}.csv", "text/csv", table.decode(errors="replace"))
        parts.append(f'<p class="files">{link}</p>')
    return f"<figure>{''.join(parts)}</figure>"


def read_inside(path: Path, folder: Path) -> bytes:
    """The content of a file of the run; nothing if it is not there or too large."""
    require_inside(path, folder)
    return path.read_bytes() if path.is_file() and path.stat().st_size <= LIMIT else b""


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
