"""Action repeat: what one decision is, and that everything else counts the environment's own steps."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from commands import TINY, lsac, metrics
from interrupted import stopped_and_resumed
from test_groups import ACTORS, GAMMA, POLICY, Counter

from lsac import SAC
from lsac.agents import sac
from lsac.collect.groups import Discounts, Group
from lsac.collect.pool import training_groups
from lsac.collect.wire import Episode, GroupPlan
from lsac.envs.gymnasium import Simulator
from lsac.envs.repeat import ActionRepeat, repeated
from lsac.envs.sources import given
from lsac.errors import EnvironmentFault, InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, check
from lsac.runs.folder import RunFolder
from lsac.train import fidelity
from lsac.train import run as running
from lsac.train.logger import Observer
from lsac.train.refresh import Sample

# one decision


def test_rewards_are_summed_and_the_action_is_the_same():
    env = Counter(length=100)
    twice = ActionRepeat(env, 2)
    twice.reset(seed=0)
    obs, reward, terminated, truncated, info = twice.step(np.array([0.5], np.float32))
    assert (reward, terminated, truncated, info) == (1 + 2, False, False, {"repeated": 2})
    np.testing.assert_array_equal(obs, [0, 0, 2])
    assert [float(action[0]) for action in env.actions] == [0.5, 0.5]
    assert twice.step(np.array([0.0], np.float32))[1] == 3 + 4


@pytest.mark.parametrize("ends", [(True, False), (False, True)], ids=["terminated", "truncated"])
def test_the_end_of_an_episode_ends_the_repeat(ends):
    thrice = ActionRepeat(Counter(length=4, ends=ends), 3)
    thrice.reset(seed=0)
    assert thrice.step(np.zeros(1))[1:] == (1 + 2 + 3, False, False, {"repeated": 3})
    assert thrice.step(np.zeros(1))[1:] == (4, *ends, {"repeated": 1})


def test_once_is_no_wrapper_and_a_repeat_is_made_again_from_its_spec():
    env = gym.make("Pendulum-v1")
    assert repeated(env, 1) is env
    again = gym.make(repeated(env, 3).spec, disable_env_checker=True)
    again.reset(seed=0)
    assert again.step(np.zeros(1, np.float32))[4]["repeated"] == 3


def test_a_simulator_says_how_many_steps_it_took_and_checks_the_sum():
    simulator = Simulator(Counter(length=3), 2)
    simulator.reset(0)
    assert [simulator.step(np.zeros(1, np.float32))[1:] for _ in range(2)] == [
        *((3.0, False, False, 2), (3.0, True, False, 1))
    ]
    assert Simulator(Counter(length=3)).spaces.action_dim == 1

    class Rows(Counter):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, np.array([reward, reward]), *rest

    simulator = Simulator(Rows(length=100), 2)
    simulator.reset(0)
    with pytest.raises(EnvironmentFault, match="not a number"):
        simulator.step(np.zeros(1, np.float32))


# a group


def test_a_group_stores_decisions_and_counts_steps():
    """Episodes of five steps, two at a time: three decisions, of which the last has one step."""
    (plan,) = training_groups([0], 2, action_repeat=2)
    assert plan == GroupPlan(0, 0, [0, 1], 4)
    simulators = [Simulator(Counter(number, 5), 2) for number in (0.0, 1.0)]
    group = Group(plan, simulators, ACTORS, Discounts(GAMMA), np.zeros(2, np.int64))
    group.reset(0)
    stored, episodes = group.collect(POLICY, 8, 4, random=False)
    columns = group.layout.views(stored)
    np.testing.assert_array_equal(columns["reward"][:, 0].ravel(), [3, 7, 5, 3])
    np.testing.assert_allclose(columns["discount"][:, 0].ravel(), [GAMMA, GAMMA, 0.0, GAMMA])
    np.testing.assert_array_equal(columns["obs"][:, 1], [[1, 0, 0], [1, 0, 2], [1, 0, 4], [1, 1, 0]])
    np.testing.assert_array_equal(columns["next_obs"][:, 1], [[1, 0, 2], [1, 0, 4], [1, 0, 5], [1, 1, 2]])
    np.testing.assert_array_equal(columns[rb.FIRST][:, 0].ravel(), [True, False, False, True])
    assert episodes == [Episode(8 + 2 * 4, 15.0, 5)] * 2
    np.testing.assert_array_equal(group._lengths, [2, 2])
    played = group.evaluate(POLICY, 0, True)
    np.testing.assert_array_equal(played.lengths, [5, 5])
    np.testing.assert_array_equal(played.returns, [15.0, 15.0])


def test_decisions_at_other_repeats_draw_the_same_random_numbers():
    """The numbers belong to a decision, so that none is skipped and none is used twice."""

    def actions(repeat, step):
        plan = training_groups([3], 1, repeat)[0]
        group = Group(plan, [Simulator(Counter(length=99), repeat)], ACTORS, Discounts(GAMMA), np.zeros(2, np.int64))
        group.reset(0)
        return group.layout.views(group.collect(POLICY, step, 6, random=False)[0])["action"].ravel()

    np.testing.assert_array_equal(actions(1, 4), actions(3, 12))
    assert len(set(actions(3, 12))) == 6


# a run

EXPERIMENT = Experiment(
    sac.Config(hidden=(8,), batch_size=16),
    "Pendulum-v1",
    **{"steps": 600, "seeds": 2, "num_envs": 2, "action_repeat": 2, "chunk": 8, "utd": 0.5},
    **{"learning_starts": 64, "replay_capacity": 96, "eval_every": 200, "eval_episodes": 1, "log_every": 100},
    **{"checkpoint_every": 200, "workers": 1},
)


def test_what_an_experiment_counts():
    e = EXPERIMENT
    assert (e.chunk_steps, e.updates_per_chunk, e.total_steps, e.capacity) == (16, 4, 608, 96)
    assert e.planned_updates() == (608 - 64) // 16 * 4
    assert dataclasses.replace(e, replay_capacity=1_000).capacity == 304, "no more decisions than the run makes"
    once = dataclasses.replace(e, action_repeat=1)
    assert (once.chunk_steps, once.total_steps, once.planned_updates()) == (8, 600, (600 - 64) // 8 * 4)
    with pytest.raises(InputError, match="--action-repeat 0: must be at least 1"):
        check(dataclasses.replace(e, action_repeat=0))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    path = tmp_path_factory.mktemp("repeat") / "alone"
    said = []
    observer = Observer(say=said.append)
    result = running.run(EXPERIMENT, folder=RunFolder.create(path, EXPERIMENT), observer=observer)
    assert said[0] == "every action is taken 2 times; γ is 0.99 per decision, 0.9950 per step"
    assert (result.finished, result.step) == (True, 608)
    assert result.learner.updates == EXPERIMENT.planned_updates()
    assert result.learner.added == 304
    return path


def test_metrics_count_the_steps_of_the_environment(alone):
    lines = metrics(alone)
    logged = [line["step"] for line in lines if "time/fps" in line and line["seed"] == 0]
    assert logged == [112, 208, 304, 400, 512, 608], "the ends of chunks, of 16 steps, after each hundred"
    assert {line["step"] for line in lines if "eval/mean_reward" in line} == {0, 208, 400, 608}
    assert {line["eval/mean_ep_length"] for line in lines if "eval/mean_reward" in line} == {200}
    ended = [line for line in lines if "rollout/ep_len_mean" in line]
    assert min(line["step"] for line in ended) == 400, "two simulators, 200 steps each"
    assert {line["rollout/ep_len_mean"] for line in ended} == {200}
    assert all(-16.3 * 200 < line["rollout/ep_rew_mean"] < -2 * 100 for line in ended), "of 200 steps, not of 100"
    assert max(line.get("train/n_updates", 0) for line in lines) == EXPERIMENT.planned_updates()


def test_one_update_per_decision_unless_more_are_asked_for():
    """As for Stable-Baselines3 with a wrapper that repeats: an update per step of the environment is utd=2 here."""
    e = dataclasses.replace(EXPERIMENT, steps=32, learning_starts=0, utd=1.0)
    assert [dataclasses.replace(e, utd=utd).planned_updates() for utd in (0.5, 1.0, 2.0)] == [8, 16, 32]


@pytest.mark.slow
@pytest.mark.parametrize("at", [208, 304])
def test_a_stopped_run_becomes_the_run_that_was_left_alone(at, alone, tmp_path):
    """Stopped after a multiple of a hundred steps, in the middle of the episodes."""
    stopped_and_resumed(EXPERIMENT, at, alone, tmp_path / "stopped")


def test_the_command_line_takes_the_option_and_eval_repeats_as_training_did(alone):
    command = ("train", "sac", "--env", "Pendulum-v1", *TINY, "--steps", 64)
    assert lsac(*command, "--action-repeat", 0).sentence == "lsac: --action-repeat 0: must be at least 1"
    result = lsac("eval", alone, "--episodes", 1)
    assert result.code == 0
    assert "mean length 200, policy of step 608" in result.out


@pytest.mark.slow
def test_two_calls_of_learn_are_as_good_as_one():
    options = {"seeds": 1, "chunk": 8, "learning_starts": 16, "eval_every": 0, "replay_capacity": 64}
    whole, parts = (SAC("Pendulum-v1", action_repeat=4, hidden=(8,), batch_size=16, **options) for _ in range(2))
    whole.learn(128)
    parts.learn(64)
    before = parts.predict(np.zeros(3), deterministic=True)[0]
    parts.learn(64)
    after = parts.predict(np.zeros(3), deterministic=True)[0]
    np.testing.assert_array_equal(after, whole.predict(np.zeros(3), deterministic=True)[0])
    assert not np.array_equal(before, after)


@pytest.mark.slow
def test_a_fault_saves_the_steps_before_it(tmp_path):
    """The counters of what was learned before it are those of steps, not of decisions."""

    class Late(Counter):
        steps = 0

        def step(self, action):
            Late.steps += 1
            if Late.steps > 100:
                raise ZeroDivisionError("worn out")
            return super().step(action)

    options = {"seeds": 1, "action_repeat": 2, "chunk": 8, "learning_starts": 16, "eval_every": 0}
    model = SAC(lambda: Late(length=50), hidden=(8,), batch_size=16, **options)
    with pytest.raises(EnvironmentFault, match="worn out"):
        model.learn(160, out=tmp_path / "run")
    assert RunFolder(tmp_path / "run").checkpoints.step() % 16 == 0
    assert 64 <= RunFolder(tmp_path / "run").checkpoints.step() == model.num_timesteps <= 96


def test_the_environment_of_a_model_repeats_too():
    """So that a loop around predict, or evaluate_policy of Stable-Baselines3, plays as training did."""
    options = {"seeds": 1, "chunk": 8, "learning_starts": 16, "eval_every": 0, "replay_capacity": 64}
    model = SAC("Pendulum-v1", action_repeat=4, hidden=(8,), batch_size=16, **options)
    calls = []

    class Each:
        def init_callback(self, model): ...
        def on_training_start(self, here, there): ...
        def on_rollout_start(self): ...
        def on_step(self):
            calls.append(model.num_timesteps)

        def on_rollout_end(self): ...
        def on_training_end(self): ...

    model.learn(64, callback=Each())
    assert (model.num_timesteps, len(calls)) == (64, 16)
    obs, _ = model.get_env().reset(seed=0)
    steps, truncated = 0, False
    while not truncated:
        obs, _, _, truncated, _ = model.get_env().step(model.predict(obs, deterministic=True)[0])
        steps += 1
    assert steps == 50


def test_generated_transitions_are_compared_with_repeated_ones():
    """As a run compares them, with more rows than decisions fit into the time limit."""
    env = gym.make("HalfCheetah-v4")
    twice = repeated(env, 2)
    layout, rng, rows = fidelity.layout_of(env), np.random.default_rng(0), []
    obs, truncated = None, True
    for _ in range(510):
        if truncated:
            obs, _ = twice.reset(seed=0)
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        following, reward, _, truncated, _ = twice.step(action)
        rows.append(np.concatenate([obs, action, [reward, 0.99], following]))
        obs = following
    assert set(layout.fields()) == {"obs", "action", "reward", "discount", "next_obs"}
    rows = np.asarray(rows, np.float32)[None]
    inspect, once = (running.inspector(given("HalfCheetah-v4"), repeat) for repeat in (2, 1))
    found = inspect(Sample(real=rows, generated=rows))
    assert found["dynamics_error"][0] < 1e-4
    assert found["dynamics_error_shuffled"][0] > 0.3
    assert once(Sample(real=rows, generated=rows))["dynamics_error"][0] > 0.1
