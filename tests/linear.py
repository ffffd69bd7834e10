"""Networks of one linear layer, whose outputs can be worked out by hand."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lsac.nn.networks import WIDE_LOG_STD, Critic, GaussianActor, ensemble

Module = TypeVar("Module")
KEY = jax.random.key(0)


def f32(*values: Any) -> jax.Array:
    return jnp.asarray(np.array(values, np.float32))


def with_layer(module: Module, weight: Any, bias: Any) -> Module:
    """The module with its first layer set."""
    where = lambda m: (m.mlp.layers[0].weight, m.mlp.layers[0].bias)  # noqa: E731
    return eqx.tree_at(where, module, (f32(*weight), f32(*bias)))


def critics_of(*coefficients: tuple[float, ...]) -> Critic:
    """Stacked critics of one state, Q(s, a) = w_s s + w_a · a + b, each given as (w_s, w_a, …, b)."""
    actions = len(coefficients[0]) - 2
    shape = jax.eval_shape(lambda: ensemble(lambda k: Critic(1, actions, (), "relu", k), len(coefficients), KEY))
    return with_layer(shape, [[row[:-1]] for row in coefficients], [[row[-1]] for row in coefficients])


def coefficients(critics: Critic) -> np.ndarray:
    """[K, …]: (w_s, w_a, …, b) of every critic."""
    layer = critics.mlp.layers[0]
    return np.concatenate([layer.weight[:, 0], layer.bias], axis=1)


def actor_of(m_s: float, m_0: float, log_std: float, bounds: tuple[float, float] = WIDE_LOG_STD) -> GaussianActor:
    """Of one state and one action: mean = m_s s + m_0, and a constant log std."""
    shape = jax.eval_shape(lambda: GaussianActor(1, 1, (), "relu", KEY, bounds))
    return with_layer(shape, [[m_s], [0.0]], [m_0, log_std])


def numbers(*trees: Any) -> list[np.ndarray]:
    """All numbers of each tree, as one vector."""
    return [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in trees]
