"""Statistics over seeds. The seed is the unit of replication: episodes of one seed are not independent."""

from functools import cache

import numpy as np
from scipy.special import stdtrit  # importing scipy.stats would take a second

BANDS: dict[str, str] = {
    "t": "95 % t-interval",
    "bootstrap": "95 % bootstrap interval",
    "median": "90 % bootstrap interval of the median",
    "std": "± standard deviation",
    "minmax": "minimum to maximum",
    "none": "",
}
"""What a band around the curve can be, with the words that a figure uses for it."""
RESAMPLES = 2_000
"""Samples of the bootstrap."""
LEVEL = 0.9
"""Level of the intervals in tables, and of those of median curves."""
FEW_SEEDS = 10
"""With fewer seeds, a bootstrap interval is narrower than the data allow: of five, a 95 % interval of a mean
holds it in about five of six cases."""
LAST = 10
"""Number of evaluations at the end of a run whose mean is its final score."""


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean, lower and upper limit of its Student-t interval, for one value per seed."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(_t_half_width(values, level))
    return mean, mean - half, mean + half


def band(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Lower and upper limits [T] of the band of `kind` for values [S, T]; None for a single seed, or for "none"."""
    if kind == "none" or len(values) < 2:
        return None
    if kind == "minmax":
        return values.min(axis=0), values.max(axis=0)
    if kind == "bootstrap":
        return _bootstrap(values)
    if kind == "median":
        return median_band(values)
    half = _t_half_width(values, 0.95) if kind == "t" else values.std(axis=0, ddof=1)
    mean = values.mean(axis=0)
    return mean - half, mean + half


def centre(values: np.ndarray, kind: str) -> np.ndarray:
    """The curve [T] that the band of `kind` surrounds: the median over seeds for "median", else the mean."""
    found: np.ndarray = np.median(values, axis=0) if kind == "median" else values.mean(axis=0)
    return found


def _t_half_width(values: np.ndarray, level: float) -> np.ndarray:
    seeds = len(values)
    half: np.ndarray = stdtrit(seeds - 1, 0.5 + level / 2) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return half


def _bootstrap(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 2.5 % and 97.5 % quantiles of the mean of seeds drawn with replacement; always the same draws."""
    seeds = len(values)
    counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)
    low, high = np.quantile(counts @ values / seeds, (0.025, 0.975), axis=0)
    return low, high


def median_band(values: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval [T] of the median over seeds, for values [S, T]; always the same draws.

    The median of a resample depends only on the ranks that were drawn, so the ranks are drawn once for all steps.
    """
    lower, upper = _median_ranks(len(values))
    ordered = np.sort(values, axis=0)
    medians = 0.5 * (ordered[lower] + ordered[upper])
    low, high = np.quantile(medians, (0.5 - level / 2, 0.5 + level / 2), axis=0)
    return low, high


@cache
def _median_ranks(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """The two middle ranks (equal for an odd number) of each resample of `seeds` seeds."""
    ranks = np.sort(np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds)), axis=1)
    return ranks[:, (seeds - 1) // 2], ranks[:, seeds // 2]


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` points of the last axis. At the edges the window holds only the points that
    exist; an even window has one point more before the centre than after it. What is not finite makes the windows that
    hold it not a number."""
    before, after = window // 2, (window - 1) // 2
    count = values.shape[-1]
    finite = np.isfinite(values)
    both = np.stack([np.where(finite, values, 0.0), ~finite])
    sums = np.concatenate([np.zeros((*both.shape[:-1], 1)), np.cumsum(both, axis=-1)], axis=-1)
    centres = np.arange(count)
    first, stop = np.maximum(centres - before, 0), np.minimum(centres + after + 1, count)
    total, missing = sums[..., stop] - sums[..., first]
    found: np.ndarray = np.where(missing > 0, np.nan, total / (stop - first))
    return found


def final(values: np.ndarray) -> np.ndarray:
    """The final score of each seed [S]: the mean of its last ten evaluations, or of all if there are fewer."""
    found: np.ndarray = values[:, -LAST:].mean(axis=1)
    return found


def final_points(values: np.ndarray) -> int:
    """The number of evaluations whose mean is a final score."""
    return min(LAST, values.shape[1])


def max_of_mean(values: np.ndarray, window: int) -> tuple[int, tuple[float, float, float]]:
    """The maximum over training of the smoothed mean over seeds: its index, and the t-interval over seeds there."""
    smoothed = smooth(values, window)
    best = int(smoothed.mean(axis=0).argmax())
    return best, interval(smoothed[:, best], LEVEL)


def mean_of_max(values: np.ndarray) -> tuple[float, float, float]:
    """The mean over seeds of each seed's best evaluation, with its t-interval."""
    return interval(values.max(axis=1), LEVEL)
