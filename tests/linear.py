"""Networks of one linear layer, whose outputs can be worked out by hand."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from lsac.nn.networks import (
    WIDE_LOG_STD,
    Critic,
    GaussianActor,
    GaussianCritic,
    ensemble,
    gaussian_actor,
    gaussian_critic,
)

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


def raw(std: float) -> float:
    """What softplus turns into this σ."""
    return float(std + np.log(-np.expm1(-std)))


def return_critics_of(*coefficients: tuple[float, float, float, float]) -> GaussianCritic:
    """Stacked critics of one state and one action, each given as (w_s, w_a, b, σ): mean = w_s s + w_a a + b."""
    shape = jax.eval_shape(lambda: ensemble(lambda k: gaussian_critic(1, 1, (), "relu", k), len(coefficients), KEY))
    weight = [[[s, a], [0, 0]] for s, a, _, _ in coefficients]
    return with_layer(shape, weight, [[b, raw(std)] for _, _, b, std in coefficients])


def chains_of(*chains: list[tuple[float, float, float, float]]) -> GaussianCritic:
    """Critics stacked [C, K], each given as (w_s, w_a, b, σ)."""
    return jax.tree.map(lambda *members: jnp.stack(members), *(return_critics_of(*chain) for chain in chains))


def mean_head(critics: GaussianCritic) -> np.ndarray:
    """[…, 3]: (w_s, w_a, b) of the mean of every stacked critic."""
    return _head(critics, 0)


def std_head(critics: GaussianCritic) -> np.ndarray:
    """[…, 3]: the same of what softplus turns into σ."""
    return _head(critics, 1)


def _head(critics: GaussianCritic, row: int) -> np.ndarray:
    layer = critics.mlp.layers[0]
    return np.concatenate([layer.weight[..., row, :], layer.bias[..., row, None]], axis=-1)


def return_gradients(
    q: np.ndarray, std: np.ndarray, y_q: np.ndarray, y_z: np.ndarray, bound: float, scale: float, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """The published gradients of a batch by Q and by σ, in float64."""
    y_z = np.clip(y_z, q - bound, q + bound)
    by_mean = -(y_q - q) / (std**2 + eps)
    by_std = -((y_z - q) ** 2 - std**2) / (std**3 + eps)
    return scale * by_mean / len(q), scale * by_std / len(q)


def actor_of(m_s: float, m_0: float, log_std: float, bounds: tuple[float, float] = WIDE_LOG_STD) -> GaussianActor:
    """Of one state and one action: mean = m_s s + m_0, and a constant log std."""
    shape = jax.eval_shape(lambda: gaussian_actor(1, 1, (), "relu", KEY, bounds))
    return with_layer(shape, [[m_s], [0.0]], [m_0, log_std])


def numpy_actions(m_s: float, m_0: float, log_std: float, obs: Any, key: Any) -> tuple[np.ndarray, np.ndarray]:
    """The actions of such an actor and their log densities in float64, from the same Gaussian noise."""
    noise = np.asarray(jax.random.normal(key, (len(obs), 1)), np.float64)[:, 0]
    u = m_s * np.array(obs) + m_0 + np.exp(log_std) * noise
    return np.tanh(u), stats.norm.logpdf(noise) - log_std - np.log(1.0 - np.tanh(u) ** 2)


def numbers(*trees: Any) -> list[np.ndarray]:
    """All numbers of each tree, as one vector."""
    return [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in trees]
