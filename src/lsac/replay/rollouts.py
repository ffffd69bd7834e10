"""The newest chunk as trajectories: what on-policy agents learn from."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lsac.replay import ring as rb
from lsac.types import Array, Key, Transition


class Rollout(NamedTuple):
    """T successive steps of each of E simulators, [T, E, …]."""

    steps: Transition
    continues: Array
    """whether the next step of the simulator begins where this one ended"""


def read(replay: rb.Replay) -> Rollout:
    """The whole replay, which has to hold exactly one chunk.

    That an episode goes on is read off the observations. Where a time limit cut it and the reset happens to give the
    very same observation, what follows is a fair sample of what follows that observation, so going on is right.
    The chunk's last step does not continue: what follows it is unknown.
    """
    rows = replay.rows.reshape(-1, replay.stride, replay.layout.width)
    steps = replay.layout.unpack(rows)
    joined = jnp.all(steps.next_obs[:-1] == steps.obs[1:], axis=-1) & (steps.discount[:-1] != 0)
    return Rollout(steps, jnp.concatenate([joined, jnp.zeros_like(joined, shape=(1, replay.stride))]))


def gae(reward: Array, discount: Array, value: Array, next_value: Array, continues: Array, lam: float) -> Array:
    """Generalised advantages [T, E]: Schulman et al., 2016 (arXiv 1506.02438), eq. (16), as a recursion.

    δ_t = r_t + discount_t V(s'_t) − V(s_t),  A_t = δ_t + discount_t λ A_{t+1} where step t continues, else A_t = δ_t.

    So a time limit and the end of the chunk bootstrap from V(s'), a termination (discount 0) does not, and nothing
    flows from one episode into another.
    """
    # A termination's successor may be anything, even NaN.
    delta = reward + jnp.where(discount == 0, 0.0, discount * next_value) - value
    decay = jnp.where(continues, lam * discount, 0.0)

    # A step maps the advantage after it to δ + decay · after. Maps can be joined in any grouping, so T of them take
    # log T rounds.
    def both(later: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[Array, Array]:
        return step[0] * later[0], step[1] + step[0] * later[1]

    return jax.lax.associative_scan(both, (decay, delta), reverse=True)[1]


def joined(tree: Any) -> Any:
    """Arrays [T, E, …] as [T·E, …]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def minibatches(tree: Any, count: int, key: Key) -> Any:
    """Arrays [T, E, …] as [count, T·E / count, …], every step in exactly one minibatch, at random."""
    time, simulators = jax.tree.leaves(tree)[0].shape[:2]
    if time * simulators % count:
        raise ValueError(f"{time * simulators} steps cannot be split into {count} equal minibatches")
    order = jax.random.permutation(key, time * simulators)
    return jax.tree.map(lambda x: x[order].reshape(count, -1, *x.shape[1:]), joined(tree))
