"""How each number was made: a table of commands, versions and machines, and the configuration of every curve."""

import dataclasses
import json
from html import escape

from lsac.analysis.figures import Line
from lsac.analysis.page import fragments
from lsac.analysis.tables import Table

LIMIT = 500
"""Rows of the table on the page; its files have all."""
CONFIGS = 200
"""Configurations on the page."""


def provenance_section(lines: list[Line], table: Table) -> str:
    few = table._replace(rows=table.rows[:LIMIT])
    parts = [fragments.table(few, heading=False)]
    if len(table.rows) > LIMIT:
        parts.append(
            fragments.paragraph(
                f"The first {LIMIT} of {len(table.rows):,} runs; provenance.csv beside the page has all."
            )
        )
    parts.append("<h3>Configurations</h3>")
    if len(lines) > CONFIGS:
        parts.append(fragments.paragraph(f"Those of the first {CONFIGS} of {len(lines):,} curves."))
    return "\n".join(parts + [_config(line, i) for i, line in enumerate(lines[:CONFIGS])])


def _config(line: Line, number: int) -> str:
    """The settings of a curve; pooled runs differ in their seeds and lengths alone."""
    run = line.run
    settings = run.notes | {"experiment": dataclasses.asdict(run.experiment)}
    text = json.dumps(settings, indent=2, default=str, ensure_ascii=False)
    pooled = f", and {len(run.others)} runs of equal settings" if run.others else ""
    title = f"{line.label} on {line.env}: {run.folder}/config.json{pooled}"
    return fragments.details(title, f"<pre>{escape(text)}</pre>", f"config-{number}")
