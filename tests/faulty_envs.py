"""Environments that misbehave, each in one way.

The second simulator that a process makes goes wrong at its step `BAD_STEP`; before, all count their steps in the first
number of the observation, so that a test can tell which transitions were kept. The entry points are importable by
name, as a worker process needs it: this folder has to be on its path.
"""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BAD_STEP = 22


class Counter(gym.Env):
    """Behaves well: the observation is the number of the step, the reward is 1, an episode never ends."""

    made = 0

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.number = Counter.made
        Counter.made += 1
        self.t = 0

    def obs(self):
        return np.array([self.t, self.number, 0.0], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs(), {}

    def step(self, action):
        if self.t == BAD_STEP and self.number == 1:
            return self.misbehave()
        self.t += 1
        return self.obs(), 1.0, False, False, {}

    def misbehave(self):
        return self.obs(), 1.0, False, False, {}


class NanObservation(Counter):
    def misbehave(self):
        return np.array([1.0, np.nan, 1.0], np.float32), 1.0, False, False, {}


class InfiniteReward(Counter):
    def misbehave(self):
        return self.obs(), np.inf, False, False, {}


class TextReward(Counter):
    def misbehave(self):
        return self.obs(), "much", False, False, {}


class WrongShape(Counter):
    def misbehave(self):
        return np.zeros(4, np.float32), 1.0, False, False, {}


class TextObservation(Counter):
    def misbehave(self):
        return np.array(["left", "right", "up"]), 1.0, False, False, {}


class NumberAsFlag(Counter):
    def misbehave(self):
        return self.obs(), 1.0, 0.5, False, {}


class Raises(Counter):
    def misbehave(self):
        raise ZeroDivisionError("the pole fell through the floor")


class Hangs(Counter):
    def misbehave(self):
        time.sleep(10_000)


class Killed(Counter):
    def misbehave(self):
        os.kill(os.getpid(), signal.SIGKILL)


class BadReset(Counter):
    """Ends an episode, then cannot start the next one."""

    def misbehave(self):
        return self.obs(), 1.0, True, False, {}

    def reset(self, *, seed=None, options=None):
        if self.t:
            raise KeyError("start")
        return super().reset(seed=seed)


class HangsAtOnce(Counter):
    def step(self, action):
        time.sleep(3600)


def wrap(env):
    """A wrapper that other modules borrow."""
    return env


FAULTS = (
    *(NanObservation, InfiniteReward, TextReward, WrongShape, TextObservation, NumberAsFlag),
    *(Raises, BadReset, Hangs, Killed),
)

for kind in (Counter, *FAULTS):
    gym.register(f"faulty/{kind.__name__}-v0", entry_point=f"faulty_envs:{kind.__name__}")
