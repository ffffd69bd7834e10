"""Adapter for Gymnasium environments: observations are float32 vectors, with at most one image; actions are in [−1, 1];
every value is checked."""

import collections
import logging
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces

from lsac.envs.ids import first_line
from lsac.envs.repeat import repeated
from lsac.errors import EnvironmentFault, InputError
from lsac.types import EnvSpec, Pixels

# MuJoCo's default handler prints to the terminal and writes MUJOCO_LOG.TXT into the current directory.
mujoco.set_mju_user_warning(logging.getLogger("lsac.mujoco").info)


def name_of(env: gym.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


class Image(NamedTuple):
    """Where an observation has its image."""

    name: str | None
    """in a Dict of boxes; None if the image is the whole observation"""
    space: spaces.Box

    @property
    def frame(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, *channels = self.space.shape
        return height, width, channels[0] if channels else 1


def images_in(obs: gym.Space) -> list[Image]:
    """The images, which are uint8 boxes with two or three axes, in a space."""
    boxes = obs.spaces if isinstance(obs, spaces.Dict) else {None: obs}
    return [
        Image(name, box)
        for name, box in boxes.items()
        if isinstance(box, spaces.Box) and box.dtype == np.uint8 and len(box.shape) in (2, 3)
    ]


def _only_image(obs: gym.Space, env: str) -> Image | None:
    found = images_in(obs)
    if len(found) > 1:
        names = ", ".join(str(image.name) for image in found)
        raise InputError(
            f"environment {env}: its observations contain {len(found)} images ({names}), but only one works; join "
            "them, or leave out all but one, in a wrapper of your own"
        )
    if not found:
        return None
    shape = found[0].space.shape
    if len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > 4:
        raise InputError(
            f"environment {env}: its image has the shape {shape}, channels first, but (height, width, channels) is "
            "needed; transpose it, for example with TransformObservation(env, lambda x: x.transpose(1, 2, 0), space)"
        )
    return found[0]


def _without(obs: gym.Space, image: Image | None) -> gym.Space | None:
    """The space of an observation without its image; None if nothing else is in it."""
    if image is None or not isinstance(obs, spaces.Dict):
        return obs if image is None else None
    boxes = collections.OrderedDict((name, box) for name, box in obs.spaces.items() if name != image.name)
    return spaces.Dict(boxes) if boxes else None


class Spaces:
    """The spaces of an environment, and the conversion of its observations and actions."""

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
        self.observation, self.action = obs, action
        self._image = _only_image(obs, name)
        self._vectors = _without(obs, self._image)
        self.frame = self._image.frame if self._image else None
        """shape of the image in an observation; None if there is none"""
        self.obs_shape = (0 if self._vectors is None else spaces.flatdim(self._vectors),)
        self.action_dim = spaces.flatdim(action)
        self._half_range = (action.high - action.low) / 2

    def spec(self, gamma: float, frame_stack: int = 1) -> EnvSpec:
        varying = self._half_range[self._half_range > 0].astype(np.float64)
        return EnvSpec(
            obs_shape=self.obs_shape,
            frame=self.frame,
            frame_stack=frame_stack,
            action_dim=self.action_dim,
            gamma=gamma,
            log_action_scale=float(np.sum(np.log(varying))),
        )

    def scaled(self, action: np.ndarray) -> np.ndarray:
        """Maps actions [..., A] from [−1, 1] to the environment's action space."""
        low, high = self.action.low, self.action.high
        scaled = low + (action.reshape(action.shape[:-1] + self.action.shape) + 1.0) * self._half_range
        return np.minimum(np.maximum(scaled, low), high).astype(low.dtype)  # np.clip takes three times as long

    def read(self, obs: Any) -> Any:
        """An observation as the agent sees it: one vector [O], or `Pixels` with one frame. Always a copy, because some
        environments reuse their buffers."""
        vector: Any = self.flat(obs)
        return vector if self._image is None else Pixels(self._read_image(obs, self._image), vector)

    def flat(self, obs: Any) -> np.ndarray:
        """An observation without its image, as one float32 vector."""
        space = self._vectors
        if space is None:
            return np.zeros(0, np.float32)
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

    def _read_image(self, obs: Any, image: Image) -> Any:
        try:
            frame = np.array(obs if image.name is None else obs[image.name], order="C")
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise EnvironmentFault(f"the image of the observation cannot be read ({first_line(error)})") from None
        if (frame.dtype, frame.shape) != (np.uint8, image.space.shape):
            found, promised = f"{frame.dtype} {frame.shape}", f"uint8 {image.space.shape}"
            raise EnvironmentFault(f"the image of the observation is {found}, the space promises {promised}")
        return frame.reshape(image.frame)


class Simulator:
    """One environment: actions are vectors, observations as `Spaces.read` returns them."""

    def __init__(self, env: gym.Env, action_repeat: int = 1):
        self.env, self.spaces = env, Spaces(env)
        self._repeated = repeated(env, action_repeat)

    def reset(self, seed: int | None = None) -> Any:
        obs, _ = self.env.reset(seed=seed)
        return self.spaces.read(obs)

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, int]:
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
        return self.spaces.read(obs), reward, bool(terminated), bool(truncated), steps

    def close(self) -> None:
        self.env.close()


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
