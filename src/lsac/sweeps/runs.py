"""The runs of a sweep: whether one is to be trained, continued or left alone, and what is told of its progress.

Only the folder of a run decides, never what a sweep remembers: whoever goes on, on whatever machine, finds the same.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from lsac.errors import InputError
from lsac.options import flag
from lsac.runs.experiment import Experiment, longer
from lsac.runs.folder import RunFolder
from lsac.sweeps.words import differences

FREE = ("workers", "env_timeout")
"""Options in which a run may differ from its plan: no result depends on them."""
TAIL = 2**16
"""Bytes at the end of metrics.jsonl that are read to tell the progress."""


def finished(folder: Path, steps: int) -> bool:
    """Whether the run in a folder has made all its steps and saved its end."""
    if not (folder / "config.json").is_file():
        return False
    checkpoints = RunFolder(folder).checkpoints
    return checkpoints.step() >= steps and checkpoints.newest() != checkpoints.stopped


def require_same(folder: Path, wanted: Experiment) -> None:
    """Rejects a folder whose run is not the planned one. A plan may make a run longer."""
    if not (folder / "config.json").is_file():
        return
    _, found = RunFolder.open(folder, to_run=False)
    if wanted.steps < found.steps:
        raise InputError(f"{folder}: its run has {found.steps} steps, which a sweep does not shorten to {wanted.steps}")
    found = longer(found, wanted.steps)
    if found.algorithm != wanted.algorithm:
        raise InputError(_refused(folder, found.algorithm, wanted.algorithm))
    for name, old, new in differences(dataclasses.asdict(found), dataclasses.asdict(wanted)):
        if name not in FREE:
            raise InputError(_refused(folder, f"{flag(name)} {old}", str(new)))


def _refused(folder: Path, found: str, wanted: str) -> str:
    return f"{folder}: holds a run with {found}, not {wanted}; choose another --out, or remove the folder"


# Progress


class Progress(NamedTuple):
    step: int = 0
    rate: float | None = None
    """environment steps per second, of all seeds together"""
    value: float | None = None
    """mean over seeds of the newest evaluation or, without any, of the episodes of training"""
    evaluated: bool = False
    """whether the value is of an evaluation"""

    def seconds_left(self, experiment: Experiment) -> float | None:
        if not self.rate or not math.isfinite(self.rate):
            return None
        return max(0, experiment.total_steps - self.step) * experiment.seeds / self.rate


def progress(folder: Path) -> Progress:
    """What the last lines of a run's metrics tell; nothing if there are none yet."""
    try:
        found = (folder / "metrics.jsonl").stat()
    except OSError:
        return Progress()
    return _progress(folder, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _progress(folder: Path, size: int, changed: int) -> Progress:
    """Of a file of this size, changed at this time: most runs of a sweep are waiting or finished."""
    lines = last_lines(folder)
    if not lines:
        return Progress()
    value, evaluated = _mean_of(lines, "eval/mean_reward"), True
    if value is None:
        value, evaluated = _mean_of(lines, "rollout/ep_rew_mean"), False
    rates = [line["time/fps"] for line in lines if "time/fps" in line]
    return Progress(max(line["step"] for line in lines), rates[-1] if rates else None, value, evaluated)


def last_lines(folder: Path, size: int = TAIL) -> list[dict[str, Any]]:
    """The last complete lines of a run's metrics."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(start)
            parts = file.read(size).split(b"\n")
    except OSError:
        return []
    lines = []
    for part in parts[1 if start else 0 : -1]:  # the first may lack its beginning, the last is not complete
        with contextlib.suppress(ValueError):
            line = json.loads(part)
            if isinstance(line, dict) and type(line.get("step")) is int and type(line.get("seed")) is int:
                lines.append(line)
    return lines


def _mean_of(lines: list[dict[str, Any]], name: str) -> float | None:
    """The mean over seeds of a metric at the newest step that has it."""
    steps = [line["step"] for line in lines if name in line]
    if not steps:
        return None
    values = [float(line[name]) for line in lines if name in line and line["step"] == steps[-1]]
    return sum(values) / len(values)
