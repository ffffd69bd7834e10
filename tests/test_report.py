"""Statistics over seeds against numbers worked by hand, and what a report writes, on runs made up for it."""

import csv
import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import imageio.v3 as imageio
import jax
import numpy as np
import pytest
import small
from commands import lsac
from made_up_runs import STEPS, make_run, table, write_lines
from replays import spec_of
from scipy import stats
from small import config

from lsac.agents import AGENTS
from lsac.agents.lsac import agent as lsac_agent
from lsac.analysis import figures
from lsac.analysis.diagnostics import PANELS
from lsac.analysis.figures import CUT_OFF, FIRST_UPDATE, WIDTHS, Look
from lsac.analysis.load import UNRELATED, load_run, load_runs, pool
from lsac.analysis.names import PUBLISHED, file_names, label, published
from lsac.analysis.parameters import parameters
from lsac.analysis.provenance import command
from lsac.analysis.report import curve_of_run, draw_figures, write_report
from lsac.analysis.results import COLUMNS, returns
from lsac.analysis.stats import BANDS, band, interval
from lsac.analysis.tables import LATEX, Shown, Table, write_tables
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.datafile import named, write
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.folder import RunFolder
from lsac.train.diagnostics import compared
from lsac.train.evaluate_run import Saved
from lsac.types import EnvSpec

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


# bands

THREE = np.array([[1.0, 10.0], [2.0, 10.0], [6.0, 10.0]])


def test_bands_by_hand():
    """1, 2 and 6: mean 3, deviations −2, −1 and 3, so s = √7; the second step has no spread."""
    half = 4.302653 * math.sqrt(7 / 3)
    low, high = band(THREE, "t")
    assert [*low, *high] == pytest.approx([3 - half, 10, 3 + half, 10], abs=1e-6)
    low, high = band(THREE, "std")
    assert [*low, *high] == pytest.approx([3 - math.sqrt(7), 10, 3 + math.sqrt(7), 10])
    low, high = band(THREE, "minmax")
    assert [*low, *high] == [1, 10, 6, 10]
    assert band(THREE, "none") is None


@pytest.mark.parametrize("kind", BANDS)
def test_one_seed_has_no_band(kind):
    assert band(THREE[:1], kind) is None


def test_the_bootstrap_agrees_with_scipy():
    """Percentiles of the mean over resampled seeds; equal data give equal bands."""
    values = np.random.default_rng(3).normal(100, 20, (10, 2))
    low, high = band(values, "bootstrap")
    expected = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=0)
    np.testing.assert_allclose(low, expected.confidence_interval.low, atol=1)
    np.testing.assert_allclose(high, expected.confidence_interval.high, atol=1)
    np.testing.assert_array_equal(band(values, "bootstrap"), (low, high))


# reading


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


@pytest.mark.parametrize(
    "line",
    [
        *("[]", '{"seed": 4}', '{"step": 1.5, "seed": 4}', '{"step": -1, "seed": 4}', '{"step": true, "seed": 4}'),
        *(f'{{"step": {10**30}, "seed": 4}}', '{"step": 1, "seed": 4, "x": "y"}'),
        f'{{"step": 1, "seed": 4, "x": {10**400}}}',
    ],
)
def test_metrics_that_are_no_numbers_are_named_by_line(line, tmp_path):
    path = make_run(tmp_path / "run", table(1))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(line)
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 25: is not a step, a seed and numbers by name$"):
        load_run(path)


def test_metrics_that_are_no_text_are_named_by_line(tmp_path):
    path = make_run(tmp_path / "run", table(1))
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1: is not JSON$"):
        load_run(path)


def test_a_run_is_named_once(tmp_path, monkeypatch):
    path = make_run(tmp_path / "run", table(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^run: is the same run as .*/run; name it once$"):
        load_runs([path, Path("run")])


def test_where_updates_began(tmp_path):
    assert load_run(make_run(tmp_path / "run", table(1))).first_update() == 150
    assert load_run(make_run(tmp_path / "none", table(1), learns=False)).first_update() is None
    path = make_run(tmp_path / "trained", table(1))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 100, "seed": 4, "seconds": 0, "train/n_updates": 3}) + "\n")
    assert load_run(path).first_update() == 0, "it began with a model, and without random steps"


# pooling


def test_runs_of_equal_settings_are_pooled_over_their_seeds(tmp_path):
    """Seeds 4 to 6 and 10; the longer run ends where the shorter does, and other settings stay apart."""
    values = table(4)
    paths = [
        make_run(tmp_path / "a", values[:3]),
        make_run(tmp_path / "other", table(2), gamma=0.9),
        make_run(tmp_path / "b", values[3:], seed=10, steps=5000, workers=1, eval_every=50),
        make_run(tmp_path / "env", table(2), env="Hopper-v5"),
        make_run(tmp_path / "agent", table(2), agent={"batch_size": 32}),
        make_run(tmp_path / "algorithm", table(2), algorithm="td3"),
    ]
    with (paths[2] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1300, "seed": 10, "seconds": 0, "eval/mean_reward": 0.0}) + "\n")
    pooled, *apart = pool(load_runs(paths))
    _, curve = pooled.returns()
    np.testing.assert_array_equal(curve.values, values)
    assert (pooled.seeds, curve.steps[-1]) == ((4, 5, 6, 10), 1200)
    assert pooled.where == f"{paths[0]} + {paths[2]}"
    assert [run.path.name for run in apart] == ["other", "env", "agent", "algorithm"]


def test_options_that_do_not_matter_when_runs_are_pooled_exist():
    assert {*UNRELATED} < {field.name for field in dataclasses.fields(Experiment)}


def test_step_sizes_that_end_at_different_steps_are_different_settings(tmp_path):
    """PPO's reach 0 at the end of the run, so that runs of other lengths are not the same."""
    options = {"algorithm": "ppo", "learning_starts": 0, "chunk": 160}
    paths = [make_run(tmp_path / str(n), table(2), seed=n, steps=n, **options) for n in (1200, 2400)]
    assert len(pool(load_runs(paths))) == 2
    for path in paths:
        config = json.loads((path / "config.json").read_text())
        config["experiment"]["agent"]["anneal_updates"] = 0
        (path / "config.json").write_text(json.dumps(config))
    assert len(pool(load_runs(paths))) == 1


def test_a_seed_is_not_pooled_with_itself(tmp_path):
    paths = [make_run(tmp_path / name, table(2), seed=seed) for name, seed in (("a", 4), ("b", 5))]
    with pytest.raises(InputError) as caught:
        pool(load_runs(paths))
    assert str(caught.value) == (
        f"--pool: {paths[0]} and {paths[1]} have the same settings and both hold seed 5; leave one of them out"
    )


def test_runs_without_a_common_step_cannot_be_pooled(tmp_path):
    paths = [make_run(tmp_path / "a", table(1)), make_run(tmp_path / "b", table(1), seed=9, metric="train/other")]
    result = lsac("report", *paths, "--pool", "--out", tmp_path / "report")
    sentence = f"lsac: {paths[0]} + {paths[1]}: no step has a return of every seed, so they cannot be pooled"
    assert (result.code, result.sentence) == (2, sentence)


# names


def test_every_algorithm_has_the_name_of_its_paper():
    assert PUBLISHED.keys() == AGENTS.keys()
    assert (published("dsact"), published("ddpg")) == ("DSAC-T", "DDPG")


def test_runs_of_one_algorithm_are_told_apart_by_their_folders(tmp_path):
    paths = [make_run(tmp_path / name, table(2)) for name in ("with", "without")]
    paths += [
        make_run(tmp_path / "td3", table(2), algorithm="td3"),
        make_run(tmp_path / "e", table(2), env="Hopper-v5"),
    ]
    runs = load_runs(paths)
    assert label(runs) == ["SAC · with", "SAC · without", "TD3", "SAC"]
    assert label(runs[:1]) == ["SAC"]
    same = load_runs([make_run(tmp_path / parent / "run", table(2)) for parent in "ab"])
    assert label(same) == ["SAC · a/run", "SAC · b/run"]


def test_a_task_is_its_id_with_arguments_and_wrappers(tmp_path):
    """In any order of the arguments; curves of different tasks have panels and rows of their own."""
    different = {"a": {}, "b": {"env_args": ("y=2", "x=1")}, "c": {"wrappers": ("json:loads",)}}
    runs = [load_run(make_run(tmp_path / name, table(2), **options)) for name, options in different.items()]
    names = ["Pendulum-v1", "Pendulum-v1 (x=1, y=2)", "Pendulum-v1 (json:loads)"]
    assert [run.env for run in runs] == names
    lines = figures.lines_of(runs, label(runs))
    assert list(figures.by_env(lines)) == names
    assert [line.label for line in lines] == ["SAC"] * 3, "no folders are needed to tell them apart"
    assert [row["env"] for row in returns(lines).rows] == names


def test_the_label_of_a_sweep_may_be_the_name_of_the_algorithm(tmp_path):
    runs = load_runs([make_run(tmp_path / name, table(2), name) for name in ("lsac", "dsact", "sac")])
    assert label(runs, ["lsac", "dsact", "wide"]) == ["LSAC", "DSAC-T", "wide"]
    assert label(runs, ["LSAC", "dsac-t", None]) == ["LSAC", "DSAC-T", "SAC"]


def test_file_names_are_plain_and_different():
    names = file_names(["track:Track-v0", "lsac/A-v0", "lsac-A-v0", "lsac/A-v0", "a b.c_d", "A-v0 (x=1)", "A" * 300])
    assert list(names.values()) == ["track-Track-v0", "lsac-A-v0", "lsac-A-v0-2", "a-b.c_d", "A-v0-x-1", "A" * 100]


# tables


def tables_of(paths, out, labels=None):
    runs = load_runs(paths)
    return write_tables([returns(figures.lines_of(runs, labels or label(runs)))], out)


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_table_has_the_numbers_of_numpy(tmp_path):
    values = np.concatenate([table(4), table(4, shift=100)], axis=1)[:, :12]
    paths = [make_run(tmp_path / "four", values), make_run(tmp_path / "one", values[:1], env="Hopper-v5")]
    out = tables_of(paths, tmp_path / "deep")
    assert [path.name for path in out] == ["table.csv", "table.md", "table.tex"]
    four, one = rows_of(out[0])
    assert tuple(four) == COLUMNS
    assert (four["run"], four["label"], four["algorithm"], four["env"]) == (str(paths[0]), "SAC", "sac", "Pendulum-v1")
    assert (four["seeds"], four["eval_step"], four["eval_points"], four["eval_window"]) == ("4", "1200", "12", "11")

    for name, scores in {
        "eval_final": values[:, -10:].mean(axis=1),
        "eval_last": values[:, -1],
        "eval_mean_of_max": values.max(axis=1),
    }.items():
        half = stats.t.ppf(0.95, 3) * np.std(scores, ddof=1) / 2
        assert float(four[name]) == pytest.approx(np.mean(scores))
        assert float(four[f"{name}_low90"]) == pytest.approx(np.mean(scores) - half)
        assert float(four[f"{name}_high90"]) == pytest.approx(np.mean(scores) + half)
    smoothed = [values.mean(axis=0)[max(0, i - 5) : i + 6].mean() for i in range(12)]
    assert float(four["eval_max_of_mean"]) == pytest.approx(max(smoothed))
    assert float(four["eval_max_step"]) == STEPS[np.argmax(smoothed)]
    assert float(four["steps_per_second"]) == np.median(np.arange(1001, 1012)), "the first line includes the start-up"

    assert (one["env"], one["seeds"]) == ("Hopper-v5", "1")
    assert float(one["eval_last"]) == pytest.approx(values[0, -1])
    assert one["eval_final_low90"] == one["eval_mean_of_max_high90"] == "nan"


def test_evaluations_and_training_episodes_have_columns_of_their_own(tmp_path):
    """A run without evaluations has nothing in those of evaluations, and the other way round."""
    values = table(2)
    evaluated = make_run(tmp_path / "a", values)
    played = make_run(tmp_path / "b", values, metric="rollout/ep_rew_mean")
    first, second = rows_of(tables_of([evaluated, played], tmp_path)[0])
    assert float(first["eval_last"]) == float(second["rollout_last"]) == pytest.approx(values[:, -1].mean())
    assert (first["rollout_last"], first["rollout_step"]) == ("nan", "")
    assert {name: second[name] for name in second if name.startswith("eval_") and name != "eval_window"} == {
        name: {"eval_points": "0", "eval_final_points": ""}.get(name, "" if name.endswith("step") else "nan")
        for name in COLUMNS
        if name.startswith("eval_") and name != "eval_window"
    }


def test_a_table_says_of_how_many_evaluations_a_final_score_is(tmp_path):
    """Ten of twelve, and all three of three, in every table with final scores."""
    tasks = ("HalfCheetah-v4", "Hopper-v4")
    long = [make_run(tmp_path / env, table(2), env=env) for env in tasks]
    short = [make_run(tmp_path / f"short-{env}", table(2), env=env, gamma=0.9) for env in tasks]
    for path in short:
        kept = [line for line in (path / "metrics.jsonl").read_text().splitlines() if json.loads(line)["step"] <= 300]
        (path / "metrics.jsonl").write_text("\n".join(kept))
    write_report(load_runs([*long, *short]), ["long"] * 2 + ["short"] * 2, tmp_path / "out", Look(formats=("svg",)))
    for name, column in {
        "table": "eval_final_points",
        "published": "final_points",
        "ablations": "eval_final_points",
    }.items():
        assert {(row["label"], row[column]) for row in rows_of(tmp_path / "out" / f"{name}.csv")} == {
            ("long", "10"),
            ("short", "3"),
        }
    across = rows_of(tmp_path / "out" / "across-tasks.csv")
    assert [row["eval_final_points"] for row in across] == ["10", "3"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count(">evaluations in final</th>") == 3
    assert page.count(">evaluations in it</th>") == 1


def test_a_comparison_of_one_pair_of_runs_has_no_interval(tmp_path):
    """One seed of each label on each task: a number alone in the tables, the figures and the plots."""
    tasks = ("dm_control/a-b-v0", "dm_control/c-d-v0")
    paths = [make_run(tmp_path / f"{i}{env[-4]}", table(1, 10 * i), env=env) for i in (0, 1) for env in tasks]
    write_report(load_runs(paths), ["A", "A", "B", "B"], tmp_path / "out", Look(formats=("svg",)))
    (a, _), (b, _) = (rows_of(tmp_path / "out" / f"{name}.csv") for name in ("improvement", "across-tasks"))
    assert (a["probability"], a["probability_low95"], a["too_narrow"]) == ("0", "nan", "†")
    assert (b["iqm_low95"], b["iqm_high95"]) == ("nan", "nan")
    assert "| A | B | 0 | † |" in (tmp_path / "out" / "improvement.md").read_text()
    page = (tmp_path / "out" / "index.html").read_text()
    assert "With one seed on every task there is none." in page
    assert "A over B †\\u003cbr\\u003e0.000, no interval" in page
    assert "error_x" not in page.partition('id="data">')[2].partition("</script>")[0]


def with_checkpoint(path, name, **options):
    """A run of two seeds with a checkpoint of agents for 5 observations and 3 actions, all of whose numbers are 0."""
    sizes = {**small.ON_POLICY, "learning_starts": 0} if small.on_policy(name) else small.OFF_POLICY
    experiment = Experiment(config(name), "Pendulum-v1", seeds=2, **sizes, **options)
    RunFolder.create(path, experiment).release()
    agent = make_agent(experiment, EnvSpec(obs_shape=(5,), action_dim=3, gamma=0.99))
    shapes = jax.eval_shape(lambda: jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 2)))
    states = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    (path / "checkpoints").mkdir()
    saved = Saved(agent.refresh.compact(states) if agent.refresh else states, None)
    write(path / "checkpoints/step-0000000300.safetensors", named(saved), {"step": 300})
    (path / "metrics.jsonl").touch()
    return agent, states


def test_the_parameters_of_a_run_by_hand(tmp_path):
    """SAC with a hidden layer of 8: an actor of 5 → 8 → 6 and two critics of 8 → 8 → 1. The targets, the moments of
    Adam and the second seed do not count."""
    assert config("sac").hidden == (8,)
    with_checkpoint(tmp_path / "run", "sac")
    actor, critic = (5 + 1) * 8 + (8 + 1) * 6, (8 + 1) * 8 + (8 + 1) * 1
    assert parameters(load_run(tmp_path / "run")) == actor + 2 * critic


OF_VECTORS = [name for name, module in AGENTS.items() if getattr(module, "OBSERVATIONS", "") != "images"]


@pytest.mark.parametrize(("name", "scaled"), [*((name, False) for name in OF_VECTORS), ("sac", True), ("lsac", True)])
def test_the_parameters_of_every_agent_are_those_of_policy_and_critics(name, scaled, tmp_path):
    """Each array once, even if both have it; the scale of rewards is computed, and no parameter."""
    agent, states = with_checkpoint(tmp_path / "run", name, normalise_observations=scaled, scale_rewards=scaled)
    stored = {id(x) for x in jax.tree.leaves(states)}
    learnt = jax.tree.leaves((agent.policy(states), agent.values.critics(states)))
    sizes = {id(x): x.size for x in learnt if id(x) in stored}
    assert parameters(load_run(tmp_path / "run")) == sum(sizes.values()) // 2 > 100


@pytest.mark.parametrize("problem", ["none", "damaged", "other agent", "other seeds"])
def test_without_a_checkpoint_parameters_are_not_known(problem, tmp_path):
    with_checkpoint(tmp_path / "run", "sac")
    file, settings = tmp_path / "run/checkpoints/step-0000000300.safetensors", tmp_path / "run/config.json"
    if problem == "none":
        file.unlink()
    elif problem == "damaged":
        file.write_bytes(file.read_bytes()[:100])
    else:
        found = json.loads(settings.read_text())
        found["experiment"] |= {"seeds": 3} if problem == "other seeds" else {}
        found["experiment"]["agent"]["hidden"] = [8] if problem == "other seeds" else [8, 8]
        settings.write_text(json.dumps(found))
    assert math.isnan(parameters(load_run(tmp_path / "run")))


MADE_LONGER = [
    ("sac", "train sac --steps 600 --seeds 2 --out x", "train sac --seeds 2 --out x --steps 1200"),
    ("sac", "train sac --steps=6e2 --seeds 2", "train sac --seeds 2 --steps 1200"),
    ("sac", "train sac --seeds 2", "train sac --seeds 2 --steps 1200"),
    ("sac", "train sac --steps 1.2e3", "train sac --steps 1.2e3"),
    ("ppo", "train ppo --steps 600", "train ppo --steps 600 && lsac resume RUN --steps 1200"),
]


@pytest.mark.parametrize(("algorithm", "began", "shown"), MADE_LONGER)
def test_the_command_of_a_run_that_was_made_longer_has_all_its_steps(algorithm, began, shown, tmp_path):
    """Its agents are those of a run that began with as many, but for the step sizes of PPO."""
    options = {"learning_starts": 0, "chunk": 160} if algorithm == "ppo" else {}
    path = make_run(tmp_path / "run", table(2), algorithm, **options)
    config = json.loads((path / "config.json").read_text()) | {"command": ["lsac", *began.split()]}
    for resumes, expected in (([{"step": 600, "kind": "exact"}], shown), ([], began)):
        (path / "config.json").write_text(json.dumps(config | {"resumes": resumes}))
        assert command(load_run(path)) == f"lsac {expected}".replace("RUN", str(path))


def test_the_window_is_that_of_the_suite(tmp_path):
    path = make_run(tmp_path / "run", table(2), env="dm_control/cheetah-run-v0")
    (row,) = rows_of(tables_of([path], tmp_path)[0])
    assert row["eval_window"] == "20"


def test_tables_for_people(tmp_path):
    """−30, −20 and −10 at the end: mean −20, s = 10, and t for 90 % and two degrees of freedom is 2.919986, so ± 16.86.
    Rows by environment; signs that Markdown or LaTeX would take for their own."""
    values = np.array([[0.0] * 11 + [x] for x in (-30.0, -20.0, -10.0)])
    paths = [
        make_run(tmp_path / "a", values),
        make_run(tmp_path / "b", values[:1] / 100, env="Hopper-v5", metric="rollout/ep_rew_mean"),
        make_run(tmp_path / "c", values),
    ]
    _, markdown, latex = tables_of(paths, tmp_path, ["A|1", "B", "50 %_$"])
    lines = markdown.read_text().splitlines()
    numbers = "3 | 1,200 | -2 [-3.69, -0.314] | 10 | -20.0 [-36.9, -3.14] | 0 [0, 0] | 0 [0, 0] |  |"
    assert lines[:5] == [
        "| environment | label | seeds | steps | final | evaluations in final | last "
        "| maximum of the mean | mean of the maxima | training episodes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        rf"| Pendulum-v1 | A\|1 | {numbers}",
        f"| Pendulum-v1 | 50 %_$ | {numbers}",
        "| Hopper-v5 | B | 1 |  |  |  |  |  |  | -0.3 |",
    ]
    assert lines[6].startswith(
        "Mean [90 % t-interval over seeds] of returns. Final: mean of a seed's last 10 evaluations"
    )
    rows = [line for line in latex.read_text().splitlines() if line.endswith(r"\\")]
    assert rows[0].startswith(
        "environment & label & seeds & steps & final & evaluations in final & last & maximum of the mean & "
    )
    assert rows[2].startswith(
        r"Pendulum-v1 & 50 \%\_\$ & $3$ & 1,200 & $-2 [-3.69, -0.314]$ & 10 & $-20.0 [-36.9, -3.14]$"
    )
    assert [row.count(" & ") for row in rows] == [9] * 4


def test_latex_has_no_space_after_the_comma_of_thousands():
    shown = (Shown("steps", ("steps",)), Shown("return", ("low", "low", "low")))
    text = Table("t", "T", "", ("steps", "low"), [{"steps": 1_234_567, "low": 0.5}], shown).latex()
    assert "$1{,}234{,}567$ & $0.5 [0.5, 0.5]$" in text


def test_latex_keeps_every_sign_of_its_own():
    assert {*LATEX} >= {*"&%$#_{}~^\\"}


# pictures


def ink(path):
    """Share of the pixels that are not white, and the number of colours."""
    picture = imageio.imread(path)[..., :3]
    return float((picture < 250).any(axis=-1).mean()), len(np.unique(picture.reshape(-1, 3), axis=0))


def test_a_curve_is_drawn(tmp_path):
    path = curve_of_run(load_run(make_run(tmp_path / "run", table(3))), tmp_path / "curve.png")
    assert path == tmp_path / "curve.png"
    share, colours = ink(path)
    assert 0.01 < share < 0.5
    assert colours > 50
    other = curve_of_run(load_run(make_run(tmp_path / "other", -table(3))), tmp_path / "other.png")
    assert other.read_bytes() != path.read_bytes(), "the picture shows the data"


def test_a_report_has_pictures_per_environment_and_one_of_all(tmp_path):
    paths = [
        make_run(tmp_path / "a", table(3)),
        make_run(tmp_path / "b", table(2, shift=50)),
        make_run(tmp_path / "c", table(1), env="track:Track-v0"),
    ]
    runs = load_runs(paths)
    written = write_report(runs, label(runs), tmp_path / "report", Look())
    names = [path.name for path in written]
    pictures = [f"{name}.{end}" for name in ("Pendulum-v1", "track-Track-v0", "curves") for end in ("png", "svg")]
    tables = [
        f"{name}.{end}" for name in ("table", "ablations", "efficiency", "provenance") for end in ("csv", "md", "tex")
    ]
    assert names == ["index.html", *pictures, *tables, "evaluations.csv"]
    assert all(ink(path)[0] > 0.01 for path in written if path.suffix == ".png")
    assert [row["run"] for row in rows_of(tmp_path / "report" / "table.csv")] == [str(path) for path in paths]
    one = write_report(runs[2:], ["x"], tmp_path / "one", Look(formats=("png",)))
    assert [path.name for path in one[:2]] == ["index.html", "track-Track-v0.png"]
    assert "ablations.csv" not in {path.name for path in one}


def test_every_evaluation_of_every_seed_is_in_a_file(tmp_path):
    values = table(2)
    runs = load_runs([make_run(tmp_path / "run", values)])
    write_report(runs, ["A"], tmp_path / "report", Look(formats=("png",)))
    rows = rows_of(tmp_path / "report" / "evaluations.csv")
    assert len(rows) == values.size
    assert {**rows[13], "mean_reward": ""} == {
        "label": "A",
        "env": "Pendulum-v1",
        "seed": "5",
        "step": "200",
        "seconds": "1",
        "mean_reward": "",
    }
    np.testing.assert_allclose([float(row["mean_reward"]) for row in rows], values.ravel(), rtol=1e-7)


@pytest.fixture
def drawn(monkeypatch):
    """Draws the report of some runs and returns the figures by name, instead of saving them."""

    def draw(*runs, labels=None, **look):
        kept = {}

        def keep(figure, path, formats):
            figure.draw_without_rendering()
            kept[path.name] = figure
            return []

        with monkeypatch.context() as patch:
            patch.setattr(figures, "save", keep)
            draw_figures(figures.lines_of(list(runs), labels or label(list(runs))), [], Path("nowhere"), Look(**look))
        return kept

    return draw


def legend(figure):
    (only,) = figure.legends
    assert not any(axes.get_legend() for axes in figure.axes)
    return [text.get_text() for text in only.get_texts()]


def caption(figure):
    return figure.get_supxlabel().replace("\n", " ")


def test_the_figure_says_what_the_band_is_and_how_many_seeds_there_are(tmp_path, drawn):
    run = load_run(make_run(tmp_path / "run", table(3)))
    words = {"t": "95 % t-interval, ", "bootstrap": "95 % bootstrap interval, ", "std": "± standard deviation, "}
    words |= {"median": "90 % bootstrap interval of the median, "}
    words |= {"minmax": "minimum to maximum, ", "none": ""}
    assert words.keys() == BANDS.keys()
    for kind, word in words.items():
        figure = drawn(run, band=kind)["Pendulum-v1"]
        middle = "median" if kind == "median" else "mean"
        assert caption(figure).startswith(f"{middle}, {word}n = 3 seeds; ")
        assert (figures.TOO_NARROW in caption(figure)) == (kind in ("median", "bootstrap")), "of three seeds"
        bands = [item for item in figure.axes[0].collections if item.get_paths()]
        assert len(bands) == (kind != "none")
    assert legend(figure) == ["SAC"]
    one = drawn(load_run(make_run(tmp_path / "one", table(1))))["Pendulum-v1"]
    assert caption(one) == "1 seed; dotted: first update"
    assert not one.axes[0].collections


def test_the_legend_says_how_many_seeds_where_they_differ(tmp_path, drawn):
    counts = {("a", "sac", "Pendulum-v1"): 3, ("b", "dsact", "Pendulum-v1"): 2, ("c", "sac", "Hopper-v5"): 5}
    runs = [
        load_run(make_run(tmp_path / name, table(seeds), algorithm, env=env))
        for (name, algorithm, env), seeds in counts.items()
    ]
    found = drawn(*runs)
    assert legend(found["Pendulum-v1"]) == ["SAC (n = 3)", "DSAC-T (n = 2)"]
    assert legend(found["Hopper-v5"]) == ["SAC"]
    assert legend(found["curves"]) == ["SAC (n = 3 to 5)", "DSAC-T (n = 2)"]
    assert caption(found["curves"]).startswith("mean, 95 % t-interval, n seeds; ")
    assert [axes.get_title(loc="left") for axes in found["curves"].axes] == ["Pendulum-v1", "Hopper-v5"]
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in found["curves"].axes)
    colours = {name: [line.get_color() for line in found[name].legends[0].get_lines()] for name in found}
    assert colours["Hopper-v5"][0] == colours["curves"][0] == colours["Pendulum-v1"][0]


def test_axes_show_the_data_and_no_more_of_the_band_than_fits(tmp_path, drawn):
    """Rises from 0 to 100; the t-interval of (−10, 0, 10) around it is ±24.8, of (−40, 0, 40) ±99.4."""
    rise = np.linspace(0, 100, 12)
    near = load_run(make_run(tmp_path / "near", rise + np.array([[-10.0], [0.0], [10.0]])))
    figure = drawn(near)["Pendulum-v1"]
    low, high = figure.axes[0].get_ylim()
    assert low < -24.8 < 124.8 < high
    assert CUT_OFF not in caption(figure)
    far = load_run(make_run(tmp_path / "far", rise + np.array([[-40.0], [0.0], [40.0]])))
    figure = drawn(far)["Pendulum-v1"]
    low, high = figure.axes[0].get_ylim()
    assert -99.4 < low < -40 < 140 < high < 199.4, "all data, and not all of the band"
    assert CUT_OFF in caption(figure)
    assert CUT_OFF not in caption(drawn(far, band="minmax")["Pendulum-v1"])


@pytest.mark.parametrize("value", [0.0, -7.0, 1e6, 1e6 + 1e-9])
def test_a_constant_curve_is_drawn(value, tmp_path, drawn):
    values = np.full((2, 12), 1e6 if value > 1e6 else value)
    values[0, 0] = value
    figure = drawn(load_run(make_run(tmp_path / "run", values)))["Pendulum-v1"]
    low, high = figure.axes[0].get_ylim()
    assert low < value < high


def test_a_single_point_can_be_seen(tmp_path, drawn):
    path = make_run(tmp_path / "run", table(2))
    write_lines(path, [{"step": 0, "seed": seed, "seconds": 0, "eval/mean_reward": float(seed)} for seed in (4, 5)])
    figure = drawn(load_run(path))["Pendulum-v1"]
    assert all(line.get_marker() == "o" for line in figure.axes[0].lines)


def test_the_first_update_is_marked(tmp_path, drawn):
    """At step 150 of 1 200; a run without updates says so; what cannot be told from the edge is not marked."""
    early = load_run(make_run(tmp_path / "early", table(2)))
    late = load_run(make_run(tmp_path / "late", table(2), learning_starts=600))
    at_once = load_run(make_run(tmp_path / "at-once", table(2), learning_starts=8))
    never = load_run(make_run(tmp_path / "never", table(2), learning_starts=5000))

    def marks(*runs):
        figure = drawn(*runs)["Pendulum-v1"]
        found = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == ":"]
        assert (FIRST_UPDATE in caption(figure)) == bool(found)
        return found

    assert marks(early) == [150]
    assert marks(early, late) == [150, 600]
    assert marks(at_once) == marks(never) == []
    assert legend(drawn(never)["Pendulum-v1"]) == ["SAC (no updates were made)"]
    assert legend(drawn(early)["Pendulum-v1"]) == ["SAC"]


def test_returns_of_training_episodes_are_told_from_evaluations(tmp_path, drawn):
    evaluated = load_run(make_run(tmp_path / "a", table(2)))
    not_evaluated = load_run(make_run(tmp_path / "b", table(2), "td3", metric="rollout/ep_rew_mean"))
    assert drawn(not_evaluated)["Pendulum-v1"].axes[0].get_ylabel() == "episode return"
    figure = drawn(evaluated, not_evaluated)["Pendulum-v1"]
    assert figure.axes[0].get_ylabel() == "return"
    assert "TD3 on Pendulum-v1: return of training episodes" in caption(figure)


def test_published_numbers_are_drawn_if_asked_for(tmp_path, drawn):
    """The paper's return of the algorithm, and the best public run, which is a curve or a single number."""
    runs = [load_run(make_run(tmp_path / env, table(2), env=env)) for env in ("HalfCheetah-v4", "Swimmer-v4")]
    for run, levels in zip(runs, ([10543], [76, 365.7]), strict=True):
        plain, figure = (drawn(run, published=published)[run.env] for published in (False, True))
        assert len(figure.axes[0].lines) == len(plain.axes[0].lines) + 2
        found = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() in ("-.", "--")]
        assert set(levels) <= {*found}
        assert all(figure.axes[0].get_ylim()[0] < level < figure.axes[0].get_ylim()[1] for level in levels)
        assert "dash-dotted: maxima in the LSAC paper" in caption(figure)
        assert "dashed: best public run (" in caption(figure)
        assert "public" not in caption(plain)


def test_figures_are_as_wide_as_the_columns_of_a_paper(tmp_path, drawn):
    """The legend and the caption do not leave it, however long a label is, and the curves keep their room."""
    runs = [load_run(make_run(tmp_path / name, table(2))) for name in ("a" * 150, *"bcdefghijk")]
    for columns, width in WIDTHS.items():
        figure = drawn(*runs, columns=columns)["Pendulum-v1"]
        assert figure.get_figwidth() == width
        inside = figure.bbox.padded(1)
        for item in (figure.legends[0], figure._supxlabel):
            box = item.get_window_extent()
            assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert figure.axes[0].get_position().height * figure.get_figheight() > 1.2


@pytest.mark.filterwarnings("error")
def test_labels_may_have_any_sign(tmp_path):
    """What Matplotlib would read as a formula or leave out, and a letter that its font lacks."""
    runs = [load_run(make_run(tmp_path / name, table(2))) for name in "abc"]
    labels = ["_hidden", r"$\nonsense$", "漢字"]
    (_, picture, *_) = write_report(runs, labels, tmp_path / "report", Look(formats=("svg",)))
    assert "<!-- _hidden -->" in picture.read_text()
    assert r"<!-- $\nonsense$ -->" in picture.read_text()


def test_vector_figures_have_fonts_for_publishers_and_no_date(tmp_path):
    run = load_run(make_run(tmp_path / "run", table(2)))
    look = Look(formats=("pdf", "svg", "png"))
    first, second = (write_report([run], ["SAC"], tmp_path / name, look)[1:4] for name in "ab")
    assert [path.name for path in first] == ["Pendulum-v1.pdf", "Pendulum-v1.svg", "Pendulum-v1.png"]
    assert [path.read_bytes()[:5] for path in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"/Type3" not in first[0].read_bytes(), "fonts that publishers reject"
    assert b"/FontFile2" in first[0].read_bytes(), "TrueType, embedded"


def diagnosed(path, where=((100, 4), (100, 5), (200, 4), (200, 5)), **metrics):
    """Adds constant metrics to a made-up run of two seeds, at some steps and seeds."""
    with (path / "metrics.jsonl").open("a") as file:
        for step, seed in where:
            file.write(json.dumps({"step": step, "seed": seed, "seconds": 0, **metrics}) + "\n")
    return path


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_diagnostics_are_drawn_where_there_are_any(tmp_path, drawn):
    """A panel for every metric that a run has; each with its x label; a run that says nothing is in no legend."""
    silent = load_run(make_run(tmp_path / "silent", table(2)))
    assert list(drawn(silent)) == ["Pendulum-v1"]
    path = diagnosed(make_run(tmp_path / "run", table(2)), **{"eval/q": 3.0, "eval/mc_return": 2.0})
    figure = drawn(silent, load_run(path))["Pendulum-v1-diagnostics"]
    assert titles(figure) == ["value of the critics\nQ (line), Monte-Carlo return (dashes)"]
    assert legend(figure) == ["SAC · run"]
    diagnosed(path, **{"train/dynamics_error": 0.1, "train/ent_coef": 0.2})
    figure = drawn(load_run(path))["Pendulum-v1-diagnostics"]
    assert titles(figure)[1:] == ["entropy coefficient α", "dynamics error"], "and no word of dashes that are not there"
    assert all(axes.get_xlabel() and axes.lines for axes in figure.axes)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert caption(figure) == "mean, 95 % t-interval, n = 2 seeds; dotted: first update; thin: single seeds"
    assert [len(axes.lines) for axes in figure.axes] == [3, 4, 4], "single seeds where there are no dashes"
    assert figure.legends[0].get_title().get_text() == "Pendulum-v1"


def test_critic_losses_of_different_algorithms_have_panels_of_their_own(tmp_path, drawn):
    both = {"train/critic_loss": 20.0, "train/critic_loss_synthetic": 30.0}
    runs = [
        load_run(diagnosed(make_run(tmp_path / "a", table(2)), **{"train/critic_loss": 0.1})),
        load_run(diagnosed(make_run(tmp_path / "b", table(2), "lsac"), **both)),
        load_run(diagnosed(make_run(tmp_path / "c", table(2)), **{"train/critic_loss": 0.2})),
    ]
    figure = drawn(*runs)["Pendulum-v1-diagnostics"]
    assert titles(figure) == ["critic loss, SAC", "critic loss, LSAC\nreal (line), synthetic (dashes)"]
    assert legend(figure) == ["SAC · a", "LSAC", "SAC · c"]


def test_losses_that_span_decades_have_a_logarithmic_axis(tmp_path, drawn):
    """With the mean of the logarithms, whose band stays above 0; what is 0 or negative is on a linear axis."""

    def scale(name, values, metric="train/critic_loss"):
        path = make_run(tmp_path / name, table(2))
        for step, value in enumerate(values):
            diagnosed(path, [(step, 4)], **{metric: value})
            diagnosed(path, [(step, 5)], **{metric: 2 * value})
        figure = drawn(load_run(path))["Pendulum-v1-diagnostics"]
        (axes,) = figure.axes
        assert ("mean of the logarithms" in caption(figure)) == (axes.get_yscale() == "log")
        return axes

    axes = scale("decades", (1.0, 10.0, 1000.0))
    assert axes.get_yscale() == "log"
    thick = max(axes.lines, key=lambda line: line.get_linewidth() * (line.get_linestyle() == "-"))
    np.testing.assert_allclose(thick.get_ydata(), math.sqrt(2) * np.array([1.0, 10.0, 1000.0]))
    assert 0 < axes.get_ylim()[0] < 1 < 2000 < axes.get_ylim()[1]
    assert scale("near", (1.0, 2.0, 3.0)).get_yscale() == "linear"
    assert scale("zero", (0.0, 10.0, 1000.0)).get_yscale() == "linear"
    assert scale("entropy", (1.0, 10.0, 1000.0), "train/entropy").get_yscale() == "linear"


def test_every_diagnostic_panel_is_a_metric_that_a_run_writes(tmp_path):
    """The panels name metrics by text; a run of LSAC has to know all of them."""
    names = {name for panel in PANELS for name in (panel.metric, panel.dashed) if name}
    agent = lsac_agent.make(config("lsac"), spec_of(3, 1))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    replay = jax.eval_shape(lambda: rb.make(rb.layout_of(spec_of(3, 1)), 64))
    _, update = jax.eval_shape(agent.update, state, replay, jax.random.key(0))
    _, refresh, _ = jax.eval_shape(agent.refresh.fit, state, replay, jax.random.key(0))
    pair = [jax.ShapeDtypeStruct((n,), "float32") for n in (3, 1)]
    judged = jax.eval_shape(agent.values.value, agent.values.critics(state), *pair)
    known = {f"train/{name}" for name in (*update, *refresh)} | {f"eval/{name}" for name in judged}
    known |= {f"eval/{name}" for name in compared({name: np.ones(2) for name in judged}, np.full(2, 3.0))}
    known |= {"train/dynamics_error", "train/dynamics_error_shuffled"}
    assert names <= known


def test_the_report_command_lists_what_it_wrote(tmp_path):
    path = make_run(tmp_path / "run", table(3))
    result = lsac("report", path, "--out", tmp_path / "report")
    assert (result.code, result.err) == (0, "")
    names = ("index.html", "Pendulum-v1.png", "Pendulum-v1.svg", "table.csv", "table.md", "table.tex")
    assert result.out.split()[:6] == [str(tmp_path / "report" / name) for name in names]
    assert all(Path(path).is_file() for path in result.out.split())
    (tmp_path / "file").touch()
    result = lsac("report", path, "--out", tmp_path / "file")
    assert (result.code, result.sentence) == (2, f"lsac: --out {tmp_path}/file: cannot be written (File exists)")
    before = sorted(path.iterdir())
    result = lsac("report", path, "--out", path)
    sentence = f"lsac: --out {path}: is the folder of a run; choose another folder for the report"
    assert (result.code, result.sentence, sorted(path.iterdir())) == (2, sentence, before)


def test_a_run_without_returns_cannot_be_reported(tmp_path):
    path = make_run(tmp_path / "run", table(1), metric="train/other")
    result = lsac("report", path, "--out", tmp_path / "report")
    assert (result.code, result.sentence) == (2, f"lsac: {path}: holds no returns yet")


REFUSED = {
    ("--band", "sem"): "--band sem: must be t, bootstrap, median, std, minmax or none",
    ("--format", "png", "jpg"): "--format jpg: must be png, pdf or svg",
    ("--format",): "--format: must be png, pdf or svg",
    ("--columns", "3"): "--columns 3: must be 1 or 2",
    ("--watch", "--every", "0"): "--every 0: must be at least 0.1 seconds",
    ("--references", "nowhere.csv"): "--references nowhere.csv: cannot be read (No such file or directory)",
    ("--labels", "A"): "--labels A: must be 2 labels, one for each curve",
    ("--labels", "A", "A"): "--labels A A: A is given to 2 curves on Pendulum-v1, which need one each",
    ("--pool", "--labels", "A", "B"): "--labels A B: must be 1 label, for the one curve",
}


@pytest.mark.parametrize("options", REFUSED)
def test_bad_options_of_a_report_are_refused(options, tmp_path):
    paths = [make_run(tmp_path / name, table(2), seed=seed) for name, seed in (("a", 4), ("b", 8))]
    result = lsac("report", *paths, *options, "--out", tmp_path / "report")
    assert (result.code, result.sentence) == (2, f"lsac: {REFUSED[options]}")
    assert not (tmp_path / "report").exists()


def test_the_options_of_a_report(tmp_path):
    """Two runs of two seeds each become one curve of four, with the label that was given."""
    paths = [make_run(tmp_path / name, table(2), seed=seed) for name, seed in (("a", 4), ("b", 8))]
    options = ("--pool", "--labels", "Mine", "--band", "minmax", "--columns", 1, "--format", "svg", "svg", "pdf")
    result = lsac("report", *paths, *options, "--out", tmp_path / "report")
    assert (result.code, result.err) == (0, "")
    names = ("index.html", "Pendulum-v1.svg", "Pendulum-v1.pdf", "table.csv")
    assert result.out.split()[:4] == [str(tmp_path / "report" / name) for name in names]
    text = (tmp_path / "report" / "Pendulum-v1.svg").read_text()
    assert "<!-- Mine -->" in text
    assert "<!-- mean, minimum to maximum, n = 4 seeds; dotted: first" in text
    assert f'width="{WIDTHS[1] * 72:g}pt"' in text


def test_pyplot_is_left_alone():
    """A report must not choose the window system for a program that plots something else."""
    code = "import sys, lsac.analysis.report; assert 'matplotlib.pyplot' not in sys.modules"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code]).returncode == 0


def test_runs_with_and_without_evaluations_are_not_pooled(tmp_path):
    """Or the evaluations would be dropped."""
    evaluated = load_run(make_run(tmp_path / "a", table(2), seed=4))
    settings = dataclasses.replace(evaluated.experiment, eval_every=0, seed=8)
    other = dataclasses.replace(evaluated, path=tmp_path / "b", experiment=settings)
    assert len(pool([evaluated, other])) == 2


def test_runs_that_differ_in_their_seed_are_read_as_if_alone(tmp_path):
    """The second reading of equal options takes a short cut, which must not skip the check of the seed."""
    paths = [make_run(tmp_path / str(seed), table(2), seed=seed) for seed in (0, 7, 9)]
    together, alone = load_runs(paths), [load_run(path) for path in paths]
    assert [run.experiment for run in together] == [run.experiment for run in alone]
    assert [run.seeds for run in together] == [(0, 1), (7, 8), (9, 10)]
    for seed, sentence in {
        2**31: "seed 2147483648: must be less than 2147483648",
        2**31 - 1: "must stay below",
        -1: "seed -1: must not be negative",
    }.items():
        config = json.loads((paths[2] / "config.json").read_text())
        config["experiment"]["seed"] = seed
        (paths[2] / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=sentence):
            load_runs(paths)
