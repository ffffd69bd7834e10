"""The table of time and size: how fast a run was, how long it took, and how many parameters it has, beside the numbers
of the paper.
"""

import numpy as np

from lsac.analysis.figures import Line, by_env
from lsac.analysis.load import Run
from lsac.analysis.parameters import parameters
from lsac.analysis.reference import MUJOCO, paper_costs, task_of
from lsac.analysis.tables import NAN, NOTHING, Names, Table, Value, one_each


def efficiency(lines: list[Line]) -> Table:
    """Time of a run as its metrics have it, beside the paper's times of an update and numbers of parameters."""
    columns: Names = (
        "env",
        "label",
        "seeds",
        "device",
        "steps_per_second",
        "updates_per_second",
        "ms_per_update",
        "parameters_millions",
        "hours",
        "seconds_to_200k_steps",
        "return_after_10_hours",
    )
    columns += ("paper_ms_per_update", "paper_ms_per_critic_update", "paper_parameters_millions")
    rows: list[dict[str, Value]] = []
    for line in (line for here in by_env(lines).values() for line in here):
        run, task = line.run, task_of(line.env)
        cost = paper_costs(task.family).get(run.algorithm) if task.suite == MUJOCO else None
        rate = updates_per_second(run)
        device = run.notes.get("device")
        numbers = (speed(run), rate, 1e3 / rate if rate > 0 else NAN, parameters(run) / 1e6)
        times = (hours(run), seconds_to(run, 200_000), return_after(run, 10.0))
        paper = (float(cost.update), float(cost.critics), cost.millions) if cost else NOTHING
        row = (
            line.env,
            line.label,
            len(run.seeds),
            device if isinstance(device, str) else "",
            *numbers,
            *times,
            *paper,
        )
        rows.append(dict(zip(columns, row, strict=True)))
    headings: Names = (
        "environment",
        "label",
        "seeds",
        "device",
        "steps per second",
        "updates per second",
        "ms per update",
        "million parameters",
    )
    headings += ("hours", "seconds to 200 000 steps", "return after 10 hours")
    headings += ("paper: ms per update", "paper: ms per critic update", "paper: million parameters")
    shown = one_each(headings, columns)
    note = (
        "Steps and updates of all seeds of a run together, from the wall-clock times of its metrics: simulation, "
        "evaluations and checkpoints included, and the start excluded. ms per update is 1000 / updates per second. "
        "Seconds are those of the first return that was logged at 200 000 steps or later, with the start; the return "
        "after 10 hours is the mean over seeds of the last one before, of runs that took as long. "
        "Parameters are those of one seed's policy and critics, without target networks, from the newest checkpoint. "
        "Paper: one RTX 8000, update alone; lsac bench --algorithms measures the same here."
    )
    return Table("efficiency", "Efficiency", note, columns, rows, shown)


def updates_per_second(run: Run) -> float:
    """Updates of all seeds of a run, between its first and its last line with updates."""
    curve = run.curve("train/n_updates")
    if len(curve.steps) < 2:
        return NAN
    updates, seconds = curve.values[:, -1] - curve.values[:, 0], curve.seconds[:, -1] - curve.seconds[:, 0]
    together = len(run.experiment.seed_list)  # seeds of one program; of pooled runs, those of each
    return float(np.median(updates / np.maximum(seconds, 1e-9))) * together


def seconds_to(run: Run, step: int) -> float:
    """The time of the first returns at a step or later: of pooled runs, that of the slowest."""
    curve = run.returns()[1]
    there = curve.steps >= step
    return float(curve.seconds[:, there][:, 0].max()) if there.any() else NAN


def return_after(run: Run, hours: float) -> float:
    """The mean over seeds of the last return before some hours have passed; NaN for a run that took less."""
    curve = run.returns()[1]
    passed = curve.seconds.max(axis=0) > 3600 * hours
    first = int(passed.argmax())
    return float(curve.values[:, first - 1].mean()) if passed.any() and first else NAN


def hours(run: Run) -> float:
    """The longest duration of the pooled runs."""
    return float(run.returns()[1].seconds[:, -1].max()) / 3600


def speed(run: Run) -> float:
    """Environment steps per second, all seeds together: the median over lines, without the first and its start."""
    fps = run.curve("time/fps").values[:, 1:]
    return float(np.median(fps)) if fps.size else NAN
