"""An agent that remembers and counts, written by hand: where its memory goes, and what it is told of."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.agents import AGENTS
from lsac.collect import wire
from lsac.collect.actors import make_actors
from lsac.collect.groups import Discounts, Group
from lsac.collect.wire import GroupPlan
from lsac.envs.gymnasium import Simulator, Spaces
from lsac.envs.sources import Environments, Source
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, check
from lsac.train.run import run
from lsac.types import Agent

GAMMA = 0.9


# what happens to a memory


def recurrent():
    """Counts the steps of an episode and keeps a running mean of its observations, two leaves of two types."""

    def act(policy, memory, obs, key, explore):
        mean = 0.5 * memory["mean"] + 0.5 * obs
        action = jnp.tanh(policy["weight"] @ mean + 0.01 * memory["steps"].astype(jnp.float32))
        noise = 0.1 * jax.random.normal(key, (1,)) if explore else jnp.zeros(1)
        return jnp.clip(action + noise, -1.0, 1.0), {"mean": mean, "steps": memory["steps"] + 1}

    return Agent(
        init=lambda key: {"weight": jax.random.normal(key, (1, 3))},
        policy=lambda state: state,
        act=act,
        update=lambda state, replay, key: (state, {}),
        memory=lambda: {"mean": jnp.zeros(3), "steps": jnp.zeros((), jnp.int32)},
    )


AGENT = recurrent()
POLICY = jax.jit(AGENT.init)(jax.random.key(0))
ACTORS = make_actors(AGENT, 1)
LIMITS = (5, 7)
"""Steps of an episode in the two simulators of a group."""


def group(seed=0):
    simulators = [
        Simulator(gym.make("Pendulum-v1", max_episode_steps=limit, disable_env_checker=True)) for limit in LIMITS
    ]
    return Group(GroupPlan(seed, 0, [0, 1], 2), simulators, ACTORS, Discounts(GAMMA), np.zeros(2, np.int64))


def memories(of):
    """The memories [E, …] of a group, by name."""
    mean, steps = of.capture().memory
    return SimpleNamespace(mean=mean, steps=steps)


def collect(of, step, count, random=False):
    """Stored transitions and episodes of `count` steps of both simulators."""
    return of.collect(POLICY, 2 * step, count, random)


@pytest.mark.parametrize("random", [False, True])
def test_a_memory_is_as_old_as_its_episode(random):
    playing = group()
    playing.reset(0)
    for step in range(12):
        np.testing.assert_array_equal(memories(playing).steps, [step % limit for limit in LIMITS])
        stored, _ = collect(playing, step, 1, random)
        np.testing.assert_array_equal(stored[rb.FIRST], [[step % limit == 0 for limit in LIMITS]])


def test_a_memory_holds_what_was_seen_since_the_episode_began():
    """Also after random actions: those of the whole chunk, one observation after another, worked out in NumPy."""
    playing = group()
    playing.reset(0)
    parts = [collect(playing, 0, 6, random=True)[0], collect(playing, 6, 6)[0]]
    obs = np.concatenate([playing.layout.transitions(part).obs for part in parts])
    expected = np.zeros((2, 3), np.float32)
    for t in range(12):
        for i, limit in enumerate(LIMITS):
            before = 0.0 if t % limit == 0 else expected[i]
            expected[i] = 0.5 * before + 0.5 * obs[t, i]
    np.testing.assert_allclose(memories(playing).mean, expected, rtol=1e-6)


def test_a_reset_and_an_evaluation_begin_with_a_new_memory():
    playing = group()
    playing.reset(0)
    collect(playing, 0, 3)
    assert memories(playing).steps.tolist() == [3, 3]
    playing.reset(6)
    assert memories(playing).steps.tolist() == [0, 0]
    assert not memories(playing).mean.any()
    once, again = (playing.evaluate(POLICY, 0, deterministic=True) for _ in range(2))
    np.testing.assert_array_equal(once.returns, again.returns)
    assert once.lengths.tolist() == list(LIMITS)


@pytest.mark.parametrize("at", [0, 3, 5, 9])
def test_a_captured_memory_continues_exactly_in_another_group(at):
    """Through the bytes in which captured simulators travel and are saved; at 5 one simulator has just restarted."""
    alone, other = group(), group()
    alone.reset(0)
    collect(alone, 0, at) if at else None
    data, arrays = wire.pack(alone.capture())
    saved = [np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for x in arrays]  # as read-only as what is received
    captured = wire.unpack(json.loads(json.dumps(data)), saved)
    assert [x.dtype for x in captured.memory] == [np.float32, np.int32]
    other.reset(99)
    collect(other, 0, 2)
    other.restore(captured)
    (mine, ended), (theirs, ended_there) = (collect(one, at, 11) for one in (alone, other))
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    assert ended == ended_there
    assert len(ended) >= 3
    assert memories(alone).steps.tolist() == memories(other).steps.tolist() == [(at + 11) % n for n in LIMITS]


def test_without_its_memory_a_group_would_not_continue_exactly():
    """So the test above sees the memory."""
    alone, other = group(), group()
    alone.reset(0)
    collect(alone, 0, 3)
    captured = alone.capture()
    other.restore(captured._replace(memory=[np.zeros_like(x) for x in captured.memory]))
    mine, theirs = (collect(one, 3, 4)[0] for one in (alone, other))
    assert not np.array_equal(mine[rb.PACKED], theirs[rb.PACKED])


# what is observed


class Numbered(gym.Env):
    """Every step of every simulator has its own number, which it shows; an episode has seven steps."""

    made = 0

    def __init__(self):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.number, self.t = 100 * Numbered.made, 0
        Numbered.made += 1

    def obs(self):
        return np.array([self.number + self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        return self.obs(), {}

    def step(self, action):
        self.t += 1
        return self.obs(), 0.0, False, self.t % 7 == 0, {}


@dataclass(frozen=True)
class Config:
    size: int = 400


def counting(config, spec):
    """Counts how often it is told of every number, and how often it may learn from a number it was not told of."""

    def observe(state, transitions, first):
        return state | {"told": state["told"].at[transitions.obs[:, 0].astype(jnp.int32)].add(1.0)}

    def update(state, replay, key):
        (every, _), held = rb.everything(replay), rb.filled(replay)
        untold = held & (state["told"][every.obs[:, 0].astype(jnp.int32)] != 1.0)
        state = state | {"untold": state["untold"] + jnp.sum(untold, dtype=jnp.float32)}
        return state | {"updates": state["updates"] + 1.0}, {"loss": jnp.zeros(())}

    return Agent(
        init=lambda key: {"told": jnp.zeros(config.size), "untold": jnp.zeros(()), "updates": jnp.zeros(())},
        policy=lambda state: state["untold"],
        act=lambda policy, memory, obs, key, explore: (jnp.zeros(1), memory),
        update=update,
        observe=observe,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"learning_starts": 24, "replay_capacity": 16},
        {"learning_starts": 0, "replay_capacity": 64},
        {"learning_starts": 64, "replay_capacity": 64},
    ],
    ids=["some only stored", "all learned from", "all only stored"],
)
def test_every_collected_transition_is_observed_once_and_before_it_is_used(options, monkeypatch):
    """Seeds 0 and 1 have two simulators each; 48 steps of a seed are 24 of each simulator."""
    monkeypatch.setitem(AGENTS, "counting", SimpleNamespace(Config=Config, make=counting))
    experiment = Experiment(
        Config(), "numbered", steps=48, seeds=2, num_envs=2, chunk=8, utd=0.25, eval_every=0, **options
    )
    check(experiment)
    environments = Environments("numbered", Source(Numbered, None), None, Spaces(Numbered()))
    Numbered.made = 0
    result = run(experiment, environments)
    assert (result.finished, result.step) == (True, 48)
    for seed, simulators in enumerate([(0, 1), (2, 3)]):
        expected = np.zeros(400)
        for simulator in simulators:
            expected[100 * simulator : 100 * simulator + 24] = 1
        np.testing.assert_array_equal(result.learner.state["told"][seed], expected)
    learned = max(0, 48 - options["learning_starts"])
    assert result.learner.state["updates"].tolist() == [learned * 0.25] * 2
    assert result.learner.state["untold"].tolist() == [0.0, 0.0]
