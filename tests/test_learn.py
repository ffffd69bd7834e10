"""`Model.learn`: calls that continue each other, callbacks that see the model as it is, stops that lose nothing."""

import copy
import os
import pickle
import shutil
import signal
import threading
import warnings

import faulty_envs
import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import lsac, metrics
from test_model import BATCH, OBS, TINY, Doubles, same

from lsac import DRQV2, LSAC, PPO, SAC
from lsac.analysis.load import load_run
from lsac.collect.pool import Pool
from lsac.errors import EnvironmentFault, InputError
from lsac.runs.datafile import named, read, write
from lsac.runs.experiment import for_run
from lsac.runs.folder import RunFolder
from lsac.train.loop import Loop
from lsac.train.refresh import Refresher

SMALL_GENERATOR = {"width": 16, "dim_t": 16, "blocks": 1, "train_steps": 20, "batch_size": 16, "sampler_steps": 3}
SMALL_DRQV2 = {
    **{"pixels": 20, "frame_stack": 2, "env_kwargs": {"length": 3}, "hidden": (8,), "filters": 4, "feature_dim": 8},
    **{"batch_size": 16, "chunk": 8, "learning_starts": 16, "workers": 1, "eval_every": 0},
}
SMALL_LSAC = {
    **{"hidden": (8,), "batch_size": 16, "chains": 2, "synthetic_capacity": 64, "refresh_every": 32},
    **{"chunk": 8, "learning_starts": 16, "replay_capacity": 128, "workers": 1, "eval_every": 0},
    "generator": SMALL_GENERATOR,
}


def equal(a, b):
    """Whether two models hold the same agents, transitions and counters."""
    counters = ("step", "updates", "generated_at")
    count = min(model._trained.run.stored["vectors"].shape[1] for model in (a, b))  # a folder keeps more than a model
    newest = [{name: x[:, -count:] for name, x in model._trained.run.stored.items()} for model in (a, b)]
    return (
        same(a._trained.state, b._trained.state)
        and same(*newest)
        and [a._trained.run.record[name] for name in counters] == [b._trained.run.record[name] for name in counters]
    )


def action(model, **options):
    return model.predict(OBS, deterministic=True, **options)[0].item()


# A second call continues the first


class Recorded(gym.Env):
    """Can be captured; keeps the actions that it gets."""

    observation_space = gym.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self):
        self.position, self.actions = 0.0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-1, 1))
        return self._obs(), {}

    def _obs(self):
        return np.array([self.position, self.position**2, 1.0], np.float32)

    def step(self, action):
        self.actions.append(float(action[0]))
        self.position = float(np.clip(self.position + 0.1 * action[0], -2, 2))
        return self._obs(), -abs(self.position), abs(self.position) > 1.5, False, {}

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


# Without its optimisations the compiler fuses some multiplications with additions and others not, depending on the
# instructions around them, among them the capacity of the replay. With the settings of users it fuses them everywhere.
@pytest.mark.computing
@pytest.mark.parametrize(
    ("kind", "env", "options", "lengths"),
    [
        pytest.param(SAC, lambda: "Pendulum-v1", TINY, (24, 40, 96), marks=pytest.mark.slow),
        (SAC, Recorded, TINY, (24, 136)),
        (LSAC, lambda: "Pendulum-v1", SMALL_LSAC, (40, 40)),
        pytest.param(DRQV2, lambda: "lsac/SeenColour-v0", SMALL_DRQV2, (48, 32), marks=pytest.mark.slow),
    ],
    ids=["an id", "an object", "with a generator", "from images"],
)
def test_two_calls_give_the_same_as_one_longer_call(kind, env, options, lengths):
    alone, parts = (kind(env(), seed=3, **options) for _ in range(2))
    alone.learn(sum(lengths))
    for length in lengths:
        parts.learn(length)
    assert parts.num_timesteps == alone.num_timesteps == sum(lengths)
    assert equal(alone, parts)
    seen = alone.observation_space.sample()
    np.testing.assert_array_equal(*(model.predict(seen, deterministic=True)[0] for model in (alone, parts)))


def test_the_steps_of_a_second_call_are_rounded_up_to_chunks():
    model = SAC(Recorded(), **TINY | {"learning_starts": 8}).learn(9).learn(9)
    assert model.num_timesteps == 32  # 16 + 9 is 25, in chunks of 8


def test_an_environment_that_cannot_be_captured_starts_an_episode_and_keeps_the_replay():
    model = SAC(Doubles(), seed=3, **TINY).learn(24)
    first = model._trained.run.stored["vectors"].copy()
    model.learn(24)
    both = model._trained.run.stored
    np.testing.assert_array_equal(both["vectors"][:, :24], first)
    assert both["first"][0, 24], "the second call starts an episode"
    assert not both["first"][0, 4]
    assert model._trained.run.record["updates"] == 48 - 16, "random steps are counted over the life of a model"


def test_a_short_call_continues_instead_of_starting_again():
    """Three calls below learning_starts make updates from the third on."""
    model = SAC(Recorded(), **TINY | {"learning_starts": 40})
    with pytest.warns(UserWarning, match=r"^no update will be made: steps 16 is not more than learning_starts 40; try"):
        model.learn(16)
    with pytest.warns(UserWarning, match=r"^no update will be made: steps 32 is not more than learning_starts 40; try"):
        model.learn(16)
    before = action(model)
    model.learn(16)
    assert model._trained.run.record["updates"] == 8
    assert action(model) != before


def test_reset_starts_again_from_the_beginning():
    fresh, again = (SAC(Recorded(), seed=3, **TINY).learn(64) for _ in range(2))
    again.learn(32).learn(64, reset=True)
    assert again.num_timesteps == 64
    assert equal(fresh, again)


SMALL_PPO = {"hidden": (8,), "chunk": 32, "epochs": 1, "minibatches": 1, "num_envs": 1, "eval_every": 0}


def make_agent_options(model):
    return for_run(model.experiment).agent


def test_an_annealed_step_size_reaches_its_end_at_the_new_end(tmp_path):
    """Its length counts all calls, also those before a model was saved and loaded, and none before a reset."""
    model = PPO(Recorded(), **SMALL_PPO).learn(64)
    path = tmp_path / "model"
    for length in (96, 128):
        before = action(model)
        model = PPO.load(model.save(path), env=Recorded()).learn(32)
        assert model.num_timesteps == length
        assert action(model) != before, "the step size is not 0"
        assert make_agent_options(model).anneal_updates == length // 32
    fresh = PPO(Recorded(), **SMALL_PPO).learn(64)
    assert equal(model.learn(64, reset=True), fresh)


@pytest.mark.computing
def test_a_run_that_is_made_longer_equals_one_that_was_longer_from_the_start(tmp_path):
    flags = ("--hidden", 16, "--batch-size", 32, "--chunk", 8, "--replay-capacity", 64, "--learning-starts", 16)
    flags = ("train", "sac", "--env", "Pendulum-v1", *flags, "--eval-every", 0, "--workers", 1)
    assert lsac(*flags, "--steps", 96, "--out", tmp_path / "long").code == 0
    assert lsac(*flags, "--steps", 40, "--out", tmp_path / "short").code == 0
    assert lsac("resume", tmp_path / "short", "--steps", 96).code == 0
    long, short = (RunFolder(tmp_path / name).checkpoints.load() for name in ("long", "short"))
    assert same(long.state, short.state)
    assert same(long.stored, short.stored)


# Callbacks


def test_a_callback_sees_the_model_as_it_is(tmp_path):
    model, seen = SAC("Pendulum-v1", seed=3, **TINY | {"log_every": 32}), []

    def callback(progress):
        path = model.save(tmp_path / str(progress.step))
        seen.append((progress.step, model.num_timesteps, action(model), action(SAC.load(path))))

    model.learn(128, callback=callback)
    assert [(step, steps) for step, steps, _, _ in seen] == [(32, 32), (64, 64), (96, 96), (128, 128)]
    assert len({now for _, _, now, _ in seen}) == 4
    assert all(now == saved for _, _, now, saved in seen)
    assert action(model) == seen[-1][2]
    assert action(SAC("Pendulum-v1", seed=3, **TINY).learn(64)) == seen[1][2]
    assert SAC.load(tmp_path / "64").num_timesteps == 64


def test_a_callback_saves_a_model_that_continues_exactly(tmp_path):
    model = SAC(Recorded(), seed=3, **TINY | {"log_every": 32})
    model.learn(96, callback=lambda progress: model.save(tmp_path / str(progress.step), replay=True) and None)
    assert equal(SAC.load(tmp_path / "64", env=Recorded()).learn(32), model)


class Base:
    """The part of Stable-Baselines3's BaseCallback that every callback of it relies on."""

    def __init__(self, stop_at=None, callback=None):
        self.calls, self.n_calls, self.stop_at, self.callback = [], 0, stop_at, callback

    def init_callback(self, model):
        self.model = model
        self.calls.append("init")

    def on_training_start(self, locals_, globals_):
        self.locals = locals_
        self.calls.append("start")

    def on_rollout_start(self):
        pass

    def on_rollout_end(self):
        pass

    def on_training_end(self):
        self.calls.append("end")

    def on_step(self):
        self.n_calls += 1
        return self._on_step()

    def _on_step(self):
        return self.stop_at is None or self.n_calls < self.stop_at


def test_a_callback_object_is_called_once_per_step():
    first, second, seen = Base(), Base(), []
    model = SAC(Recorded(), **TINY).learn(64, callback=[first, lambda progress: seen.append(progress.step), second])
    assert first.calls == ["init", "start", "end"]
    assert (first.n_calls, second.n_calls, seen) == (64, 64, [64])
    assert first.model is model
    model.learn(32, callback=first)
    assert first.n_calls == 96
    several = Base()
    SAC(lambda: Recorded(), **TINY | {"num_envs": 2}).learn(64, callback=several)
    assert several.n_calls == 32, "a step of all environments is one call, as in Stable-Baselines3"


def test_a_callback_object_stops_the_training():
    stops = Base(stop_at=20)
    model = SAC(Recorded(), **TINY).learn(1000, callback=stops)
    assert (model.num_timesteps, stops.n_calls) == (24, 20)


def test_a_callback_object_records_metrics(tmp_path):
    class Records(Base):
        def _on_step(self):
            self.model.logger.record("own/calls", self.n_calls)
            self.model.logger.record("own/text", "not a number")
            self.model.logger.dump(self.n_calls)
            return True

    SAC(Recorded(), **TINY).learn(128, callback=Records(), out=tmp_path / "run")
    assert [line.get("own/calls") for line in metrics(tmp_path / "run")] == [56.0, 120.0]


def test_what_a_callback_records_does_not_mix_with_evaluations(tmp_path):
    """As EvalCallback does, whose evaluations are of one seed and of another step."""

    class Evaluates(Base):
        def _on_step(self):
            self.model.logger.record("eval/mean_reward", 1e6)
            self.model.logger.record("plain", 7)
            return True

    env = lambda: gym.wrappers.TimeLimit(Recorded(), 10)  # noqa: E731
    model = SAC(env, **TINY | {"eval_every": 64, "eval_episodes": 1})
    model.learn(128, callback=Evaluates(), out=tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert [line["callback/eval/mean_reward"] for line in lines if "callback/plain" in line] == [1e6, 1e6]
    assert load_run(tmp_path / "run").curve("eval/mean_reward").values.max() < 1e6


def test_a_copy_in_a_callback_is_of_that_moment():
    model, copies = SAC(Recorded(), seed=3, **TINY), []
    model.learn(128, callback=lambda progress: copies.append((copy.deepcopy(model), action(model))))
    assert [(made.num_timesteps, action(made) == now) for made, now in copies] == [(64, True), (128, True)]
    assert equal(copies[0][0].learn(64), model)


@pytest.mark.parametrize("call", [lambda m: m.learn(8), lambda m: m.set_env(Recorded())], ids=["learn", "set_env"])
def test_a_callback_cannot_train_the_model(call):
    model = SAC(Recorded(), **TINY)
    with pytest.raises(InputError, match=r"^(learn|set_env): cannot be called in a callback of learn$"):
        model.learn(128, callback=lambda progress: call(model))
    assert model.num_timesteps == 64


def test_a_callback_that_reads_the_locals_of_sb3_is_told_so():
    class Reads(Base):
        def _on_step(self):
            return self.locals["dones"][0]

    model = SAC(Recorded(), **TINY)
    with pytest.raises(InputError, match=r"^callback: reads locals\['dones'\], which exists only in Stable-Baselines3"):
        model.learn(64, callback=Reads())
    assert model.num_timesteps == 8


def progress_bar_callback():
    kind = type("ProgressBarCallback", (Base,), {"__module__": "stable_baselines3.common.callbacks"})
    return kind()


@pytest.mark.parametrize(
    ("callback", "sentence"),
    [
        (7, "^callback: 7 is neither a function of one argument nor a callback of Stable-Baselines3$"),
        (lambda locals_, globals_: True, "^callback: .* cannot be called with one argument; it must be a function of"),
        ([Base(), "print"], "^callback: 'print' is neither"),
        (
            progress_bar_callback(),
            "^callback: ProgressBarCallback of Stable-Baselines3 .*; use learn.*progress_bar=True",
        ),
        (Base(callback=progress_bar_callback()), "^callback: ProgressBarCallback"),
    ],
)
def test_a_callback_that_cannot_work_is_refused_before_anything_starts(callback, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr("lsac.model.run", None)
    with pytest.raises(InputError, match=sentence):
        SAC("Pendulum-v1", **TINY).learn(64, callback=callback, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Ctrl-C and errors


@pytest.fixture
def handler():
    """Ctrl-C as in an ordinary program: the processes of a parallel test run ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_ctrl_c_keeps_what_was_learned(tmp_path):
    """Stable-Baselines3's idiom: except KeyboardInterrupt: pass, then save."""
    alone = SAC("Pendulum-v1", seed=3, **TINY).learn(128)
    model = SAC("Pendulum-v1", seed=3, **TINY)
    with pytest.raises(KeyboardInterrupt):
        model.learn(128, callback=lambda progress: interrupt(), out=tmp_path / "run")
    assert model.num_timesteps == 64
    assert action(model) == action(SAC("Pendulum-v1", seed=3, **TINY).learn(64))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("*.safetensors")] == ["stopped.safetensors"]
    model.learn(64, out=tmp_path / "run")
    assert equal(model, alone)
    assert [line["step"] for line in metrics(tmp_path / "run")] == [64, 128]


@pytest.mark.usefixtures("handler")
def test_a_second_ctrl_c_stops_at_once_and_keeps_what_was_learned():
    model = SAC(Recorded(), seed=3, **TINY)
    with pytest.raises(KeyboardInterrupt):
        model.learn(10**6, callback=lambda progress: interrupt(2) if progress.step == 128 else None)
    assert model.num_timesteps == 128
    model.learn(8)
    assert model.num_timesteps == 136


def test_learning_in_a_thread_leaves_signals_alone():
    before, results = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: results.append(SAC(Recorded(), **TINY).learn(32)))
    thread.start()
    thread.join()
    assert results[0].num_timesteps == 32
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_a_callback_is_raised_and_nothing_is_lost(tmp_path):
    def callback(progress):
        raise KeyError("of the user")

    model = SAC("Pendulum-v1", seed=3, **TINY)
    with pytest.raises(KeyError, match="of the user"):
        model.learn(256, callback=callback, out=tmp_path / "run")
    assert model.num_timesteps == 64
    assert action(model) == action(SAC("Pendulum-v1", seed=3, **TINY).learn(64))
    assert RunFolder(tmp_path / "run").checkpoints.step() == 64


class Fails(Recorded):
    fail_at = 100

    def step(self, action):
        if len(self.actions) == self.fail_at:
            raise RuntimeError("broken")
        return super().step(action)


def test_a_fault_of_the_environment_keeps_what_was_learned(tmp_path):
    env = Fails()
    model = SAC(env, seed=3, **TINY)
    with pytest.raises(EnvironmentFault, match=r"raised RuntimeError: broken$"):
        model.learn(256, out=tmp_path / "run")
    assert model.num_timesteps == 96, "the chunk in which it failed is lost, and no other"
    assert RunFolder(tmp_path / "run").checkpoints.step() == 96
    assert action(model) == action(SAC(Recorded(), seed=3, **TINY).learn(96))
    env.fail_at = None
    model.learn(32, out=tmp_path / "run")
    assert model.num_timesteps == RunFolder(tmp_path / "run").checkpoints.step() == 128


class Tires(Recorded):
    """Fails in the second evaluation: each plays an episode of either policy, which have fifty steps here."""

    def step(self, action):
        if len(self.actions) == 110:
            raise RuntimeError("broken")
        obs, reward, *_ = super().step(action)
        return obs, reward, False, len(self.actions) % 50 == 0, {}


def break_down(*args, **options):
    raise EnvironmentFault("broken")


@pytest.mark.parametrize("cause", ["evaluation", "worker", "capture"])
def test_a_fault_while_transitions_wait_to_be_learned_from_leaves_a_run_that_continues(cause, tmp_path, monkeypatch):
    """An evaluation fails, a worker dies before it is told to go on, or simulators fail as they are captured."""
    options = {"replay_capacity": 1_000, "checkpoint_every": 96 if cause == "capture" else 0, "eval_every": 0}
    options |= {"eval_every": 48, "eval_episodes": 1} if cause == "evaluation" else {}
    alone = SAC(Recorded(), seed=3, **TINY | options | {"eval_every": 0}).learn(128)._trained.run
    collect = Pool.collect

    def dies(self, policies, step, *more):
        (break_down if step == 96 + TINY["chunk"] else collect)(self, policies, step, *more)

    with monkeypatch.context() as patch:
        if cause == "worker":
            patch.setattr("lsac.train.loop._is_ready", lambda array: True)
            patch.setattr(Pool, "collect", dies)
        elif cause == "capture":
            patch.setattr(Pool, "capture", break_down)
        with pytest.raises(EnvironmentFault, match="broken"):
            SAC(Recorded(), seed=3, eval_env=Tires, **TINY | options).learn(128, out=tmp_path / "run")
    model = SAC.resume(tmp_path / "run", env=Recorded(), eval_env=Recorded)
    assert model.num_timesteps == 128
    count = 96 + TINY["chunk"]
    for name, kept in model._trained.run.stored.items():
        np.testing.assert_array_equal(kept[:, :count], alone.stored[name][:, :count])
    assert model._trained.run.stored["first"][0, count], "a new episode"


def test_a_fault_of_the_environment_saves_the_run_of_a_command(tmp_path):
    """What was learned before is not lost, and a resume starts new episodes."""
    assert "faulty/Raises-v0" in gym.registry
    flags = ("--hidden", 16, "--batch-size", 32, "--chunk", 8, "--replay-capacity", 64, "--learning-starts", 8)
    flags = ("train", "sac", "--env", "faulty/Raises-v0", *flags, "--eval-every", 0, "--workers", 1, "--num-envs", 2)
    result = lsac(*flags, "--steps", 96, "--out", tmp_path / "run")
    assert result.code == 3
    saved = RunFolder(tmp_path / "run").checkpoints.step()
    assert saved == faulty_envs.BAD_STEP * 2 // 8 * 8
    assert f"saved at step {saved}, before the fault; a resume starts new episodes" in result.out
    resumed = lsac("resume", tmp_path / "run", "--steps", 96)
    assert f"continuing at step {saved}; not exact" in resumed.out


def test_a_refresh_that_diverges_leaves_the_model_as_it_was(monkeypatch):
    run = Refresher.run

    def spoiled(self, *args, **options):
        result = run(self, *args, **options)
        broken = jax.tree.map(lambda x: x * np.nan if x.dtype.kind == "f" else x, result.state)
        return result._replace(state=broken, numbers={"diffusion_loss": np.array([np.nan])})

    model = LSAC(Recorded(), **SMALL_LSAC)
    monkeypatch.setattr(Refresher, "run", spoiled)
    with pytest.raises(ArithmeticError, match="diffusion_loss became NaN"):
        model.learn(64)
    assert np.isfinite(action(model))
    assert all(np.isfinite(x).all() for x in named(model._trained.state).values())


def test_a_run_that_diverges_leaves_the_model_as_it_was():
    model = SAC(Recorded(), seed=3, **TINY | {"critic_lr": 1e30, "actor_lr": 1e30})
    before = action(model)
    with pytest.raises(ArithmeticError, match="became NaN or infinite"):
        model.learn(256)
    assert (model.num_timesteps, action(model)) == (0, before)
    assert np.isfinite(before)


# Folders


def test_a_second_call_continues_in_the_same_folder_or_in_a_new_one(tmp_path):
    alone = SAC("Pendulum-v1", seed=3, **TINY).learn(192, out=tmp_path / "alone")
    model = SAC("Pendulum-v1", seed=3, **TINY).learn(64, out=tmp_path / "a")
    model.learn(64, out=tmp_path / "a")
    model.learn(64, out=tmp_path / "b")
    assert equal(model, alone)
    assert [line["step"] for line in metrics(tmp_path / "a")] == [64, 128]
    assert [line["step"] for line in metrics(tmp_path / "b")] == [192]
    for name, steps in (("alone", 192), ("a", 128), ("b", 192)):
        _, experiment = RunFolder.open(tmp_path / name)
        assert experiment.steps == steps
        assert RunFolder(tmp_path / name).checkpoints.step() == steps
    assert lsac("resume", tmp_path / "a", "--steps", 192).code == 0
    for name in ("a", "b"):
        found = RunFolder(tmp_path / name).checkpoints.load()
        assert same(found.state, RunFolder(tmp_path / "alone").checkpoints.load().state)
    with pytest.raises(InputError, match=r"^out: .*/a already holds a run; SAC\.resume\(.*\) continues it$"):
        model.learn(64, out=tmp_path / "a")


def test_a_failed_call_leaves_no_folder(tmp_path):
    """So that the corrected call works."""

    class Raises(Base):
        def init_callback(self, model):
            raise KeyError("too early")

    model = SAC(Recorded(), **TINY)
    with pytest.raises(KeyError, match="too early"):
        model.learn(64, callback=Raises(), out=tmp_path / "run")
    with pytest.raises(UserWarning, match="no update"):
        model.learn(8, out=tmp_path / "run")  # warnings are errors in tests
    env = Fails()
    trained = SAC(env, seed=3, **TINY).learn(64)
    env.fail_at = 64
    with pytest.raises(EnvironmentFault):
        trained.learn(64, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    env.fail_at = None
    trained.learn(64, out=tmp_path / "run")
    assert trained.num_timesteps == 128


def test_only_its_own_run_is_continued(tmp_path):
    model = SAC(Recorded(), seed=3, **TINY).learn(64, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    SAC(Recorded(), seed=5, **TINY).learn(64, out=tmp_path / "run")
    hint = r"already holds a run; SAC\.resume\('.*/run', env=…\) continues it$"
    with pytest.raises(InputError, match=hint):
        model.learn(64, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"other/config\.json: is not the configuration of a run$"):
        model.learn(64, out=tmp_path / "other")


def die(self, *args, **options):
    raise MemoryError("as if it were killed")


def test_a_run_with_an_environment_of_python_is_resumed(tmp_path, monkeypatch):
    options = TINY | {"checkpoint_every": 32}
    SAC(Recorded(), seed=3, **options).learn(128, out=tmp_path / "alone")
    advance, killed = Loop._advance, SAC(Recorded(), seed=3, **options)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_advance", lambda self: die(self) if self.step == 80 else advance(self))
        with pytest.raises(MemoryError):
            killed.learn(128, out=tmp_path / "killed")
    result = lsac("resume", tmp_path / "killed")
    assert result.code == 2
    assert "its environment was made in Python" in result.sentence
    with pytest.raises(InputError, match="made in Python"):
        SAC.resume(tmp_path / "killed")
    model = SAC.resume(tmp_path / "killed", env=Recorded())
    assert model.num_timesteps == 128
    alone, killed = (RunFolder(tmp_path / name).checkpoints.load() for name in ("alone", "killed"))
    assert same(alone.state, killed.state)
    assert same(alone.stored, killed.stored)
    with pytest.raises(InputError, match=r"^steps: 64 is less than the 128 of the run$"):
        SAC.resume(tmp_path / "killed", env=Recorded(), steps=64)
    with pytest.raises(InputError, match="made in Python"):
        SAC.resume(tmp_path / "killed")
    longer = SAC.resume(tmp_path / "killed", env=lambda: Recorded(), steps=1.6e2)
    assert equal(longer, SAC(Recorded(), seed=3, **options).learn(160))
    finished = SAC.resume(tmp_path / "killed", env=Recorded())
    assert equal(finished, longer)
    finished.learn(32, out=tmp_path / "killed")
    assert RunFolder(tmp_path / "killed").checkpoints.step() == 192


def test_steps_before_a_run_are_not_forgotten(tmp_path):
    model = SAC.load(SAC("Pendulum-v1", **TINY).learn(64).save(tmp_path / "model"))
    model.learn(32, out=tmp_path / "run")
    assert model.num_timesteps == 96
    loaded = SAC.load(tmp_path / "run")
    assert loaded.num_timesteps == 96
    assert SAC.load(model.save(tmp_path / "again")).num_timesteps == 96


def test_steps_before_a_run_count_for_its_best_policies(tmp_path):
    env = lambda: gym.wrappers.TimeLimit(Recorded(), 10)  # noqa: E731
    options = TINY | {"eval_every": 32, "eval_episodes": 1}
    model = SAC.load(SAC(env, **options).learn(64).save(tmp_path / "model"), env=env)
    model.learn(32, out=tmp_path / "run")
    _, record = RunFolder(tmp_path / "run").checkpoints.load_best()
    for path, policy in ((tmp_path / "run", "best"), (tmp_path / "run/checkpoints/best.safetensors", "last")):
        assert SAC.load(path, env=env, policy=policy).num_timesteps == 64 + max(record["steps"])


def test_a_model_in_another_environment_says_so(tmp_path):
    path = SAC("Pendulum-v1", **TINY).learn(64).save(tmp_path / "model", replay=True)
    model = SAC.load(path, env=gym.make("Pendulum-v1", g=2.0))
    assert model.experiment.env_args == ("g=2.0",)
    model.learn(32, out=tmp_path / "run")
    assert model._trained.run.stored["first"][0, -32], "a new episode"
    _, experiment = RunFolder.open(tmp_path / "run")
    assert experiment.env_args == ("g=2.0",)
    with pytest.raises(InputError, match=r"^env: is Recorded, but the run is of Pendulum-v1$"):
        SAC.resume(tmp_path / "run", env=Recorded())
    longer = SAC.resume(tmp_path / "run", env=gym.make("Pendulum-v1", g=3.0), steps=128)
    assert longer.num_timesteps == 128
    _, experiment = RunFolder.open(tmp_path / "run")
    assert experiment.env_args == ("g=3.0",)


def test_a_loaded_model_acts_with_its_policy_while_it_fills_its_replay(tmp_path):
    """Random steps are counted over the life of a model; updates wait until there are transitions again."""
    path = SAC(Recorded(), seed=3, **TINY).learn(64).save(tmp_path / "model")
    env = Recorded()
    model = SAC.load(path, env=env)
    model.learn(64)
    assert model._trained.run.record["updates"] == 48
    random = Recorded()
    SAC(random, seed=3, **TINY).learn(24)
    assert env.actions[:16] != random.actions[:16]


# One seed of several


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several") / "run"
    options = TINY | {"seeds": 3, "eval_every": 64, "eval_episodes": 1, "log_every": 32}
    return SAC("Pendulum-v1", seed=5, **options).learn(128, out=folder), folder


def evaluated(folder, step):
    return [line["eval/mean_reward"] for line in metrics(folder) if line["step"] == step and "eval/mean_reward" in line]


def test_predict_uses_the_seed_that_the_last_evaluation_found_best(several):
    model, folder = several
    returns = evaluated(folder, 128)
    best = 5 + int(np.argmax(returns))
    assert model.best_seed == best
    assert f"best_seed={best}" in repr(model)
    actions = [action(model, seed=seed) for seed in (5, 6, 7)]
    assert len(set(actions)) == 3
    assert action(model) == actions[best - 5]
    for path in (folder, model.save(folder.parent / "model"), model.save(folder.parent / "whole", replay=True)):
        loaded = SAC.load(path)
        assert (loaded.best_seed, action(loaded)) == (best, action(model))


def test_all_seeds_predict_at_once(several):
    model, _ = several
    for deterministic in (True, False):
        all_of_one, _ = model.predict(OBS, deterministic=deterministic, seed="all")
        all_of_four, _ = model.predict(BATCH, deterministic=deterministic, seed="all")
        assert (all_of_one.shape, all_of_four.shape) == ((3, 1), (3, 4, 1))
    each = np.stack([model.predict(BATCH, deterministic=True, seed=seed)[0] for seed in (5, 6, 7)])
    np.testing.assert_allclose(model.predict(BATCH, deterministic=True, seed="all")[0], each, rtol=1e-5)


def test_the_best_policies_of_a_run_are_a_model(several, tmp_path):
    model, folder = several
    best = SAC.load(folder, policy="best")
    same_file = SAC.load(folder / "checkpoints/best.safetensors")
    _, record = RunFolder(folder).checkpoints.load_best()
    assert best.best_seed == 5 + int(np.argmax(record["returns"])) == same_file.best_seed
    for seed in (5, 6, 7):
        assert action(best, seed=seed) == action(same_file, seed=seed)
        if record["steps"][seed - 5] == 128:
            assert action(best, seed=seed) == action(model, seed=seed)
    again = SAC.load(best.save(tmp_path / "best"))
    assert action(again) == action(best)
    assert again.num_timesteps == max(record["steps"])
    with pytest.raises(InputError, match=r"^learn: this model holds only policies; load the run's folder"):
        best.learn(64)
    with pytest.raises(InputError, match=r"^policy: 'first' must be \"last\" or \"best\"$"):
        SAC.load(folder, policy="first")
    with pytest.raises(InputError, match=r'^policy: "best" needs the folder of a run'):
        SAC.load(folder / "checkpoints/best.safetensors", policy="best")
    assert lsac("eval", folder, "--episodes", 1, "--policy", "best").code == 0


def test_one_seed_is_loaded_alone(several):
    model, folder = several
    for policy in ("last", "best"):
        whole, one = SAC.load(folder, policy=policy), SAC.load(folder, policy=policy, seed=6)
        assert one.experiment.seed_list == [6]
        assert action(one) == action(whole, seed=6)
    assert SAC.load(folder, seed=6).learn(32).num_timesteps == 160
    for wrong in (4, "all", "best"):
        with pytest.raises(InputError, match=r"^seed: .* must be one of 5, 6, 7$"):
            SAC.load(folder, seed=wrong)
    with pytest.raises(InputError, match=r'^seed: 4 must be one of 5, 6, 7, or "all"$'):
        model.predict(OBS, seed=4)
    assert model.num_timesteps == 128


@pytest.mark.parametrize("returns", [None.__class__, "high", [1.0], {}], ids=["missing", "text", "short", "table"])
def test_best_policies_whose_record_lies_are_refused(returns, several, tmp_path):
    _, folder = several
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run/checkpoints/best.safetensors"
    arrays, record = read(path)
    changed = {k: v for k, v in record.items() if k not in ("format", "returns")}
    write(path, arrays, changed if returns is None.__class__ else changed | {"returns": returns})
    if returns is None.__class__:
        assert SAC.load(tmp_path / "run", policy="best").best_seed == 5
        return
    for source, policy in ((tmp_path / "run", "best"), (path, "last")):
        with pytest.raises(InputError, match=r"its returns are not one number per seed$"):
            SAC.load(source, policy=policy)


def test_an_unevaluated_model_predicts_with_its_first_seed():
    assert SAC("Pendulum-v1", seed=5, **TINY | {"seeds": 2}).best_seed == 5


# Saving with the replay


def test_a_model_saved_with_its_replay_continues_exactly(tmp_path):
    alone = SAC("Pendulum-v1", seed=3, **TINY).learn(128)
    half = SAC("Pendulum-v1", seed=3, **TINY).learn(64)
    loaded = SAC.load(half.save(tmp_path / "half", replay=True))
    assert equal(loaded, half)
    assert equal(loaded.learn(64), alone)
    without = SAC.load(half.save(tmp_path / "without"))
    assert without._trained.run is None
    assert (tmp_path / "without.safetensors").stat().st_size < (tmp_path / "half.safetensors").stat().st_size
    with pytest.raises(
        InputError, match=r"^replay: True, but the model has no replay buffer; it gets one when it learns$"
    ):
        without.save(tmp_path / "again", replay=True)


def test_a_model_is_pickled_and_copied():
    model = SAC("Pendulum-v1", seed=3, **TINY).learn(64)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert equal(other, model)
        assert action(other) == action(model)
        other.learn(32)
    assert model.num_timesteps == 64


# The environment


def test_a_model_has_the_attributes_of_sb3():
    env = Recorded()
    model = SAC(env, **TINY)
    assert model.env is env
    assert model.get_env() is env
    assert (model.observation_space, model.action_space) == (env.observation_space, env.action_space)
    assert repr(model) == "SAC(env='Recorded', seeds=[0], num_timesteps=0, best_seed=0)"
    by_id = SAC("Pendulum-v1", **TINY)
    assert by_id.env.spec.id == "Pendulum-v1"
    assert by_id.get_vec_normalize_env() is None


def test_another_environment_takes_over():
    model = SAC("Pendulum-v1", seed=3, **TINY).learn(64)
    before = action(model)
    model.set_env(gym.make("Pendulum-v1", g=1.0))
    assert action(model) == before
    assert model.experiment.env_args == ("g=1.0",)
    model.learn(32)
    assert model.num_timesteps == 96
    assert model._trained.run.stored["first"][0, -32], "a new episode"
    with pytest.raises(InputError, match=r"^env: its observation space is Box.*, but the model has Box"):
        model.set_env("HalfCheetah-v5")


def test_an_environment_that_cannot_be_copied_takes_over_from_another():
    model, env = SAC(Recorded(), **TINY), Recorded()
    model.set_env(env)
    assert model.get_env() is env
    swing = gym.make("Pendulum-v1")
    model = SAC("Pendulum-v1", **TINY)
    model.set_env(swing)
    assert model.get_env() is swing, "not a copy"


def test_an_environment_that_is_refused_changes_nothing():
    env = lambda: gym.wrappers.TimeLimit(Recorded(), 10)  # noqa: E731
    model = SAC(env, **TINY | {"seeds": 2, "eval_every": 64, "eval_episodes": 1}).learn(64)
    with pytest.raises(InputError, match="cannot be copied"):
        model.set_env(Recorded())
    assert model.learn(8).num_timesteps == 72
    assert model._trained.returns is not None
    model.set_env(env)
    assert model._trained.returns is None
    assert model._trained.run.record["best"]["returns"] == [-np.inf] * 2
    assert model.learn(8).num_timesteps == 80


def test_functions_that_create_environments_leave_none_open():
    made = []

    class Counted(Recorded):
        closed = 0

        def close(self):
            self.closed += 1

    def create():
        made.append(Counted())
        return made[-1]

    model = SAC(create, **TINY)
    for _ in range(3):
        model.learn(24)
    assert [env.closed for env in made if env is not model.env] == [1] * (len(made) - 1)
    assert model.env.closed == 0


def test_evaluations_use_their_own_environment(tmp_path):
    class Counted(Recorded):
        made = 0

        def __init__(self):
            super().__init__()
            Counted.made += 1

    options = TINY | {"eval_every": 64, "eval_episodes": 2}
    limited = lambda: gym.wrappers.TimeLimit(Counted(), 10)  # noqa: E731
    SAC(Recorded(), eval_env=limited, **options).learn(64, out=tmp_path / "run")
    assert Counted.made >= 2
    lengths = [line["eval/mean_ep_length"] for line in metrics(tmp_path / "run") if "eval/mean_ep_length" in line]
    assert len(lengths) == 2
    assert all(1 <= length <= 10 for length in lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SAC(limited, **TINY | {"eval_every": 64, "eval_episodes": 1, "seeds": 2}).learn(64)


# Options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"learning_rate": 3e-4}, r"^learning_rate: is a name of Stable-Baselines3; here actor_lr and critic_lr$"),
        ({"buffer_size": 100}, r"^buffer_size: is a name of Stable-Baselines3; here replay_capacity$"),
        ({"verbose": 1}, r"^verbose: is a name of Stable-Baselines3; .*progress_bar=True"),
        ({"policy_kwargs": {"net_arch": [64]}}, r"^policy_kwargs: .* here hidden and activation$"),
        ({"device": "cuda"}, r"^device: .*JAX_PLATFORMS"),
        ({"nothing": 1}, r"^nothing: no such option$"),
        ({"steps": 100}, r"^steps: no such option; pass the number of steps to learn$"),
        ({"env_kwarg": {}}, r"^env_kwarg: no such option; did you mean env_kwargs\?$"),
        ({"generator.width": 8}, r"^generator\.width: no such option; did you mean generator__width\?$"),
        ({"preset": "quikstart"}, r"^preset quikstart: sac has default"),
        ({"env_kwargs": {"gg": 1}}, r"^env_args gg"),
    ],
)
def test_names_of_sb3_are_translated(options, sentence):
    with pytest.raises(InputError, match=sentence):
        SAC("Pendulum-v1", **options)


def test_the_policy_of_sb3_is_not_needed():
    for arguments in (("MlpPolicy", "Pendulum-v1"), ("MlpPolicy", gym.make("Pendulum-v1")), ("MlpPolicy",)):
        with pytest.raises(
            InputError, match=r"^env: 'MlpPolicy' is not needed; write SAC\((env|'Pendulum-v1'), hidden="
        ):
            SAC(*arguments)


def test_arguments_of_sb3s_learn_and_load_are_translated(tmp_path):
    model = SAC(Recorded(), **TINY)
    with pytest.raises(InputError, match=r"^log_interval: is a name of Stable-Baselines3; here log_every"):
        model.learn(64, log_interval=10)
    with pytest.raises(InputError, match=r"^total_timestep: no such option; did you mean total_timesteps\?$"):
        model.learn(64, total_timestep=10)
    with pytest.raises(InputError, match=r"^device: is a name of Stable-Baselines3"):
        SAC.load(tmp_path, device="cpu")


def test_nested_options_are_named_with_two_underscores():
    model = LSAC("Pendulum-v1", generator__width=64, generator__blocks=2, preset="quickstart")
    quickstart = LSAC("Pendulum-v1", preset="quickstart").experiment.agent.generator
    assert (model.experiment.agent.generator.width, model.experiment.agent.generator.blocks) == (64, 2)
    assert model.experiment.agent.generator.dim_t == quickstart.dim_t == 32
    with pytest.raises(InputError, match=r"unknown option widht; did you mean width"):
        LSAC("Pendulum-v1", generator__widht=64)
    with pytest.raises(InputError, match=r"^generator__width: generator is set as a whole already$"):
        LSAC("Pendulum-v1", generator=model.experiment.agent.generator, generator__width=64)


def test_signature_and_help_list_the_options():
    import inspect

    parameters = inspect.signature(SAC).parameters
    assert parameters["batch_size"].default == 256
    assert parameters["actor_lr"].annotation is float
    assert list(parameters)[:2] == ["env", "preset"]
    assert parameters["seed"].default == 0
    assert not {"steps", "agent", "options", "more", "env_args"} & parameters.keys()
    assert "chains (10): number of parallel Langevin chains" in LSAC.__doc__
    assert "learning_starts (5000): environment steps with uniformly random actions" in " ".join(LSAC.__doc__.split())


@pytest.mark.parametrize("steps", [128.0, np.float64(128), np.int64(128)], ids=repr)
def test_whole_floats_are_steps(steps, tmp_path):
    model = SAC("Pendulum-v1", seed=3, **TINY).learn(steps, out=tmp_path / "run")
    assert model.num_timesteps == 128
    assert SAC.load(tmp_path / "run").num_timesteps == 128


@pytest.mark.parametrize("steps", [128.5, "128", float("nan"), float("inf"), True, None], ids=repr)
def test_other_values_are_not(steps):
    with pytest.raises(InputError, match=r"^total_timesteps"):
        SAC("Pendulum-v1", **TINY).learn(steps)


def test_a_warning_of_a_run_is_a_warning_in_python(tmp_path, monkeypatch):
    """As on a full disk: training continues, and the user hears of it without a display."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    model = SAC(Recorded(), **TINY | {"checkpoint_every": 32})
    monkeypatch.setattr("lsac.runs.checkpoint.write", full)
    told = pytest.warns(UserWarning, match=r"could not be saved .*No space left on device.*; training continues$")
    with told, pytest.raises(OSError, match="No space left"):
        model.learn(64, out=tmp_path / "run")
    assert model.num_timesteps == 64, "the last checkpoint failed too, but the model has learned"
