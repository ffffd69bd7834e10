"""Folders of runs with made-up metrics, for tests of what reads them."""

import json

import numpy as np

from lsac.agents import AGENTS
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder

STEPS = np.arange(1, 13) * 100


def table(seeds, shift=0.0):
    """Returns [S, 12]."""
    return np.random.default_rng(seeds).normal(size=(seeds, len(STEPS))) * 10 + STEPS / 10 + shift


def make_run(path, values, algorithm="sac", metric="eval/mean_reward", learns=True, **options):
    """A run with the returns [S, 12], which updates from step 150 on."""
    seeds = len(values)
    options = {"env": "Pendulum-v1", "steps": 1200, "seed": 4, "learning_starts": 150} | options
    experiment = Experiment(AGENTS[algorithm].Config(**options.pop("agent", {})), seeds=seeds, **options)
    RunFolder.create(path, experiment).release()
    lines = []
    for t, step in enumerate(STEPS):
        head = [{"step": int(step), "seed": seed, "seconds": float(t)} for seed in experiment.seed_list]
        updates = {"train/n_updates": int(step)} if learns and step > experiment.learning_starts else {}
        lines += [line | {"time/fps": 1000.0 + t} | updates for line in head]
        lines += [line | {metric: float(values[row, t])} for row, line in enumerate(head)]
    write_lines(path, lines)
    return path


def write_lines(path, lines):
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
