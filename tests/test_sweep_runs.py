"""Sweeps that run: processes that are killed, stopped, fail or are in each other's way; then real ones."""

import contextlib
import ipaddress
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sweep_kills
from commands import finish, lsac, metrics, start

from lsac.sweeps import on_ray, training
from lsac.sweeps.engines import Local
from lsac.sweeps.machine import Shares
from lsac.sweeps.sweep import locked
from lsac.sweeps.training import Ended, Job, Training

# Processes that only pretend to train: the first word is how they end.

PRETEND = """
import os, pathlib, signal, sys, time
kind, folder = sys.argv[1:3]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
place = pathlib.Path(folder)
(place / "config.json").touch()
with (place / "starts").open("a") as file:
    print(kind, os.environ.get("SLOT", ""), file=file)
starts = len((place / "starts").read_text().splitlines())
if kind == "wait":
    while not stopped:
        time.sleep(0.01)
    sys.exit(75)
if kind == "killed" or (kind == "killed-once" and starts == 1):
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "fails":
    sys.exit("something\\nlsac: --chunk 7: must be more")
if kind == "breaks":
    raise ValueError("no such thing")
if kind != "forgets":
    (place / "done").touch()
"""


@pytest.fixture(autouse=True)
def pretend(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setattr(training, "COMMAND", (sys.executable, "-c", PRETEND))
        monkeypatch.setattr(training, "finished", lambda folder, steps: (folder / "done").exists())


def job(folder, kind, resume=None):
    return Job(str(folder), 1, [kind, str(folder)], [resume or kind, str(folder)])


def ended(train, within=20.0):
    until = time.monotonic() + within
    while (end := train.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return end


def starts(folder):
    return (folder / "starts").read_text().split()


def test_a_job_trains_and_is_then_left_alone(tmp_path):
    assert ended(Training(job(tmp_path, "trains"), {"SLOT": "here"})) == Ended("finished")
    assert starts(tmp_path) == ["trains", "here"]
    assert ended(Training(job(tmp_path, "trains"), {})) == Ended("finished")
    assert starts(tmp_path) == ["trains", "here"], "not again"
    assert (tmp_path / "train.log").read_text().startswith("$ lsac trains ")


def test_what_has_begun_is_resumed(tmp_path):
    (tmp_path / "config.json").touch()
    assert ended(Training(job(tmp_path, "trains", resume="resumes"), {})) == Ended("finished")
    assert starts(tmp_path) == ["resumes"]


def test_a_killed_process_is_started_again_but_not_for_ever(tmp_path):
    assert ended(Training(job(tmp_path / "a", "killed-once"), {})) == Ended("finished")
    assert len(starts(tmp_path / "a")) == 2
    end = ended(Training(job(tmp_path / "b", "killed"), {}))
    assert end == Ended("failed", "its process was killed 4 times, the last time by SIGKILL")
    assert len(starts(tmp_path / "b")) == 1 + training.RESTARTS == 4


def test_failures_are_told_in_their_own_words(tmp_path):
    assert ended(Training(job(tmp_path / "a", "fails"), {})) == Ended("failed", "--chunk 7: must be more", 1)
    end = ended(Training(job(tmp_path / "b", "breaks"), {}))
    assert end == Ended("failed", f"ValueError: no such thing (see {tmp_path / 'b' / 'train.log'})", 1)
    assert "before the last step" in ended(Training(job(tmp_path / "c", "forgets"), {})).sentence


def test_a_stop_is_passed_on_and_awaited(tmp_path):
    train = Training(job(tmp_path, "wait"), {})
    while not (tmp_path / "starts").exists():
        assert train.poll() is None
        time.sleep(0.01)
    train.stop()
    train.stop()
    assert ended(train) == Ended("stopped")
    later = Training(job(tmp_path, "wait"), {})
    later.stop()
    assert ended(later) == Ended("stopped")
    assert len(starts(tmp_path)) == 1, "what is stopped before it starts does not"


def test_a_folder_in_which_another_process_trains_is_awaited(tmp_path, monkeypatch):
    lock = "import sys, time; from pathlib import Path; from lsac.runs.folder import RunFolder"
    lock += "; RunFolder(Path(sys.argv[1])).lock()"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{lock}; print(1, flush=True); time.sleep(60)", tmp_path], stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    train = Training(job(tmp_path, "trains"), {})
    assert [train.poll() for _ in range(3)] == [None] * 3
    assert not (tmp_path / "starts").exists()
    monkeypatch.setattr(training, "PATIENCE", 0.05)
    end = ended(Training(job(tmp_path, "trains"), {}))
    assert end == Ended("failed", "another process is training in its folder")
    other.kill()
    other.communicate()
    assert ended(train) == Ended("finished")


def test_an_engine_trains_as_many_as_it_has_room_for(tmp_path):
    engine = Local(Shares([{"SLOT": "a"}, {"SLOT": "b"}], 1))
    names = ("fails", "trains", "wait", "killed-once", "wait")
    folders = [str(tmp_path / f"{i}-{name}") for i, name in enumerate(names)]
    for folder, name in zip(folders, names, strict=True):
        engine.submit(job(Path(folder), name))
    ends: dict[str, str] = {}
    until = time.monotonic() + 30
    while len(ends) < 5:
        ends |= {folder: end.state for folder, end in engine.ended()}
        assert len(engine.running()) <= 2
        if len(ends) == 3:
            for folder in folders[2:]:
                engine.stop(folder)
        assert time.monotonic() < until
        time.sleep(0.01)
    assert [ends[folder] for folder in folders] == ["failed", "finished", "stopped", "finished", "stopped"]
    used = {starts(Path(folder))[1] for folder in folders if Path(folder, "starts").exists()}
    assert used == {"a", "b"}


def test_a_task_of_ray_ends_its_run_when_a_file_says_so(tmp_path):
    stop = tmp_path / "stop"
    assert on_ray.train_job(job(tmp_path / "a", "trains"), str(stop), {"SLOT": "x"}) == Ended("finished")
    assert starts(tmp_path / "a") == ["trains", "x"]
    threading.Timer(0.3, stop.touch).start()
    assert on_ray.train_job(job(tmp_path / "b", "wait"), str(stop), {}) == Ended("stopped")
    assert on_ray.train_job(job(tmp_path / "c", "trains"), str(stop), {}) == Ended("stopped")
    assert not (tmp_path / "c").exists(), "a task that Ray starts after the stop trains nothing"
    assert [on_ray._part(share) for share in (0.3337, 1.0, 2.5, 0.0)] == [0.333, 1.0, 2.0, 0.0]


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    with locked(tmp_path, "sweep"):
        result = lsac("sweep", "--suite", "smoke", "--out", tmp_path)
    assert result.code == 2
    assert result.sentence == f"lsac: --out {tmp_path}: another sweep is running in this folder"
    with pytest.raises(BlockingIOError), locked(tmp_path, "sweep"):
        raise BlockingIOError("of the work itself")


# Real processes


def test_a_real_process_ends_with_its_parent(tmp_path):
    words = ["train", "sac", "--env", "Pendulum-v1", "--out", str(tmp_path / "run")]
    parent = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import subprocess, sys, time; pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL); "
            "c = subprocess.Popen(sys.argv[1:], **pipes); print(c.pid, flush=True); time.sleep(60)",
            *training.COMMAND,
            *words,
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 10
    while running(child):
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.05)


def running(pid):
    """Whether a process is there and not only waits for its parent to notice that it has ended."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def listening(pids):
    """The addresses at which processes wait for connections over a network."""
    own = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            own |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = row.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                words = struct.unpack(f">{len(local) // 8}I", bytes.fromhex(local.partition(":")[0]))
                address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
                mapped = getattr(address, "ipv4_mapped", None) or address
                found.add(f"{mapped}:{int(local.partition(':')[2], 16)}")
    return found


PLAN = """
from lsac.sweeps.plan import experiment

SMALL = {"hidden": (16,), "batch_size": 32, "chunk": 8, "replay_capacity": 64, "learning_starts": 16, "workers": 1}
OFTEN = {"eval_every": STEPS, "eval_episodes": 1, "log_every": 80, "checkpoint_every": 160}


def experiments():
    return [
        experiment("sac", "Pendulum-v1", label, **SMALL, **OFTEN, steps=steps)
        for label, steps in (("long", STEPS), ("short", 160))
    ]
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.py"
    path.write_text(PLAN.replace("STEPS", "16_000"))
    return path


def wait_for(found, process, within=120.0):
    until = time.monotonic() + within
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_real_sweep_is_stopped_and_goes_on_elsewhere(plan, tmp_path):
    """One run is stopped on its way; the folder is moved; both are finished there, once."""
    out, moved = tmp_path / "out", tmp_path / "moved"
    sweep = start("sweep", plan, "--out", out, "--jobs", 1)
    wait_for(lambda: list(out.glob("*/long/checkpoints/step-*")), sweep)
    sweep.send_signal(signal.SIGINT)
    result = finish(sweep)
    assert result.code == 75, result
    assert f"stopped and saved; continue with: lsac sweep {plan} --out {out} --jobs 1" in result.out
    assert "Pendulum-v1/long: stopped" in result.out
    assert not (out / "Pendulum-v1/short").exists()
    out.rename(moved)
    result = lsac("sweep", plan, "--out", moved)
    assert result.code == 0, result
    assert "2 experiments to train, 0 finished" in result.out
    assert "2 of 2 experiments finished" in result.out
    resumes = json.loads((moved / "Pendulum-v1/long/config.json").read_text())["resumes"]
    assert [(resumed["kind"], 160 <= resumed["step"] < 16_000) for resumed in resumes] == [("exact", True)]
    lines = metrics(moved / "Pendulum-v1/long")
    assert [line["step"] for line in lines if "train/n_updates" in line] == [*range(80, 16_001, 80)]
    assert [line["step"] for line in lines if "eval/mean_reward" in line] == [0, 16_000]
    before = [(path, path.stat().st_mtime_ns) for path in sorted(moved.rglob("*"))]
    again = lsac("sweep", plan, "--out", moved)
    assert (again.code, again.out) == (0, f"{moved}: all 2 experiments finished; nothing to do\n")
    assert [(path, path.stat().st_mtime_ns) for path in sorted(moved.rglob("*"))] == before
    other = lsac("sweep", plan, "--out", moved, "--seeds", 2)
    assert other.code == 2
    assert "holds a run with --seeds 1, not 2" in other.sentence


@pytest.mark.slow
def test_a_real_failure_does_not_stop_the_others(plan, tmp_path):
    text = plan.read_text().replace("16_000", "160")
    broken = 'experiment("sac", "Pendulum-v1", "broken", env_args=("nothing=1",), **SMALL, steps=160),\n        *['
    plan.write_text(
        text.replace("return [\n", f"return [\n        {broken}\n", 1).replace("160))\n    ]", "160))\n    ]]")
    )
    result = lsac("sweep", plan, "--out", tmp_path / "out", "--jobs", 2)
    assert result.code == 1
    assert "Pendulum-v1/broken: failed: --env-args nothing: Pendulum-v1 has no argument of this name" in result.out
    assert "2 of 3 experiments finished" in result.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", sweep_kills.KINDS)
def test_a_real_sweep_on_ray_survives_a_kill(kind, tmp_path):
    """As benchmarks/sweep_kills.py does, which chooses the moment at random, and many times."""
    alone = tmp_path / "alone"
    assert subprocess.run(sweep_kills.command(alone, "local")).returncode == 0
    killed = sweep_kills.disturbed(alone, tmp_path / "disturbed", kind, 8.0, random.Random(0))
    assert killed is not None
    assert killed.problem == ""


@pytest.mark.slow
def test_a_real_sweep_on_ray_is_stopped_and_saved(plan, tmp_path):
    out = tmp_path / "out"
    sweep = start("sweep", plan, "--out", out, "--jobs", 1, "--engine", "ray")
    wait_for(lambda: list(out.glob("*/long/checkpoints/step-*")), sweep)
    sweep.send_signal(signal.SIGTERM)
    result = finish(sweep)
    assert result.code == 75, result
    assert (out / "Pendulum-v1/long/checkpoints/stopped.safetensors").exists()
    assert list(out.rglob(".stop-*")) == []
    assert os.path.exists(out / "sweep.json")


def test_a_real_sweep_on_ray_with_a_killed_worker_ends_in_a_report(tmp_path):
    """The small form of what benchmarks/sweep_kills.py does; the local engine is in the tests above."""
    plan, out, report = tmp_path / "plan.py", tmp_path / "out", tmp_path / "report"
    plan.write_text(PLAN.replace(', ("short", 160)', ",").replace("STEPS", "4_000"))
    sweep = start("sweep", plan, "--out", out, "--engine", "ray")
    wait_for(lambda: list(out.glob("*/long/checkpoints/step-*")), sweep)
    found = listening([sweep.pid, *(process.pid for process in sweep_kills.descendants(sweep.pid))])
    assert {address.rpartition(":")[0] for address in found} == {"127.0.0.1"}, "no other machine can connect"
    (worker,) = sweep_kills.victims(sweep.pid, "worker")
    os.kill(worker, signal.SIGKILL)
    result = finish(sweep)
    assert result.code == 0, result
    assert "1 of 1 experiment finished" in result.out
    run = out / "Pendulum-v1/long"
    resumes = json.loads((run / "config.json").read_text())["resumes"]
    assert [resumed["kind"] for resumed in resumes] == ["exact"], "killed on its way"
    assert (run / "train.log").read_text().count("final evaluation return") == 1
    lines = metrics(run)
    assert [line["step"] for line in lines if "train/n_updates" in line] == [*range(80, 4_001, 80)]
    assert "nothing to do" in lsac("sweep", plan, "--out", out).out
    result = lsac("report", out, "--out", report)
    assert result.code == 0, result
    assert "long" in (report / "index.html").read_text()


def test_a_miss_of_a_killed_sweep_would_be_seen(tmp_path, monkeypatch):
    """What the kills are judged by: an experiment that is missing, different, or finished twice."""
    for name in ("alone", "other"):
        for path in ("a/x", "a/y", "b/x"):
            folder = tmp_path / name / path
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "config.json").touch()
            (folder / "checkpoints/step-0000000008.safetensors").write_bytes(b"state")
            (folder / "metrics.jsonl").write_text('{"step": 8, "seed": 0}\n')
            (folder / "train.log").write_text("sac on X: final evaluation return 1\n")
    alone, other = tmp_path / "alone", tmp_path / "other"
    said = "nothing to do"
    monkeypatch.setattr(sweep_kills, "command", lambda place: [sys.executable, "-c", f"print({said!r})"])
    assert sweep_kills.problem_of(alone, other) == ""
    said = "2 of 3 experiments finished"
    assert sweep_kills.problem_of(alone, other).startswith("not finished")
    (other / "a/y/train.log").write_text("final evaluation return 1\nfinal evaluation return 1\n")
    assert sweep_kills.problem_of(alone, other) == "a/y: finished 2 times"
    (other / "a/x/checkpoints/step-0000000008.safetensors").write_bytes(b"other")
    assert sweep_kills.problem_of(alone, other).startswith("a/x: differ: checkpoints/step")
