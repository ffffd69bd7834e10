"""Finds the runs that a report is asked for: folders of runs, and folders of sweeps with all their runs."""

from pathlib import Path
from typing import Any, NamedTuple

from lsac.analysis.load import Progress, Run, load_runs, require_run
from lsac.errors import InputError
from lsac.options import printable
from lsac.runs.datafile import read_json

SWEEP = "sweep.json"


class Found(NamedTuple):
    """The folder of a run, and its label if a sweep gives it one."""

    path: Path
    label: str | None = None


class Loaded(NamedTuple):
    runs: list[Run]
    labels: list[str | None]
    """labels that sweeps give"""
    waiting: int
    """runs that hold no returns yet and are left out"""


def load(paths: tuple[Path, ...], patient: bool = False, progress: Progress = lambda done, all: None) -> Loaded:
    """Loads the runs of some folders. Those that hold no returns yet are left out if they belong to a sweep or if the
    caller is `patient`; else they are an error."""
    found = find(paths)
    may_wait = [patient or each.label is not None for each in found]
    there = [x for x, may in zip(found, may_wait, strict=True) if not may or (x.path / "metrics.jsonl").is_file()]
    runs = load_runs((each.path for each in there), progress)
    pairs = [(x, run) for x, run in zip(there, runs, strict=True) if run.has_returns or not (patient or x.label)]
    if not pairs and not patient:
        raise InputError(f"{', '.join(map(str, paths))}: no run holds returns yet")
    return Loaded([run for _, run in pairs], [each.label for each, _ in pairs], len(found) - len(pairs))


def find(paths: tuple[Path, ...]) -> list[Found]:
    """The folders of runs, those of sweeps included; a folder that is neither is an error."""
    for path in paths:
        if not _is_sweep(path):
            require_run(path)
    return [each for path in paths for each in (_of_sweep(path) if _is_sweep(path) else [Found(path)])]


def _is_sweep(path: Path) -> bool:
    return (path / SWEEP).is_file() and not (path / "config.json").is_file()


def _of_sweep(folder: Path) -> list[Found]:
    file = folder / SWEEP
    sweep = read_json(file)
    experiments = sweep.get("experiments") if isinstance(sweep, dict) else None
    if not isinstance(experiments, list):
        raise InputError(f"{file}: has no list of experiments")
    return [_experiment(folder, each, f"{file}, experiment {i}") for i, each in enumerate(experiments, start=1)]


def _experiment(folder: Path, experiment: Any, where: str) -> Found:
    fields = experiment if isinstance(experiment, dict) else {}
    path, label = fields.get("path"), fields.get("label")
    if not (isinstance(path, str) and isinstance(label, str) and path and label):
        raise InputError(f"{where}: must have a path and a label")
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{where}: path {printable(path)} must stay inside the folder of the sweep")
    return Found(folder / path, printable(label))
