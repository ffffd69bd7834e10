"""The Python interface: learning, predicting, keeping a model, and what becomes of the user's environment."""

import dataclasses
import os
import subprocess
import sys
import threading
from contextlib import nullcontext

import faulty_envs
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from commands import lsac, metrics
from gymnasium import spaces

import lsac as package
from lsac import LSAC, PPO, SAC
from lsac import model as model_module
from lsac.agents import AGENTS, summary
from lsac.agents.lsac import synthesis
from lsac.errors import CheckpointError, EnvironmentFault, InputError
from lsac.model import Model
from lsac.runs.datafile import named, read, write
from lsac.runs.experiment import make_agent
from lsac.runs.folder import RunFolder
from lsac.train.learner import Learner
from lsac.train.loop import Loop

TINY = {
    **{"hidden": (16,), "batch_size": 32, "chunk": 8, "replay_capacity": 64},
    **{"learning_starts": 16, "eval_every": 0, "log_every": 64, "workers": 1},
}
"""The sizes that the other tests use, so that the compiled program is shared."""

OBS = np.array([0.6, -0.8, 1.5], np.float32)
BATCH = np.stack([OBS, -OBS, OBS / 2, OBS[::-1]])


def same(a, b):
    a, b = named(a), named(b)
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.fixture(scope="module")
def model():
    return SAC("Pendulum-v1", seed=3, **TINY).learn(128)


# classes


@pytest.mark.parametrize("algorithm", AGENTS)
def test_every_algorithm_has_a_class_in_capitals(algorithm):
    kind = getattr(package, algorithm.upper())
    assert issubclass(kind, Model)
    assert (kind.__name__, kind.__module__, kind.algorithm) == (algorithm.upper(), "lsac", algorithm)
    assert kind.__doc__.startswith(summary(algorithm))
    assert algorithm.upper() in dir(package)
    assert getattr(package, algorithm.upper()) is kind


@pytest.mark.parametrize("name", ["NOTHING", "sac", "Sac", "__wrapped__"])
def test_the_package_has_no_other_classes(name):
    with pytest.raises(AttributeError, match=rf"^module 'lsac' has no attribute '{name}'$"):
        getattr(package, name)


# predicting


def by_hand(model, obs, row=0):
    """2 · tanh(mean): the torque of Pendulum-v1 that a deterministic policy chooses, in NumPy."""
    first, last = model._trained.state.actor.mlp.layers
    hidden = np.maximum(obs @ first.weight[row].T + first.bias[row], 0)
    mean = (hidden @ last.weight[row].T + last.bias[row])[..., :1]
    return 2 * np.tanh(mean)


def test_one_observation_gives_one_action_in_the_units_of_the_environment(model):
    action, state = model.predict(OBS, deterministic=True)
    assert (action.shape, action.dtype, state) == ((1,), np.float32, None)
    np.testing.assert_allclose(action, by_hand(model, OBS), rtol=1e-4)
    assert gym.make("Pendulum-v1").action_space.contains(action)


def test_a_batch_gives_a_batch(model):
    actions, _ = model.predict(BATCH, deterministic=True)
    assert actions.shape == (4, 1)
    np.testing.assert_allclose(actions, by_hand(model, BATCH), rtol=1e-4)
    ones = np.stack([model.predict(obs, deterministic=True)[0] for obs in BATCH])
    np.testing.assert_allclose(actions, ones, rtol=1e-6)


def test_deterministic_actions_repeat_and_others_do_not(model):
    def twice(deterministic):
        return [model.predict(OBS, deterministic=deterministic)[0].item() for _ in range(2)]

    assert len(set(twice(True))) == 1
    assert len(set(twice(False))) == 2
    sampled, _ = model.predict(np.repeat(OBS[None], 2000, axis=0))
    assert len(np.unique(sampled)) > 1900
    assert sampled.min() >= -2
    assert sampled.max() <= 2
    assert sampled.min() < -1.2, "some torques are beyond [−1, 1]"
    assert sampled.max() > 1.2


def test_an_untrained_model_predicts_and_two_of_one_seed_agree():
    a, b, c = (SAC("Pendulum-v1", seed=seed, **TINY) for seed in (1, 1, 2))
    for deterministic in (True, False):
        first, second, other = (m.predict(OBS, deterministic=deterministic)[0].item() for m in (a, b, c))
        assert first == second != other


def test_a_policy_with_a_memory_is_given_it_back(monkeypatch):
    """As in Stable-Baselines3: the second value of a call is `state` of the next, and None starts an episode."""

    def make_counting(experiment, spec):
        def act(policy, memory, obs, key, explore):
            return 0.1 * memory, memory + 1.0

        return make_agent(experiment, spec)._replace(act=act, memory=lambda: jnp.zeros(1))

    monkeypatch.setattr(model_module, "make_agent", make_counting)
    counting = SAC("Pendulum-v1", **TINY)
    state, seen = None, []
    for _ in range(3):
        action, state = counting.predict(OBS, state)
        seen.append(action.item())
    np.testing.assert_allclose(seen, [0, 0.2, 0.4], rtol=1e-6)
    assert counting.predict(OBS, state, episode_start=True)[0].item() == 0
    state, starts = None, np.array([False, True, False, False])
    for episode_start in (None, np.zeros(4, bool), starts):
        actions, state = counting.predict(BATCH, state, episode_start)
    np.testing.assert_allclose(actions[:, 0], [0.4, 0, 0.4, 0.4], rtol=1e-6)
    actions, _ = counting.predict(BATCH, state)
    np.testing.assert_allclose(actions[:, 0], [0.6, 0.2, 0.6, 0.6], rtol=1e-6)


@pytest.mark.parametrize("obs", [np.zeros(4), np.zeros((2, 4)), np.zeros((1, 1, 3)), 1.0], ids=str)
def test_an_observation_of_another_shape_is_refused(model, obs):
    with pytest.raises(InputError, match=r"^obs: has shape \(.*\), but \(3,\) or a batch of it is expected$"):
        model.predict(obs)


class Doubles(gym.Env):
    """Dict observations; actions in a box that is neither centred nor flat. Has no spec. Counts what is done to it."""

    def __init__(self):
        boxes = {"speed": spaces.Box(-9, 9, (2,), np.float64), "angle": spaces.Box(-9, 9, (1,), np.float32)}
        self.observation_space = spaces.Dict(boxes)
        self.action_space = spaces.Box(10, 20, (1, 1), np.float32)
        self.steps = self.closed = 0
        self.actions = []

    def obs(self):
        return {"speed": np.array([self.steps % 5, 1.0]), "angle": np.array([0.5], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs(), {}

    def step(self, action):
        self.actions.append(action)
        self.steps += 1
        return self.obs(), 1.0, self.steps % 10 == 0, False, {}

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def doubles():
    env = Doubles()
    return env, SAC(env, seed=3, **TINY).learn(64)


def test_dict_observations_one_and_many(doubles):
    env, model = doubles
    one = env.obs()
    many = {key: np.stack([value, value + 1, value - 1]) for key, value in one.items()}
    action, _ = model.predict(one, deterministic=True)
    actions, _ = model.predict(many, deterministic=True)
    assert (action.shape, actions.shape) == ((1, 1), (3, 1, 1))
    np.testing.assert_allclose(actions[0], action, rtol=1e-6)
    assert not np.allclose(actions[0], actions[1])
    assert env.action_space.contains(action)


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        (np.zeros(3), r"^obs: must be a dict with 'angle', 'speed', not "),
        ({"speed": np.zeros(2)}, r"^obs: must be a dict with 'angle', 'speed', not a table$"),
        ({"speed": np.zeros((5, 2)), "angle": np.zeros((4, 1))}, r"^obs: its entries are batches of different sizes$"),
        ({"speed": np.zeros(2), "angle": np.zeros((4, 1))}, r"^obs: its entries are batches of different sizes$"),
        (
            {"speed": np.zeros(3), "angle": np.zeros(1)},
            r"^obs\['speed'\]: has shape \(3,\), but \(2,\) or a batch of it",
        ),
        ({"speed": ["a", "b"], "angle": np.zeros(1)}, r"^obs\['speed'\]: cannot be read as numbers"),
    ],
)
def test_dict_observations_of_other_shapes_are_refused(obs, sentence, doubles):
    with pytest.raises(InputError, match=sentence):
        doubles[1].predict(obs)


def test_the_result_of_reset_is_no_observation(model):
    with pytest.raises(
        InputError, match=r"^obs: cannot be read as numbers \(reset returns an observation and a dict\)$"
    ):
        model.predict((OBS, {}))
    actions, _ = model.predict(np.zeros((0, 3)))
    assert actions.shape == (0, 1)


def test_actions_reach_the_whole_box_of_the_environment(doubles):
    env, _ = doubles
    actions = np.array(env.actions)
    assert actions.shape == (64, 1, 1)
    assert all(env.action_space.contains(action) for action in actions)
    first = actions[:16]  # random ones
    assert first.min() < 12
    assert first.max() > 18


# learning


def test_learning_counts_and_changes_the_policy(model):
    assert model.num_timesteps == 128
    fresh = SAC("Pendulum-v1", seed=3, **TINY)
    assert not np.array_equal(model.predict(OBS, deterministic=True)[0], fresh.predict(OBS, deterministic=True)[0])
    assert model._trained.state.actor_opt[0].count.tolist() == [112]


def test_the_users_environment_is_used_itself_and_not_closed(doubles):
    env, model = doubles
    assert (env.steps, model.num_timesteps) == (64, 64)
    assert env.closed == 0
    env.reset(seed=0)


def test_a_callback_that_returns_false_stops():
    seen = []

    def callback(progress):
        seen.append(progress)
        return False if len(seen) == 2 else None

    model = SAC(Doubles(), seed=3, **TINY).learn(10**6, callback=callback)
    assert [progress.step for progress in seen] == [64, 128]
    assert model.num_timesteps == 128
    assert {"train/critic_loss", "time/fps"} <= seen[1].lines[0].keys()


def test_an_object_with_a_spec_serves_many_seeds_and_is_evaluated(tmp_path):
    env = gym.make("Pendulum-v1")
    options = TINY | {"seeds": 2, "eval_every": 64, "eval_episodes": 1}
    model = SAC(env, seed=3, **options).learn(64, out=tmp_path / "run")
    a, b = (model.predict(OBS, deterministic=True, seed=3 + row)[0] for row in (0, 1))
    assert not np.array_equal(a, b)
    np.testing.assert_allclose(b, by_hand(model, OBS, row=1), rtol=1e-4)
    evaluated = [(line["step"], line["seed"]) for line in metrics(tmp_path / "run") if "eval/mean_reward" in line]
    assert evaluated == [(0, 3), (0, 4), (64, 3), (64, 4)]
    _, experiment = RunFolder.open(tmp_path / "run")
    assert (experiment.algorithm, experiment.env, experiment.steps) == ("sac", "Pendulum-v1", 64)
    other = SAC(env, seed=3, **options)
    with pytest.raises(InputError, match=r"^out: .*/run already holds a run; SAC\.resume\('.*/run'\) continues it$"):
        other.learn(64, out=tmp_path / "run")


@pytest.mark.parametrize("options", [{"seeds": 2}, {"num_envs": 2}], ids=str)
def test_an_object_without_a_spec_serves_one_seed_only(options):
    with pytest.raises(
        InputError, match=r"^seeds=\d, num_envs=\d: environment Doubles cannot be copied, because it has no"
    ):
        SAC(Doubles(), **TINY, **options)


def test_options_are_checked():
    with pytest.raises(InputError, match=r"^batchsize: no such option; did you mean batch_size\?$"):
        SAC("Pendulum-v1", batchsize=3)
    with pytest.raises(InputError, match=r"^gamma 2\.0: must lie between 0 and 1$"):
        SAC("Pendulum-v1", gamma=2)
    with pytest.raises(InputError, match=r"^total_timesteps: 0 must be at least 1$"):
        SAC("Pendulum-v1", **TINY).learn(0)
    with pytest.raises(InputError, match=r"^env Pendulum-v9: no such Gymnasium environment"):
        SAC("Pendulum-v9")
    with pytest.raises(InputError, match="only Box"):
        SAC(gym.make("CartPole-v1"))


# faults of an object, which runs in a thread of this process


class Tired(Doubles):
    """Does its last step badly."""

    woken = threading.Event()

    def step(self, action):
        if self.steps == 43:
            self.rest()
        return super().step(action)

    def rest(self):
        raise RuntimeError("enough")


class Asleep(Tired):
    def rest(self):
        self.woken.wait(60)


def test_an_object_that_raises_is_a_fault():
    sentence = r"^environment 0 of seed 3, step 43: step\(\[.*\]\) raised RuntimeError: enough$"
    with pytest.raises(EnvironmentFault, match=sentence):
        SAC(Tired(), seed=3, **TINY).learn(128)


def test_an_object_that_hangs_is_a_fault():
    sentence = r"^environment 0 of seed 3, after 43 steps did not answer within --env-timeout 3 s$"
    try:
        with pytest.raises(EnvironmentFault, match=sentence):
            SAC(Asleep(), seed=3, env_timeout=3.0, **TINY).learn(128)
    finally:
        Asleep.woken.set()


def test_an_object_that_gives_nan_is_a_fault():
    faulty_envs.Counter.made = 1  # the next one is the one that goes wrong
    with pytest.raises(EnvironmentFault, match=r"^environment 0 of seed 3, step 22: the observation contains nan$"):
        SAC(faulty_envs.NanObservation(), seed=3, **TINY).learn(128)


# keeping


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("saved") / "new" / "pendulum")


def test_a_loaded_model_predicts_the_same_bit_for_bit(model, saved):
    assert saved.name == "pendulum.safetensors"
    for path in (saved, saved.with_suffix("")):
        loaded = SAC.load(path)
        assert (
            loaded.predict(BATCH, deterministic=True)[0].tobytes()
            == model.predict(BATCH, deterministic=True)[0].tobytes()
        )
        assert same(loaded._trained.state, model._trained.state)
        assert loaded.experiment == model.experiment
        assert loaded.num_timesteps == 128


def test_a_loaded_model_samples_like_a_new_one(saved):
    first, second = (SAC.load(saved).predict(BATCH)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_model_of_an_object_is_loaded_with_one(doubles, tmp_path):
    env, model = doubles
    path = model.save(tmp_path / "doubles")
    with pytest.raises(InputError, match=r"its environment was made in Python; pass it: load\(path, env=…\)$"):
        SAC.load(path)
    loaded = SAC.load(path, env=Doubles())
    np.testing.assert_array_equal(
        loaded.predict(env.obs(), deterministic=True)[0], model.predict(env.obs(), deterministic=True)[0]
    )


def test_a_model_of_another_environment_does_not_fit(saved):
    with pytest.raises(CheckpointError, match=r"pendulum\.safetensors: array .* is float32\[.*\], but .* is expected$"):
        SAC.load(saved, env="HalfCheetah-v5")


def test_a_model_of_another_algorithm_is_refused(saved):
    class Other(SAC):
        algorithm = "other"

    with pytest.raises(CheckpointError, match=rf"^{saved}: is of sac, not of other$"):
        Other.load(saved)


def test_a_damaged_model_is_refused(saved, tmp_path):
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"bad\.safetensors: is damaged"):
        SAC.load(tmp_path / "bad")
    with pytest.raises(CheckpointError, match=r"none\.safetensors: no such file"):
        SAC.load(tmp_path / "none")


def test_the_checkpoint_of_a_run_is_no_model(saved, tmp_path):
    arrays, record = read(saved)
    write(tmp_path / "step.safetensors", arrays, {k: v for k, v in record.items() if k not in ("config", "format")})
    with pytest.raises(CheckpointError, match=r"is not a saved model; to load a run, pass its folder$"):
        SAC.load(tmp_path / "step")


@pytest.mark.slow
def test_compiled_programs_are_kept_also_if_something_was_compiled_before(tmp_path):
    """As in a notebook, where JAX was at work before the first `learn`."""
    code = """
import jax, jax.numpy as jnp
jax.jit(lambda x: x + 1)(jnp.ones(3))
from lsac import SAC
SAC("Pendulum-v1", hidden=(16,), batch_size=32, chunk=8, replay_capacity=64, learning_starts=16).learn(32)
"""
    environment = os.environ | {"LSAC_CACHE": str(tmp_path)}
    # what compiles within half a second is not kept, and without optimisations this program may
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):
        environment.pop(name, None)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list((tmp_path / "xla").glob("jit_learn-*"))


def die(self):
    raise KeyError("as if it were killed")


@pytest.fixture
def generated(monkeypatch):
    """What the learners of a test hold as D' when a run begins and when it ends, in turn."""
    begin, found = Loop.run, []

    def watched(self, **options):
        found.append(np.asarray(self.learner.state.generated))
        finished = begin(self, **options)
        found.append(np.asarray(self.learner.state.generated))
        return finished

    monkeypatch.setattr(Loop, "run", watched)
    return found


def test_a_dict_changes_some_fields_of_a_nested_option():
    default, changed = LSAC("Pendulum-v1"), LSAC("Pendulum-v1", generator={"width": 64})
    expected = dataclasses.replace(default.experiment.agent.generator, width=64)
    assert changed.experiment.agent.generator == expected
    for wrong, sentence in (({"widht": 64}, "unknown option widht; did you mean width"), ({"width": 0}, "at least 1")):
        with pytest.raises(InputError, match=sentence):
            LSAC("Pendulum-v1", generator=wrong)


@pytest.mark.slow
def test_what_a_model_has_generated_before_a_run_survives_its_resume(tmp_path, monkeypatch, generated):
    """D' is in no checkpoint: that of an earlier `learn` has to be made again too."""
    sizes = {"width": 16, "dim_t": 16, "blocks": 1, "train_steps": 20, "batch_size": 16, "sampler_steps": 3}
    options = {"hidden": (8,), "batch_size": 16, "chains": 2, "synthetic_capacity": 64, "refresh_every": 64}
    times = {"chunk": 8, "learning_starts": 16, "replay_capacity": 64, "workers": 1, "eval_every": 0}
    model = LSAC("Pendulum-v1", generator=synthesis.Config(**sizes), **options, **times)
    model.learn(64)
    first, last = generated
    assert not first.any()
    assert np.abs(last).max() > 0, "the refresh at the end of a run is not left out: no resume would do it"
    assert model._trained.state.generated is None, "a model keeps no more than a file does"
    loaded = LSAC.load(model.save(tmp_path / "model"))
    assert loaded._trained.generated_at == model._trained.generated_at == 64
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_advance", die)
        with pytest.raises(KeyError):
            loaded.learn(32, out=tmp_path / "run")
    restore, found = Learner.restore, []

    def watched(self, *args):
        restore(self, *args)
        found.append(np.asarray(self.state.generated))

    monkeypatch.setattr(Learner, "restore", watched)
    assert lsac("resume", tmp_path / "run", "--steps", 40).code == 0
    np.testing.assert_array_equal(found, [last])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(SAC, TINY | {"eval_every": 32, "eval_episodes": 1}, marks=pytest.mark.slow),
        pytest.param(
            PPO,
            {"hidden": (8,), "chunk": 32, "epochs": 1, "minibatches": 1, "num_envs": 2, "eval_every": 0, "workers": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_that_begins_with_a_model_and_dies_at_once_begins_with_it_again(kind, options, tmp_path, monkeypatch):
    path = kind("Pendulum-v1", **options).learn(64).save(tmp_path / "model")
    kind.load(path).learn(64, out=tmp_path / "alone")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_advance", die)
        with pytest.raises(KeyError):
            kind.load(path).learn(64, out=tmp_path / "died")
    assert lsac("resume", tmp_path / "died").code == 0
    alone, died = ((tmp_path / name / "checkpoints/step-0000000064.safetensors") for name in ("alone", "died"))
    assert alone.read_bytes() == died.read_bytes()


def test_a_run_that_dies_before_its_model_is_saved_is_not_begun_without_it(tmp_path, monkeypatch):
    model = SAC.load(SAC("Pendulum-v1", **TINY).learn(64).save(tmp_path / "model"))
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run", lambda self, **_: sys.exit())  # a failure would remove the folder
        with pytest.raises(SystemExit):
            model.learn(64, out=tmp_path / "run")
    result = lsac("resume", tmp_path / "run")
    assert result.code == 2
    assert "holds no checkpoint, and the run began with a model, which is not here" in result.sentence


class Tenth(gym.Wrapper):
    """Does not record its arguments, so no other process can make one."""


@pytest.mark.parametrize(
    ("env", "copied", "told"),
    [
        (lambda: gym.make("Pendulum-v1", render_mode="rgb_array"), True, True),
        (lambda: gym.make("Pendulum-v1", g=1.0), True, True),
        (lambda: gym.wrappers.RescaleObservation(gym.make("Pendulum-v1"), -1, 1), True, False),
        (lambda: Tenth(gym.make("Pendulum-v1")), False, False),
    ],
    ids=["rendered", "with arguments", "wrapped", "in a wrapper without a record"],
)
def test_an_id_stands_for_an_environment_only_if_it_tells_how_it_was_made(env, copied, told, tmp_path):
    """Or a resume or an evaluation would go on in another environment."""
    model = SAC(env(), **TINY | {"eval_every": 32, "eval_episodes": 1})
    with nullcontext() if copied else pytest.warns(UserWarning, match="^learn makes no evaluations: .* wrapper Tenth"):
        model.learn(64, out=tmp_path / "run")
    assert any("eval/mean_reward" in line for line in metrics(tmp_path / "run")) == copied
    path = model.save(tmp_path / "model")
    for command in (("eval", tmp_path / "run", "--episodes", 1), ("resume", tmp_path / "run")):
        result = lsac(*command)
        assert result.code == (0 if told else 2)
        assert told or "its environment was made in Python and cannot be recreated from Pendulum-v1" in result.sentence
    if told:
        SAC.load(path)
    else:
        with pytest.raises(InputError, match="made in Python"):
            SAC.load(path)
    action = model.predict(OBS, deterministic=True)[0]
    for source in (path, tmp_path / "run"):
        np.testing.assert_array_equal(SAC.load(source, env=env()).predict(OBS, deterministic=True)[0], action)


SMALL_LSAC = (
    *("--hidden", 8, "--batch-size", 16, "--chains", 2, "--synthetic-capacity", 64, "--refresh-every", 32),
    *("--generator.width", 16, "--generator.dim-t", 16, "--generator.blocks", 1, "--generator.train-steps", 20),
    *("--generator.batch-size", 16, "--generator.sampler-steps", 3, "--chunk", 8, "--learning-starts", 16),
    *("--replay-capacity", 64, "--workers", 1, "--eval-every", 0, "--steps", 64),
)


def test_a_run_becomes_a_model_that_learns_on(tmp_path, generated):
    assert lsac("train", "lsac", "--env", "Pendulum-v1", *SMALL_LSAC, "--out", tmp_path / "run").code == 0
    model = LSAC.load(tmp_path / "run")
    assert model.num_timesteps == 64
    assert model._trained.generated_at == 32
    before = model.predict(OBS, deterministic=True)[0]
    again = LSAC.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(OBS, deterministic=True)[0], before)
    again.learn(32)
    _, made, found, _ = generated
    assert found.shape[1] == 64
    assert np.any(found)
    np.testing.assert_array_equal(found, made, "what a file leaves out is made again")
    assert not np.array_equal(again.predict(OBS, deterministic=True)[0], before)
    with pytest.raises(CheckpointError, match=r"is of lsac, not of sac$"):
        SAC.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": "64"}, "^hidden: '64' is not of type"),
        ({"batch_size": 2.5}, "^batch_size 2.5: must be a whole number$"),
        ({"seeds": "2"}, "^seeds: '2' is not of type int$"),
        ({"actor_lr": "fast"}, "^actor_lr: 'fast' is not of type float$"),
    ],
)
def test_options_of_a_wrong_type_are_named(options, sentence):
    with pytest.raises(InputError, match=sentence):
        SAC("Pendulum-v1", **options)


def test_a_number_is_no_environment():
    with pytest.raises(InputError, match=r"^env: 7 is neither the id of an environment, nor an environment, nor a"):
        SAC(7)


def test_a_seed_that_was_not_trained_cannot_predict():
    for wrong in (1, "best", None.__class__):
        with pytest.raises(InputError, match=r'^seed: .* must be one of 0, or "all"$'):
            SAC("Pendulum-v1", **TINY | {"seeds": np.int64(1)}).predict(OBS, seed=wrong)
