"""The tables of returns: those of every curve, beside published numbers, and of ablations."""

import dataclasses
import json
import math
from typing import Any

import numpy as np

from lsac.analysis.aggregate import TOO_NARROW, improvement, too_narrow
from lsac.analysis.efficiency import speed
from lsac.analysis.figures import Line, by_env
from lsac.analysis.load import Run
from lsac.analysis.names import published
from lsac.analysis.reference import MILLION, best_public, paper_return, task_of
from lsac.analysis.stats import LAST, LEVEL, final, final_points, interval, max_of_mean, mean_of_max
from lsac.analysis.tables import NAN, NOTHING, Names, Shown, Table, Value


def _limits(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low90", f"{name}_high90"


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
