"""Policy snapshots: the flat float32 vectors in which policies are sent from the learner to the simulators."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lsac.types import Agent, Array


def flatten(policy: Any) -> Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(policy)])


def unflatten(agent: Agent) -> tuple[int, Callable[[np.ndarray], Any]]:
    """The length of an agent's snapshots, and the function that converts one back to a policy, of NumPy arrays."""
    shapes = jax.eval_shape(lambda key: agent.policy(agent.init(key)), jax.random.key(0))
    leaves, tree = jax.tree.flatten(shapes)
    if any(leaf.dtype != jnp.float32 for leaf in leaves):
        raise TypeError("a policy must hold float32 arrays only")
    stops = np.cumsum([leaf.size for leaf in leaves])

    def restore(flat: np.ndarray) -> Any:
        copied = np.array(flat)  # the next snapshot may overwrite the vector's memory
        arrays = [copied[stop - leaf.size : stop].reshape(leaf.shape) for stop, leaf in zip(stops, leaves, strict=True)]
        return jax.tree.unflatten(tree, arrays)

    return int(stops[-1]), restore
