"""Loads the metrics of a run from its folder, and pools runs over their seeds."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsac.analysis.stats import interval
from lsac.errors import InputError
from lsac.runs.experiment import Experiment, for_run
from lsac.runs.folder import RunFolder

UNRELATED = ("steps", "seed", "seeds", "eval_every", "log_every", "checkpoint_every", "workers", "env_timeout")
"""Options in which runs may differ and still be pooled: they do not affect what a seed has learned at a step. Runs
with and without evaluations are not pooled."""


class Curve(NamedTuple):
    """One metric of a run: values [S, T] at steps [T]."""

    steps: np.ndarray
    values: np.ndarray


class Run(NamedTuple):
    path: Path
    experiment: Experiment
    lines: list[dict[str, Any]]
    seeds: tuple[int, ...]
    others: tuple[Path, ...] = ()
    """folders of the runs that are pooled with this one"""

    @property
    def algorithm(self) -> str:
        return self.experiment.algorithm

    @property
    def name(self) -> str:
        return f"{self.algorithm} on {self.experiment.env}"

    @property
    def where(self) -> str:
        return " + ".join(map(str, (self.path, *self.others)))

    def curve(self, metric: str) -> Curve:
        """A metric at the steps at which every seed has a value."""
        table: dict[int, dict[int, float]] = {}
        for line in self.lines:
            if metric in line:
                table.setdefault(line["step"], {})[line["seed"]] = line[metric]
        steps = sorted(step for step, row in table.items() if row.keys() >= {*self.seeds})
        values = [[table[step][seed] for step in steps] for seed in self.seeds]
        return Curve(np.asarray(steps, int), np.asarray(values, float).reshape(len(self.seeds), len(steps)))

    def returns(self) -> tuple[str, Curve]:
        """The main curve: returns of evaluations or, without evaluations, of training episodes."""
        for title, metric in (
            ("evaluation return", "eval/mean_reward"),
            ("episode return", "rollout/ep_rew_mean"),
        ):
            curve = self.curve(metric)
            if len(curve.steps):
                return title, curve
        if self.others:
            raise InputError(f"{self.where}: no step has a return of every seed, so they cannot be pooled")
        raise InputError(f"{self.path}: holds no returns yet")

    def first_update(self) -> int | None:
        """The step at which updates began; None if no line reports an update."""
        steps = [line["step"] for line in self.lines if line.get("train/n_updates")]
        if not steps:
            return None
        # a run that began with a trained model may have no random steps
        random = self.experiment.learning_starts
        return random if min(steps) >= random else 0

    def final_sentence(self) -> str:
        """A sentence with the final return and its interval."""
        try:
            title, curve = self.returns()
        except InputError:
            return f"{self.name}: finished without a return to show"
        mean, low, high = interval(curve.values[:, -1])
        spread = f" (95 % interval {low:.1f} to {high:.1f})" if len(curve.values) > 1 else ""
        seeds = "1 seed" if len(curve.values) == 1 else f"{len(curve.values)} seeds"
        return f"{self.name}: final {title} {mean:.1f}{spread}, {seeds}, step {curve.steps[-1]:,}"


def load_runs(paths: Iterable[Path]) -> list[Run]:
    """Loads runs, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if (same := found.setdefault(path.resolve(), path)) is not path:
            raise InputError(f"{path}: is the same run as {same}; name it once")
    return [load_run(path) for path in found.values()]


def load_run(path: Path) -> Run:
    folder, experiment = RunFolder.open(path, to_run=False)
    metrics = folder.path / "metrics.jsonl"
    if not metrics.is_file():
        raise InputError(f"{path}: has no metrics yet")
    lines = []
    for number, text in enumerate(metrics.read_text(errors="replace").splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            raise InputError(f"{metrics}, line {number}: is not JSON") from None
        if not _is_line(line):
            raise InputError(f"{metrics}, line {number}: is not a step, a seed and numbers by name")
        lines.append(line)
    return Run(path, experiment, lines, tuple(experiment.seed_list))


def _is_line(line: Any) -> bool:
    if not isinstance(line, dict):
        return False
    counts = [line.get("step"), line.get("seed")]
    numbers = all(type(value) is float or (type(value) is int and abs(value) < 2**63) for value in line.values())
    return numbers and all(type(count) is int and count >= 0 for count in counts)


def pool(runs: list[Run]) -> list[Run]:
    """Joins the runs of equal settings into one with all their seeds, in the order of the first of each."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_settings(run), []).append(run)
    return [_joined(group) for group in groups.values()]


def _settings(run: Run) -> str:
    """Everything that affects what a seed learns, also what the agent derives from the length of the run."""
    settings = dataclasses.asdict(for_run(run.experiment))
    kept = {name: value for name, value in settings.items() if name not in UNRELATED}
    return run.algorithm + json.dumps(kept | {"evaluated": settings["eval_every"] > 0}, default=repr)


def _joined(runs: list[Run]) -> Run:
    holder: dict[int, Run] = {}
    for run in runs:
        for seed in run.seeds:
            if seed in holder:
                raise InputError(
                    f"--pool: {holder[seed].path} and {run.path} have the same settings and both hold seed {seed}; "
                    "leave one of them out"
                )
            holder[seed] = run
    lines = [line for run in runs for line in run.lines]
    return runs[0]._replace(lines=lines, seeds=tuple(holder), others=tuple(run.path for run in runs[1:]))
