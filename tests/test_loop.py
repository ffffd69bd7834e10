"""Which policy acts when, and how often the loop learns: seen through an agent whose policy counts its updates."""

import types
from dataclasses import dataclass, replace
from typing import ClassVar

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.agents import AGENTS
from lsac.envs.sources import given
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment
from lsac.train import run as running
from lsac.train.run import Observer, run
from lsac.types import Agent, Refresh, memoryless

CHUNK, CHUNKS, UPDATES = 8, 7, 4


@dataclass(frozen=True)
class Config:
    scale: float = 0.001
    """action per update"""


@dataclass(frozen=True)
class OnPolicyConfig:
    on_policy: ClassVar[bool] = True
    scale: float = 0.001
    """action per update"""
    updates: int | None = None
    """updates of the run"""

    def for_run(self, updates):
        return replace(self, updates=updates)


def make(config, spec):
    return Agent(
        init=lambda key: jnp.zeros(1),
        policy=lambda state: state,
        act=memoryless(lambda policy, obs, key, explore: policy * config.scale),
        update=lambda state, replay, key: (state + 1.0, {"updates": state[0]}),
    )


def train(experiment):
    """A run without a folder: what is left of it, and its lines of metrics."""
    environments, lines = given(lambda: gym.make(experiment.env))._replace(evaluation=None), []
    result = run(experiment, environments, observer=Observer(lambda progress: lines.extend(progress.lines)))
    assert result.finished
    return result, lines


def updates_behind_each_chunk(monkeypatch, learning_starts):
    """The number of updates that the policy of every chunk had seen, and the learner after the run."""
    monkeypatch.setitem(AGENTS, "counting", types.SimpleNamespace(Config=Config, make=make))
    experiment = Experiment(
        Config(),
        "lsac/TimeLimited-v0",
        steps=CHUNK * CHUNKS,
        seeds=2,
        num_envs=2,
        chunk=CHUNK,
        utd=UPDATES / CHUNK,
        learning_starts=learning_starts,
        eval_every=0,
    )
    learner = train(experiment)[0].learner
    actions = learner.replay.layout.transitions(rb.stored_of_seeds(learner.replay)).action
    return np.round(actions.reshape(2, CHUNKS, CHUNK) / Config.scale, 3), learner


def test_a_chunk_is_collected_with_the_policy_of_the_chunk_before_the_last(monkeypatch):
    counts, learner = updates_behind_each_chunk(monkeypatch, learning_starts=0)
    expected = np.array([0, 0, 1, 2, 3, 4, 5]) * UPDATES
    np.testing.assert_array_equal(counts, np.broadcast_to(expected[:, None], counts.shape))
    np.testing.assert_array_equal(learner.state, [[CHUNKS * UPDATES]] * 2)


def test_an_on_policy_chunk_is_collected_with_the_policy_of_the_chunk_before_and_learned_from_alone(monkeypatch):
    """Every update remembers how many updates were behind the actions that it saw."""
    made = []

    def make_on_policy(config, spec):
        made.append(config.updates)

        def update(state, replay, key):
            actions = rb.everything(replay)[0].action / config.scale
            told = {"least": jnp.min(actions), "most": jnp.max(actions), "rows": jnp.float32(actions.shape[0])}
            return state + 1.0, told | {"stride": jnp.float32(replay.stride)}

        return make(config, spec)._replace(update=update)

    monkeypatch.setitem(AGENTS, "reading", types.SimpleNamespace(Config=OnPolicyConfig, make=make_on_policy))
    experiment = Experiment(
        *(OnPolicyConfig(), "lsac/TimeLimited-v0"),
        **{"steps": CHUNK * CHUNKS, "seeds": 2, "num_envs": 2, "chunk": CHUNK, "log_every": CHUNK},
        **{"learning_starts": 0, "eval_every": 0},
    )
    result, lines = train(experiment)
    for seed in (0, 1):
        seen = [
            {k: round(x[f"train/{k}"], 3) for k in ("least", "most", "rows", "stride")}
            for x in lines
            if x["seed"] == seed
        ]
        assert seen == [{"least": i, "most": i, "rows": CHUNK, "stride": 2} for i in range(CHUNKS)]
    assert CHUNKS in made, "the agent that learns is told how many updates the run has"
    assert result.learner.updates == CHUNKS


@pytest.mark.parametrize("learning_starts", [2 * CHUNK, 2 * CHUNK - 1])
def test_actions_are_random_and_nothing_is_learned_before_learning_starts(monkeypatch, learning_starts):
    counts, learner = updates_behind_each_chunk(monkeypatch, learning_starts)
    assert np.unique(counts[:, :2]).size == 2 * 2 * CHUNK
    expected = np.array([0, 0, 1, 2, 3]) * UPDATES
    np.testing.assert_array_equal(counts[:, 2:], np.broadcast_to(expected[:, None], (2, 5, CHUNK)))
    np.testing.assert_array_equal(learner.state, [[(CHUNKS - 2) * UPDATES]] * 2)
    assert learner.updates == (CHUNKS - 2) * UPDATES


@pytest.mark.parametrize(("log_every", "told_at"), [(CHUNK, (32, 56)), (24, (48, CHUNK * CHUNKS))])
def test_generated_transitions_are_inspected_and_told_one_line_after_the_refresh(log_every, told_at, monkeypatch):
    """The agent shows its number of updates as what it generated; refreshes at 24 and 48."""

    def make_generating(config, spec):
        layout = rb.layout_of(spec)

        def fit(state, replay, key):
            return state, {"fitted": state[0]}, layout.unpack(jnp.zeros((3, layout.width)))

        def generate(state, key):
            return state, layout.unpack(jnp.zeros((3, layout.width)) + state[0])

        return make(config, spec)._replace(refresh=Refresh(24, fit, generate, compact=lambda state: state))

    monkeypatch.setitem(AGENTS, "generating", types.SimpleNamespace(Config=Config, make=make_generating))
    inspect = lambda sample: {"dynamics_error": sample.generated[:, 0, 0]}  # noqa: E731
    monkeypatch.setattr(running, "inspector", lambda source: inspect)
    experiment = Experiment(
        *(Config(), "lsac/TimeLimited-v0"),
        **{"steps": CHUNK * CHUNKS, "seeds": 2, "chunk": CHUNK, "log_every": log_every, "learning_starts": 0},
        eval_every=0,
    )
    _, lines = train(experiment)
    told = {
        name: [(x["step"], x[f"train/{name}"]) for x in lines if f"train/{name}" in x and x["seed"] == 0]
        for name in ("fitted", "dynamics_error")
    }
    assert told == {"fitted": [(24, 24.0), (48, 48.0)], "dynamics_error": list(zip(told_at, (24.0, 48.0), strict=True))}
