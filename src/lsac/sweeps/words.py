"""Writes an experiment as the words of a command: `lsac train` gives the same experiment back."""

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lsac.options import flag
from lsac.presets import presets
from lsac.runs.experiment import Experiment
from lsac.runs.folder import resume_command


def train_words(experiment: Experiment, out: Path | str | None = None) -> list[str]:
    """The words after `lsac` of the command that trains an experiment."""
    e = experiment
    ways = [
        ([] if name == "default" else ["--preset", name]) + _differing_words(make(e.env), e)
        for name, make in presets(e.algorithm).items()
    ]
    words = ["train", e.algorithm, "--env", e.env, *min(ways, key=len)]
    return words if out is None else [*words, "--out", str(out)]


def resume_words(experiment: Experiment, folder: Path | str) -> list[str]:
    """The words after `lsac` of the command that continues an experiment up to its number of steps."""
    e = experiment
    words = shlex.split(resume_command(Path(folder), (e.env, *e.wrappers)))[1:]
    return [*words, "--steps", str(e.steps)]


def shown(words: list[str]) -> str:
    """A command, ready for a shell."""
    return shlex.join(["lsac", *words])


def option_words(name: str, value: Any) -> list[str]:
    """The words that set an option."""
    if isinstance(value, bool):
        outer, dot, inner = name.rpartition(".")
        return [flag(name if value else f"{outer}{dot}no_{inner}")]
    return [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]


def _differing_words(base: Experiment, wanted: Experiment) -> list[str]:
    """The words that turn one experiment into another."""
    found = differences(dataclasses.asdict(base), dataclasses.asdict(wanted))
    return [word for name, _, new in found for word in option_words(name, new)]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The names of the options in which two experiments differ, and both values; experiments as tables of tables."""
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, prefix if name == "agent" else f"{prefix}{name}.")
        elif before != after:
            yield prefix + name, before, after
