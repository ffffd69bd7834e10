"""How a model acts: observations in, actions in the units of the environment out, on the processor."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from lsac import streams
from lsac.envs.gymnasium import Spaces, images_in
from lsac.errors import InputError
from lsac.options import shown
from lsac.types import Agent, Array, Pixels

ALL = -1
"""Stands for the index of a seed where all seeds are meant."""


class Cache(NamedTuple):
    """Policies by the index of their seed, and whose they are."""

    owner: Any
    version: int
    policies: dict[int, Any]


class Recurrence(NamedTuple):
    """The memories of the last call, and which observations start an episode; None if the caller did not say."""

    state: Any
    episode_start: Any


class Predictor:
    """Chooses the actions of one seed or of all. A policy stays on the processor until the parameters change: one
    observation takes the least time there."""

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, seeds: int):
        """`seed` is the first of the `seeds`: a number, because a file may claim any."""
        self._agent, self._spaces, self._seed, self._seeds = agent, spaces, seed, seeds
        self._calls = 0
        self._cache = Cache(None, 0, {})
        self._keys: dict[int, Any] = {}
        self._has_memory = bool(jax.tree.leaves(agent.memory()))

        def act(explore: bool, policy: Any, memory: Any, obs: Any, key: Array, count: Array) -> Any:
            keys = jax.random.split(jax.random.fold_in(key, count), jax.tree.leaves(obs)[0].shape[0])
            return jax.vmap(lambda m, o, k: agent.act(policy, m, o, k, explore))(memory, obs, keys)

        kinds = {True: partial(act, False), False: partial(act, True)}  # by whether to be deterministic
        axes = (0, 0, None, None, None)
        self._one_seed = {deterministic: jax.jit(f) for deterministic, f in kinds.items()}
        self._all_seeds = {deterministic: jax.jit(jax.vmap(f, in_axes=axes)) for deterministic, f in kinds.items()}

    def policy(self, index: int, owner: Any, version: int, read: Callable[[], Any]) -> Any:
        """The policy of a seed; `read` returns the policies [S, …] that `owner` has in this version."""
        if self._cache.owner is not owner or self._cache.version != version:
            self._cache = Cache(owner, version, {})
        cached = self._cache.policies
        if index not in cached:
            policies = read()
            chosen = policies if index == ALL else jax.tree.map(lambda leaf: leaf[index], policies)
            cached[index] = jax.device_put(jax.tree.map(np.array, chosen), cpu())
        return cached[index]

    def act(
        self, policy: Any, obs: Any, recurrence: Recurrence, deterministic: bool, index: int
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, and the memories of the policy or None."""
        single, batch = self._batch(obs)
        self._calls += 1
        rows = len(jax.tree.leaves(batch)[0])
        memory = self._memory(rows, recurrence, index == ALL) if self._has_memory else ()
        act = (self._all_seeds if index == ALL else self._one_seed)[deterministic]
        action, memory = act(policy, memory, batch, self._key(max(index, 0)), np.int32(self._calls))
        scaled = self._spaces.scaled(np.asarray(action))
        if single:
            scaled = scaled[:, 0] if index == ALL else scaled[0]
        return scaled, memory if self._has_memory else None

    def _key(self, index: int) -> Any:
        if index not in self._keys:
            self._keys[index] = jax.device_put(streams.root(self._seed + index, streams.EVALUATE), cpu())
        return self._keys[index]

    def _memory(self, count: int, recurrence: Recurrence, of_all: bool) -> Any:
        """The memories [B, …], or [S, B, …], of a batch: those given, or initial ones where an episode starts."""
        axes = (self._seeds, count) if of_all else (count,)
        fresh = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (*axes, *jnp.shape(x))), self._agent.memory())
        state, episode_start = recurrence
        if state is None:
            return fresh
        leaves, expected = jax.tree.leaves(state), jax.tree.leaves(fresh)
        if [jnp.shape(x) for x in leaves] != [jnp.shape(x) for x in expected]:
            raise InputError("state: must be what predict returned for as many observations, or None")
        if episode_start is None:
            return state
        try:
            starts = np.broadcast_to(np.asarray(episode_start, bool), axes)
        except ValueError:
            raise InputError(f"episode_start: must be one flag per observation, {axes}") from None

        def choose(new: Any, old: Any) -> Any:
            return jnp.where(starts.reshape(starts.shape + (1,) * (new.ndim - starts.ndim)), new, old)

        return jax.tree.map(choose, fresh, state)

    def _batch(self, obs: Any) -> tuple[bool, Any]:
        """Whether `obs` is a single observation, and the observations as the agent sees them, with a leading axis."""
        space, parts = self._spaces.observation, {"obs": obs}
        if isinstance(space, gym.spaces.Dict):
            if not isinstance(obs, Mapping) or not space.spaces.keys() <= obs.keys():
                raise InputError(f"obs: must be a dict with {', '.join(map(repr, space.spaces))}, not {shown(obs)}")
            parts = {f"obs[{name!r}]": obs[name] for name in space.spaces}
            found = {_rows(x, box, name) for (name, x), box in zip(parts.items(), space.spaces.values(), strict=True)}
        else:
            found = {_rows(obs, space, "obs")}
        if len(found) > 1:
            raise InputError("obs: its entries are batches of different sizes")
        for image in images_in(space) if self._spaces.frame is not None else ():
            name = "obs" if image.name is None else f"obs[{image.name!r}]"
            if (dtype := np.asarray(parts[name]).dtype) != np.uint8:
                raise InputError(f"{name}: is an image of {dtype}, but must be one of uint8, from 0 to 255")
        (rows,) = found
        if rows is None:
            return True, jax.tree.map(lambda x: x[None], self._spaces.read(obs))
        if self._spaces.frame is None:
            return False, np.concatenate([_flat(x) for x in parts.values()], axis=1)
        if not rows:
            none: Any = (
                np.zeros((0, *self._spaces.frame), np.uint8),
                np.zeros((0, *self._spaces.obs_shape), np.float32),
            )
            return False, Pixels(*none)
        each = [self._spaces.read(_row_of(obs, i)) for i in range(rows)]
        return False, jax.tree.map(lambda *x: np.stack(x), *each)


def _row_of(obs: Any, i: int) -> Any:
    """One observation of a batch."""
    return {name: x[i] for name, x in obs.items()} if isinstance(obs, Mapping) else obs[i]


def _rows(values: Any, space: gym.Space, name: str) -> int | None:
    """The size of a batch of observations; None for a single observation."""
    try:
        found = np.asarray(values, np.float32).shape
    except (TypeError, ValueError):
        raise InputError(f"{name}: cannot be read as numbers (reset returns an observation and a dict)") from None
    shape = space.shape or ()
    if found == shape:
        return None
    if found[1:] != shape or len(found) != len(shape) + 1:
        raise InputError(f"{name}: has shape {found}, but {shape} or a batch of it is expected")
    return found[0]


def _flat(values: Any) -> np.ndarray:
    """A batch of observations as [B, O], always a copy."""
    array = np.array(values, np.float32)
    return array.reshape(len(array), math.prod(array.shape[1:]))


def cpu() -> Any:
    """The device on which policies act."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names only an accelerator
        return jax.devices()[0]
