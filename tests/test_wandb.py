"""Metrics on Weights & Biases: offline, one run per seed, continued by a resume; its failures never end a training."""

import json
import struct
import subprocess
import sys
import warnings

import pytest
import wandb
from commands import TINY, lsac, metrics
from small import config

from lsac.errors import CheckpointError, InputError
from lsac.runs.experiment import Experiment
from lsac.runs.weights_and_biases import FILE, Board, identify

EXPERIMENT = Experiment(agent=config("sac"), env="Pendulum-v1", seeds=2)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


HEADER, BLOCK = 7, 32_768


def records(data):
    """The records of an offline file: after 7 bytes, a log of LevelDB, whose records may be split over blocks of
    32 KiB; each part has a checksum (4 bytes), a length (2) and a kind (1: whole, 2: first, 3: middle, 4: last)."""
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):
            yield parts
            parts = b""


def logged(file):
    """The rows that an offline run has stored, and its configuration."""
    from wandb.proto import wandb_internal_pb2

    rows, settings = [], {}
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {"/".join(x.nested_key) or x.key: json.loads(x.value_json) for x in record.history.item}
            rows.append({name: value for name, value in items.items() if not name.startswith("_")})
        elif kind == "run":
            settings |= {x.key: json.loads(x.value_json) for x in record.run.config.update}
    return rows, settings


def test_a_run_and_its_resume_are_logged_under_the_same_ids(tmp_path):
    run = tmp_path / "run"
    options = ("--env", "Pendulum-v1", "--seeds", "2", "--log-every", "8", *TINY)
    result = lsac("train", "sac", "--steps", "24", *options, "--out", run, "--wandb", "--wandb-project", "control")
    assert result.code == 0, result.err
    stored = json.loads((run / FILE).read_text())
    assert stored["project"] == "control"
    assert stored["ids"].keys() == {"0", "1"}
    before = len(metrics(run))
    again = lsac("resume", run, "--steps", "40", "--wandb")
    assert again.code == 0, again.err
    assert json.loads((run / FILE).read_text()) == stored
    lines = metrics(run)
    for seed in (0, 1):
        files = sorted((run / "wandb").glob(f"offline-run-*-{stored['ids'][str(seed)]}/*.wandb"))
        assert len(files) == 2, "one part from train, one from resume, with the same id"
        (first, settings), (second, _) = map(logged, files)
        wanted = [{k: v for k, v in line.items() if k != "seed"} for line in lines if line["seed"] == seed]
        assert first == wanted[: before // 2]
        assert second == wanted[before // 2 :]
        assert (settings["seed"], settings["algorithm"], settings["env"]) == (seed, "sac", "Pendulum-v1")
    assert lsac("resume", run, "--steps", "48", "--wandb", "--wandb-project", "x").sentence == (
        "lsac: --wandb-project x: the run is in the project control already"
    )


def test_a_failure_to_start_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(**options):
        raise wandb.errors.CommError("no server\nat all")

    monkeypatch.setattr(wandb, "init", fail)
    result = lsac("train", "sac", "--env", "Pendulum-v1", "--steps", "24", *TINY, "--out", tmp_path / "run", "--wandb")
    assert result.code == 2
    assert result.sentence == "lsac: --wandb: could not start (no server)"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_to_start_does_not_fix_the_project(tmp_path, monkeypatch):
    def login(project, **options):
        if project == "mistyped":
            raise wandb.errors.CommError("no such project")
        return Broken()

    monkeypatch.setattr(wandb, "init", login)
    with pytest.raises(InputError, match="could not start"):
        Board(tmp_path, EXPERIMENT, "mistyped", print)
    assert not (tmp_path / FILE).exists()
    Board(tmp_path, EXPERIMENT, "right", print)
    assert json.loads((tmp_path / FILE).read_text())["project"] == "right"


def test_a_project_without_wandb_is_refused(tmp_path):
    result = lsac("train", "sac", "--env", "Pendulum-v1", *TINY, "--out", tmp_path / "run", "--wandb-project", "p")
    assert (result.code, result.sentence) == (2, "lsac: --wandb-project p: is an option of --wandb")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"pip install 'lsac\[wandb\]'"):
        Board(tmp_path, EXPERIMENT, None, print)


class Broken:
    def define_metric(self, *names, **options):
        pass

    def log(self, line):
        raise RuntimeError("connection lost")

    def finish(self, exit_code):
        raise RuntimeError("connection lost")


def test_a_later_failure_warns_once(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "init", lambda **options: Broken())
    said = []
    board = Board(tmp_path, EXPERIMENT, None, said.append)
    for _ in range(3):
        board.log([{"step": 1, "seed": 0, "a/b": 1.0}])
    board.close()
    assert len(said) == 1
    assert "connection lost" in said[0]
    assert "metrics.jsonl" in said[0]


@pytest.mark.parametrize(
    "content",
    [
        {"project": "p", "ids": {"0": "a"}},
        {"project": 3, "ids": {"0": "a", "1": "b"}},
        {"project": "p", "ids": {"0": "a", "1": "../b"}},
        [],
    ],
)
def test_a_damaged_file_of_ids_is_rejected(content, tmp_path):
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=FILE):
        identify(tmp_path, [0, 1], None)


def test_nothing_is_imported_without_it():
    code = "import sys, lsac.cli.training, lsac.runs.weights_and_biases; sys.exit('wandb' in sys.modules)"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
