"""What goes wrong, through the command line: one sentence, the right exit code, and nothing bad in the saved run.

Exit code 3 is a simulator's fault, 2 is bad input. No case prints a traceback.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import faulty_envs
import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import TINY, lsac
from replays import spec_of

import lsac as package
from lsac import streams
from lsac.agents import sac
from lsac.collect.actors import make_actors
from lsac.collect.groups import Discounts, Group
from lsac.collect.wire import GroupPlan
from lsac.envs.gymnasium import Simulator
from lsac.errors import EnvironmentFault, InputError, MemoryRefused
from lsac.presets import preset
from lsac.runs.folder import RunFolder

BAD = faulty_envs.BAD_STEP
SECONDS = 3
PLACE = f"environment 1 of seed 7, step {2 * BAD}"
"""The simulator that goes wrong is the second of two, so its step counts twice as many of its seed."""
LAST_SEEN = f"environment 1 of seed 7, after {2 * BAD + 1} steps"

SENTENCES = {
    "NanObservation": f"{PLACE}: the observation contains nan",
    "InfiniteReward": f"{PLACE}: the reward contains inf",
    "TextReward": f"{PLACE}: reward is 'much', not a number",
    "WrongShape": f"{PLACE}: observation has shape (4,), the space promises (3,)",
    "TextObservation": f"{PLACE}: observation cannot be read as numbers (could not convert string to float: ",
    "NumberAsFlag": f"{PLACE}: the terminated and truncated flags are 0.5 and False, not booleans",
    "Raises": f"{PLACE}: step([…]) raised ZeroDivisionError: the pole fell through the floor",
    "BadReset": f"{PLACE}: reset(seed=None) raised KeyError: 'start'",
    "Hangs": f"{LAST_SEEN} did not answer within --env-timeout {SECONDS} s; its Python stack is printed above",
    "Killed": f"the worker of environments 0–1 of seed 7 was killed by SIGKILL; last seen: {LAST_SEEN}",
}


CHEAP = {"TextReward", "BadReset"}
"""Shown without a process, by a group alone: what becomes of them is the same as with the others."""


def test_every_fault_has_a_sentence():
    assert {kind.__name__ for kind in faulty_envs.FAULTS} == SENTENCES.keys()


@pytest.mark.parametrize(
    "trained",
    [
        pytest.param(("sac",), id="sac"),
        pytest.param(("lsac", "--chains", 2, "--no-synthetic"), id="lsac", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", [kind for kind in SENTENCES if kind not in CHEAP])
def test_a_simulator_that_misbehaves(kind, trained, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(faulty_envs.__file__).parent), prepend=os.pathsep)
    options = ("--num-envs", 2, "--seed", 7, "--steps", 200, "--checkpoint-every", 16, "--env-timeout", SECONDS)
    result = lsac("train", *trained, "--env", f"faulty/{kind}-v0", *TINY, *options, "--out", tmp_path / "run")
    assert result.code == 3
    sentence = re.sub(r"step\(\[.*?\]\)", "step([…])", result.sentence)
    assert sentence.removeprefix("lsac: ").startswith(SENTENCES[kind])
    if kind == "Hangs":
        assert re.search(r'faulty_envs\.py", line \d+ in misbehave', result.err)
    if kind == "Raises":
        own = result.err[: result.err.index("lsac: ")]
        assert re.search(r'^Environment traceback .*faulty_envs\.py", line \d+, in misbehave\n', own, re.DOTALL)
        assert "/lsac/" not in own, "no frame of lsac itself"

    folder, experiment = RunFolder.open(tmp_path / "run")
    saved = folder.checkpoints.load()
    assert (experiment.algorithm, experiment.seed, saved.record["step"]) == (trained[0], 7, 40)
    rows = saved.stored["vectors"]
    assert rows.shape == (1, 40, 9)
    assert np.isfinite(rows).all()
    step, simulator = rows[0, :, 0], rows[0, :, 1]
    np.testing.assert_array_equal(step, np.arange(40) // 2)
    np.testing.assert_array_equal(simulator, np.arange(40) % 2)
    np.testing.assert_array_equal(rows[0, :, 6], step + 1)
    np.testing.assert_array_equal(saved.stored["first"], [np.arange(40) < 2])


# Groups, without a process around them


@functools.cache
def agent():
    """The actors of a small agent, and a policy for them."""
    made = sac.make(sac.Config(hidden=(4,)), spec_of(3, 1))
    return make_actors(made, 1), made.policy(jax.jit(made.init)(streams.root(0, streams.INIT)))


def group(*envs, first=3):
    numbers = list(range(first, first + len(envs)))
    plan = GroupPlan(seed=7, seed_index=0, envs=numbers, stride=len(envs))
    return Group(plan, [Simulator(env) for env in envs], agent()[0], Discounts(0.99), np.zeros(2, np.int64))


def policy():
    return agent()[1]


@pytest.mark.parametrize("kind", sorted(CHEAP))
def test_a_group_whose_second_simulator_misbehaves(kind, monkeypatch):
    monkeypatch.setattr(faulty_envs.Counter, "made", 0)
    pair = group(*(getattr(faulty_envs, kind)() for _ in range(2)), first=0)
    pair.reset(0)
    for step in range(0, 40, 8):
        pair.collect(None, step, 4, random=True)
    with pytest.raises(EnvironmentFault) as fault:
        pair.collect(None, 40, 4, random=True)
    assert str(fault.value) == SENTENCES[kind]


class Ends(faulty_envs.Counter):
    """Three steps, the second of which is as told."""

    def __init__(self, x=0.0, reward=1.0):
        super().__init__()
        self.x, self.reward = x, reward

    def step(self, action):
        self.t += 1
        second = self.t == 2
        return np.float32([0.0, 0.0, self.x * second]), self.reward if second else 1.0, self.t == 3, False, {}


def test_an_evaluation_returns_the_sum_of_rewards():
    returns, lengths, *_ = group(Ends(reward=5.0)).evaluate(policy(), 40, deterministic=True)
    assert (returns.tolist(), lengths.tolist()) == ([7.0], [3])


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Ends(x=np.nan), "environment 3 of seed 7, step 40: the observation contains nan"),
        (Ends(reward=-np.inf), "environment 3 of seed 7, step 40: the return of its evaluation is -inf"),
    ],
)
def test_an_evaluation_refuses_what_is_not_finite(env, sentence):
    with pytest.raises(EnvironmentFault) as fault:
        group(env).evaluate(policy(), 40, deterministic=True)
    assert str(fault.value) == sentence


def test_an_action_that_is_not_a_number_is_not_blamed_on_the_observation():
    broken = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), policy())
    calm = group(faulty_envs.Counter())
    calm.reset(0)
    with pytest.raises(EnvironmentFault, match=r"^environment 3 of seed 7, step 8: the action contains nan$"):
        calm.collect(broken, 8, 4, random=False)


# Bad input

TRAIN = ("train", "sac", "--env", "Pendulum-v1", *TINY)

REFUSED = {
    "discrete actions": (
        ("train", "sac", "--env", "CartPole-v1"),
        "environment CartPole-v1: its action space is Discrete, but only Box (continuous) actions work",
    ),
    "unknown environment": (
        ("train", "sac", "--env", "HalfCheeta-v5"),
        "--env HalfCheeta-v5: no such Gymnasium environment; did you mean HalfCheetah-v5?",
    ),
    "unknown version": (
        ("train", "sac", "--env", "Pendulum-v99"),
        "--env Pendulum-v99: no such Gymnasium environment",
    ),
    "missing package": (
        ("train", "sac", "--env", "PandaReach-v3"),
        "--env PandaReach-v3: no such Gymnasium environment; it belongs to the package panda_gym: install it with: ",
    ),
    "missing module": (
        ("train", "sac", "--env", "nowhere_mod:My-v0"),
        "--env nowhere_mod:My-v0: module nowhere_mod cannot be imported (No module named 'nowhere_mod')",
    ),
    "argument without a value": ((*TRAIN, "--env-args", "g"), "--env-args g: must be name=value, each name once"),
    "argument twice": ((*TRAIN, "--env-args", "g=1", "g=2"), "--env-args g=1 g=2: must be name=value, each name once"),
    "unknown argument": (
        (*TRAIN, "--env-args", "gravity=1"),
        "--env-args gravity: Pendulum-v1 has no argument of this name",
    ),
    "wrapper without a module": ((*TRAIN, "--wrapper", "halve"), "--wrappers halve: must be module:name, for example"),
    "missing module of a wrapper": (
        (*TRAIN, "--wrapper", "nowhere_mod:f"),
        "--wrapper nowhere_mod:f: module nowhere_mod cannot be imported (No module named 'nowhere_mod')",
    ),
    "missing wrapper": (
        (*TRAIN, "--wrapper", "own_envs:nothing"),
        "--wrapper own_envs:nothing: module own_envs has no nothing",
    ),
    "wrapper that is a number": (
        (*TRAIN, "--wrapper", "own_envs:NUMBER"),
        "--wrapper own_envs:NUMBER: is neither a Gymnasium wrapper nor a function of your own module",
    ),
    "wrapper that returns a number": (
        (*TRAIN, "--wrapper", "own_envs:to_number"),
        "--wrapper own_envs:to_number: returned 7, not an environment",
    ),
    "statistics of observations": (
        (*TRAIN, "--wrapper", "gymnasium.wrappers:NormalizeObservation"),
        "environment Pendulum-v1: the statistics of NormalizeObservation would not be saved with the policy; "
        "leave it out and set --normalise-observations",
    ),
    "no environment": (("train", "sac"), "--env: name an environment, for example --env Pendulum-v1"),
    "no steps": ((*TRAIN, "--steps", 0), "--steps 0: must be at least 1"),
    "unknown algorithm": (("train", "sak", "--env", "Pendulum-v1"), "algorithm sak: must be one of "),
    "unknown preset": (
        (*TRAIN, "--preset", "fast"),
        "--preset fast: sac has default, official, tuned, paper, quickstart",
    ),
    "updates not whole": (
        (*TRAIN, "--utd", 0.3),
        "--utd 0.3: times --chunk 8 must be a whole number of updates, at least 1",
    ),
    "infinite updates": ((*TRAIN, "--utd", "inf"), "--utd inf: must be a finite number greater than 0"),
    "unknown command": (("trian", "sac"), "no command trian; did you mean train? (see lsac --help)"),
    "no episodes": (("eval", "here", "--episodes", 0), "--episodes 0: must be at least 1"),
    "unknown policy": (("eval", "here", "--policy", "worst"), "--policy worst: must be last or best"),
    "resume of no run": (("resume", "here"), "here: is not the folder of a run (it has no config.json)"),
    "eval of no run": (("eval", "here"), "here: is not the folder of a run (it has no config.json)"),
    "report of no run": (
        ("report", "here", "--out", "there"),
        "here: is not the folder of a run (it has no config.json)",
    ),
    "report of nothing": (("report", "--out", "there"), "lsac report: name at least one folder of a run"),
    "output under a file": (
        (*TRAIN, "--steps", 64, "--out", "file/run"),
        "--out file/run: cannot be written (Not a directory)",
    ),
    "doctor in no time": (("doctor", "--seconds", 0), "--seconds 0: must be at least 0.1"),
    "doctor for ever": (("doctor", "--seconds", "inf"), "--seconds inf: must be at least 0.1"),
    "doctor of discrete actions": (("doctor", "--env", "CartPole-v1"), "environment CartPole-v1: its action space is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lsac.cli.doctor.rendering", lambda: "not asked")  # it starts processes
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    args, sentence = REFUSED[case]
    result = lsac(*args)
    assert result.code == 2
    assert result.sentence.startswith(f"lsac: {sentence}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "here"], "nothing is left behind"
    assert not list((tmp_path / "here").iterdir())


def test_the_nearest_environment_and_algorithm_are_suggested():
    assert lsac("train", "sac", "--env", "HalfCheeta-v5").sentence.endswith("; did you mean HalfCheetah-v5?")
    assert lsac("train", "sak", "--env", "Pendulum-v1").sentence.endswith("; did you mean sac?")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seedz", 3), ("--seedz", "--seed?")),
        (("--steps", "many"), ("--steps", "many")),
        (("--steps", 1.5), ("--steps", "1.5")),
    ],
)
def test_an_option_that_cannot_be_parsed_is_explained(args, words, tmp_path):
    result = lsac(*TRAIN, *args, "--out", tmp_path / "run")
    assert result.code == 2
    assert "Traceback" not in result.err
    assert all(word in result.err for word in words)
    assert not (tmp_path / "run").exists()


def test_a_replay_that_cannot_fit_is_refused_with_its_size(tmp_path):
    """Before anything is written, so that the same folder can be used once the number is smaller."""
    rows, seeds = 2**30, 1_000  # the number of rows must fit into 32 bits, their size need not
    huge = ("--replay-capacity", rows, "--steps", rows, "--seeds", seeds, "--out", tmp_path / "run")
    result = lsac("train", "sac", "--env", "Pendulum-v1", *huge)
    assert result.code == 2
    row = 9 * 4 + 1  # obs 3, action 1, reward, discount, next obs 3: nine numbers of four bytes; and one flag
    size = seeds * rows * row / 2**30
    assert f"replay of {seeds} × {rows:,} transitions ({size:.1f} GiB) and agents (" in result.sentence
    assert 0 < float(result.sentence.split(") need ")[1].split(" GiB, but only ")[0]) - size < 10
    assert result.sentence.endswith("lower --replay-capacity or --seeds")
    assert not (tmp_path / "run").exists()
    huge = ("--synthetic-capacity", rows, "--seeds", seeds, "--out", tmp_path / "run")
    result = lsac("train", "lsac", "--env", "Pendulum-v1", *huge)
    assert result.code == 2
    networks = 300  # GiB at most; D' has the same nine numbers per row, and how far the action was moved
    synthetic = seeds * rows * 10 * 4 / 2**30
    assert 0 < float(result.sentence.split("and agents (")[1].split()[0]) - synthetic < networks
    assert result.sentence.endswith("lower --synthetic-capacity or --seeds")
    assert issubclass(MemoryRefused, InputError)
    assert issubclass(MemoryRefused, MemoryError)


@pytest.fixture
def empty_run(tmp_path):
    """The folder of a run that was never saved."""
    RunFolder.create(tmp_path / "run", preset("sac", "default", "Pendulum-v1")).release()
    return tmp_path / "run"


def test_a_folder_that_holds_a_run_is_not_written_over(empty_run):
    before = (empty_run / "config.json").read_bytes()
    result = lsac(*TRAIN, "--steps", 64, "--out", empty_run)
    assert result.code == 2
    assert result.sentence.endswith(
        f"--out {empty_run}: already holds a run; --overwrite replaces it, lsac resume {empty_run} continues it"
    )
    assert (empty_run / "config.json").read_bytes() == before
    assert [path.name for path in empty_run.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("eval",), "checkpoints: holds no checkpoint"),
        (("eval", "--policy", "best"), "has no best policy, because it was trained without evaluations"),
    ],
)
def test_a_run_without_a_checkpoint_cannot_be_used(args, sentence, empty_run):
    result = lsac(args[0], empty_run, *args[1:])
    assert result.code == 2
    assert str(empty_run) in result.sentence
    assert result.sentence.endswith(sentence)


def test_a_report_before_the_first_line_of_metrics_is_refused(empty_run, tmp_path):
    result = lsac("report", empty_run, "--out", tmp_path / "out")
    assert result.code == 2
    assert result.sentence == f"lsac: {empty_run}: has no metrics yet"
    assert not (tmp_path / "out").exists()


def test_commands_without_arguments_explain_themselves():
    for args in ((), ("--help",), ("train",), ("train", "--help")):
        result = lsac(*args)
        assert result.code == (0 if "--help" in args else 2)
        assert "usage: lsac" in result.out


def test_arguments_and_wrappers_are_kept_and_used_by_every_command(tmp_path, monkeypatch):
    """Short episodes of constant reward 0: 12 steps each, with the observations of two steps."""
    (tmp_path / "dressed.py").write_text(
        "import gymnasium as gym\n"
        "def without_reward(env):\n    return gym.wrappers.TransformReward(env, float(0).__mul__)\n"
        "def two_steps(env):\n    return gym.wrappers.FrameStackObservation(env, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    given = ("--env-args", "max_episode_steps=12", "g=1.5", "--wrapper", "dressed:without_reward", "dressed:two_steps")
    given = (*given, "gymnasium.wrappers:NormalizeReward")
    result = lsac(*TRAIN, *given, "--steps", 64, "--out", "run")
    assert result.code == 0, result.err
    config = json.loads(Path("run/config.json").read_text())["experiment"]
    assert config["env_args"] == ["max_episode_steps=12", "g=1.5"]
    assert config["wrappers"] == ["dressed:without_reward", "dressed:two_steps", "gymnasium.wrappers:NormalizeReward"]
    monkeypatch.delitem(sys.modules, "dressed")
    for command in (("resume", "run", "--steps", 96), ("eval", "run", "--episodes", 2)):
        refused = lsac(*command)
        assert refused.code == 2
        assert refused.sentence.endswith("names a module, which a file must not import: pass --module dressed")
        result = lsac(*command, "--module", "json", "--module", "dressed")
        assert result.code == 0, result.err
        monkeypatch.delitem(sys.modules, "dressed")
    assert "return 0.0 ± 0.0 over 2 episodes (mean length 12," in result.out.replace("-0.0", "0.0")
    assert json.loads(Path("run/config.json").read_text())["resumes"] == [{"step": 64, "kind": "exact"}]


def test_the_console_script_finds_modules_in_the_working_directory(tmp_path):
    """Python leaves the directory of `lsac` on its path, not the one where it is called; -P does the same here."""
    (tmp_path / "homegrown.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
        "class Home(PendulumEnv):\n    pass\ngymnasium.register('Home-v0', Home, max_episode_steps=12)\n"
    )
    source = str(Path(package.__file__).parents[1])
    options = ("--env", "homegrown:Home-v0", *TINY, "--steps", "16", "--out", "run")
    command = [sys.executable, "-P", "-m", "lsac", "train", "sac", *options]
    environment = os.environ | {"PYTHONPATH": source}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr


def test_an_environment_of_a_module_is_trained_resumed_and_played(tmp_path, monkeypatch):
    """The module is imported because its name was typed, at every command; a file alone cannot do that."""
    (tmp_path / "homemade.py").write_text(
        "import gymnasium\ngymnasium.register('Homemade-v0', entry_point='faulty_envs:Counter')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folder = tmp_path / "run"
    result = lsac(*TRAIN[:2], "--env", "homemade:Homemade-v0", *TINY, "--steps", 64, "--out", folder)
    assert result.code == 0, result.err
    monkeypatch.delitem(sys.modules, "homemade")
    monkeypatch.delitem(gym.registry, "Homemade-v0")
    result = lsac("resume", folder, "--steps", 96)
    assert result.code == 2
    assert result.sentence.endswith("names a module, which a file must not import: pass --module homemade")
    result = lsac("resume", folder, "--steps", 96, "--module", "homemade")
    assert result.code == 0, result.err
    assert "not exact: the simulators cannot be captured and start new episodes" in " ".join(result.out.split())
    assert json.loads((folder / "config.json").read_text())["resumes"] == [{"step": 64, "kind": "episode"}]
    result = lsac("resume", folder, "--steps", 99, "--module", "nowhere_at_all")
    assert result.code == 2
    assert result.sentence.startswith("lsac: --module nowhere_at_all: cannot be imported")
