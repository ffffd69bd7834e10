"""Adapter for Gymnasium environments: float32 vectors as observations, actions in [−1, 1], every value checked."""

import difflib
import importlib
import logging
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces

import lsac.envs.probes  # noqa: F401  (registers the probe environments)
from lsac.errors import EnvironmentFault, InputError
from lsac.types import EnvSpec

# MuJoCo's default handler prints to the terminal and writes MUJOCO_LOG.TXT into the current directory.
mujoco.set_mju_user_warning(logging.getLogger("lsac.mujoco").info)


def find(env_id: str) -> gym.envs.registration.EnvSpec:
    """The registered spec of an id, or an error that suggests a similar id; `module:Env-v0` imports the module."""
    try:
        module, colon, name = env_id.partition(":")
        if colon:
            importlib.import_module(module)
        return gym.spec(name if colon else env_id)
    except (gym.error.Error, ImportError) as error:
        close = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        reason = "" if isinstance(error, gym.error.UnregisteredEnv) else f" ({_first_line(error)})"
        raise InputError(f"--env {env_id}: no such Gymnasium environment{reason}{hint}") from None


def build(spec: gym.envs.registration.EnvSpec | str) -> gym.Env:
    try:
        return gym.make(spec, disable_env_checker=True)
    except Exception as error:
        name = spec if isinstance(spec, str) else spec.id
        raise InputError(f"--env {name}: could not be created: {_first_line(error)}") from error


def describe(env: gym.Env, gamma: float) -> EnvSpec:
    """Shapes of an environment's flat observations and actions, or an error if it cannot be used."""
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    action, obs = env.action_space, env.observation_space
    if not isinstance(action, spaces.Box):
        kind = type(action).__name__
        raise InputError(f"environment {name}: its action space is {kind}, but only Box (continuous) actions work")
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise InputError(f"environment {name}: its action limits are not finite, so [−1, 1] cannot be mapped on them")
    boxes = list(obs.spaces.values()) if isinstance(obs, spaces.Dict) else [obs]
    if not boxes or not all(isinstance(box, spaces.Box) for box in boxes):
        raise InputError(f"environment {name}: its observation space is {obs}, but a Box or a Dict of Boxes is needed")
    return EnvSpec(obs_shape=(spaces.flatdim(obs),), action_dim=spaces.flatdim(action), gamma=gamma)


class Simulator:
    """One environment. It copies every observation, because some environments reuse their buffer."""

    def __init__(self, env: gym.Env):
        self.env = env
        described = self.spec(gamma=0.0)  # rejects an environment that cannot be used
        self.obs_shape, self.action_dim = described.obs_shape, described.action_dim
        self.obs_space = env.observation_space
        self._dict = isinstance(env.observation_space, spaces.Dict)
        assert isinstance(env.action_space, spaces.Box)
        self._low, self._high = env.action_space.low, env.action_space.high
        self._half_range = (env.action_space.high - env.action_space.low) / 2
        self._action_shape = env.action_space.shape

    def spec(self, gamma: float) -> EnvSpec:
        return describe(self.env, gamma)

    def reset(self, seed: int | None = None) -> np.ndarray:
        obs, _ = self.env.reset(seed=seed)
        return self.flat(obs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        obs, reward, terminated, truncated, _ = self.env.step(self.scaled(action))
        try:
            if isinstance(reward, np.ndarray) and reward.ndim:
                raise TypeError
            reward = float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFault(f"reward is {_short(reward)}, not a number") from None
        if not (_is_flag(terminated) and _is_flag(truncated)):
            flags = f"{_short(terminated)} and {_short(truncated)}"
            raise EnvironmentFault(f"the terminated and truncated flags are {flags}, not booleans")
        return self.flat(obs), reward, bool(terminated), bool(truncated)

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Maps an action from [−1, 1] to the environment's action space."""
        scaled = self._low + (action.reshape(self._action_shape) + 1.0) * self._half_range
        return np.clip(scaled, self._low, self._high).astype(self._low.dtype)

    def flat(self, obs: Any) -> np.ndarray:
        try:
            flat = spaces.flatten(self.obs_space, obs) if self._dict else obs
            if not self._dict and np.shape(obs) != self.obs_space.shape:
                raise EnvironmentFault(
                    f"observation has shape {np.shape(obs)}, the space promises {self.obs_space.shape}"
                )
            flat = np.array(flat, dtype=np.float32).reshape(-1)
        except (TypeError, ValueError, KeyError) as error:
            raise EnvironmentFault(f"observation cannot be read as numbers ({_first_line(error)})") from None
        if flat.shape != self.obs_shape:
            expected = self.obs_shape[0]
            raise EnvironmentFault(f"observation has {flat.shape[0]} numbers, the space promises {expected}")
        return flat

    def close(self) -> None:
        self.env.close()


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
