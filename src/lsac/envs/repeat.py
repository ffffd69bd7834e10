"""Action repeat: an agent decides less often than its environment steps."""

from typing import Any

import gymnasium as gym
import numpy as np

from lsac.envs.pixels import Rendered


class ActionRepeat(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Takes `repeat` steps of the environment with the same action and returns the sum of their rewards.

    The end of an episode cuts a repeat short. `info["repeated"]` is the number of steps that were taken.
    """

    def __init__(self, env: gym.Env, repeat: int):
        gym.utils.RecordConstructorArgs.__init__(self, repeat=repeat)
        super().__init__(env)
        self.repeat = repeat

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any
        obs, total, terminated, truncated, info = self.env.step(action)
        steps = 1
        while steps < self.repeat and not (terminated or truncated):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward  # not +=, which would change an array of the environment
            steps += 1
        return obs, total, terminated, truncated, info | {"repeated": steps}


def repeated(env: gym.Env, repeat: int) -> gym.Env:
    """The environment with every action repeated; the environment itself if that is once. An image is drawn only after
    the last repetition."""
    if repeat == 1:
        return env
    return Rendered(ActionRepeat(env.env, repeat), env.side) if isinstance(env, Rendered) else ActionRepeat(env, repeat)
