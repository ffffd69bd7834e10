"""Writes an experiment as the words of a command: `lsac train` gives the same experiment back."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from lsac.options import WithoutPrefix, flag, marked
from lsac.presets import presets
from lsac.runs.experiment import Experiment
from lsac.runs.folder import resume_command


def train_words(experiment: Experiment, out: Path | str | None = None) -> list[str]:
    """The words after `lsac` of the command that trains an experiment."""
    e = experiment
    ways = [
        ([] if name == "default" else ["--preset", name]) + _differing(e, make(e.env))
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


def _differing(value: Any, base: Any, prefix: str = "") -> list[str]:
    """The options that turn the dataclass `base` into `value`."""
    unprefixed = marked(type(base), WithoutPrefix)
    words: list[str] = []
    for field in dataclasses.fields(base):
        old, new = getattr(base, field.name), getattr(value, field.name)
        if old == new:
            continue
        name = prefix + field.name
        if dataclasses.is_dataclass(new):
            words += _differing(new, old, prefix if field.name in unprefixed else f"{name}.")
        elif isinstance(new, bool):
            outer, dot, inner = name.rpartition(".")
            words.append(flag(name if new else f"{outer}{dot}no_{inner}"))
        else:
            words += [flag(name), *map(str, new if isinstance(new, tuple) else (new,))]
    return words
