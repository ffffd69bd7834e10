"""The nouns of the package, and the one vocabulary that all modules share.

Names: `key` (a JAX random key), `obs`, `action` (in [−1, 1]), `reward`, `discount`, `next_obs`; `gamma`,
`tau` (the weight of the *new* parameters), `alpha` (entropy weight), `critics`, `targets`, `actor`.

Axes, always in this order: S seeds, C chains, K critics, G gradient steps, B batch, T time, O observation,
A action. An agent never mentions S: the loop adds it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Metrics: TypeAlias = dict[str, Array]


class EnvSpec(NamedTuple):
    """What an agent may know of an environment: sizes only. Actions are in [−1, 1]."""

    obs_dim: int
    action_dim: int


class Transition(NamedTuple):
    """`discount` is γ, or 0 at a true termination; a time limit is not one. `next_obs` is the true successor."""

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array


class Sample(NamedTuple):
    """Transitions to compare, rows as in the replay: some that happened and some that were generated."""

    real: Array
    generated: Array


class Agent(NamedTuple):
    """An algorithm: pure functions over pytrees of arrays, written for one seed and one observation."""

    init: Callable[[Key], Any]
    """key → state"""
    policy: Callable[[Any], Any]
    """state → the small part of it that acting needs"""
    act: Callable[[Any, Array, Key, bool], Array]
    """policy, obs, key, explore → action in [−1, 1]; exploring, an on-policy agent may leave it: simulators clip"""
    update: Callable[[Any, Any, Key], tuple[Any, Metrics]]
    """state, replay (read only), key → state, metrics"""
    critics: Callable[[Any], Any] | None = None
    """state → the part of it that values are read from"""
    value: Callable[[Any, Array, Array], Metrics] | None = None
    """critics, obs, action → `q`, and whatever else the critics can say of this one pair"""
    refresh: Callable[[Any, Any, Key], tuple[Any, Metrics, Array]] | None = None
    """like `update`, but rare and long: LSAC fits its generator here; also some rows [N, width] of the replay, to
    compare what is generated with. Leaves a compact state"""
    generate: Callable[[Any, Key], tuple[Any, Array]] | None = None
    """compact state, key → state, and some of the rows [N, width] it has generated: what follows every refresh"""
    compact: Callable[[Any], Any] = lambda state: state
    """state → what a checkpoint keeps of it: all but what `generate` makes again from it and the same key"""
    refresh_every: int = 0
    """environment steps between two calls of `refresh`"""
    gradient_steps: int = 1
    """steps of an optimiser on critics (or values) in one `update`: what benchmarks divide by"""
