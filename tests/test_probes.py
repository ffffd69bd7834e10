"""Every algorithm learns the probe environments to their known values, through the real adapter, groups and loop.

Two seeds side by side, γ = 0.9. The entropy bonus, where an algorithm has one, is made too small to matter.
Values of on-policy agents do not see the action: they have to be right for the action that the agent prefers.
"""

from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from lsac.agents import AGENTS
from lsac.envs.probes import PROBES
from lsac.envs.sources import given
from lsac.runs.experiment import Experiment, check, make_agent
from lsac.train.run import run

pytestmark = pytest.mark.computing

GAMMA = 0.9
SEEDS = 2
SETTINGS = {
    "hidden": (32, 32),
    "batch_size": 64,
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "tau": 0.05,
    "alpha_init": 1e-4,
    "alpha_lr": 1e-8,
    "synthetic": False,
    "epochs": 10,
    "minibatches": 4,
    "max_kl": 0.05,
    "log_std_init": -1.5,  # what a policy loses by its noise is small then
}
OWN = {
    # a step of M_q = 50 jumps over the best action of a probe, where Q'' = −2; and the last of 5 steps stretches what
    # the others found by 1/√α_0 = 1.11, the last of 20 by 1.01
    "qsm": {"score_scale": 2.0, "denoising_steps": 20},
}
"""Settings of one algorithm alone, with the reason."""


OFF_POLICY = {"steps": 1_536, "learning_starts": 128}
ON_POLICY = {"steps": 6_400, "learning_starts": 0, "chunk": 128}


def values_of(state, obs, action):
    """[K, B] values of one seed's K critics, stacked however deep; of a distribution, its mean, which comes first."""
    critics = state.chains.critics if hasattr(state, "chains") else state.critics
    depth = critics.mlp.layers[-1].bias.ndim - 1
    critics = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[depth:]), critics)
    values = jax.vmap(lambda critic: jax.vmap(critic)(obs, action))(critics)
    return values[0] if isinstance(values, tuple) else values


class Truth(NamedTuple):
    """What is known of a probe: the observations it shows, Q(s, a), and the best action where actions matter."""

    observations: tuple
    q: object
    best: object = None


TRUTHS = {
    "ConstantReward": Truth((0.0,), lambda s, a: 1.0),
    "RewardFromObs": Truth((-1.0, 1.0), lambda s, a: s),
    "DelayedReward": Truth((0.0, 1.0), lambda s, a: GAMMA if s == 0.0 else 1.0),
    "RewardFromAction": Truth((0.0,), lambda s, a: 1.0 - a**2, lambda s: 0.0),
    "RewardFromBoth": Truth((-1.0, 1.0), lambda s, a: 1.0 - (a - s / 2) ** 2, lambda s: s / 2),
    "TimeLimited": Truth((0.0,), lambda s, a: 1.0 / (1.0 - GAMMA)),
}


HARDER = ("DelayedReward", "RewardFromBoth")
MORE = (*HARDER, "TimeLimited")


def train(algorithm, probe):
    """The agent of a run, and the states [S, …] that the run leaves behind."""
    experiment = Experiment(
        small.config(algorithm, **SETTINGS | OWN.get(algorithm, {})),
        f"lsac/{probe}-v0",
        seeds=SEEDS,
        num_envs=4,
        gamma=GAMMA,
        eval_every=0,
        **ON_POLICY if small.on_policy(algorithm) else OFF_POLICY,
    )
    check(experiment)
    environments = given(lambda: gym.make(experiment.env))
    result = run(experiment, environments)
    assert result.finished
    return make_agent(experiment, environments.spec(experiment.gamma)), result.learner.state


def look(agent, state, obs, on_policy):
    """What all seeds do, [S], and what their critics say, [S, K, 6], of that action and of five others, [S, 6]."""

    def one_seed(state):
        action, _ = agent.act(agent.policy(state), agent.memory(), jnp.full(1, obs), jax.random.key(0), False)
        if on_policy:
            critics = agent.values.critics(state)
            return action[0], agent.values.value(critics, jnp.full(1, obs), action)["q"][None, None], action
        actions = jnp.concatenate([action, jnp.linspace(-0.8, 0.8, 5)])
        return action[0], values_of(state, jnp.full((6, 1), obs), actions[:, None]), actions

    return [np.asarray(x) for x in jax.jit(jax.vmap(one_seed))(state)]


def test_every_probe_has_its_truth():
    assert set(TRUTHS) == {probe.__name__ for probe in PROBES}


def mistakes(algorithm, probe):
    """What a trained agent has got wrong: values that are 5 % off, or 0.05, and actions that are 0.1 off."""
    agent, state = train(algorithm, probe)
    truth, found = TRUTHS[probe], []
    for obs in truth.observations:
        action, values, actions = look(agent, state, obs, small.on_policy(algorithm))
        expected = np.broadcast_to(truth.q(obs, actions), actions.shape)[:, None]
        if not np.all(np.abs(values - expected) < 0.05 * np.maximum(1.0, np.abs(expected))):
            found.append(f"{probe}: Q({obs}, ·) is {values}, not {expected}")
        if truth.best and not np.all(np.abs(action - truth.best(obs)) <= 0.1):
            found.append(f"{probe}: the best action at {obs} is {truth.best(obs)}, not {action}")
    return found


def test_an_agent_that_has_not_learned_makes_mistakes(monkeypatch):
    monkeypatch.setitem(OFF_POLICY, "steps", 160)
    assert len(mistakes("sac", "RewardFromBoth")) >= 2


# One test for all probes of an algorithm, which is compiled for the first of them only.


OFTEN = ("lsac", "sac", "ppo")
"""Algorithms that learn the probes with every change; the numbers of all that learn from vectors are pinned by
tests/golden.json."""


@pytest.mark.parametrize(
    "algorithm", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS]
)
def test_known_values_and_best_actions_are_learned(algorithm):
    """Of the harder probes, which contain what the easier ask for; for one algorithm also of the one cut off."""
    assert [wrong for probe in (MORE if algorithm == "sac" else HARDER) for wrong in mistakes(algorithm, probe)] == []


@pytest.mark.learning
@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_easier_probes_are_learned_too(algorithm):
    assert [wrong for probe in TRUTHS if probe not in HARDER for wrong in mistakes(algorithm, probe)] == []
