"""Statistics across tasks. Scores are one array [S] per task, normalised so that tasks can be compared.

Intervals are stratified percentile bootstraps: seeds are resampled within each task, tasks are fixed. Definitions are
those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from lsac.analysis.stats import FEW_SEEDS, RESAMPLES

Scores = Sequence[np.ndarray]
"""one array [..., S] per task; leading axes are resamples"""
Interval = tuple[float, float, float]
ACROSS_LEVEL = 0.95
"""Level of the intervals across tasks; those of one task have `stats.LEVEL`."""
TARGET = 1.0
"""The normalised score below which a run adds to the optimality gap."""
TRIM = 0.25
NAN = float("nan")
ROUNDING = 1e-9
"""Limits that are closer are equal: resampled means differ by rounding."""
TOO_NARROW = (
    f"† fewer than {FEW_SEEDS} seeds, or all resamples agree: the interval is narrower than the data allow. "
    "With one seed on every task there is none."
)


def iqm(scores: Scores) -> np.ndarray:
    """Interquartile mean: the mean of the runs of all tasks without the lowest and the highest quarter, rounded down
    to whole runs."""
    ordered = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    count = ordered.shape[-1]
    cut = int(TRIM * count)
    found: np.ndarray = ordered[..., cut : count - cut].mean(axis=-1)
    return found


def mean(scores: Scores) -> np.ndarray:
    """The mean over tasks of the mean over seeds."""
    return _task_means(scores).mean(axis=-1)


def median(scores: Scores) -> np.ndarray:
    """The median over tasks of the mean over seeds."""
    found: np.ndarray = np.median(_task_means(scores), axis=-1)
    return found


def optimality_gap(scores: Scores) -> np.ndarray:
    """How far runs fall short of a score of 1, on average; what exceeds 1 makes up for nothing."""
    return TARGET - _task_means([np.minimum(x, TARGET) for x in scores]).mean(axis=-1)


AGGREGATES: dict[str, Callable[[Scores], np.ndarray]] = {
    "IQM": iqm,
    "mean": mean,
    "median": median,
    "optimality gap": optimality_gap,
}


def _task_means(scores: Scores) -> np.ndarray:
    return np.stack([x.mean(axis=-1) for x in scores], axis=-1)


def resample(scores: Scores) -> list[np.ndarray]:
    """Resamples [R, S] of each task, always the same ones."""
    generator = np.random.default_rng(0)
    return [x[generator.integers(len(x), size=(RESAMPLES, len(x)))] for x in scores]


def aggregate(scores: Scores) -> dict[str, Interval]:
    """Each of `AGGREGATES` with its interval."""
    if _alone(scores):
        return {name: (float(of(scores)), NAN, NAN) for name, of in AGGREGATES.items()}
    resampled = resample(scores)
    return {name: _interval(float(of(scores)), of(resampled)) for name, of in AGGREGATES.items()}


def improvement(ours: Scores, theirs: Scores) -> Interval:
    """The probability that a run of ours scores more than one of theirs on the same task, mean over tasks, ties
    counted half: U / (n m) of the Mann-Whitney test. One pair of runs on every task has no interval."""
    points, resampled = [], []
    for task, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        wins = 0.5 * ((x[:, None] > y).astype(float) + (x[:, None] >= y))
        points.append(wins.mean())
        resampled.append(((_shares(len(x), task) @ wins) * _shares(len(y), task, stream=1)).sum(axis=1))
    if _alone(ours) and _alone(theirs):
        return float(np.mean(points)), NAN, NAN
    return _interval(float(np.mean(points)), np.clip(np.mean(resampled, axis=0), 0.0, 1.0))


def _alone(scores: Scores) -> bool:
    """Whether every task has one seed: all resamples are the same, and say nothing of other seeds."""
    return all(len(x) == 1 for x in scores)


def too_narrow(seeds: int, *found: Interval) -> bool:
    """Whether an interval says less than the data allow: of few seeds, or without any width, as where every run of one
    label beats every run of the other."""
    return seeds < FEW_SEEDS or any(high - low < ROUNDING for _, low, high in found)


def marked(name: str, doubtful: bool) -> str:
    """The name in a figure of what has an interval that is too narrow."""
    return f"{name} †" if doubtful else name


def profile(scores: Scores, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of runs whose score exceeds each threshold, mean over tasks, with pointwise limits of its interval."""
    above = [(x[:, None] > thresholds).astype(float) for x in scores]
    point: np.ndarray = np.mean([x.mean(axis=0) for x in above], axis=0)
    resampled = np.mean([_shares(len(x), task) @ x for task, x in enumerate(above)], axis=0)
    low, high = np.quantile(resampled, _tails(), axis=0)
    return point, low, high


@lru_cache(maxsize=64)
def _shares(count: int, task: int, stream: int = 0) -> np.ndarray:
    """The share of each of `count` seeds in resamples [R, count]: what is linear in the seeds needs no more. They are
    the same for every label; other tasks and streams have others."""
    generator = np.random.default_rng((task, stream))
    found: np.ndarray = generator.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
    return found


def _interval(point: float, resampled: np.ndarray) -> Interval:
    low, high = np.quantile(resampled, _tails())
    return point, float(low), float(high)


def _tails() -> tuple[float, float]:
    return 0.5 - ACROSS_LEVEL / 2, 0.5 + ACROSS_LEVEL / 2
