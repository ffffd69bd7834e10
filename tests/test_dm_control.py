"""The tasks of DeepMind Control: sizes, time limits, transitions, and captured states."""

import dataclasses
import os
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from commands import TINY, lsac
from gymnasium import wrappers as gw
from interrupted import captured_and_continued, stopped_and_resumed
from test_states import carried, make, play

from lsac.agents import sac
from lsac.envs import dm_control, ids, states
from lsac.envs.sources import create, given
from lsac.errors import CheckpointError, InputError
from lsac.runs.experiment import Experiment

PAPER = {
    "cheetah-run": (17, 6),
    "finger-turn_easy": (12, 2),
    "finger-turn_hard": (12, 2),
    "reacher-easy": (6, 2),
    "reacher-hard": (6, 2),
    "walker-walk": (24, 6),
    "walker-run": (24, 6),
    "fish-swim": (24, 5),
    "cartpole-balance_sparse": (5, 1),
    "cartpole-swingup_sparse": (5, 1),
    "hopper-hop": (15, 4),
    "quadruped-run": (78, 12),
}
"""The twelve tasks of the LSAC paper: numbers in an observation and in an action."""
NEEDS_RENDERING = "dm_control/quadruped-escape-v0"
"""It uploads its terrain to a renderer at every reset."""
ALL = [name for name in ids.OWN if name != NEEDS_RENDERING]


def id_of(task):
    return f"dm_control/{task}-v0"


@pytest.fixture(scope="module")
def suite():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no display
        from dm_control import suite
    return suite


def test_every_task_of_the_suite_has_an_id(suite):
    assert {(domain, task) for domain, tasks in dm_control.TASKS.items() for task in tasks} == set(suite.ALL_TASKS)
    assert len(ids.OWN) == len(suite.ALL_TASKS) > 50


@pytest.mark.parametrize("task", PAPER)
def test_sizes_of_the_papers_tasks(task):
    space = given(id_of(task)).space
    assert (space.obs_shape[0], space.action_dim) == PAPER[task]
    assert (space.observation.dtype, space.action.dtype) == (np.float32, np.float32)
    assert set(space.action.low) | set(space.action.high) == {-1.0, 1.0}


def test_any_seed_of_gymnasium_is_one():
    env = make(id_of("cartpole-swingup_sparse"))
    first = [env.reset(seed=seed)[0].tolist() for seed in (2**32 + 7, 7, 2**70)]
    assert first[0] == first[1] != first[2]


@pytest.mark.parametrize("task", ["cartpole-swingup_sparse", "reacher-hard", "quadruped-run", "finger-turn_easy"])
def test_transitions_are_those_of_the_suite(task, suite):
    """The same seeds and actions give the same numbers; actions in [−1, 1] are scaled to the actuators' limits."""
    env, (domain, name) = make(id_of(task)), task.split("-")
    theirs = suite.load(domain, name, task_kwargs={"random": 7})
    limits, rng = theirs.action_spec(), np.random.default_rng(0)

    def flat(step):
        return np.concatenate([np.ravel(part) for part in step.observation.values()]).astype(np.float32)

    obs, _ = env.reset(seed=7)
    np.testing.assert_array_equal(obs, flat(theirs.reset()))
    for _ in range(30):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        share = (action.astype(np.float64) + 1.0) / 2
        step = theirs.step((1 - share) * limits.minimum + share * limits.maximum)
        obs, reward, terminated, truncated, _ = env.step(action)
        np.testing.assert_allclose(obs, flat(step), rtol=1e-5, atol=1e-5)
        assert reward == pytest.approx(step.reward, abs=1e-6)
        assert (terminated, truncated) == (False, False)
    np.testing.assert_array_equal(env.reset()[0], flat(theirs.reset()))


@pytest.mark.parametrize(
    "task", [task if PAPER[task][0] < 13 else pytest.param(task, marks=pytest.mark.slow) for task in PAPER]
)
def test_an_episode_is_truncated_after_a_thousand_steps_and_never_terminates(task):
    env = make(id_of(task))
    env.reset(seed=1)
    rng, total = np.random.default_rng(1), 0.0
    for step in range(1, 1001):
        obs, reward, terminated, truncated, _ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        assert (terminated, truncated) == (False, step == 1000)
        assert obs.dtype == np.float32
        assert 0.0 <= reward <= 1.0
        total += reward
    assert total <= 1000
    env.close()


def test_a_task_that_really_ends_terminates(monkeypatch):
    """Only lqr does, at rest; its actions have no limits, and are taken as they are."""
    env = make("dm_control/lqr-lqr_2_1-v0")
    env.reset(seed=0)
    assert not env.step(np.ones(1, np.float32))[2]
    physics = env.unwrapped._env.physics
    assert physics.data.ctrl[0] == 1.0
    with physics.reset_context():
        physics.data.qpos[:], physics.data.qvel[:] = 0.0, 0.0
    assert env.step(np.zeros(1, np.float32))[2:4] == (True, False)
    env.reset()
    last = env.unwrapped._env.step
    monkeypatch.setattr(env.unwrapped._env, "step", lambda action: last(action)._replace(step_type=2, discount=1.0))
    assert env.step(np.zeros(1, np.float32))[2:4] == (False, True), "an end without a loss of value is none"


def test_arguments_and_wrappers_work_as_on_any_other_environment():
    wrappers = ["gymnasium.wrappers:TimeAwareObservation"]
    found = given(id_of("cartpole-balance"), env_kwargs={"max_episode_steps": 3}, wrappers=wrappers)
    assert found.recreatable
    for env in (found.training.make(), create(found.training.recipe)):
        env.reset(seed=0)
        assert [env.step(np.zeros(1, np.float32))[3] for _ in range(3)] == [False, False, True]
        assert isinstance(env, gw.TimeAwareObservation)
    longer = given(id_of("cartpole-balance"), env_kwargs={"max_episode_steps": 1_002}).training.make()
    longer.reset(seed=0)
    assert [longer.step(np.zeros(1, np.float32))[3] for _ in range(1_002)] == [False] * 1_001 + [True]
    with pytest.raises(InputError, match=r"^--env-args domain, task: 'fish' has no task 'balance'$"):
        given(id_of("cartpole-balance"), env_kwargs={"domain": "fish"})
    with pytest.raises(InputError, match="--env-args weight: dm_control/cartpole-balance-v0 has no argument"):
        given(id_of("cartpole-balance"), env_kwargs={"weight": 3})


def test_an_environment_of_a_model_is_known_again():
    """So that a run with an object of ours can be resumed without it."""
    env = given(id_of("cartpole-balance")).training.make()
    again = given(env)
    assert (again.name, again.args, again.wrappers, again.recreatable) == (id_of("cartpole-balance"), (), (), True)
    assert again.evaluation is not None


def test_a_misspelt_task_is_told_from_one_of_another_package(monkeypatch):
    for known in [known for known in gym.registry if known.startswith("dm_control/")]:
        monkeypatch.delitem(gym.registry, known)  # another test may have imported Shimmy
    with pytest.raises(InputError, match=r"did you mean dm_control/cheetah-run-v0\?"):
        ids.find("dm_control/cheeta-run-v0")
    with pytest.raises(InputError, match="shimmy"):
        ids.find("dm_control/CmuHumanoidRunWalls-v0")


def test_without_the_extra_a_sentence_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    monkeypatch.chdir(tmp_path)
    result = lsac("train", "sac", "--env", id_of("cheetah-run"), *TINY)
    assert (result.code, list(tmp_path.iterdir())) == (2, [])
    assert result.sentence == (
        "lsac: --env dm_control/cheetah-run-v0: could not be created: "
        "dm_control is not installed: pip install 'lsac[dmc]'"
    )


# Captured states


@pytest.mark.parametrize(
    "name",
    [name if name[11:-3] in PAPER else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
)
def test_a_captured_task_goes_on_bit_for_bit(name):
    """Over the end of the episode, and in the next one, whose start and target are drawn anew."""
    assert len(captured_and_continued(lambda: make(name)).arrays) < 600_000


@pytest.mark.parametrize("task", ["fish-swim", "reacher-easy", "finger-turn_hard"])
def test_targets_that_a_task_writes_into_the_model_are_captured(task, monkeypatch):
    monkeypatch.setattr(dm_control.physics, "CONSTANT", (*dm_control.physics.CONSTANT, "geom_pos", "site_pos"))
    env, other = make(id_of(task)), make(id_of(task))
    env.reset(seed=3)
    other.reset(seed=99)
    states.put(other, carried(states.take(env)))
    assert play(other, 20, seed=2) != play(env, 20, seed=2), "without them, the next steps are others"


def test_a_state_does_not_change_with_the_simulation():
    """Fish draws its target at a reset, and writes it into the model."""
    env = make(id_of("fish-swim")).unwrapped
    env.reset(seed=3)
    state = env.get_state()
    expected = play(env, 20, seed=2)
    env.reset(seed=99)
    env.set_state(state)
    assert play(env, 20, seed=2) == expected


@pytest.mark.parametrize("change", [{"rest": [625, 0, 0.0]}, {"rest": [3, 2, 0.0]}, {"keys": np.zeros(3, np.uint32)}])
def test_a_random_generator_that_is_none_is_refused(change):
    """A position behind the end would make NumPy read memory that is not its own."""
    env = make(id_of("cartpole-balance"))
    env.reset(seed=0)
    state = env.unwrapped.get_state()
    with pytest.raises(ValueError, match="random generator"):
        env.unwrapped.set_state(state | change)
    taken = states.take(env)
    metadata = taken.metadata | {"values": {"rest": [625, 0, 0.0]}}
    with pytest.raises(CheckpointError, match="random generator"):
        states.put(env, taken._replace(metadata=metadata))


RENDER = """
import gymnasium as gym
from lsac.envs import ids, states
env = gym.make(ids.find("dm_control/{task}-v0"), render_mode="rgb_array", width=64, height=48)
env.reset(seed=0)
picture = env.render()
assert picture.shape == (48, 64, 3) and picture.std() > 5, picture
state = states.take(env)
expected = env.step(env.action_space.low)
env.reset()
states.put(env, state)
assert (env.step(env.action_space.low)[0] == expected[0]).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cheetah-run", "quadruped-escape"])
def test_pictures_are_drawn_without_a_display(task):
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", RENDER.format(task=task)],
        env=os.environ | {"MUJOCO_GL": "egl"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr


IMAGES = """
import numpy as np
from lsac.envs import states
from lsac.envs.sources import given
for task, camera in (("quadruped-run", 2), ("quadruped-escape", 2), ("reacher-easy", 0)):
    env, other = (given(f"dm_control/{task}-v0", pixels=20).training.make() for _ in "ab")
    first = env.reset(seed=0)[0]
    image = env.step(env.action_space.low)[0]
    expected = env.unwrapped._env.physics.render
    from lsac.envs.drawing import in_own_thread
    assert (image == in_own_thread(env, expected, 20, 20, camera)).all() and image.std() > 5
    assert not (image == in_own_thread(env, expected, 20, 20, 1)).all()
    state = states.take(env)
    assert not (other.reset(seed=1)[0] == first).all()
    states.put(other, state)
    assert (other.render() == image).all(), "targets and terrain are drawn from the captured state"
    assert (other.step(env.action_space.low)[0] == env.step(env.action_space.low)[0]).all()
    env.close(), other.close()
"""


@pytest.mark.slow
def test_images_are_those_of_the_suite_and_follow_a_captured_state():
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMAGES],
        env=os.environ | {"MUJOCO_GL": "egl"},
        capture_output=True,
        text=True,
    )
    assert (child.returncode, child.stderr) == (0, "")


# A run

EXPERIMENT = Experiment(
    sac.Config(hidden=(8,), batch_size=16),
    id_of("cartpole-balance_sparse"),
    **{"steps": 2400, "seeds": 2, "action_repeat": 2, "chunk": 200, "utd": 0.02, "learning_starts": 400},
    **{"eval_every": 0, "log_every": 400, "checkpoint_every": 800, "workers": 1},
)


@pytest.mark.parametrize("task", ["fish-swim", pytest.param("quadruped-run", marks=pytest.mark.slow)])
def test_a_stopped_run_becomes_the_run_that_was_left_alone(task, tmp_path):
    """Stopped at step 1 200, in the middle of the second episode; the third has begun at the end."""
    experiment = dataclasses.replace(EXPERIMENT, env=id_of(task))
    stopped_and_resumed(experiment, 1_200, tmp_path / "alone", tmp_path / "stopped")
