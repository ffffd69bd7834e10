"""Whole runs: what is in the folder, what repeats bit for bit, and what a signal and a resume keep."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import time
import types
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import small
import torture
from commands import TINY, Result, finish, lsac, metrics, start

from lsac.agents import AGENTS, sac
from lsac.cli import training as cli_training
from lsac.envs.sources import of_experiment
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.datafile import named
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train import run as running
from lsac.train.evaluate_run import policies_of
from lsac.train.logger import Logger
from lsac.train.loop import Loop
from lsac.train.resume import Saved
from lsac.train.run import Observer
from lsac.train.stopping import Stop

SMALL = (
    *("train", "sac", "--env", "Pendulum-v1", *TINY, "--seeds", "2", "--steps", "256", "--log-every", "64"),
    *("--eval-every", "128", "--eval-episodes", "2", "--checkpoint-every", "128"),
)
LOG_STEPS, EVAL_STEPS = [64, 128, 192, 256], [0, 128, 256]


def state_of(folder):
    """Every array of the newest checkpoint, and the transitions."""
    found = RunFolder(folder).checkpoints.load()
    return found.state | found.stored


def same(a, b):
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in a
    )


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """Two processes with the same command: each folder, and what its process printed. The second one finds the
    programs that the first one compiled, so that the cache is under test as well."""
    root = tmp_path_factory.mktemp("twins")
    return [(folder, finish(start(*SMALL, "--seed", 5, "--out", folder))) for folder in (root / "a", root / "b")]


@pytest.fixture(scope="module")
def run(twins):
    return twins[0][0]


# what is in a folder


def test_a_run_ends_well_and_says_where_things_are(twins):
    for folder, result in twins:
        assert (result.code, result.err) == (0, "")
        assert "sac on Pendulum-v1: final evaluation return -" in result.out
        assert f"curve: {folder}/curve.png" in result.out
        assert f"run: {folder}" in result.out


def test_the_folder_holds_what_the_readme_lists(run):
    names = {path.name for path in run.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "tensorboard", "checkpoints", "curve.png"}
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert checkpoints == ["best.safetensors", "replay", "step-0000000128.safetensors", "step-0000000256.safetensors"]
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_config_has_resolved_settings_versions_and_the_command(run):
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"] == "sac"
    assert config["experiment"]["steps"] == 256
    assert config["experiment"]["gamma"] == 0.99
    assert config["experiment"]["agent"]["hidden"] == [16]
    assert {"lsac", "python", "jax", "gymnasium", "mujoco"} <= config["versions"].keys()
    assert config["command"][:3] == ["lsac", "train", "sac"]


def test_metrics_have_one_line_per_step_and_seed_of_each_kind(run):
    lines = metrics(run)
    assert all(list(line)[:3] == ["step", "seed", "seconds"] for line in lines)
    trained = [(line["step"], line["seed"]) for line in lines if "time/fps" in line]
    evaluated = [(line["step"], line["seed"]) for line in lines if "eval/mean_reward" in line]
    assert trained == [(step, seed) for step in LOG_STEPS for seed in (5, 6)]
    assert evaluated == [(step, seed) for step in EVAL_STEPS for seed in (5, 6)]
    assert len(lines) == len(trained) + len(evaluated)


def test_metrics_have_the_documented_names(run):
    lines = metrics(run)
    last = {name for line in lines if line["step"] == 256 for name in line}
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "time/fps"} <= last
    assert {"train/critic_loss", "train/actor_loss", "train/ent_coef", "train/n_updates"} <= last
    values = [value for line in lines for value in line.values()]
    assert np.isfinite(values).all()
    ended = next(line for line in lines if "rollout/ep_len_mean" in line)
    assert ended["step"] in (192, 256), "an episode of Pendulum-v1 has 200 steps"
    assert ended["rollout/ep_len_mean"] == 200


def test_speed_counts_the_steps_of_all_seeds(run):
    """So fps times seconds, summed over the run, is the number of steps that both seeds made."""
    lines = [line for line in metrics(run) if "time/fps" in line and line["seed"] == 5]
    seconds = np.diff([0.0, *(line["seconds"] for line in lines)])
    assert np.dot(seconds, [line["time/fps"] for line in lines]) == pytest.approx(2 * 256, rel=0.25)


def test_tensorboard_has_the_last_scalars_of_every_seed(run):
    for seed in (5, 6):
        (events,) = (run / "tensorboard" / f"seed-{seed}").iterdir()
        data = events.read_bytes()
        assert data.count(b"train/critic_loss") == len(LOG_STEPS)
        assert data.count(b"eval/mean_reward") == len(EVAL_STEPS)


def test_the_replay_holds_the_transitions_in_order(run):
    stored = RunFolder(run).checkpoints.load().stored
    rows = stored["vectors"]
    assert rows.shape[0] == 2
    assert rows.shape[1] >= 64, "at least the capacity"
    obs, next_obs = rows[:, :, :3], rows[:, :, 6:]
    ended = 200 - (256 - rows.shape[1])  # the row after which the first episode was over
    follows = (obs[:, 1:] == next_obs[:, :-1]).all(axis=-1)
    assert follows.sum(axis=1).tolist() == [rows.shape[1] - 2] * 2
    assert not follows[:, ended - 1].any()
    first = np.arange(rows.shape[1]) == ended
    np.testing.assert_array_equal(stored["first"], [first, first])
    np.testing.assert_allclose(np.hypot(obs[..., 0], obs[..., 1]), 1, rtol=1e-5)
    assert (rows[:, :, 5] == np.float32(0.99)).all(), "a time limit is no termination, so nothing ends the discount"


def test_best_is_the_best_evaluation(run):
    _, record = RunFolder(run).checkpoints.load_best()
    for row, seed in enumerate((5, 6)):
        lines = [line for line in metrics(run) if line["seed"] == seed and "eval/mean_reward" in line]
        curve = {line["step"]: line["eval/mean_reward"] for line in lines}
        assert record["returns"][row] == max(curve.values())
        assert curve[record["steps"][row]] == max(curve.values())


# determinism


def test_two_processes_with_one_seed_give_the_same_numbers(twins):
    (a, _), (b, _) = twins
    assert same(state_of(a), state_of(b))
    assert same({"best": RunFolder(a).checkpoints.load_best()[0]}, {"best": RunFolder(b).checkpoints.load_best()[0]})


def timeless(folder):
    kept = [{k: v for k, v in line.items() if k != "seconds" and not k.startswith("time/")} for line in metrics(folder)]
    return sorted(kept, key=lambda line: (line["step"], line["seed"], len(line)))


def test_two_processes_with_one_seed_write_the_same_metrics(twins):
    (a, _), (b, _) = twins
    assert timeless(a) == timeless(b)


def learned(state):
    """The arrays that differ between seeds: all but the counters of the optimisers, and where episodes begin."""
    return {name: array for name, array in state.items() if not name.endswith(".count") and name != "first"}


def test_another_seed_gives_other_numbers_wherever_it_stands(run, tmp_path):
    """Seeds 5 and 6 in one run, 6 and 7 in another: 5, 6 and 7 differ, and 6 does not see its neighbours."""
    assert lsac(*SMALL, "--seed", 6, "--out", tmp_path / "run").code == 0
    old, new = learned(state_of(run)), learned(state_of(tmp_path / "run"))
    rows = {5: seed_of(old, 0), 6: seed_of(old, 1), 7: seed_of(new, 1)}
    assert same(seed_of(new, 0), rows[6])
    for a, b in ((5, 6), (6, 7), (5, 7)):
        assert not any(np.array_equal(rows[a][name], rows[b][name]) for name in old)


def seed_of(state, row):
    return {name: array[row] for name, array in state.items()}


# counting, on the shortest runs there are


class Spy(Loop):
    """A loop that keeps what it held right after a restore."""

    seen: ClassVar[list["Spy"]] = []

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen.append(self)

    def resume(self):
        kind = super().resume()
        self.restored = self.holds()
        return kind

    def holds(self):
        replay, pending = self.learner.replay, self.position.pending or self.learner.replay.layout.empty(1, 0)
        numbers = {"size": replay.size, "head": replay.head, "updates": self.learner.updates, "step": self.step}
        arrays = {f"ring {name}": array for name, array in rb.stored_of_seeds(replay).items()}
        arrays |= {f"pending {name}": array for name, array in pending.items()}
        state = named(Saved(self.learner.state, self._evaluations.best.policies))
        policies = {"policies": self.learner.policies}
        return state | {name: np.array(value) for name, value in (numbers | arrays | policies).items()}


@contextlib.contextmanager
def watched_loops():
    """The loops of the runs that this process starts inside; and one item for every time an update was traced."""
    traces = []

    def make(config, spec):
        agent = sac.make(config, spec)

        def update(*args):
            traces.append(config)
            return agent.update(*args)

        return agent._replace(update=update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Loop", Spy)
        patch.setattr(Spy, "seen", [])
        patch.setitem(AGENTS, "sac", types.SimpleNamespace(Config=sac.Config, make=make, __doc__=sac.__doc__))
        yield Spy.seen, traces


@pytest.fixture
def watched():
    with watched_loops() as found:
        yield found


PENDULUM = ("train", "sac", "--env", "Pendulum-v1", *TINY)


@pytest.mark.parametrize(
    ("options", "updates"),
    [(("--num-envs", "4"), 112), (("--utd", "0.25"), 28), (("--utd", "2"), 224)],
    ids=["four simulators", "a quarter", "twice"],
)
def test_a_run_does_the_updates_it_was_asked_for(options, updates, watched, tmp_path):
    """121 steps end with a whole chunk at 128; the first 16 are random, so there are 112 with updates."""
    folder = tmp_path / "run"
    result = lsac(*PENDULUM, "--steps", 121, "--log-every", 64, *options, "--out", folder)
    assert result.code == 0, result.err
    (loop,), traces = watched
    assert (loop.step, loop.learner.updates) == (128, updates)
    assert metrics(folder)[-1]["train/n_updates"] == updates
    assert RunFolder(folder).checkpoints.load().record["updates"] == updates
    counts = [array for name, array in state_of(folder).items() if name.endswith(".count")]
    assert len(counts) == 3, "of the optimisers of actor, critics and α"
    assert all((count == updates).all() for count in counts)
    assert len(traces) == 1, "the training program was compiled once"
    assert "finished without a return" in result.out, "no episode ended, which is no error"


# signals and resuming


def test_a_signal_that_comes_when_the_run_is_over_changes_nothing(tmp_path, monkeypatch):
    conclude = cli_training._conclude

    def late(folder):
        signal.raise_signal(signal.SIGTERM)
        conclude(folder)

    monkeypatch.setattr(cli_training, "_conclude", late)
    before = signal.getsignal(signal.SIGTERM)
    assert lsac(*PENDULUM, "--steps", 64, "--out", tmp_path / "run").code == 0
    assert signal.getsignal(signal.SIGTERM) is before


MARK = "LSAC_TEST_MARK"


def marked(mark):
    """Processes that inherited a mark from the test that started them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


class Stopped(NamedTuple):
    folder: Path
    result: Result
    seconds: float
    workers: tuple[int, int]
    """processes of the run, while it went on and after it"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A long run that SIGTERM stopped while it was learning."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    options = ("--steps", 10**6, "--log-every", 64, "--checkpoint-every", 10**6, "--seed", 9)
    process = start(*PENDULUM, *options, "--out", folder, env=os.environ | {MARK: str(folder)})
    log, too_late = folder / "metrics.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_text().count("train/critic_loss") >= 4):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < too_late
        time.sleep(0.05)
    running = len(marked(folder))
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    result = finish(process)
    return Stopped(folder, result, time.monotonic() - asked, (running, len(marked(folder))))


def test_a_signal_saves_and_exits_with_75(stopped):
    assert stopped.result.code == 75
    assert stopped.seconds < 10
    assert "Traceback" not in stopped.result.err
    step = RunFolder(stopped.folder).checkpoints.load().record["step"]
    assert step >= 4 * 64
    assert f"stopped and saved at step {step:,}; continue with: lsac resume {stopped.folder}" in stopped.result.out


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to see other processes")
def test_no_worker_outlives_its_run(stopped):
    assert stopped.workers == (2, 0)


class Resumed(NamedTuple):
    """A stopped run that was resumed, interrupted, resumed to its end and made longer."""

    folder: Path
    saved: Checkpoint
    log: str
    """the metrics before the first resume"""
    interrupted: tuple[Result, Spy, dict]
    """what was printed, the loop, and what it held at its end"""
    continued: tuple[Result, Spy, dict]
    idle: tuple[Result, bool]
    """what was printed, and whether every file stayed as it was"""
    longer: tuple[Result, Spy, dict]
    traces: list[int]
    """how often each of the three that trained traced its updates"""

    @property
    def end(self):
        return self.saved.record["step"] + 192


@pytest.fixture(scope="module")
def resumed(stopped, tmp_path_factory):
    folder = shutil.copytree(stopped.folder, tmp_path_factory.mktemp("resumed") / "run")
    saved, log = RunFolder(folder).checkpoints.load(), (folder / "metrics.jsonl").read_text()
    end = saved.record["step"] + 192
    config = json.loads((folder / "config.json").read_text())
    config["experiment"]["steps"] = end  # as if it had been asked for no more
    (folder / "config.json").write_text(json.dumps(config))

    with watched_loops() as (loops, traces):
        counts = []

        def resume(*options):
            traces.clear()
            result = lsac("resume", folder, *options)
            counts.append(len(traces))
            return result, loops[-1], loops[-1].holds()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Logger, "write", interrupting(Logger.write))
            interrupted = resume()
        with (folder / "metrics.jsonl").open("a") as file:  # as if it had crashed a little later
            file.write(json.dumps({"step": end, "seed": 9, "seconds": 0, "time/fps": -1}) + "\n")
        continued = resume()
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        result = lsac("resume", folder)
        idle = result, files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        longer = resume("--steps", end + 64)
    return Resumed(folder, saved, log, interrupted, continued, idle, longer, counts)


def interrupting(write):
    """Ctrl-C, as soon as something was logged."""

    def write_and_interrupt(self, step, updates):
        write(self, step, updates)
        signal.raise_signal(signal.SIGINT)

    return write_and_interrupt


def test_a_resume_starts_with_what_was_saved(resumed):
    saved, (_, loop, _) = resumed.saved, resumed.interrupted
    found, step = loop.restored, saved.record["step"]
    assert (found["step"], found["updates"]) == (step, saved.record["updates"])
    assert same({name: found[name] for name in saved.state}, saved.state), "parameters and optimisers"
    actor = [saved.state[name][0].ravel() for name in found if name.startswith(".agent.actor.")]
    np.testing.assert_array_equal(found["policies"][0], np.concatenate(actor))
    assert saved.record["pending"] == 8
    assert (found["size"], found["head"]) == (64, step % 64)
    for name, array in saved.stored.items():
        assert same({name: found[f"pending {name}"]}, {name: array[:, -8:]})
        in_order = np.roll(found[f"ring {name}"], -int(found["head"]), axis=1)
        assert same({name: in_order}, {name: array[:, -72:-8]}), "the 64 transitions before the pending ones"


def test_ctrl_c_stops_a_resumed_run_which_can_be_resumed_again(resumed):
    """The second resume holds bit for bit what the first one ended with, down to the place in the ring."""
    result, _, ended = resumed.interrupted
    assert result.code == 75
    assert f"continuing at step {resumed.saved.record['step']:,}" in result.out
    result, loop, _ = resumed.continued
    assert result.code == 0, result.err
    assert same(loop.restored, ended)
    assert (loop.step, loop.learner.updates) == (resumed.end, resumed.end - 16)
    assert resumed.traces == [1, 1, 1], "the training program was compiled once by each"


def test_the_metrics_of_a_resumed_run_have_no_line_twice(resumed):
    lines = metrics(resumed.folder)
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] == resumed.end + 64
    assert (resumed.folder / "metrics.jsonl").read_text().startswith(resumed.log)
    assert all(line["time/fps"] > 0 for line in lines), "what was logged after the checkpoint is gone"
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_a_finished_run_has_nothing_to_do(resumed):
    result, unchanged = resumed.idle
    assert result.code == 0
    says = f"{resumed.folder}: finished at step {resumed.end:,}; nothing to do (--steps N makes it longer)\n"
    assert result.out == says
    assert unchanged


def test_a_finished_run_can_be_made_longer_but_not_shorter(resumed):
    result, loop, _ = resumed.longer
    assert result.code == 0, result.err
    assert same(loop.restored, resumed.continued[2])
    assert loop.step == resumed.end + 64
    assert RunFolder.open(resumed.folder)[1].steps == resumed.end + 64
    result = lsac("resume", resumed.folder, "--steps", 8)
    assert (result.code, result.sentence) == (2, f"lsac: --steps 8: the run is at step {resumed.end + 64} already")


def test_a_damaged_checkpoint_is_not_resumed(stopped, tmp_path):
    folder = shutil.copytree(stopped.folder, tmp_path / "run")
    path = folder / "checkpoints" / "stopped.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    for command in ("resume", "eval"):
        result = lsac(command, folder)
        assert (result.code, result.sentence) == (2, f"lsac: {path}: is damaged (its SHA-256 does not match)")


def test_a_checkpoint_of_another_network_is_not_resumed(stopped, tmp_path):
    folder = shutil.copytree(stopped.folder, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["experiment"]["agent"]["hidden"] = [17]
    (folder / "config.json").write_text(json.dumps(config))
    result = lsac("eval", folder)
    assert result.code == 2
    assert re.search(
        r"stopped.safetensors: array .* is float32\[.*16.*\], but float32\[.*17.*\] is expected", result.sentence
    )


# evaluating


def test_eval_plays_the_policies_of_the_last_checkpoint(run):
    result = lsac("eval", run, "--episodes", 2)
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 5", "seed 6", "sac on Pendulum-v1"]
    assert lines[0].endswith("over 2 episodes (mean length 200, policy of step 256)")
    returns = [float(re.search(r"return (-[\d.]+) ±", line)[1]) for line in lines[:2]]
    assert float(lines[2].split()[-1]) == pytest.approx(np.mean(returns), abs=0.11)
    # the last evaluation of the training played the same policies from the same starts
    logged = [line["eval/mean_reward"] for line in metrics(run) if line["step"] == 256 and "eval/mean_reward" in line]
    assert returns == pytest.approx(logged, abs=0.06)


def test_best_and_last_are_the_policies_they_say(run):
    folder, experiment = RunFolder.open(run)
    spec = of_experiment(experiment).spec(experiment.gamma)
    policies, steps = policies_of(folder, experiment, spec, "last")
    state = folder.checkpoints.load().state
    assert steps == [256, 256]
    assert policies.shape == (2, sum(array[0].size for name, array in state.items() if ".actor." in name))
    best, record = folder.checkpoints.load_best()
    found, steps = policies_of(folder, experiment, spec, "best")
    assert steps == record["steps"]
    np.testing.assert_array_equal(found, best)
    for row, step in enumerate(steps):
        assert np.array_equal(best[row], policies[row]) == (step == 256)


# from Python, without a command

EXPERIMENT = Experiment(
    small.config("sac"),
    "Pendulum-v1",
    **{"steps": 96, "seeds": 2, "chunk": 8, "learning_starts": 16, "replay_capacity": 64, "log_every": 32},
    **{"eval_every": 48, "eval_episodes": 1, "checkpoint_every": 48, "workers": 1},
    gamma=0.9,  # so small that values can be compared with the returns of Pendulum's short episodes
)


def is_free(path):
    """Whether nobody trains in a folder; one that was removed is free."""
    folder = RunFolder(path)
    try:
        folder.lock()
    except FileNotFoundError:
        return True
    except InputError:
        return False
    folder.release()
    return True


def test_an_experiment_trains_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    result = running.run(EXPERIMENT, observer=Observer(seen.append))
    assert (result.finished, result.step, result.learner.updates) == (True, 96, 80)
    assert {line["seed"] for progress in seen for line in progress.lines} == {0, 1}
    assert {"train/critic_loss", "eval/mean_reward"} <= {name for p in seen for line in p.lines for name in line}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "at", [pytest.param(32, id="in between"), pytest.param(96, id="at the end", marks=pytest.mark.slow)]
)
def test_an_experiment_is_stopped_and_resumed_in_its_folder(at, tmp_path):
    for name in ("alone", "stopped"):
        folder, stop = RunFolder.create(tmp_path / name, EXPERIMENT), Stop()
        watch = lambda progress, stop=stop: stop.request() if progress.step == at else None  # noqa: E731
        observer = Observer(watch if name == "stopped" else lambda progress: None)
        assert not is_free(tmp_path / name)
        result = running.run(EXPERIMENT, folder=folder, observer=observer, stop=stop)
        assert is_free(tmp_path / name), "the folder is released"
        assert (result.finished, result.step) == (name == "alone", 96 if name == "alone" else at)
    folder, experiment = RunFolder.open(tmp_path / "stopped", to_train=True)
    assert experiment == EXPERIMENT
    said = []
    result = running.run(experiment, folder=folder, resume=True, observer=Observer(say=said.append))
    assert (result.finished, result.step) == (True, 96)
    assert f"continuing at step {at}; exact: the simulators continue where they were" in said
    assert torture.fingerprint(tmp_path / "stopped") == torture.fingerprint(tmp_path / "alone")
    assert len([line for line in metrics(tmp_path / "stopped") if "eval/q_bias" in line]) == 6
    assert is_free(tmp_path / "stopped")


def test_a_folder_without_a_checkpoint_is_resumed_from_the_start(tmp_path):
    said = []
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT)
    result = running.run(EXPERIMENT, folder=folder, resume=True, observer=Observer(say=said.append))
    assert (result.finished, result.step) == (True, 96)
    assert "continuing at step 0; exact: it had not been saved yet and starts again" in said


def raises(*_):
    raise KeyError("of the user")


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        (EXPERIMENT, {"observer": Observer(watch=raises)}),
        (EXPERIMENT, {"observer": Observer(say=raises)}),
        (EXPERIMENT, {"resume": True, "observer": Observer(watch=raises)}),
        (dataclasses.replace(EXPERIMENT, env="NoSuch-v0"), {}),
        (dataclasses.replace(EXPERIMENT, replay_capacity=2**30, steps=2**30, seeds=1000), {}),
    ],
    ids=["while training", "before training", "while resumed", "no such environment", "no memory"],
)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to see other processes")
def test_an_error_releases_the_folder_and_ends_the_workers(broken, options, tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, str(tmp_path))
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT)
    with pytest.raises((KeyError, InputError)):
        running.run(broken, folder=folder, **options)
    assert is_free(tmp_path / "run")
    assert marked(tmp_path) == []
