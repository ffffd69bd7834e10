"""Finds the runs that a report is asked for: folders of runs, and folders of sweeps with all their runs."""

from pathlib import Path
from typing import Any, NamedTuple

from lsac.analysis.load import Progress, Run, load_runs, load_settings, require_run
from lsac.errors import InputError
from lsac.options import printable
from lsac.runs.datafile import read_json

SWEEP = "sweep.json"


class Found(NamedTuple):
    """The folder of a run, and its label if a sweep gives it one."""

    path: Path
    label: str | None = None


class Loaded(NamedTuple):
    begun: list[Run]
    """all runs that have begun"""
    labels: list[str | None]
    """the labels that sweeps give them"""
    ready: list[bool]
    """whether they are part of the report; runs that hold no returns yet are left out"""
    absent: int
    """experiments of sweeps that have not begun"""

    @property
    def runs(self) -> list[Run]:
        return [run for run, ready in zip(self.begun, self.ready, strict=True) if ready]

    @property
    def waiting(self) -> int:
        return self.ready.count(False) + self.absent


def load(paths: tuple[Path, ...], patient: bool = False, progress: Progress = lambda done, all: None) -> Loaded:
    """Loads the runs of some folders. Those that hold no returns yet are left out if they belong to a sweep or if the
    caller is `patient`; else they are an error."""
    found = find(paths)
    may_wait = {each.path for each in found if patient or each.label is not None}
    read = [x for x in found if x.path not in may_wait or (x.path / "metrics.jsonl").is_file()]
    runs = {run.path: run for run in load_runs((each.path for each in read), progress)}
    loaded = _loaded(found, runs, may_wait)
    if not loaded.runs and not patient:
        raise InputError(f"{', '.join(map(str, paths))}: no run holds returns yet")
    return loaded


def load_begun(paths: tuple[Path, ...]) -> Loaded:
    """The runs of some folders without their metrics."""
    found = find(paths)
    return _loaded(found, {}, {each.path for each in found})


def _loaded(found: list[Found], runs: dict[Path, Run], may_wait: set[Path]) -> Loaded:
    """Adds the runs that have no metrics to those that were read."""
    begun = [each for each in found if each.path in runs or (each.path / "config.json").is_file()]
    all = [runs.get(each.path) or load_settings(each.path) for each in begun]
    ready = [run.has_returns or run.path not in may_wait for run in all]
    return Loaded(all, [each.label for each in begun], ready, len(found) - len(begun))


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
