"""Loads the metrics of a run from its folder."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsac.analysis.stats import interval
from lsac.errors import InputError
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder


class Curve(NamedTuple):
    """One metric of a run: values [S, T] at steps [T]."""

    steps: np.ndarray
    values: np.ndarray


class Run(NamedTuple):
    path: Path
    experiment: Experiment
    lines: list[dict[str, Any]]

    @property
    def algorithm(self) -> str:
        return self.experiment.algorithm

    @property
    def name(self) -> str:
        return f"{self.algorithm} on {self.experiment.env}"

    def curve(self, metric: str) -> Curve:
        """A metric at the steps at which every seed has a value."""
        seeds = self.experiment.seed_list
        table: dict[int, dict[int, float]] = {}
        for line in self.lines:
            if metric in line:
                table.setdefault(line["step"], {})[line["seed"]] = line[metric]
        steps = sorted(step for step, row in table.items() if len(row) == len(seeds))
        values = [[table[step][seed] for step in steps] for seed in seeds]
        return Curve(np.asarray(steps, int), np.asarray(values, float).reshape(len(seeds), len(steps)))

    def returns(self) -> tuple[str, Curve]:
        """The main curve: returns of evaluations or, without evaluations, of training episodes."""
        for title, metric in (
            ("evaluation return", "eval/mean_reward"),
            ("episode return", "rollout/ep_rew_mean"),
        ):
            curve = self.curve(metric)
            if len(curve.steps):
                return title, curve
        raise InputError(f"{self.path}: holds no returns yet")

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


def load_run(path: Path) -> Run:
    folder, experiment = RunFolder.open(path, to_run=False)
    metrics = folder.path / "metrics.jsonl"
    if not metrics.is_file():
        raise InputError(f"{path}: has no metrics yet")
    lines = []
    for number, text in enumerate(metrics.read_text().splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise InputError(f"{metrics}, line {number}: is not JSON") from None
    return Run(path, experiment, lines)
