"""Tiny environments with known exact values, so that a test can check numbers instead of learning curves.

Each isolates one possible mistake of an implementation. Q below is the true value for α → 0.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Probe(gym.Env):
    """Base class of the probes: one-dimensional observations and actions."""

    length = 1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.t = 0
        self.x = 0.0

    def first(self) -> float:
        return 0.0

    def reward(self, action: float) -> float:
        return 1.0

    def obs(self) -> np.ndarray:
        return np.array([self.x], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t, self.x = 0, self.first()
        return self.obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = self.reward(float(action[0]))
        self.t += 1
        return self.obs(), reward, self.t >= self.length, False, {}


class ConstantReward(Probe):
    """One step, reward 1: Q = 1. Fails if a termination is bootstrapped."""


class RewardFromObs(Probe):
    """One step, reward = the observation, ±1: Q(s) = s. Fails if the critic does not see the state."""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action: float) -> float:
        return self.x


class DelayedReward(Probe):
    """Two steps, reward 1 on the second: Q(first) = γ, Q(second) = 1. Fails if the discount is lost."""

    length = 2

    def reward(self, action: float) -> float:
        return float(self.t == 1)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        result = super().step(action)
        self.x = 1.0
        return (self.obs(), *result[1:])


class RewardFromAction(Probe):
    """One step, reward 1 − a²: the best action is 0. Fails if the actor does not maximise the critic."""

    def reward(self, action: float) -> float:
        return 1.0 - action**2


class RewardFromBoth(Probe):
    """One step, reward 1 − (a − s/2)²: the best action is s/2. Fails if the actor ignores the state."""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action: float) -> float:
        return 1.0 - (action - self.x / 2) ** 2


class TimeLimited(Probe):
    """Reward 1 at every step, truncated after four: Q = 1 / (1 − γ). Fails if a truncation counts as a termination."""

    length = 10**9


class SeenColour(Probe):
    """One step, reward 1 − (a − c)², where c is the colour of a square, −1 without red and 1 with full red. Only the
    picture shows it, at another place in every episode: Q(s) = 1 − (a − c)². Fails if the agent does not see.

    With a larger `length`, every step has a colour and a place of its own."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}  # noqa: RUF012  (as in every environment)
    side, square = 48, 16

    def __init__(self, render_mode: str | None = None, length: int = 1) -> None:
        super().__init__()
        self.render_mode, self.length = render_mode, length
        self.red, self.row, self.column = 0, 0, 0

    def first(self) -> float:
        self.red = int(self.np_random.integers(256))
        self.row, self.column = self.np_random.integers(self.side - self.square + 1, size=2).tolist()
        return 0.0

    def reward(self, action: float) -> float:
        return 1.0 - (action - (self.red / 127.5 - 1.0)) ** 2

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        result = super().step(action)
        self.first()
        return result

    def render(self) -> Any:
        """The square, which has full green, on black."""
        if self.render_mode is None:
            return None
        picture = np.zeros((self.side, self.side, 3), np.uint8)
        rows, columns = (slice(start, start + self.square) for start in (self.row, self.column))
        picture[rows, columns, :2] = self.red, 255
        return picture


PROBES = (ConstantReward, RewardFromObs, DelayedReward, RewardFromAction, RewardFromBoth, TimeLimited)
"""Those that are observed; `SeenColour` is for agents that learn from images."""

for probe in PROBES:
    gym.register(
        f"lsac/{probe.__name__}-v0",
        entry_point=f"lsac.envs.probes:{probe.__name__}",
        max_episode_steps=4 if probe is TimeLimited else None,
    )
gym.register("lsac/SeenColour-v0", entry_point="lsac.envs.probes:SeenColour")
