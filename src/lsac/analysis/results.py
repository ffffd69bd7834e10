"""The tables of a report: returns, published numbers, ablations, efficiency, and how each number was made."""

import dataclasses
import json
import math
import shlex
from typing import Any

import numpy as np

from lsac.analysis.aggregate import TOO_NARROW, improvement, too_narrow
from lsac.analysis.figures import Line, by_env
from lsac.analysis.load import Run
from lsac.analysis.names import published
from lsac.analysis.parameters import parameters
from lsac.analysis.reference import MILLION, MUJOCO, best_public, paper_costs, paper_return, task_of
from lsac.analysis.stats import LAST, LEVEL, final, final_points, interval, max_of_mean, mean_of_max
from lsac.analysis.tables import Shown, Table, Value
from lsac.analysis.text import encodable
from lsac.runs.folder import resume_command

Names = tuple[str, ...]
NAN = math.nan
NOTHING = (NAN, NAN, NAN)


def _limits(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low90", f"{name}_high90"


def _one_each(headings: Names, columns: Names) -> tuple[Shown, ...]:
    """Columns for people that are those of the CSV file under other headings."""
    return tuple(Shown(heading, (name,)) for heading, name in zip(headings, columns, strict=True))


# returns

FINAL, LAST_ONE, MAX_OF_MEAN, MEAN_OF_MAX, ROLLOUT = map(
    _limits, ("eval_final", "eval_last", "eval_max_of_mean", "eval_mean_of_max", "rollout_last")
)
COLUMNS: Names = ("run", "label", "algorithm", "env", "seeds", "eval_step", "eval_points", *FINAL)
COLUMNS += (
    "eval_final_points",
    *LAST_ONE,
    *MAX_OF_MEAN,
    "eval_max_step",
    "eval_window",
    *MEAN_OF_MAX,
    "rollout_step",
    *ROLLOUT,
    "steps_per_second",
)


def returns(lines: list[Line]) -> Table:
    """One row per curve. Evaluations and training episodes have columns of their own."""
    rows = [_returns_row(line) for here in by_env(lines).values() for line in here]
    shown = (
        *(
            Shown(heading, (name,))
            for heading, name in (("environment", "env"), ("label", "label"), ("seeds", "seeds"))
        ),
        Shown("steps", ("eval_step",)),
        Shown("final", FINAL),
        Shown("evaluations in final", ("eval_final_points",)),
        Shown("last", LAST_ONE),
        Shown("maximum of the mean", MAX_OF_MEAN),
        Shown("mean of the maxima", MEAN_OF_MAX),
        Shown("training episodes", ROLLOUT),
    )
    note = (
        f"Mean [90 % t-interval over seeds] of returns. Final: mean of a seed's last {LAST} evaluations, or of all if "
        "there are fewer; last: the last evaluation; maximum of the mean over seeds after a centred window of 11 "
        "evaluations (DeepMind Control: 20); mean of every seed's best evaluation; training episodes: the last 100, "
        "with exploration."
    )
    return Table("table", "Returns", note, COLUMNS, rows, shown)


def _returns_row(line: Line) -> dict[str, Value]:
    run, window = line.run, task_of(line.env).window
    evaluations, episodes = run.evaluations(), run.episodes()
    row: dict[str, Value] = {"run": run.where, "label": line.label, "algorithm": run.algorithm, "env": line.env}
    row |= {"seeds": len(run.seeds), "eval_step": "", "eval_points": len(evaluations.steps), "eval_window": window}
    row |= {"eval_final_points": "", "eval_max_step": "", "rollout_step": "", "steps_per_second": speed(run)}
    found = dict.fromkeys((FINAL, LAST_ONE, MAX_OF_MEAN, MEAN_OF_MAX, ROLLOUT), NOTHING)
    if len(evaluations.steps):
        values = evaluations.values
        best, highest = max_of_mean(values, window)
        found[FINAL], found[LAST_ONE] = interval(final(values), LEVEL), interval(values[:, -1], LEVEL)
        found[MAX_OF_MEAN], found[MEAN_OF_MAX] = highest, mean_of_max(values)
        row |= {"eval_step": int(evaluations.steps[-1]), "eval_max_step": int(evaluations.steps[best])}
        row["eval_final_points"] = final_points(values)
    if len(episodes.steps):
        found[ROLLOUT] = interval(episodes.values[:, -1], LEVEL)
        row["rollout_step"] = int(episodes.steps[-1])
    for names, numbers in found.items():
        row |= dict(zip(names, numbers, strict=True))
    return row


def speed(run: Run) -> float:
    """Environment steps per second, all seeds together: the median over lines, without the first and its start."""
    fps = run.curve("time/fps").values[:, 1:]
    return float(np.median(fps)) if fps.size else NAN


# published numbers


PUBLISHED: tuple[tuple[str, str], ...] = (
    *(("env", "environment"), ("label", "label"), ("final", "our final"), ("final_points", "evaluations in it")),
    ("max_of_mean", "our maximum of the mean"),
    *(("steps", "our steps"), ("paper", "paper: maximum"), ("paper_interval90", "±"), ("paper_task", "paper's task")),
    *(
        ("paper_budget", "paper's budget"),
        ("best", "best public: final"),
        ("best_std", "± std"),
        ("best_seeds", "seeds"),
    ),
    *(("best_method", "method"), ("best_budget", "its budget"), ("best_protocol", "its protocol"), ("best_source", "")),
    *(("longer", "public at 3 M steps"), ("longer_method", "its method"), ("longer_source", "")),
)
"""Columns of the numbers beside published ones, with their headings; those without one are in the CSV file only."""


def published_numbers(lines: list[Line]) -> Table | None:
    """Ours beside the paper and the best public run, each with its data budget."""
    columns = tuple(name for name, _ in PUBLISHED)
    rows = [_published_row(columns, line) for here in by_env(lines).values() for line in here]
    rows = [row for row in rows if row]
    if not rows:
        return None
    note = (
        "Budgets differ, so read the columns with them. Paper: the LSAC paper, maximum average return of 10 seeds ± "
        "90 % interval, for the same algorithm. Best public: the highest final mean on the task at 1 M environment "
        "steps or fewer, of numbers that public repositories ship; its protocol says how many runs it is of and where "
        "it departs from ours. Sources are in the CSV file."
    )
    shown = tuple(Shown(heading, (name,)) for name, heading in PUBLISHED if heading)
    return Table("published", "Beside published numbers", note, columns, rows, shown)


def _published_row(columns: Names, line: Line) -> dict[str, Value]:
    """Nothing if there is nothing to compare."""
    task, evaluations = task_of(line.env), line.run.evaluations()
    paper, best = paper_return(task, line.run.algorithm), best_public(task, MILLION)
    if not len(evaluations.steps) or not (paper or best):
        return {}
    values = evaluations.values
    ours = (float(final(values).mean()), final_points(values), max_of_mean(values, task.window)[1][0])
    theirs = (paper.mean, paper.half_width, paper.task, paper.budget) if paper else (NAN, NAN, "", "")
    top: tuple[Value, ...] = (NAN, NAN, NAN, "", "", "", "")
    if best:
        top = (float(best.mean[-1]), float(best.std[-1]), NAN if best.seeds is None else best.seeds, *best.method[:4])
    longer = best_public(task, math.inf, MILLION)
    more = (float(longer.mean[-1]), longer.method.name, longer.method.source) if longer else (NAN, "", "")
    row = (line.env, line.label, *ours, int(evaluations.steps[-1]), *theirs, *top, *more)
    return dict(zip(columns, row, strict=True))


# ablations


def ablations(lines: list[Line]) -> Table | None:
    """Labels of one algorithm on one environment, beside the first of them: what is set differently, and the effect."""
    columns: Names = ("env", "algorithm", "label", "changed", "seeds", *FINAL, "eval_final_points")
    columns += ("probability", "probability_low95", "probability_high95", "too_narrow")
    rows: list[dict[str, Value]] = []
    for env, here in by_env(lines).items():
        groups: dict[str, list[Line]] = {}
        for line in here:
            if len(line.run.evaluations().steps):
                groups.setdefault(line.run.algorithm, []).append(line)
        for algorithm, group in groups.items():
            if len(group) > 1:
                rows += [_ablation_row(columns, env, algorithm, group[0], line) for line in group]
    if not rows:
        return None
    shown = (
        *(Shown(name, (column,)) for name, column in (("environment", "env"), ("label", "label"))),
        Shown("set differently from the first", ("changed",)),
        Shown("seeds", ("seeds",)),
        Shown("final", FINAL),
        Shown("evaluations in final", ("eval_final_points",)),
        Shown("probability of improvement over the first", columns[9:12]),
        Shown("", ("too_narrow",)),
    )
    note = (
        "Final evaluation return, mean [90 % t-interval]; probability of improvement with 95 % bootstrap interval. "
        f"{TOO_NARROW}"
    )
    return Table("ablations", "Ablations", note, columns, rows, shown)


def _ablation_row(columns: tuple[str, ...], env: str, algorithm: str, first: Line, line: Line) -> dict[str, Value]:
    scores, base = (final(each.run.evaluations().values) for each in (line, first))
    known = line is not first and bool(np.isfinite([*scores, *base]).all())
    chance = improvement([scores], [base]) if known else NOTHING
    mark = "†" if known and too_narrow(min(len(scores), len(base)), chance) else ""
    changed = "first" if line is first else ", ".join(changes(first.run, line.run)) or "nothing"
    ours = (*interval(scores, LEVEL), final_points(line.run.evaluations().values))
    row = (env, published(algorithm), line.label, changed, len(line.run.seeds), *ours, *chance, mark)
    return dict(zip(columns, row, strict=True))


def changes(first: Run, other: Run) -> list[str]:
    """The options in which two runs differ, seeds aside, as name=value."""
    old, new = (_flat(dataclasses.asdict(run.experiment)) for run in (first, other))
    names = [name for name in new if name not in ("seed", "seeds", "workers") and old.get(name) != new[name]]
    return [f"{name}={new[name]}" for name in names]


def _flat(options: dict[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in options.items():
        inner = "" if name == "agent" else f"{before}{name}."
        found |= _flat(value, inner) if isinstance(value, dict) else {f"{before}{name}": json.dumps(value, default=str)}
    return found


# efficiency


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
    shown = _one_each(headings, columns)
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


# how each number was made


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
    shown = _one_each(headings, columns)
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
