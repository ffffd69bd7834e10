"""Statistics over seeds against numbers worked by hand, and what a report writes, on runs made up for it."""

import csv
import json
import math

import imageio.v3 as imageio
import jax
import numpy as np
import pytest
from commands import lsac
from replays import spec_of
from scipy import stats
from small import config

from lsac.agents import sac
from lsac.agents.lsac import agent as lsac_agent
from lsac.analysis.load import load_run
from lsac.analysis.report import COLUMNS, PANELS, _labels, curve_of_run, draw_diagnostics, write_report, write_table
from lsac.analysis.stats import interval
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder

# the interval


def test_interval_of_three_numbers_by_hand():
    """Mean 2, s = 1, standard error 1/√3, and Student's t for two degrees of freedom is 4.302653 (from a table)."""
    mean, low, high = interval(np.array([1.0, 2.0, 3.0]))
    half = 4.302653 / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((2.0, 2 - half, 2 + half), abs=1e-6)


def test_interval_of_two_numbers_by_hand():
    """Mean 5, s = √2, standard error 1: the half width is t itself, 12.7062 for one degree of freedom."""
    assert interval(np.array([4.0, 6.0])) == pytest.approx((5.0, 5 - 12.7062, 5 + 12.7062), abs=1e-4)


def test_interval_at_another_level_by_hand():
    """Five numbers: mean 3, s = √2.5, standard error √0.5; t for 90 % and four degrees of freedom is 2.131847."""
    half = 2.131847 * math.sqrt(0.5)
    assert interval(np.arange(1.0, 6.0), level=0.9) == pytest.approx((3.0, 3 - half, 3 + half), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
def test_interval_agrees_with_scipy(count):
    values = np.random.default_rng(count).normal(100, 20, count)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((values.mean(), expected.low, expected.high), rel=1e-12)


def test_one_seed_has_no_interval():
    mean, low, high = interval(np.array([7.0]))
    assert mean == 7
    assert np.isnan([low, high]).all()


# made-up runs

STEPS = np.arange(1, 13) * 100


def table(seeds, shift=0.0):
    """Returns [S, 12]."""
    return np.random.default_rng(seeds).normal(size=(seeds, len(STEPS))) * 10 + STEPS / 10 + shift


def make_run(path, values, env="Pendulum-v1", metric="eval/mean_reward", first_seed=4):
    seeds = len(values)
    RunFolder.create(path, Experiment(sac.Config(), env, steps=1200, seed=first_seed, seeds=seeds))
    lines = []
    for t, step in enumerate(STEPS):
        head = [{"step": int(step), "seed": first_seed + row, "seconds": float(t)} for row in range(seeds)]
        lines += [line | {"time/fps": 1000.0 + t} for line in head]
        lines += [line | {metric: float(values[row, t])} for row, line in enumerate(head)]
    write_lines(path, lines)
    return path


def write_lines(path, lines):
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_curve_is_read_back(tmp_path):
    values = table(3)
    curve = load_run(make_run(tmp_path / "run", values)).curve("eval/mean_reward")
    np.testing.assert_array_equal(curve.steps, STEPS)
    np.testing.assert_array_equal(curve.values, values)


def test_a_curve_has_only_the_steps_that_all_seeds_have(tmp_path):
    """Seed 5 has no line at 300, and one without the metric at 500; the order of lines does not matter."""
    path = make_run(tmp_path / "run", table(3))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if not (line["seed"] == 5 and line["step"] == 300)]
    for line in lines:
        if (line["seed"], line["step"]) == (5, 500):
            line.pop("eval/mean_reward", None)
    write_lines(path, lines[::-1])
    curve = load_run(path).curve("eval/mean_reward")
    kept = [step not in (300, 500) for step in STEPS]
    np.testing.assert_array_equal(curve.steps, STEPS[kept])
    np.testing.assert_array_equal(curve.values, table(3)[:, kept])


def test_an_unknown_metric_is_an_empty_curve(tmp_path):
    curve = load_run(make_run(tmp_path / "run", table(3))).curve("train/nothing")
    assert (curve.steps.shape, curve.values.shape) == ((0,), (3, 0))


def test_evaluations_come_before_training_episodes(tmp_path):
    path = make_run(tmp_path / "run", table(2), metric="rollout/ep_rew_mean")
    assert load_run(path).returns()[0] == "episode return"
    with (path / "metrics.jsonl").open("a") as file:
        for seed in (4, 5):
            file.write(json.dumps({"step": 100, "seed": seed, "seconds": 0, "eval/mean_reward": -1.0}) + "\n")
    title, curve = load_run(path).returns()
    assert (title, curve.values.tolist()) == ("evaluation return", [[-1.0], [-1.0]])


def test_the_final_sentence(tmp_path):
    values = np.array([[0.0] * 11 + [x] for x in (1.0, 2.0, 3.0)])
    assert load_run(make_run(tmp_path / "three", values)).final_sentence() == (
        "sac on Pendulum-v1: final evaluation return 2.0 (95 % interval -0.5 to 4.5), 3 seeds, step 1,200"
    )
    assert load_run(make_run(tmp_path / "one", values[:1])).final_sentence() == (
        "sac on Pendulum-v1: final evaluation return 1.0, 1 seed, step 1,200"
    )
    write_lines(tmp_path / "one", [])
    assert load_run(tmp_path / "one").final_sentence() == "sac on Pendulum-v1: finished without a return to show"


def test_metrics_that_are_no_json_are_named_by_line(tmp_path):
    path = make_run(tmp_path / "run", table(1))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 25: is not JSON$"):
        load_run(path)


# tables


def test_the_table_has_the_numbers_of_numpy(tmp_path):
    values = table(4)
    paths = [make_run(tmp_path / "four", values), make_run(tmp_path / "one", values[:1], env="Hopper-v5")]
    out = write_table([load_run(path) for path in paths], tmp_path / "deep" / "table.csv")
    with out.open() as file:
        four, one = csv.DictReader(file)
    assert tuple(four) == COLUMNS
    assert (four["run"], four["algorithm"], four["env"]) == (str(paths[0]), "sac", "Pendulum-v1")
    assert (four["seeds"], four["step"]) == ("4", "1200")

    t = stats.t.ppf(0.975, 3)
    last_ten = values[:, 2:].mean(axis=1)
    for name, sample in (("final", values[:, -1]), ("last10", last_ten)):
        half = t * np.std(sample, ddof=1) / 2
        assert float(four[f"{name}_mean"]) == pytest.approx(np.mean(sample), abs=0.005)
        assert float(four[f"{name}_low95"]) == pytest.approx(np.mean(sample) - half, abs=0.005)
        assert float(four[f"{name}_high95"]) == pytest.approx(np.mean(sample) + half, abs=0.005)
    assert float(four["max_of_mean"]) == pytest.approx(np.max(np.mean(values, axis=0)), abs=0.005)
    assert float(four["steps_per_second"]) == np.median(np.arange(1001, 1012)), "the first line includes the start-up"

    assert (one["env"], one["seeds"]) == ("Hopper-v5", "1")
    assert float(one["final_mean"]) == pytest.approx(values[0, -1], abs=0.005)
    assert one["final_low95"] == one["last10_high95"] == "nan"


# pictures


def ink(path):
    """Share of the pixels that are not white, and the number of colours."""
    picture = imageio.imread(path)[..., :3]
    return float((picture < 250).any(axis=-1).mean()), len(np.unique(picture.reshape(-1, 3), axis=0))


def test_a_curve_is_drawn(tmp_path):
    path = curve_of_run(load_run(make_run(tmp_path / "run", table(3))), tmp_path / "curve.png")
    share, colours = ink(path)
    assert 0.01 < share < 0.5
    assert colours > 50
    other = curve_of_run(load_run(make_run(tmp_path / "other", -table(3))), tmp_path / "other.png")
    assert other.read_bytes() != path.read_bytes(), "the picture shows the data"


def test_a_report_has_a_picture_per_environment_and_one_table(tmp_path):
    paths = [
        make_run(tmp_path / "a", table(3)),
        make_run(tmp_path / "b", table(2, shift=50)),
        make_run(tmp_path / "c", table(1), env="lsac/TimeLimited-v0"),
    ]
    written = write_report([load_run(path) for path in paths], tmp_path / "report")
    assert [path.name for path in written] == ["Pendulum-v1.png", "lsac-TimeLimited-v0.png", "table.csv"]
    assert all(ink(path)[0] > 0.01 for path in written[:2])
    with written[2].open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == [str(path) for path in paths]


def diagnosed(path, **metrics):
    """Adds constant metrics of two seeds to a made-up run."""
    with (path / "metrics.jsonl").open("a") as file:
        for step in (100, 200):
            for seed in (4, 5):
                file.write(json.dumps({"step": step, "seed": seed, "seconds": 0, **metrics}) + "\n")
    return path


def test_diagnostics_are_drawn_where_there_are_any(tmp_path):
    """One panel more makes another picture; a run that says nothing leaves none."""
    silent = load_run(make_run(tmp_path / "silent", table(2)))
    assert draw_diagnostics([silent], tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()
    path = diagnosed(make_run(tmp_path / "run", table(2)), **{"eval/q": 3.0, "eval/mc_return": 2.0})
    one = draw_diagnostics([silent, load_run(path)], tmp_path / "one.png")
    diagnosed(path, **{"train/dynamics_error": 0.1, "train/ent_coef": 0.2})
    three = draw_diagnostics([load_run(path)], tmp_path / "three.png")
    assert imageio.imread(three).shape[1] == 3 * imageio.imread(one).shape[1]
    written = write_report([silent, load_run(path)], tmp_path / "report")
    assert [path.name for path in written] == ["Pendulum-v1.png", "Pendulum-v1-diagnostics.png", "table.csv"]


def test_every_diagnostic_panel_is_a_metric_that_a_run_writes(tmp_path):
    """The panels name metrics by text; a run of LSAC has to know all of them."""
    names = {name for metrics in PANELS.values() for name in metrics}
    agent = lsac_agent.make(config("lsac"), spec_of(3, 1))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    replay = jax.eval_shape(lambda: rb.make(rb.layout_of(spec_of(3, 1)), 64))
    _, update = jax.eval_shape(agent.update, state, replay, jax.random.key(0))
    _, refresh, _ = jax.eval_shape(agent.refresh.fit, state, replay, jax.random.key(0))
    pair = [jax.ShapeDtypeStruct((n,), "float32") for n in (3, 1)]
    judged = jax.eval_shape(agent.values.value, agent.values.critics(state), *pair)
    known = {f"train/{name}" for name in (*update, *refresh)} | {f"eval/{name}" for name in judged}
    known |= {"eval/mc_return", "eval/q_bias", "train/dynamics_error", "train/dynamics_error_shuffled"}
    assert names <= known


def test_runs_of_one_algorithm_are_told_apart_by_their_folders(tmp_path):
    runs = [load_run(make_run(tmp_path / name, table(2))) for name in ("with", "without")]
    assert _labels(runs) == ["with, 2 seeds", "without, 2 seeds"]
    assert _labels(runs[:1]) == ["sac, 2 seeds"]


def test_the_report_command_lists_what_it_wrote(tmp_path):
    path = make_run(tmp_path / "run", table(3))
    result = lsac("report", path, "--out", tmp_path / "report")
    assert (result.code, result.err) == (0, "")
    assert result.out.split() == [str(tmp_path / "report" / name) for name in ("Pendulum-v1.png", "table.csv")]
    (tmp_path / "file").touch()
    result = lsac("report", path, "--out", tmp_path / "file")
    assert (result.code, result.sentence) == (2, f"lsac: --out {tmp_path}/file: cannot be written (File exists)")


def test_a_run_without_returns_cannot_be_reported(tmp_path):
    path = make_run(tmp_path / "run", table(1), metric="train/other")
    result = lsac("report", path, "--out", tmp_path / "report")
    assert (result.code, result.sentence) == (2, f"lsac: {path}: holds no returns yet")
