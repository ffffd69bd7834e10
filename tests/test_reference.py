"""Published numbers that are shipped: complete, with their sources, and found for the right tasks."""

import hashlib
import math
from importlib import resources

import numpy as np
import pytest

from lsac.agents import AGENTS
from lsac.analysis.reference import (
    DMC,
    MILLION,
    MUJOCO,
    OTHER,
    Task,
    best_public,
    bounds_of,
    paper_costs,
    paper_return,
    public_curves,
    reference_of,
    references,
    rows,
    task_of,
)
from lsac.errors import InputError

SIX = ("HalfCheetah", "Ant", "Swimmer", "Walker2d", "Hopper", "Humanoid")
FILES = ("paper_returns.csv", "paper_efficiency.csv", "published_methods.csv", "reference_scores.csv")


@pytest.mark.parametrize(
    ("env", "task"),
    [
        ("HalfCheetah-v4", Task(MUJOCO, "HalfCheetah-v4")),
        ("gymnasium.envs.mujoco:Ant-v5", Task(MUJOCO, "Ant-v5")),
        ("dm_control/cartpole-swingup_sparse-v0", Task(DMC, "cartpole-swingup_sparse")),
        ("Pendulum-v1", Task(OTHER, "Pendulum-v1")),
        ("track:Track-v0", Task(OTHER, "track:Track-v0")),
        ("mine:Ant-v4", Task(OTHER, "mine:Ant-v4")),
        ("mine.gymnasium:Ant-v4", Task(OTHER, "mine.gymnasium:Ant-v4")),
        ("Ant-v4 (ctrl_cost_weight=0)", Task(OTHER, "Ant-v4 (ctrl_cost_weight=0)")),
        ("MyHopper-v4", Task(OTHER, "MyHopper-v4")),
    ],
)
def test_tasks_are_known_by_their_ids(env, task):
    assert task_of(env) == task
    assert task.window == (20 if task.suite == DMC else 11)


@pytest.mark.parametrize("name", FILES)
def test_every_published_number_has_a_source(name):
    table = rows(name)
    assert table
    assert all(row["source"] for row in table)
    if name != "reference_scores.csv":
        assert all(row["protocol"] for row in table)


DIGESTS = {
    "paper_efficiency.csv": "0d7ed5651fb51f3643d8864573a7e2bb32813159c590d30a6ecc5f361c03fb18",
    "paper_returns.csv": "35348fcda730502409b12b50c7c8c3ac732e3bfceca5daf724776426ee6d1534",
    "published_curves.csv": "d0d8b9d1f9f50c86ad6434e8df5d4809072bb1efdc270d60fac55bcfed293479",
    "published_methods.csv": "d99a213b60807f3d1435bf8a77b2753b21049a054813b0b1f388024157ad5392",
    "reference_scores.csv": "cc69bb35ea4befd391d334dae3e705e666deb959d3d50e782723e0338ef78ede",
}
"""SHA-256 of each file, after its numbers were compared with their sources: a digit that changes is noticed."""


def test_shipped_numbers_are_those_that_were_checked():
    folder = resources.files("lsac.analysis").joinpath("data")
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert found == DIGESTS


def test_public_numbers_of_tables():
    """Those that no file of results is behind are never the best; longer runs have a budget of their own."""
    walker = task_of("dm_control/walker-run-v0")
    best, longer = best_public(walker, MILLION), best_public(walker, math.inf, MILLION)
    assert (best.method.name, best.mean[-1], best.std[-1], best.seeds) == ("FOG", 851, 4, 10)
    assert (longer.method.name, longer.mean[-1], longer.method.budget) == ("TD-MPC2", 874, "3 M environment steps")
    curves = {curve.method.name: curve for curve in public_curves(task_of("HalfCheetah-v4"))}
    assert (curves["TD7"].mean[-1], curves["TQC"].mean[-1], curves["TQC"].seeds) == (17434, 12350, None)
    assert best_public(task_of("HalfCheetah-v4"), MILLION).method.name.startswith("BRO")
    assert curves["Tianshou TRPO"].mean[-1] == 4471
    assert (curves["RL-Zoo TQC"].mean[-1], curves["FOG"].mean[-1]) == (12090, 11709)
    swimmer = best_public(task_of("Swimmer-v4"), MILLION)
    assert "one run on Swimmer-v3" in swimmer.method.protocol
    assert "0.999" in swimmer.method.protocol
    assert best_public(task_of("Pendulum-v1"), MILLION) is None


def test_the_papers_tables_are_complete():
    """Six MuJoCo tasks with eight algorithms, twelve of DeepMind Control with nine; six efficiency rows of six."""
    table = rows("paper_returns.csv")
    assert [sum(row["suite"] == suite for row in table) for suite in (MUJOCO, DMC)] == [6 * 8, 12 * 9]
    assert all(float(row["interval90"]) > 0 and row["budget"] for row in table)
    assert {name for task in SIX for name in paper_costs(task)} == {"lsac", "dsact", "dipo", "sac", "qsm", "redq"}
    assert paper_costs("Pendulum") == {}


def test_numbers_of_the_paper():
    """From its tables, read by hand."""
    cheetah = paper_return(task_of("HalfCheetah-v4"), "lsac")
    assert (cheetah.task, cheetah.mean, cheetah.half_width, cheetah.seeds) == ("HalfCheetah-v3", 17948, 1724, 10)
    assert "20 M environment steps" in cheetah.budget
    assert "does not say" in paper_return(task_of("HalfCheetah-v5"), "sac").budget
    assert paper_return(task_of("dm_control/hopper-hop-v0"), "lsac").mean == 557
    assert paper_return(task_of("dm_control/quadruped-run-v0"), "ppo").half_width == 27
    assert paper_return(task_of("Pendulum-v1"), "sac") is None
    assert paper_return(task_of("Ant-v4"), "qsm") is None, "which the paper's table of returns does not have"


def test_the_best_public_curve_comes_first_and_versions_are_not_mixed():
    curves = public_curves(task_of("Humanoid-v4"))
    assert curves[0].method.name == "FlashSAC"
    assert curves[0].mean[-1] == pytest.approx(12606, abs=1)
    ends = [(not curve.method.checked, -curve.mean[-1]) for curve in curves]
    assert ends == sorted(ends)
    assert public_curves(task_of("Humanoid-v5")) == []
    assert {curve.method.name for curve in curves} > {"SAC", "REDQ, 20 updates per decision"}
    assert all((np.diff(curve.steps) > 0).all() and curve.steps[-1] <= 1e6 for curve in curves)


def test_all_tasks_of_the_suites_have_public_numbers():
    names = {row["task"] for row in rows("published_curves.csv")}
    assert {f"{name}-v4" for name in SIX} <= names
    assert len({row["task"] for row in rows("paper_returns.csv") if row["suite"] == DMC} & names) == 12


def test_references_for_scores():
    known = references()
    assert {reference_of(f"{name}-v4", known).env for name in SIX} == {f"{name}-v4" for name in SIX}
    dmc = reference_of("dm_control/fish-swim-v0", known)
    assert (dmc.low, dmc.high) == (0, 1000)
    assert reference_of("HalfCheetah-v5", known) is None
    assert all(each.low < each.high and each.meaning for each in known)
    assert reference_of("HalfCheetah-v4", known).meaning.startswith("random policy and TD3; TD7 paper")


def test_own_references_come_first(tmp_path):
    (tmp_path / "own.csv").write_text("env,low,high\nHalfCheetah-v*,0,5000\n")
    known = references(tmp_path / "own.csv")
    assert reference_of("HalfCheetah-v5", known)[1:3] == (0, 5000)
    assert reference_of("HalfCheetah-v4", known).high == 5000
    assert known[0].meaning == "as in own.csv"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "must have the columns env, low and high, and at least one row"),
        ("env,low,high\n", "must have the columns env, low and high, and at least one row"),
        ("env,low,high\nX,0,y\n", "line 2: low and high must be numbers"),
        ("env,low,high\nX,0\n", "line 2: low and high must be numbers"),
        ("env,low,high\nX,1,1\n", "line 2: needs an env, and low must be less than high"),
        ("env,low,high\nX,nan,1\n", "line 2: needs an env, and low must be less than high"),
        ("env,low,high\n,0,1\n", "line 2: needs an env, and low must be less than high"),
        (b"\xff\xfe", "is not a CSV file"),
    ],
)
def test_bad_references_are_named(text, problem, tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        references(path)
    assert str(caught.value) == f"--references {path}: {problem}"


def test_what_returns_can_be():
    assert bounds_of("dm_control/walker-run-v0") == (0, 1000)
    assert bounds_of("Pendulum-v1") == (-np.inf, 0)
    assert bounds_of("HalfCheetah-v4") == (-np.inf, np.inf)
    assert bounds_of("lsac/AntMaze-TwoGoals-v0") == (0, 1)
    assert bounds_of("lsac/PointMaze-TwoGoals-v0") == (-np.inf, 0)


@pytest.mark.parametrize("env", ["dm_control/walker-run-v0", "Pendulum-v1", "lsac/AntMaze-TwoGoals-v0", "Ant-v4"])
def test_a_task_with_arguments_wrappers_or_another_module_is_another_task(env):
    for changed in (f"{env} (weight=10)", f"{env} (mine:Doubled)", f"{env} (x=a-v0)", f"mine:{env}"):
        assert bounds_of(changed) == (-np.inf, np.inf)
        assert reference_of(changed, references()) is None
        assert public_curves(task_of(changed)) == []
        assert task_of(changed).suite == OTHER


def test_algorithms_of_the_files_are_ours():
    theirs = {row["algorithm"] for row in rows("paper_returns.csv")} | {
        row["algorithm"] for row in rows("paper_efficiency.csv")
    }
    assert theirs <= AGENTS.keys()
