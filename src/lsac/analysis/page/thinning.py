"""Thins curves for the page without hiding their extremes."""

from itertools import pairwise

import numpy as np

LIMIT = 400
"""A curve of more points is thinned to about as many."""


def kept(*columns: np.ndarray) -> np.ndarray:
    """Indices of the points that are kept of curves [T] over the same steps.

    Points are divided into equal intervals, of which each keeps the smallest and the largest value of every curve; the
    first and the last point are always kept. Curves of at most `LIMIT` points stay as they are.
    """
    count = len(columns[0])
    if count <= LIMIT:
        return np.arange(count)
    edges = np.linspace(0, count, LIMIT // (2 * len(columns)) + 1).astype(int)
    found = {0, count - 1}
    for column in columns:
        for start, stop in pairwise(edges):
            part = column[start:stop]
            found |= {int(start + part.argmin()), int(start + part.argmax())}
    return np.array(sorted(found))
