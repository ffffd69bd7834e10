"""The table of how each number was made: seeds, steps, machine, versions and command of every run."""

import shlex

from lsac.analysis.figures import Line
from lsac.analysis.load import Run
from lsac.analysis.tables import Names, Table, Value, one_each
from lsac.analysis.text import encodable
from lsac.runs.folder import resume_command


def provenance(lines: list[Line]) -> Table:
    columns: Names = ("label", "env", "run", "seeds", "steps", "gamma", "device", "lsac", "jax", "resumes", "command")
    rows: list[dict[str, Value]] = []
    for line in lines:
        for run in line.run.parts:
            row = (line.label, line.env, run.folder, _seeds(run), run.last_step, run.experiment.gamma, *_made(run))
            rows.append(dict(zip(columns, row, strict=True)))
    headings: Names = (
        "label",
        "environment",
        "folder",
        "seeds",
        "steps",
        "discount",
        "device",
        "lsac",
        "jax",
        "resumes",
        "command",
    )
    shown = one_each(headings, columns)
    note = (
        "As config.json of each run has it. A run without a command was started in Python. The command of a run that "
        "was made longer is one that makes the same run, with all its steps."
    )
    return Table("provenance", "How each number was made", note, columns, rows, shown)


def _made(run: Run) -> tuple[str, str, str, int, str]:
    """Device, versions, number of resumes and command of a run; what its file says is text, whatever it is."""
    notes = run.notes
    versions, resumes = notes.get("versions"), notes.get("resumes")
    versions = versions if isinstance(versions, dict) else {}
    count = len(resumes) if isinstance(resumes, list) else 0
    return (
        str(notes.get("device", "")),
        str(versions.get("lsac", "")),
        str(versions.get("jax", "")),
        count,
        command(run),
    )


def command(run: Run) -> str:
    """The command that makes a run. For one that was made longer it has all the steps or, where the agent depends on
    the length that it began with, there are two: the one that began the run, and the one that made it longer."""
    found, steps = run.notes.get("command"), run.experiment.steps
    words = [str(word) for word in found] if isinstance(found, list) else []
    began, others = _split_steps(words)
    may_be_longer = began != steps and bool(run.notes.get("resumes"))
    if words[:2] != ["lsac", "train"] or not may_be_longer:
        return shlex.join(words)
    if hasattr(run.experiment.agent, "for_longer_run"):
        more = resume_command(run.path, (run.experiment.env, *run.experiment.wrappers))
        return encodable(f"{shlex.join(words)} && {more} --steps {steps}")
    return shlex.join([*others, "--steps", str(steps)])


def _split_steps(words: list[str]) -> tuple[float | None, list[str]]:
    """The number of steps in a command, if there is one, and its words without it."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--steps":
            after = i + 1 if equals else i + 2
            try:
                return float(value if equals else " ".join(words[i + 1 : after])), words[:i] + words[after:]
            except ValueError:
                break
    return None, words


def _seeds(run: Run) -> str:
    seeds = run.experiment.seed_list
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
