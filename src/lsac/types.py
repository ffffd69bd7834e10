"""The types and the vocabulary that all modules share.

Names: `key` (a JAX random key), `obs`, `action` (in [−1, 1]), `reward`, `discount`, `next_obs`; `gamma`,
`tau` (the weight of the *new* parameters), `alpha` (entropy weight), `critics`, `targets`, `actor`.

Axes, always in this order: S seeds, C chains, K critics, G gradient steps, B batch, T time, E simulators,
O observation, A action. Agents are written without S: the learner adds it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Metrics: TypeAlias = dict[str, Array]


class Pixels(NamedTuple):
    """An observation with an image."""

    image: Array
    """[H, W, channels · frames] uint8, the newest frame last"""
    vector: Array
    """[O] float32, the rest of the observation; O may be 0"""


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Shapes of an environment's observations and actions, and its discount. Actions are vectors in [−1, 1].

    Observations are vectors; if there is a `frame`, they are `Pixels`.
    """

    obs_shape: tuple[int, ...]
    frame: tuple[int, int, int] | None = None
    """shape [H, W, channels] of the frame that the environment shows at every step, of dtype uint8"""
    frame_stack: int = 1
    """number of successive frames that an agent sees as one image"""
    action_dim: int
    gamma: float
    """discount per decision"""
    log_action_scale: float = 0.0
    """sum over dimensions of log(half the width of the environment's action range)"""

    @property
    def obs_dim(self) -> int:
        """Size of a flat observation, without its image."""
        return math.prod(self.obs_shape)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of the image that an agent sees."""
        assert self.frame is not None
        height, width, channels = self.frame
        return height, width, channels * self.frame_stack


class Transition(NamedTuple):
    """One step. `discount` is γ, or 0 at a termination; a time limit is not a termination. `next_obs` is the true next
    observation, also at the end of an episode."""

    obs: Any
    """an array, or `Pixels`"""
    action: Array
    reward: Array
    discount: Array
    next_obs: Any


class Entropy(NamedTuple):
    """The entropy bonus in soft values: α times −log π of every action after the first."""

    alpha: Callable[[Any], Array]
    """state → α"""
    neg_log_prob: Callable[[Any, Any, Array, Key], Array]
    """policy, memory, obs, key → −log π(a|s) of the action a that an exploring `act` samples with this key; the memory
    is the one that `act` returned with the action"""


class Values(NamedTuple):
    """Access to an agent's critics, for diagnostics that compare their values with Monte-Carlo returns."""

    critics: Callable[[Any], Any]
    """state → the part of it that values are computed from"""
    value: Callable[[Any, Array, Array], Metrics]
    """critics, obs, action → `q`, and further estimates of the critics for this state-action pair"""
    entropy: Entropy | None = None
    """the entropy bonus, if the values are soft"""
    deterministic: bool = False
    """whether the values are those of the deterministic policy; if not, they are those of the exploring one"""


class Refresh(NamedTuple):
    """Infrequent, expensive work of an agent: LSAC retrains its generator and fills its synthetic buffer.

    `begin`, `pieces` times `advance`, and `finish` return a compact state, without the data that `generate` makes;
    `generate` completes it. A checkpoint stores the compact state, and a resume calls `generate` again with the same
    key.
    """

    every: int
    """environment steps before the first refresh and, at least, between two"""
    growth: float
    """the least share of all steps that lies between two refreshes, rounded down to a multiple of `every`"""
    title: str
    """what a progress display calls the fit"""
    steps: int
    """gradient steps of a fit"""
    pieces: int
    """number of parts that a fit is divided into, between which it can be reported and stopped"""
    begin: Callable[[Any, Any, Key], Any]
    """compact state, replay, key → work"""
    advance: Callable[[Any, Any, Array], Any]
    """work, replay, index of the piece → work"""
    finish: Callable[[Any, Any], tuple[Any, Metrics, Transition]]
    """compact state, work → compact state, metrics, and [N] real transitions for comparison"""
    generate: Callable[[Any, Key], tuple[Any, Transition]]
    """compact state, key → state, and [N] of the generated transitions"""
    compact: Callable[[Any], Any]
    """state → compact state"""
    judge: Callable[[Any, Array], tuple[Any, Metrics]] | None = None
    """state, error of the generated transitions in the simulator (see fidelity.py) → state, metrics; called after
    `generate` where the simulator can be asked"""

    def fit(self, state: Any, replay: Any, key: Key) -> tuple[Any, Metrics, Transition]:
        """The whole fit as one function: compact state, replay, key → what `finish` returns."""
        work = self.begin(state, replay, key)
        work = jax.lax.fori_loop(0, self.pieces, lambda piece, work: self.advance(work, replay, piece), work)
        return self.finish(state, work)


def memoryless(act: Callable[[Any, Any, Key, bool], Array]) -> Callable[..., tuple[Array, Any]]:
    """Turns `act(policy, obs, key, explore) → action`, which needs no memory, into `Agent.act`."""

    def with_memory(policy: Any, memory: Any, obs: Any, key: Key, explore: bool) -> tuple[Array, Any]:
        return act(policy, obs, key, explore), memory

    return with_memory


class Agent(NamedTuple):
    """An algorithm: pure functions over pytrees of arrays, written for one seed and one observation."""

    init: Callable[[Key], Any]
    """key → state"""
    policy: Callable[[Any], Any]
    """state → the parts of it that acting needs. It only selects: the leaves of its result are arrays of the state"""
    act: Callable[[Any, Any, Any, Key, bool], tuple[Array, Any]]
    """policy, memory, obs, key, explore → action and memory. The action is in [−1, 1]; an exploratory action of an
    on-policy agent may leave that range, and the simulator clips it"""
    update: Callable[[Any, Any, Key], tuple[Any, Metrics]]
    """state, replay (read only), key → state, metrics"""
    memory: Callable[[], Any] = lambda: ()
    """→ the memory of a policy at the start of an episode; empty for policies without recurrence"""
    observe: Callable[[Any, Transition, Array], Any] = lambda state, transitions, first: state
    """state, [T·E] new transitions, [T·E] whether each is the first of an episode → state: called once with every
    collected transition, before it is first used"""
    diagnostics: Callable[[Any], Metrics] | None = None
    """state → metrics that are too costly for every update; they are computed for every line of metrics"""
    values: Values | None = None
    refresh: Refresh | None = None
    gradient_steps: int = 1
    """optimiser steps of the critics (or the value function) in one `update`; benchmarks divide by it"""
