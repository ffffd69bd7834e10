"""Statistics over seeds. The seed is the unit of replication: episodes of one seed are not independent."""

import numpy as np
from scipy.special import stdtrit  # importing scipy.stats would take a second

BANDS: dict[str, str] = {
    "t": "95 % t-interval",
    "bootstrap": "95 % bootstrap interval",
    "std": "± standard deviation",
    "minmax": "minimum to maximum",
    "none": "",
}
"""What a band around the mean can be, with the words that a figure uses for it."""
RESAMPLES = 2_000
"""Samples of the bootstrap."""


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
    half = _t_half_width(values, 0.95) if kind == "t" else values.std(axis=0, ddof=1)
    mean = values.mean(axis=0)
    return mean - half, mean + half


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
