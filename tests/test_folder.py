"""The folder of a run: what a failed start leaves, what is replaced, and the command that continues it."""

import dataclasses
import fcntl
import json
import os
import shlex
from pathlib import Path

import pytest
from commands import TINY, lsac

from lsac.errors import EnvironmentFault, InputError, Stopped
from lsac.presets import preset
from lsac.runs.folder import LOCK, RunFolder, resume_command
from lsac.train import run as running
from lsac.train.loop import Loop
from lsac.train.run import Observer
from lsac.train.stopping import Stop

TRAIN = ("train", "sac", "--env", "Pendulum-v1", *TINY, "--steps", "64")
EXPERIMENT = dataclasses.replace(preset("sac", "quickstart", "Pendulum-v1"), steps=64, seeds=1, workers=1)


def tree(path):
    return {str(found.relative_to(path)) for found in Path(path).rglob("*")}


def fails(*args, **options):
    raise EnvironmentFault("it broke")


# a failed start


@pytest.mark.parametrize("broken", ["compiled_learner", "choose_workers", "Pool"])
def test_a_run_that_fails_before_its_first_step_leaves_no_folder(broken, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(running, broken, fails)
        result = lsac(*TRAIN, "--out", tmp_path / "new" / "run")
        assert (result.code, result.sentence) == (3, "lsac: it broke")
    assert tree(tmp_path) == set()
    assert lsac(*TRAIN, "--out", tmp_path / "new" / "run").code == 0, "the corrected command works"


def test_what_was_in_the_folder_before_a_failed_start_stays(tmp_path, monkeypatch):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in ("notes.txt", "curve.png", "checkpoints/mine"):
        (tmp_path / "run" / name).touch()
    before = tree(tmp_path)
    monkeypatch.setattr(running, "compiled_learner", fails)
    assert lsac(*TRAIN, "--out", tmp_path / "run").code == 3
    assert tree(tmp_path) == before


def test_a_run_that_fails_after_its_first_step_keeps_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "_train", fails)
    assert lsac(*TRAIN, "--out", tmp_path / "run").code == 3
    assert "run/config.json" in tree(tmp_path)


def test_a_resume_that_fails_keeps_the_folder(tmp_path, monkeypatch):
    RunFolder.create(tmp_path / "run", EXPERIMENT).release()
    monkeypatch.setattr(running, "compiled_learner", fails)
    assert lsac("resume", tmp_path / "run").code == 3
    assert tree(tmp_path) == {"run", "run/config.json"}


def test_a_stop_before_the_first_step_keeps_the_folder(tmp_path):
    stop = Stop(final=True)
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT)
    with pytest.raises(Stopped):
        running.run(EXPERIMENT, folder=folder, observer=Observer(say=lambda text: stop.request()), stop=stop)
    assert tree(tmp_path) == {"run", "run/config.json"}


# overwriting


def test_overwrite_replaces_a_run_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    assert lsac(*TRAIN, "--seed", 1, "--out", run).code == 0
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints" / "left.safetensors").touch()
    result = lsac(*TRAIN, "--out", run)
    command = f"lsac resume {run}"
    sentence = f"lsac: --out {run}: already holds a run; --overwrite replaces it, {command} continues it"
    assert (result.code, result.sentence) == (2, sentence)
    assert lsac(*TRAIN, "--seed", 2, "--out", run, "--overwrite").code == 0
    assert json.loads((run / "config.json").read_text())["experiment"]["seed"] == 2
    assert {json.loads(line)["seed"] for line in (run / "metrics.jsonl").read_text().splitlines()} == {2}
    assert (run / "notes.txt").read_text() == "mine"
    assert not (run / "checkpoints" / "left.safetensors").exists()
    assert lsac(*TRAIN, "--out", tmp_path / "another", "--overwrite").code == 0, "there need not be one"


def test_a_run_is_replaced_only_by_one_that_starts(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert lsac(*TRAIN, "--seed", 1, "--out", run).code == 0
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(running, "compiled_learner", fails)
        assert lsac(*TRAIN, "--seed", 2, "--out", run, "--overwrite").code == 3
    assert {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert lsac("resume", run).code == 0
    assert lsac(*TRAIN, "--seed", 2, "--out", run, "--overwrite").code == 0
    assert not list(run.glob(".replaced*"))


@pytest.mark.parametrize("content", ["{}", "not JSON", '{"format": 1}'])
def test_overwrite_touches_no_folder_of_another_program(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "checkpoints").mkdir()
    for more in ((), ("--overwrite",)):
        result = lsac(*TRAIN, "--out", tmp_path, *more)
        sentence = f"lsac: --out {tmp_path}: holds a config.json that is not of a run; choose another folder"
        assert (result.code, result.sentence) == (2, sentence)
    assert tree(tmp_path) == {"config.json", "checkpoints"}


def test_overwrite_waits_for_nobody(tmp_path):
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT)
    result = lsac(*TRAIN, "--out", tmp_path / "run", "--overwrite")
    assert (result.code, result.sentence) == (2, f"lsac: {tmp_path}/run: another process is training in this folder")
    folder.release()


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    RunFolder.create(tmp_path / "run", EXPERIMENT).release()
    os.symlink(tmp_path / "elsewhere", tmp_path / "run" / "checkpoints")
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, overwrite=True)
    folder.settle()
    folder.release()
    assert tree(tmp_path) == {"elsewhere", "elsewhere/file", "run", "run/config.json"}


# commands


@pytest.mark.parametrize("path", ["runs/a", "sp ace/ümlaut's", "$(date)/*"])
@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (["Pendulum-v1"], []),
        (["Pendulum-v1", "gymnasium.wrappers:ClipAction"], []),
        (["mine:My-v0", "mine:wrap", "other:wrap"], ["--module", "mine", "--module", "other"]),
    ],
)
def test_the_command_that_continues_a_run_survives_a_shell(path, names, modules):
    assert shlex.split(resume_command(Path(path), names)) == ["lsac", "resume", path, *modules]


def test_the_hint_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Loop, "_train", lambda loop: loop._stop.request() or loop._stop.check())
    result = lsac(*TRAIN, "--out", "sp ace/$x")
    assert result.code == 75
    hint = result.out.splitlines()[-1].split("continue with: ")[1]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert lsac(*shlex.split(hint)[1:]).code == 0


# length


def test_a_resume_does_not_shorten_a_run(tmp_path):
    RunFolder.create(tmp_path / "run", EXPERIMENT).release()
    result = lsac("resume", tmp_path / "run", "--steps", 32)
    sentence = "lsac: --steps 32: the run has 64 steps, which a resume does not shorten"
    assert (result.code, result.sentence) == (2, sentence)
    assert RunFolder.open(tmp_path / "run")[1].steps == 64


def test_an_unusable_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "run", EXPERIMENT)


# updates


def test_a_run_without_updates_says_so_before_and_after(tmp_path):
    result = lsac(*TRAIN, "--learning-starts", 64, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    said = "warning: no update will be made: --steps 64 is not more than --learning-starts 64; try --learning-starts 0"
    assert said in result.out
    assert ", 0 updates were made\n" in result.out
    result = lsac(*TRAIN, "--out", tmp_path / "other")
    assert "warning" not in result.out
    assert ", 48 updates were made\n" in result.out
    assert "seed 0\n" in result.out
    assert "8 updates × 1 seed into" in result.out
    result = lsac(*TRAIN, "--steps", 24, "--seeds", 2, "--out", tmp_path / "two")
    assert ", 8 updates were made per seed\n" in result.out
    assert "seeds 0, 1\n" in result.out
    result = lsac("eval", tmp_path / "run", "--episodes", 1)
    assert "over 1 episode (" in result.out
    assert "mean over 1 seed " in result.out


# locks


def test_the_lock_is_on_a_file_which_machines_share(tmp_path):
    """Not on the folder, whose lock a network file system would keep on one machine."""
    folder = RunFolder(tmp_path)
    folder.lock()
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    other = os.open(tmp_path / LOCK, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    folder.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_its_owner_has_just_removed_does_not_count(tmp_path, monkeypatch):
    first, second, third = (RunFolder(tmp_path) for _ in range(3))
    first.lock()
    flock, calls = fcntl.flock, []

    def late(handle, how):
        calls.append(handle)
        if len(calls) == 1:
            first.release()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second.lock()
    assert len(calls) == 2, "the file that is gone, and the new one"
    with pytest.raises(InputError, match="another process is training in this folder"):
        third.lock()
    second.release()


def test_a_killed_process_leaves_a_file_that_locks_nobody_out(tmp_path):
    (tmp_path / LOCK).touch()
    folder = RunFolder(tmp_path)
    folder.lock()
    folder.release()
    (tmp_path / LOCK).mkdir()
    with pytest.raises(InputError, match=r"cannot be locked \(Is a directory\)$"):
        folder.lock()
