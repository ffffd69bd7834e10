"""Runs of earlier versions, in tests/old_runs: they can be evaluated and reported, but not resumed.

Their data files have format 3: each was trained by a version whose transitions had no named columns, with

    lsac train ALGO --env Pendulum-v1 --steps 256 --log-every 64 --checkpoint-every 128 --eval-every 128

and the small sizes of tests/small.py; TensorBoard's files and the curve were removed.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import lsac, metrics

from lsac.model import CLASSES
from lsac.runs.datafile import FORMAT, READABLE, read, read_record

OLD = Path(__file__).parent / "old_runs"
ALGORITHMS = ("sac", "ppo", "lsac")
OLD_FORMAT = 3


@pytest.fixture(params=ALGORITHMS)
def run(request, tmp_path):
    """A copy, so that no test changes the files of another."""
    return shutil.copytree(OLD / request.param, tmp_path / request.param)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_are_of_an_earlier_format():
    assert OLD_FORMAT in READABLE
    assert OLD_FORMAT != FORMAT
    for algorithm in ALGORITHMS:
        files = sorted((OLD / algorithm).rglob("*.safetensors"))
        assert len(files) >= 5, "two checkpoints, the best policies and transitions"
        assert {read_record(path)["format"] for path in files} == {OLD_FORMAT}


def returns_of(result):
    assert result.code == 0, result.err
    return [float(re.search(r"return (-[\d.]+) ±", line)[1]) for line in result.out.splitlines()[:-1]]


def test_the_last_policies_play_as_they_did(run):
    before = contents(run)
    result = lsac("eval", run, "--episodes", 1)
    logged = [line["eval/mean_reward"] for line in metrics(run) if line["step"] == 256 and "eval/mean_reward" in line]
    assert returns_of(result) == pytest.approx(logged, abs=0.06)
    assert result.out.splitlines()[0].endswith("over 1 episode (mean length 200, policy of step 256)")
    assert result.out.splitlines()[-1].startswith(f"{run.name} on Pendulum-v1: mean over 2 seeds -")
    assert contents(run) == before


def test_the_best_policies_play_as_they_did(run):
    """Starts depend on the step, and all seeds play from those of the latest one."""
    before = contents(run)
    result = lsac("eval", run, "--episodes", 1, "--policy", "best")
    _, best = read(run / "checkpoints" / "best.safetensors")
    latest = np.flatnonzero(np.equal(best["steps"], max(best["steps"])))
    found = returns_of(result)
    assert len(found) == 2
    assert [found[i] for i in latest] == pytest.approx([best["returns"][i] for i in latest], abs=0.06)
    for line, step in zip(result.out.splitlines(), best["steps"], strict=False):
        assert line.endswith(f"policy of step {step})")
    assert contents(run) == before


def test_they_are_reported_together(tmp_path):
    runs = [shutil.copytree(OLD / algorithm, tmp_path / algorithm) for algorithm in ALGORITHMS]
    before = [contents(run) for run in runs]
    result = lsac("report", *runs, "--out", tmp_path / "report")
    assert result.code == 0, result.err
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"Pendulum-v1.png", "Pendulum-v1-diagnostics.png", "table.csv"} <= names
    table = (tmp_path / "report" / "table.csv").read_text()
    assert all(algorithm in table for algorithm in ALGORITHMS)
    assert [contents(run) for run in runs] == before


def rejected(run, *options):
    """The sentence with which a resume is rejected, after a look at the files."""
    before = contents(run)
    result = lsac("resume", run, *options)
    assert result.code == 2
    assert contents(run) == before
    return result.sentence


SENTENCE = (
    f"was written by an earlier version of lsac (format {OLD_FORMAT}, now {FORMAT}): it can be evaluated and reported, "
    "but not resumed"
)


def test_they_are_not_made_longer(run):
    path = run / "checkpoints" / "step-0000000256.safetensors"
    assert rejected(run, "--steps", 512) == f"lsac: {path}: {SENTENCE}"


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_one_that_had_not_finished_is_not_resumed(stopped, tmp_path):
    run = shutil.copytree(OLD / "sac", tmp_path / "sac")
    (run / "checkpoints" / "step-0000000256.safetensors").unlink()
    path = run / "checkpoints" / "step-0000000128.safetensors"
    if stopped:
        path = path.rename(run / "checkpoints" / "stopped.safetensors")
    assert rejected(run) == f"lsac: {path}: {SENTENCE}"


def test_one_that_has_finished_has_nothing_to_do(tmp_path):
    run = shutil.copytree(OLD / "sac", tmp_path / "sac")
    before = contents(run)
    result = lsac("resume", run)
    assert result.code == 0
    assert result.out == f"{run}: finished at step 256; nothing to do\n", "it cannot be made longer"
    assert contents(run) == before, "nothing is added to it"


@pytest.mark.parametrize("algorithm", ["sac", "ppo", "lsac"])
def test_one_becomes_a_model(algorithm, tmp_path):
    kind = CLASSES[algorithm.upper()]
    model = kind.load(OLD / algorithm)
    assert model.num_timesteps > 0
    assert (model._trained.state is None) == (algorithm == "lsac"), "its generator has other arrays now"
    loaded = kind.load(model.save(tmp_path / "model"))
    obs = np.array([0.6, -0.8, 1.5], np.float32)
    np.testing.assert_array_equal(*(m.predict(obs, deterministic=True)[0] for m in (model, loaded)))
