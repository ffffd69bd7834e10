"""What a run survives: other runs, full disks, numbers that are no numbers; and what it leaves behind."""

import errno
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import types

import jax.numpy as jnp
import pytest
import torture
from commands import lsac

from lsac.agents import AGENTS, sac
from lsac.collect.pool import Pool
from lsac.errors import InputError, SaveFailed, Stopped
from lsac.presets import preset
from lsac.runs import datafile, metrics
from lsac.runs.folder import RunFolder
from lsac.train.loop import Loop
from lsac.train.refresh import Refresher
from lsac.train.stopping import Stop, abandoned_work, interruptible

SAC = ("train", "sac", "--env", "Pendulum-v1", *torture.options("sac"))
LSAC = ("train", "lsac", "--env", "Pendulum-v1", *torture.options("lsac"), "--steps", "400", "--eval-every", "200")
LSAC += ("--gamma", "0.9")  # so small that values can be compared with the returns of Pendulum's short episodes


@pytest.mark.parametrize(
    ("algorithm", "env", "left"), [("sac", "Hopper-v5", 3), pytest.param("lsac", "Ant-v5", 6, marks=pytest.mark.slow)]
)
def test_a_killed_run_becomes_the_run_that_was_left_alone(algorithm, env, left, tmp_path):
    """kill -9 at random moments: the same bytes in every file, the same numbers in every line."""
    alone, rng = tmp_path / "alone", random.Random(algorithm)
    assert torture.run(torture.train(algorithm, env, alone))[0] == 0
    for attempt in itertools.count():  # a run may end before it was killed that often, or at all
        killed = tmp_path / f"killed {attempt}"
        orders = torture.commands(algorithm, env, killed)
        count, problem = torture.survive(orders, killed, rng, left, 8.0, signal.SIGKILL)
        left -= count
        assert problem == ""
        assert torture.fingerprint(killed) == torture.fingerprint(alone)
        resumes = json.loads((killed / "config.json").read_text()).get("resumes", [])
        assert all(resume["kind"] in ("exact", "start") for resume in resumes)
        if not left:
            break


@pytest.mark.slow
def test_an_on_policy_run_is_the_same_in_another_process(tmp_path):
    *command, _ = torture.train("ppo", "Hopper-v5", tmp_path)
    assert torture.run([*command, str(tmp_path / "there")])[0] == 0
    assert lsac(*command[3:], tmp_path / "here").code == 0
    assert torture.fingerprint(tmp_path / "here") == torture.fingerprint(tmp_path / "there")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            ("--replay-capacity", "320", "--checkpoint-every", "480"),
            id="a replay shorter than a segment",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--replay-capacity", "320", "--checkpoint-every", "0", "--num-envs", "2", "--utd", "0.5"),
            id="never saved by itself",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_stopped_run_becomes_the_run_that_was_left_alone(options, tmp_path, monkeypatch):
    """Stopped early, in the middle and at its last chunk of 150, and resumed each time."""
    assert lsac(*SAC, *options, "--out", tmp_path / "alone").code == 0
    receive, chunks = Loop._receive, []

    def interrupt(self):
        receive(self)
        chunks.append(self.step)
        if len(chunks) in (40, 81, 150):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Loop, "_receive", interrupt)
    folder = tmp_path / "stopped"
    result, stops = lsac(*SAC, *options, "--out", folder), 0
    while result.code == 75:
        assert (folder / "checkpoints" / "stopped.safetensors").is_file()
        result, stops = lsac("resume", folder), stops + 1
        assert "exact: the simulators continue where they were" in " ".join(result.out.split())
    assert (result.code, stops) == (0, 3)
    assert torture.fingerprint(folder) == torture.fingerprint(tmp_path / "alone")
    assert not (folder / "checkpoints" / "stopped.safetensors").exists()


@pytest.mark.slow
def test_a_stop_waits_neither_for_a_refresh_nor_for_an_evaluation(tmp_path, monkeypatch):
    """It saves what was before, and the resumed run does both: the files are those of a run that was left alone."""
    assert lsac(*LSAC, "--out", tmp_path / "alone").code == 0
    refresh, evaluated, never = Refresher.run, Pool.evaluated, threading.Event()
    waited, awaited = [], []

    def busy_device(self, kept, replay, step, report):
        if not waited:
            waited.append(step)
            signal.raise_signal(signal.SIGTERM)
            never.wait()
        return refresh(self, kept, replay, step, report)

    def long_episodes(self, check_stop):
        awaited.append(self)
        if len(awaited) in (2, 4):  # for the evaluation of step 200, and for the one of step 400
            signal.raise_signal(signal.SIGTERM)
        return evaluated(self, check_stop)

    left = []
    monkeypatch.setattr(Refresher, "run", busy_device)
    monkeypatch.setattr(Pool, "evaluated", long_episodes)
    monkeypatch.setattr(os, "_exit", lambda code: left.append(code) or sys.exit(code))
    folder = tmp_path / "stopped"
    steps, result = [], lsac(*LSAC, "--out", folder)
    while result.code == 75:
        steps.append(RunFolder(folder).checkpoints.load().record["step"])
        never.set()  # the device is free again, as it is for a new process
        result = lsac("resume", folder)
    assert result.code == 0
    assert steps == [304, 400, 400]
    assert left == [75], "what a thread is busy with is left behind"
    assert torture.fingerprint(folder) == torture.fingerprint(tmp_path / "alone")


def test_a_run_that_was_never_saved_starts_again(tmp_path):
    """Killed before its first checkpoint: lines and the best policy that it left behind are written over."""
    assert lsac(*SAC, "--out", tmp_path / "alone").code == 0
    folder = tmp_path / "killed"
    (tmp_path / "alone" / "config.json").rename(tmp_path / "config.json")
    folder.mkdir()
    shutil.copy(tmp_path / "config.json", folder)
    (folder / "metrics.jsonl").write_text('{"step": 0, "seed": 0, "seconds": 1.0}\n{"step": 1')
    result = lsac("resume", folder)
    assert result.code == 0
    assert "continuing at step 0; exact: it had not been saved yet and starts again" in " ".join(result.out.split())
    assert torture.fingerprint(folder) == torture.fingerprint(tmp_path / "alone")
    assert json.loads((folder / "config.json").read_text())["resumes"] == [{"step": 0, "kind": "start"}]


def test_a_run_whose_checkpoints_were_taken_away_is_not_begun_again(tmp_path):
    experiment = preset("sac", "default", "Pendulum-v1")
    RunFolder.create(tmp_path / "run", experiment).release()
    metrics = tmp_path / "run" / "metrics.jsonl"
    text = "".join(f'{{"step": {step}, "seed": 0, "seconds": 1.0}}\n' for step in (40_000, 60_000)) + '{"step'
    metrics.write_text(text)
    result = lsac("resume", tmp_path / "run")
    assert result.code == 2
    assert "holds no checkpoint, but the run got to step 60,000; to begin it again, remove" in result.sentence
    assert metrics.read_text() == text


def test_a_stop_does_not_wait_for_the_compiler():
    stop, never = Stop(final=True), threading.Event()
    threading.Timer(0.2, stop.request).start()
    started = time.monotonic()
    with pytest.raises(Stopped, match="stopped"):
        interruptible(stop, never.wait)
    assert time.monotonic() - started < 5
    assert abandoned_work()
    never.set()
    for final in (True, False):
        assert interruptible(Stop(final), lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            interruptible(Stop(final), lambda: 1 // 0)
    stop = Stop()
    stop.request()
    assert interruptible(stop, threading.current_thread) is threading.current_thread(), (
        "nothing is abandoned in a notebook"
    )


def test_two_runs_do_not_share_a_folder(tmp_path):
    first = RunFolder.create(tmp_path / "run", preset("sac", "default", "Pendulum-v1"))
    second = RunFolder(tmp_path / "run")
    with pytest.raises(InputError, match=r"another process is training in this folder$"):
        second.lock()
    first.release()
    second.lock()
    second.release()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"], "a lock leaves nothing behind"


@pytest.mark.parametrize(
    ("log_every", "saved"),
    [("100", "400"), ("480", "400"), ("480", "0")],
    ids=["in between", "at a line of metrics", "without a checkpoint"],
)
def test_a_loss_that_is_no_number_ends_the_run_where_it_appeared(log_every, saved, tmp_path, monkeypatch):
    """Update 410 is in the chunk that ends at step 480; the checkpoint of 400, if there is one, is the last."""

    def make(config, spec):
        agent = sac.make(config, spec)

        def update(state, replay, key):
            state, metrics = agent.update(state, replay, key)
            bad = jnp.where(state.critic_opt[0].count == 410, jnp.nan, 0.0)
            return state, metrics | {"critic_loss": metrics["critic_loss"] + bad}

        return agent._replace(update=update)

    monkeypatch.setitem(AGENTS, "sac", types.SimpleNamespace(Config=sac.Config, make=make, __doc__=sac.__doc__))
    often = () if saved == "400" else ("--checkpoint-every", "0")
    result = lsac(*SAC, "--log-every", log_every, *often, "--out", tmp_path / "run")
    assert result.code == 4
    assert result.sentence == (
        "lsac: seed 0: critic_loss became NaN or infinite in the updates before step 480; "
        f"{'the last checkpoint is' if saved == '400' else 'there is no checkpoint'} from before that"
    )
    assert RunFolder(tmp_path / "run").checkpoints.step() == int(saved)


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(tmp_path, monkeypatch):
    """The save at step 600 fails: one warning, and the end is as if nothing had been."""
    assert lsac(*SAC, "--out", tmp_path / "alone").code == 0
    write, folder = datafile.write_bytes, tmp_path / "full"

    def fail(path, parts):
        if "step-0000000600" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, parts)

    monkeypatch.setattr(datafile, "write_bytes", fail)
    result = lsac(*SAC, "--out", folder)
    assert result.code == 0
    text = " ".join(result.out.split())
    assert text.count("could not be saved at step 600 (No space left on device); training continues") == 1
    assert torture.fingerprint(folder) == torture.fingerprint(tmp_path / "alone")


def test_lines_wait_in_memory_for_room_on_the_disk(tmp_path, monkeypatch):
    said, real = [], metrics.json.dumps
    log = metrics.MetricsLog(tmp_path, [0], said.append)
    line = {"step": 1, "seed": 0, "seconds": 0.5, "train/x": 1.0}
    log.write([line])

    class Full:
        """A file on a disk that takes half of what is written to it."""

        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            return self.file.write(data[: len(data) // 2])

    log._file = Full(log._file)
    log.write([line | {"step": 2}])
    log.write([line | {"step": 3}])
    with pytest.raises(SaveFailed, match=r"metrics\.jsonl: could not be written$"):
        log.lines()
    assert (tmp_path / "metrics.jsonl").read_text() == real(line) + "\n", "no half lines"
    assert len(said) == 1
    log._file = log._file.file
    log.write([line | {"step": 4}])
    assert log.lines() == 4
    steps = [json.loads(text)["step"] for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    log.close()


def test_a_tensorboard_that_cannot_write_does_not_block_a_run(tmp_path):
    said = []
    log = metrics.MetricsLog(tmp_path, [0], said.append)
    worker = log._boards[0].file_writer.event_writer._worker
    worker.stop()
    worker.join(10)
    for step in range(50):
        log.write([{"step": step, "seed": 0, "seconds": 0.0, "train/x": 1.0}])
    assert log.lines() == 50
    assert said == ["warning: TensorBoard events of seed 0 can no longer be written"]
    log.close()
