"""Environments, functions and wrappers as users write them, importable by name."""

import functools

import faulty_envs
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Swing(PendulumEnv):
    """A pendulum with arguments of its own."""

    def __init__(self, render_mode=None, g=10.0, start=None, scale=1.0, broken=False):
        super().__init__(render_mode, g)
        self.start, self.scale = start, scale
        if broken:
            raise KeyError("broken at once")

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, self.scale * reward, *rest


class Images(gym.Env):
    def __init__(self, observation_space=None):
        image = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.observation_space = image if observation_space is None else observation_space
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Faulty(PendulumEnv):
    def step(self, action):
        return self.fetch({})

    def fetch(self, table):
        return table["missing_key"]


def make_swing(g=10.0):
    return gym.wrappers.TimeLimit(Swing(g=g), 50)


SHARED = Swing()


def make_shared():
    return SHARED


def make_nothing():
    return None


def halve(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward / 2)


def break_down(env):
    raise LookupError("no such wheel")


def to_number(env):
    return 7


NUMBER = 7


class Doubling(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


partly = functools.partial(halve)
borrowed = faulty_envs.wrap

gym.register("own/Text-v0", "own_envs:Swing", max_episode_steps=50)
gym.register("own/Class-v0", Swing, max_episode_steps=50)
gym.register("own/Function-v0", make_swing)
gym.register("own/Partial-v0", functools.partial(Swing, g=2.0), max_episode_steps=50)
gym.register("own/Lambda-v0", lambda **kwargs: Swing(**kwargs), max_episode_steps=50)
gym.register("own/Numpy-v0", "own_envs:Swing", max_episode_steps=50, kwargs={"g": np.float64(10.0)})
gym.register("own/Faulty-v0", Faulty)
