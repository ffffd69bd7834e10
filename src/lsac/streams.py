"""Where randomness comes from: one root per seed, folded with counters, so that a resume needs counters alone."""

import jax
import numpy as np

from lsac.types import Key

INIT, ACT, LEARN, EVALUATE, REFRESH, GENERATE = range(6)
"""The independent streams of a seed."""


def root(seed: int, purpose: int) -> Key:
    """The root key of one of a seed's streams."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def reset_seed(seed: int, env: int, step: int, purpose: int) -> int:
    """What a simulator is seeded with: its own stream for every (seed, environment), and for every restart."""
    return int(np.random.SeedSequence([seed, env, step, purpose]).generate_state(1)[0] >> 1)
