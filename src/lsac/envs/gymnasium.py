"""Adapter for Gymnasium environments: float32 vectors as observations, actions in [−1, 1], every value checked."""

import logging
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces

from lsac.envs.ids import first_line
from lsac.envs.repeat import repeated
from lsac.errors import EnvironmentFault, InputError
from lsac.types import EnvSpec

# MuJoCo's default handler prints to the terminal and writes MUJOCO_LOG.TXT into the current directory.
mujoco.set_mju_user_warning(logging.getLogger("lsac.mujoco").info)


def name_of(env: gym.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


class Spaces:
    """The spaces of an environment, and the conversion of its observations and actions to vectors."""

    def __init__(self, env: gym.Env):
        """Raises an error if the environment cannot be used."""
        name, action, obs = name_of(env), env.action_space, env.observation_space
        if not isinstance(action, spaces.Box):
            kind = type(action).__name__
            raise InputError(f"environment {name}: its action space is {kind}, but only Box (continuous) actions work")
        if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
            raise InputError(
                f"environment {name}: its action limits are not finite, so [−1, 1] cannot be mapped on them"
            )
        boxes = list(obs.spaces.values()) if isinstance(obs, spaces.Dict) else [obs]
        if not boxes or not all(isinstance(box, spaces.Box) for box in boxes):
            raise InputError(
                f"environment {name}: its observation space is {obs}, but a Box or a Dict of Boxes is needed"
            )
        for box in boxes:
            if box.dtype == np.uint8 and len(box.shape or ()) in (2, 3):
                raise InputError(
                    f"environment {name}: its observations contain images (uint8 {box.shape}), which are not "
                    "supported yet; leave them out or flatten them, for example with the wrapper "
                    "gymnasium.wrappers:FlattenObservation"
                )
        self.observation, self.action = obs, action
        self.obs_shape, self.action_dim = (spaces.flatdim(obs),), spaces.flatdim(action)
        self._half_range = (action.high - action.low) / 2

    def spec(self, gamma: float) -> EnvSpec:
        varying = self._half_range[self._half_range > 0].astype(np.float64)
        scale = float(np.sum(np.log(varying)))
        return EnvSpec(obs_shape=self.obs_shape, action_dim=self.action_dim, gamma=gamma, log_action_scale=scale)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Maps actions [..., A] from [−1, 1] to the environment's action space."""
        low, high = self.action.low, self.action.high
        scaled = low + (action.reshape(action.shape[:-1] + self.action.shape) + 1.0) * self._half_range
        return np.minimum(np.maximum(scaled, low), high).astype(low.dtype)  # np.clip takes three times as long

    def flat(self, obs: Any) -> np.ndarray:
        """An observation as one float32 vector: always a copy, because some environments reuse their buffer."""
        space = self.observation
        try:
            flat = spaces.flatten(space, obs) if isinstance(space, spaces.Dict) else obs
            if not isinstance(space, spaces.Dict) and np.shape(obs) != space.shape:
                raise EnvironmentFault(f"observation has shape {np.shape(obs)}, the space promises {space.shape}")
            flat = np.array(flat, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError, KeyError) as error:
            raise EnvironmentFault(f"observation cannot be read as numbers ({first_line(error)})") from None
        if flat.shape != self.obs_shape:
            expected = self.obs_shape[0]
            raise EnvironmentFault(f"observation has {flat.shape[0]} numbers, the space promises {expected}")
        return flat


class Simulator:
    """One environment, whose observations and actions are vectors."""

    def __init__(self, env: gym.Env, action_repeat: int = 1):
        self.env, self.spaces = env, Spaces(env)
        self._repeated = repeated(env, action_repeat)

    def reset(self, seed: int | None = None) -> np.ndarray:
        obs, _ = self.env.reset(seed=seed)
        return self.spaces.flat(obs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, int]:
        """One decision: observation, reward, terminated, truncated, and the number of environment steps that it took,
        which is less than the action repeat at the end of some episodes."""
        obs, reward, terminated, truncated, info = self._repeated.step(self.spaces.scaled(action))
        try:
            if isinstance(reward, np.ndarray) and reward.ndim:
                raise TypeError
            reward = float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFault(f"reward is {_short(reward)}, not a number") from None
        if not (_is_flag(terminated) and _is_flag(truncated)):
            flags = f"{_short(terminated)} and {_short(truncated)}"
            raise EnvironmentFault(f"the terminated and truncated flags are {flags}, not booleans")
        steps = 1 if self._repeated is self.env else info["repeated"]
        return self.spaces.flat(obs), reward, bool(terminated), bool(truncated), steps

    def close(self) -> None:
        self.env.close()


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
