"""The newest chunk as trajectories, for on-policy agents."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lsac.replay import ring as rb
from lsac.types import Array, Key, Transition


class Rollout(NamedTuple):
    """T successive steps of each of E simulators, [T, E, …]."""

    steps: Transition
    continues: Array
    """whether the simulator's next step continues the same episode"""


def read(replay: rb.Replay) -> Rollout:
    """The whole replay, which must hold exactly one chunk, as a rollout.

    The last steps of the chunk do not continue, because their next steps are not collected yet.
    """
    steps, first = jax.tree.map(lambda x: x.reshape(-1, replay.stride, *x.shape[1:]), rb.everything(replay))
    return Rollout(steps, jnp.concatenate([~first[1:], jnp.zeros_like(first[:1])]))


def gae(reward: Array, discount: Array, value: Array, next_value: Array, continues: Array, lam: float) -> Array:
    """Generalised advantages [T, E]: Schulman et al., 2016 (arXiv 1506.02438), eq. (16), as a recursion.

    δ_t = r_t + discount_t V(s'_t) − V(s_t),  A_t = δ_t + discount_t λ A_{t+1} where step t continues, else A_t = δ_t.

    A time limit and the end of the chunk bootstrap from V(s'), a termination (discount 0) does not, and no advantage
    flows from one episode into another.
    """
    # The value of the state after a termination may be anything, even NaN.
    delta = reward + jnp.where(discount == 0, 0.0, discount * next_value) - value
    decay = jnp.where(continues, lam * discount, 0.0)

    # Each step is the affine map A_{t+1} → δ + decay · A_{t+1}. Composition is associative: T steps take log T rounds.
    def both(later: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[Array, Array]:
        return step[0] * later[0], step[1] + step[0] * later[1]

    return jax.lax.associative_scan(both, (decay, delta), reverse=True)[1]


def flattened(tree: Any) -> Any:
    """Reshapes arrays [T, E, …] to [T·E, …]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def minibatches(tree: Any, count: int, key: Key) -> Any:
    """Shuffles arrays [T, E, …] into [count, T·E / count, …]: every step is in exactly one minibatch."""
    time, simulators = jax.tree.leaves(tree)[0].shape[:2]
    if time * simulators % count:
        raise ValueError(f"{time * simulators} steps cannot be split into {count} equal minibatches")
    order = jax.random.permutation(key, time * simulators)
    return jax.tree.map(lambda x: x[order].reshape(count, -1, *x.shape[1:]), flattened(tree))
