"""Comparison of labels across the tasks of a suite."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lsac.analysis.aggregate import AGGREGATES, TOO_NARROW, Interval, aggregate, improvement, profile, too_narrow
from lsac.analysis.colours import Style
from lsac.analysis.figures import Line
from lsac.analysis.reference import Reference, reference_of, task_of
from lsac.analysis.stats import final, final_points
from lsac.analysis.tables import Shown, Table, Value

POINTS = 101
"""Thresholds of a performance profile."""


@dataclass(frozen=True, eq=False)
class Compared:
    """One label: its normalised scores [S] on each task."""

    label: str
    style: Style
    scores: list[np.ndarray]
    points: list[int]
    """evaluations whose mean is a score, on each task"""

    @cached_property
    def aggregates(self) -> dict[str, Interval]:
        return aggregate(self.scores)

    @property
    def fewest_seeds(self) -> int:
        return min(map(len, self.scores))

    @property
    def doubtful(self) -> bool:
        return too_narrow(self.fewest_seeds, *self.aggregates.values())


class Improvement(NamedTuple):
    """The probability that a run of `ours` scores more than one of `theirs`, with its interval."""

    ours: Compared
    theirs: Compared
    chance: Interval

    @property
    def doubtful(self) -> bool:
        return too_narrow(min(self.ours.fewest_seeds, self.theirs.fewest_seeds), self.chance)


class Profile(NamedTuple):
    """The share of a label's runs above each threshold, and the limits of its interval."""

    compared: Compared
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class Comparison:
    """Labels on the tasks of a suite that all of them have scores on."""

    suite: str
    references: list[Reference]
    envs: list[str]
    labels: list[Compared]
    uneven: bool
    """whether runs on one task end at different steps"""
    left_out: list[str]
    """environments and labels that are not compared, each with its reason"""

    @property
    def words(self) -> str:
        """What the scores are, for the note of a table or a figure."""
        groups: dict[str, list[str]] = {}
        for env, each in zip(self.envs, self.references, strict=True):
            groups.setdefault(each.meaning, []).append(f"{env} {each.low:g} and {each.high:g}")
        known = "; ".join(f"{', '.join(envs)} ({meaning})" for meaning, envs in groups.items())
        parts = [f"Final evaluation scores on {len(self.envs)} tasks. The scores 0 and 1 are these returns: {known}."]
        parts.append("95 % stratified bootstrap intervals: seeds are resampled within each task.")
        if any(compared.doubtful for compared in self.labels):
            parts.append(TOO_NARROW)
        if self.uneven:
            parts.append("Runs on a task end at different steps.")
        if self.left_out:
            parts.append(f"Left out: {'; '.join(self.left_out)}.")
        return " ".join(parts)

    @cached_property
    def improvements(self) -> list[Improvement]:
        """Every label over every other."""
        pairs = [(x, y) for x in self.labels for y in self.labels if x is not y]
        return [Improvement(x, y, improvement(x.scores, y.scores)) for x, y in pairs]

    @cached_property
    def profiles(self) -> list[Profile]:
        return [Profile(x, *profile(x.scores, self.thresholds)) for x in self.labels]

    @cached_property
    def thresholds(self) -> np.ndarray:
        """From 0, or the lowest score, to the highest."""
        scores = np.concatenate([x for compared in self.labels for x in compared.scores])
        return np.linspace(min(0.0, float(scores.min())), max(1.0, float(scores.max())), POINTS)


class Scores(NamedTuple):
    """The scores of a suite, and which tasks and labels have none."""

    suite: str
    references: dict[str, Reference]
    """of each environment that has one"""
    lines: dict[tuple[str, str], Line]
    """by label and environment"""
    values: dict[tuple[str, str], np.ndarray]
    """the normalised scores [S] of those lines"""
    without: list[str]
    """what has no scores, each with its reason"""

    def tasks_of(self, label: str) -> frozenset[str]:
        return frozenset(env for name, env in self.values if name == label)


def compare(lines: list[Line], known: list[Reference]) -> list[Comparison]:
    """A comparison for each suite with two tasks or more on which a label has scores."""
    return [_comparison(scores, *block) for scores in _scores(lines, known) if (block := _block(scores))]


def not_compared(lines: list[Line], known: list[Reference]) -> list[str]:
    """Why there is no comparison of a suite with several tasks: a sentence for each."""
    found = []
    for scores in _scores(lines, known):
        tasks = {env for env, line in ((line.env, line) for line in lines) if task_of(env).suite == scores.suite}
        if len(tasks) > 1 and _block(scores) is None:
            reasons = f": {'; '.join(scores.without)}" if scores.without else ""
            found.append(f"{scores.suite}: not compared across tasks, for no label has scores on two of them{reasons}.")
    return found


def _scores(lines: list[Line], known: list[Reference]) -> list[Scores]:
    suites: dict[str, Scores] = {}
    for line in lines:
        suite = task_of(line.env).suite
        _add(line, suites.setdefault(suite, Scores(suite, {}, {}, {}, [])), known)
    return [*suites.values()]


def _add(line: Line, scores: Scores, known: list[Reference]) -> None:
    reference, returns = reference_of(line.env, known), line.run.evaluations().values
    if reference is None:
        problem = f"{line.env}, which has no reference scores"
    elif not returns.shape[1]:
        problem = f"{line.label} on {line.env}, not evaluated"
    elif not np.isfinite(last := final(returns)).all():
        problem = f"{line.label} on {line.env}, with returns that are not finite"
    else:
        scores.references[line.env] = reference
        scores.lines[line.label, line.env] = line
        scores.values[line.label, line.env] = (last - reference.low) / (reference.high - reference.low)
        return
    if problem not in scores.without:
        scores.without.append(problem)


def _block(scores: Scores) -> tuple[list[str], list[str]] | None:
    """The labels and environments that are compared: of several labels on two environments or more that all of them
    have, those with the most pairs of both; if there are none, the label with the most environments."""
    tasks = {label: scores.tasks_of(label) for label, _ in scores.values}
    alone = {*tasks.values()}
    envs = {x & y for x in alone for y in alone}
    blocks = [([label for label in tasks if tasks[label] >= shared], shared) for shared in envs if len(shared) > 1]
    if not blocks:
        return None
    labels, shared = max(blocks, key=lambda x: (len(x[0]) > 1, len(x[0]) * len(x[1]), len(x[1]), sorted(x[1])))
    return labels, [env for env in scores.references if env in shared]


def _comparison(scores: Scores, labels: list[str], envs: list[str]) -> Comparison:
    compared = [
        Compared(
            label,
            scores.lines[label, envs[0]].style,
            [scores.values[label, env] for env in envs],
            [final_points(scores.lines[label, env].run.evaluations().values) for env in envs],
        )
        for label in labels
    ]
    ends = [{int(scores.lines[label, env].run.evaluations().steps[-1]) for label in labels} for env in envs]
    left_out = list(scores.without)
    for env in scores.references:
        missing = [label for label in labels if (label, env) not in scores.values]
        left_out += [f"{env}, without scores of {', '.join(missing)}"] if missing else []
    for label in dict.fromkeys(label for label, _ in scores.values):
        count = len(scores.tasks_of(label) & {*envs})
        left_out += [f"{label}, with scores on {count} of {len(envs)} tasks"] if label not in labels else []
    references = [scores.references[env] for env in envs]
    return Comparison(scores.suite, references, envs, compared, any(len(steps) > 1 for steps in ends), left_out)


# tables


def tables_of(comparisons: list[Comparison]) -> list[Table]:
    if not comparisons:
        return []
    several = any(len(each.labels) > 1 for each in comparisons)
    return [_aggregates(comparisons), *([_improvements(comparisons)] if several else [])]


def _aggregates(comparisons: list[Comparison]) -> Table:
    names = {name: name.replace(" ", "_").lower() for name in AGGREGATES}
    limits = {name: (key, f"{key}_low95", f"{key}_high95") for name, key in names.items()}
    rows: list[dict[str, Value]] = []
    for each in comparisons:
        for compared in each.labels:
            counts = [len(x) for x in compared.scores]
            row: dict[str, Value] = {"suite": each.suite, "label": compared.label, "tasks": len(each.envs)}
            row |= {"seeds": _range(counts), "eval_final_points": _range(compared.points)}
            row["too_narrow"] = "†" if compared.doubtful else ""
            for name, values in compared.aggregates.items():
                row |= dict(zip(limits[name], values, strict=True))
            rows.append(row)
    columns = (
        "suite",
        "label",
        "tasks",
        "seeds",
        "too_narrow",
        *(column for each in limits.values() for column in each),
        "eval_final_points",
    )
    shown = [Shown(name, columns) for name, columns in limits.items()]
    head = [Shown(name, (name,)) for name in ("suite", "label", "tasks", "seeds")]
    shown += [Shown("evaluations in final", ("eval_final_points",))]
    return Table(
        "across-tasks", "Aggregates", _note(comparisons), columns, rows, (*head, Shown("", ("too_narrow",)), *shown)
    )


def _improvements(comparisons: list[Comparison]) -> Table:
    columns = ("suite", "label", "over", "probability", "probability_low95", "probability_high95", "too_narrow")
    rows: list[dict[str, Value]] = []
    for each in comparisons:
        for pair in each.improvements:
            mark = "†" if pair.doubtful else ""
            row = (each.suite, pair.ours.label, pair.theirs.label, *pair.chance, mark)
            rows.append(dict(zip(columns, row, strict=True)))
    shown = [Shown(name, (name,)) for name in ("suite", "label", "over")]
    probability = Shown("probability of improvement", columns[3:6])
    note = (
        "The probability that a run of the label scores more than one of the other on the same task; ties count half. "
        "Mean over tasks [95 % stratified bootstrap interval]; scores are those of the aggregates. "
        f"{TOO_NARROW}"
    )
    table = (*shown, probability, Shown("", ("too_narrow",)))
    return Table("improvement", "Probability of improvement", note, columns, rows, table)


def _note(comparisons: list[Comparison]) -> str:
    if len(comparisons) == 1:
        return comparisons[0].words
    return " ".join(f"{each.suite}: {each.words}" for each in comparisons)


def _range(counts: list[int]) -> str:
    return str(counts[0]) if len({*counts}) == 1 else f"{min(counts)} to {max(counts)}"
