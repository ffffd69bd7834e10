"""Statistics over seeds. The seed is the unit of replication: episodes of one seed are not independent."""

import numpy as np
from scipy.special import stdtrit  # importing scipy.stats would take a second


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean, lower and upper limit of its Student-t interval, for one value per seed."""
    values = np.asarray(values, float)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(stdtrit(len(values) - 1, 0.5 + level / 2) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half
