"""Simulators captured in the middle of an episode go on bit for bit, in another process's copy or in this one."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, TimeLimit

from lsac.envs import gymnasium as adapter
from lsac.envs import states
from lsac.errors import CheckpointError

TASKS = (
    *("HalfCheetah-v4", "Ant-v4", "Ant-v5", "Hopper-v4", "Walker2d-v5", "Humanoid-v4", "Swimmer-v5", "Reacher-v5"),
    *("Pusher-v5", "InvertedDoublePendulum-v5", "Pendulum-v1", "MountainCarContinuous-v0", "lsac/TimeLimited-v0"),
)


def make(env_id):
    return adapter.build(adapter.find(env_id))


def play(env, count, seed):
    """What an environment answers to random actions, episode after episode."""
    rng, answers = np.random.default_rng(seed), []
    for _ in range(count):
        action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        obs, reward, terminated, truncated, _ = env.step(action)
        answers.append((obs.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            answers.append(env.reset()[0].tobytes())
    return answers


def carried(state):
    """As it comes out of a file."""
    return states.SimulatorState(
        json.loads(json.dumps(state.metadata)), np.frombuffer(state.arrays.tobytes(), np.uint8)
    )


@pytest.mark.parametrize("env_id", TASKS)
def test_a_captured_simulator_goes_on_bit_for_bit(env_id):
    env, other = make(env_id), make(env_id)
    env.reset(seed=3)
    play(env, 137, seed=0)
    state = states.take(env)
    other.reset(seed=99)
    play(other, 20, seed=1)
    states.put(other, carried(state))
    again = states.take(other)
    assert (again.metadata, again.arrays.tobytes()) == (state.metadata, state.arrays.tobytes()), (
        "it is all there at once"
    )
    assert play(other, 200, seed=2) == play(env, 200, seed=2)


def test_the_integration_state_alone_is_not_enough_on_ant():
    """The negative control: without the derived arrays the first reward differs."""
    env, other = make("Ant-v5"), make("Ant-v5")
    env.reset(seed=3)
    play(env, 137, seed=0)
    whole = states._mujoco_arrays(env.unwrapped)
    other.reset(seed=3)
    states._put_known(other.unwrapped, {}, {"integration": whole["integration"]})
    assert play(other, 1, seed=2) != play(env, 1, seed=2)


class Own(gym.Env):
    """A user's environment: its state is a list, which nobody could guess."""

    def __init__(self):
        self.observation_space = spaces.Box(-9, 9, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.past = [0.0]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.past = [float(self.np_random.normal())]
        return np.array(self.past, np.float32), {}

    def step(self, action):
        self.past.append(0.5 * self.past[-1] + float(action[0]) + float(self.np_random.normal()))
        return np.array([sum(self.past[-3:])], np.float32), self.past[-1], len(self.past) > 30, False, {}


class Cooperative(Own):
    def get_state(self):
        return {"past": self.past, "last": np.float32(self.past[-1]), "two": np.array(self.past[-2:])}

    def set_state(self, state):
        assert isinstance(state["last"], np.float32)
        assert state["two"].dtype == np.float64
        self.past = list(state["past"])


def test_what_is_not_known_is_not_captured():
    env = TimeLimit(Own(), 50)
    env.reset(seed=0)
    assert states.take(env) is None
    env = NormalizeObservation(make("Pendulum-v1"))
    env.reset(seed=0)
    assert states.take(env) is None, "this wrapper has statistics of its own"


def test_an_environment_can_offer_its_state():
    env, other = TimeLimit(Cooperative(), 50), TimeLimit(Cooperative(), 50)
    env.reset(seed=0)
    play(env, 17, seed=0)
    states.put(other, carried(states.take(env)))
    assert play(other, 100, seed=2) == play(env, 100, seed=2)


def test_a_state_of_another_environment_is_refused():
    env = make("Pendulum-v1")
    env.reset(seed=0)
    state = states.take(env)
    for broken in (
        state._replace(arrays=state.arrays[:-3]),
        state._replace(metadata=state.metadata | {"wrappers": [1, 2, 3]}),
    ):
        with pytest.raises(CheckpointError, match=r"^the state of a simulator does not fit this environment"):
            states.put(make("Pendulum-v1"), broken)
