"""Random streams: one root key per seed and purpose, folded with counters, so that a resume needs only the counters."""

import jax
import numpy as np

from lsac.types import Key

INIT, ACT, LEARN, EVALUATE, REFRESH, GENERATE, VALUES = range(7)
"""The independent streams of a seed."""


def root(seed: int, purpose: int) -> Key:
    """The root key of one of a seed's streams."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def reset_seed(seed: int, env: int, step: int, purpose: int) -> int:
    """The seed of a simulator: different for every seed, environment, step of the reset and purpose."""
    return int(np.random.SeedSequence([seed, env, step, purpose]).generate_state(1)[0] >> 1)
