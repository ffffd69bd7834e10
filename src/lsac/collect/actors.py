"""How a group of simulators chooses its actions, derived from an agent's `act`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lsac.collect.in_numpy import InNumpy, Unsupported
from lsac.types import Agent, Key

BLOCK = 128
"""Moments for which random numbers are drawn in one compiled call."""

Choose = Callable[[int, Any, np.ndarray], Any]
"""moment, memories, obs [E, O] → actions [E, A], memories, and possibly more"""


class Actors(NamedTuple):
    """The rules by which groups choose actions. The random numbers of an action depend on seed, moment, environment."""

    explore: "Rule"
    exploit: "Rule"
    """the same, without exploration"""
    uniform: "Rule"
    """random actions, whatever the policy"""
    memory: Callable[[int], Any]
    """E → the initial memories of E policies, as NumPy arrays"""
    sample: "Rule | None"
    """`explore` that also returns −log π [E] of the actions, or zeros if the agent's values are not soft; None if its
    values are not those of the exploring policy, or if it has none"""


def make_actors(agent: Agent, action_dim: int) -> Actors:
    def act(explore: bool, policy: Any, keys: Any, late: Any) -> Any:
        memory, obs = late
        return jax.vmap(lambda m, o, k: agent.act(policy, m, o, k, explore))(memory, obs, keys)

    def uniform(policy: Any, keys: Any, late: Any) -> Any:
        memory, _ = late
        return jax.vmap(lambda k: jax.random.uniform(k, (action_dim,), minval=-1.0, maxval=1.0))(keys), memory

    def sample(policy: Any, keys: Any, late: Any) -> Any:
        action, memory = act(True, policy, keys, late)
        assert agent.values is not None
        if (entropy := agent.values.entropy) is None:
            return action, memory, jnp.zeros(len(keys))
        neg_log_prob = jax.vmap(lambda m, o, k: entropy.neg_log_prob(policy, m, o, k))
        return action, memory, neg_log_prob(memory, late[1], keys)

    def memory(count: int) -> Any:
        return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], count, axis=0), agent.memory())

    return Actors(
        explore=Rule(partial(act, True)),
        exploit=Rule(partial(act, False)),
        uniform=Rule(uniform),
        memory=memory,
        sample=Rule(sample) if agent.values and not agent.values.deterministic else None,
    )


class Rule:
    """A function (policy, keys [E], (memories, obs)) → actions and more, in NumPy or, as for a diffusion policy,
    compiled."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._compiled = jax.jit(lambda policy, stream, late: function(policy, _keys(*stream), late))
        self._in_numpy: dict[int, InNumpy | None] = {}  # by the number of simulators

    def actor(self, key: Key, envs: np.ndarray) -> "Actor":
        """The rule for a group of simulators with a random stream."""
        return Actor(self, key, envs)

    def in_numpy(self, policy: Any, envs: np.ndarray, late: Any) -> InNumpy | None:
        if len(envs) not in self._in_numpy:
            keys = jax.eval_shape(_keys, jax.random.key(0), np.int32(0), envs)
            try:
                self._in_numpy[len(envs)] = InNumpy(self._function, policy, keys, late)
            except Unsupported:
                self._in_numpy[len(envs)] = None
        return self._in_numpy[len(envs)]

    def compiled(self, policy: Any, key: Key, envs: np.ndarray) -> Choose:
        policy = jax.tree.map(jnp.asarray, policy)

        def choose(moment: int, memory: Any, obs: np.ndarray) -> Any:
            action, *rest = self._compiled(policy, (key, np.int32(moment), envs), (memory, obs))
            return np.asarray(action), *rest

        return choose


class Actor:
    """Chooses the actions of one group, with one random stream. It keeps the random numbers of a block of moments."""

    def __init__(self, rule: Rule, key: Key, envs: np.ndarray):
        self._rule, self._key, self._envs = rule, key, envs
        self._block, self._drawn = -1, list[np.ndarray]()

    def follow(self, policy: Any, memory: Any, obs: np.ndarray) -> Choose:
        """Chooses with this policy; memories and observations are examples."""
        program = self._rule.in_numpy(policy, self._envs, (memory, obs))
        if program is None:
            return self._rule.compiled(policy, self._key, self._envs)
        step = program.step(policy)
        return lambda moment, memory, obs: step(self._numbers(program, moment), (memory, obs))

    def _numbers(self, program: InNumpy, moment: int) -> list[np.ndarray]:
        block, index = divmod(moment, BLOCK)
        if block != self._block:
            moments = np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.int32)
            self._block, self._drawn = block, program.draw(_keys_of(self._key, moments, self._envs))
        return [numbers[index] for numbers in self._drawn]


def _keys(key: Key, moment: Any, envs: Any) -> Any:
    return jax.vmap(lambda env: jax.random.fold_in(jax.random.fold_in(key, moment), env))(envs)


_keys_of = jax.jit(jax.vmap(_keys, in_axes=(None, 0, None)))
