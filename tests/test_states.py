"""Simulators captured in the middle of an episode go on bit for bit, in another process's copy or in this one."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium import wrappers as gw
from gymnasium.wrappers import NormalizeObservation, TimeLimit

from lsac.envs import ids, physics, states
from lsac.errors import CheckpointError

TASKS = (
    *("HalfCheetah-v4", "Ant-v4", "Ant-v5", "Hopper-v4", "Walker2d-v5", "Humanoid-v4", "Swimmer-v5", "Reacher-v5"),
    *("Pusher-v5", "InvertedDoublePendulum-v5", "Pendulum-v1", "MountainCarContinuous-v0", "lsac/TimeLimited-v0"),
)


def make(env_id):
    return ids.build(ids.find(env_id))


def as_bytes(obs):
    return b"".join(np.asarray(part).tobytes() for part in (obs.values() if isinstance(obs, dict) else [obs]))


def play(env, count, seed):
    """What an environment answers to random actions, episode after episode."""
    rng, answers = np.random.default_rng(seed), []
    for _ in range(count):
        low, high = (np.clip(bound, -3.0, 3.0) for bound in (env.action_space.low, env.action_space.high))
        action = rng.uniform(low, high).astype(np.float32)
        obs, reward, terminated, truncated, _ = env.step(action)
        answers.append((as_bytes(obs), reward, terminated, truncated))
        if terminated or truncated:
            answers.append(as_bytes(env.reset()[0]))
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


ONES = np.float32(-1.0), np.float32(1.0)
WRAPPED = {
    "RescaleAction": lambda env: gw.RescaleAction(env, *ONES),
    "ClipAction": gw.ClipAction,
    "TransformAction": lambda env: gw.TransformAction(env, lambda action: 0.5 * action, env.action_space),
    "ClipReward": lambda env: gw.ClipReward(env, -1.0, 1.0),
    "TransformReward": lambda env: gw.TransformReward(env, lambda reward: reward / 2),
    "FlattenObservation": gw.FlattenObservation,
    "ReshapeObservation": lambda env: gw.ReshapeObservation(env, (3, 1)),
    "RescaleObservation": lambda env: gw.RescaleObservation(env, *ONES),
    "DtypeObservation": lambda env: gw.DtypeObservation(env, np.float32),
    "FilterObservation": lambda env: gw.FilterObservation(gw.TimeAwareObservation(env, flatten=False), ["obs"]),
    "TransformObservation": lambda env: gw.TransformObservation(env, lambda obs: 2 * obs, env.observation_space),
    "TimeAwareObservation": gw.TimeAwareObservation,
    "FrameStackObservation": lambda env: gw.FrameStackObservation(env, 3),
    "DelayObservation": lambda env: gw.DelayObservation(env, 2),
    "StickyAction": lambda env: gw.StickyAction(env, 0.5),
    "NormalizeReward": gw.NormalizeReward,
    "RecordEpisodeStatistics": gw.RecordEpisodeStatistics,
    "several": lambda env: gw.NormalizeReward(gw.FrameStackObservation(gw.ClipReward(env, -1.0, 1.0), 2)),
}


def test_every_supported_wrapper_is_tried():
    known = {wrapper.__name__ for wrapper in (*states.STATELESS, *states.STATEFUL)}
    assert known - WRAPPED.keys() == {"PassiveEnvChecker", "OrderEnforcing", "TimeLimit"}, "the others wrap every task"


@pytest.mark.parametrize("before", [0, 1, 137, 250])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_captured_wrapper_goes_on_bit_for_bit(name, before):
    """In an episode (of 200 steps), at its start, and in a later one."""
    env, other = (WRAPPED[name](make("Pendulum-v1")) for _ in "ab")
    env.reset(seed=3)
    play(env, before, seed=0)
    state = carried(states.take(env))
    other.reset(seed=99)
    play(other, 20, seed=1)
    states.put(other, state)
    assert play(other, 300, seed=2) == play(env, 300, seed=2)


def test_the_counters_of_an_episode_are_captured():
    env, other = (gw.RecordEpisodeStatistics(make("Pendulum-v1")) for _ in "ab")
    env.reset(seed=3)
    play(env, 450, seed=0)
    states.put(other, carried(states.take(env)))
    for one in (env, other):
        play(one, 150, seed=1)
    assert other.episode_count == env.episode_count == 3
    assert list(other.return_queue) == list(env.return_queue)
    assert list(other.length_queue) == [200, 200, 200]


@pytest.mark.parametrize("name", [name for name in WRAPPED if name in {w.__name__ for w in states.STATEFUL}])
def test_the_state_of_a_wrapper_matters(name, monkeypatch):
    """The negative control: without it, something differs."""
    kind = getattr(gw, name)
    env, other = (WRAPPED[name](make("Pendulum-v1")) for _ in "ab")
    env.reset(seed=3)
    play(env, 137, seed=0)
    monkeypatch.setitem(states.STATEFUL, kind, ())
    state = states.take(env)
    other.reset(seed=99)
    states.put(other, state)
    same = play(other, 300, seed=2) == play(env, 300, seed=2)
    assert not same or [*other.return_queue] != [*env.return_queue]


@pytest.mark.parametrize(
    "spoiled",
    ["a text", [1], {"queue": [0] * 4}, {"queue": 7}, {"array": "nothing"}, {"number": []}, {"other": 1}],
    ids=str,
)
def test_a_wrapper_does_not_take_everything(spoiled):
    env = gw.FrameStackObservation(make("Pendulum-v1"), 3)
    env.reset(seed=0)
    state = states.take(env)
    wrappers = [spoiled if isinstance(value, dict) else value for value in state.metadata["wrappers"]]
    with pytest.raises(CheckpointError, match=r"^the state of a simulator does not fit this environment"):
        states.put(env, state._replace(metadata=state.metadata | {"wrappers": wrappers}))


def test_the_integration_state_alone_is_not_enough_on_ant():
    """The negative control: without the derived arrays the first reward differs."""
    env, other = make("Ant-v5"), make("Ant-v5")
    env.reset(seed=3)
    play(env, 137, seed=0)
    whole = physics.captured(env.unwrapped.model, env.unwrapped.data)
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
