"""Tables and figures across tasks, ablations and efficiency, on made-up runs; colours."""

import csv
import itertools
import math

import numpy as np
import pytest
from made_up_runs import make_run, table, write_lines

from lsac.agents import AGENTS
from lsac.analysis import results
from lsac.analysis.colours import ALGORITHMS, styles, transparent
from lsac.analysis.comparison import compare, not_compared, tables_of
from lsac.analysis.comparison_figures import draw_comparison
from lsac.analysis.efficiency import efficiency
from lsac.analysis.figures import Look, lines_of
from lsac.analysis.load import load_runs
from lsac.analysis.provenance import provenance
from lsac.analysis.reference import references
from lsac.analysis.report import write_report

TASKS = ("dm_control/a-b-v0", "dm_control/c-d-v0")


def constant(scores):
    """Returns [S, 12] that are constant in time."""
    return np.repeat(np.array(scores, float)[:, None], 12, axis=1)


def lines(tmp_path, runs):
    """Lines of runs given as (label, algorithm, env, scores of seeds)."""
    paths = [
        make_run(tmp_path / str(i), constant(scores), algorithm, env=env)
        for i, (_, algorithm, env, scores) in enumerate(runs)
    ]
    return lines_of(load_runs(paths), [label for label, *_ in runs])


def two(tmp_path, seeds=5):
    ours = [("A", "lsac", env, 500 + 100 * np.arange(seeds)) for env in TASKS]
    theirs = [("B", "sac", env, 100 * np.arange(seeds)) for env in TASKS]
    return lines(tmp_path, [*ours, *theirs])


def test_scores_are_normalised_and_aggregated(tmp_path):
    """500 … 900 of 1000 on both tasks: mean 0.7, gap 0.3; without a quarter of ten runs, two, IQM 0.7."""
    (comparison,) = compare(two(tmp_path), references())
    aggregates, chances = tables_of([comparison])
    a, b = aggregates.rows
    assert (a["label"], a["tasks"], a["seeds"], a["too_narrow"]) == ("A", 2, "5", "†")
    assert [a["iqm"], a["mean"], a["median"], a["optimality_gap"]] == pytest.approx([0.7, 0.7, 0.7, 0.3])
    assert a["iqm_low95"] < 0.7 < a["iqm_high95"]
    assert b["mean"] == pytest.approx(0.2)
    first, second = chances.rows
    assert (first["label"], first["over"], first["probability"]) == ("A", "B", 1.0)
    assert (second["label"], second["over"], second["probability"]) == ("B", "A", 0.0)
    assert f"{TASKS[0]} 0 and 1000, {TASKS[1]} 0 and 1000 (lower bound of the return and upper" in aggregates.note
    assert aggregates.texts()[0][5] == f"0.7 [{a['iqm_low95']:.3g}, {a['iqm_high95']:.3g}]"


def test_intervals_of_few_seeds_and_those_without_width_are_marked(tmp_path):
    """Nine seeds are few. Of ten, 500 … 950 against 0 … 900, only what is certain in every resample is marked."""
    (comparison,) = compare(two(tmp_path / "few", seeds=9), references())
    aggregates, chances = tables_of([comparison])
    assert {row["too_narrow"] for row in (*aggregates.rows, *chances.rows)} == {"†"}
    words = "† fewer than 10 seeds, or all resamples agree: the interval is narrower than the data allow."
    assert words in aggregates.note
    assert words in chances.note

    runs = {"A": 500 + 50 * np.arange(10), "B": 100 * np.arange(10), "C": -1.0 - np.arange(10)}
    made = [(name, "sac", env, scores) for name, scores in runs.items() for env in TASKS]
    (comparison,) = compare(lines(tmp_path / "ten", made), references())
    aggregates, chances = tables_of([comparison])
    assert {row["too_narrow"] for row in aggregates.rows} == {""}
    marks = {(row["label"], row["over"]): row["too_narrow"] for row in chances.rows}
    assert {pair for pair, mark in marks.items() if mark} == {("A", "C"), ("B", "C"), ("C", "A"), ("C", "B")}
    text = draw_comparison(comparison, tmp_path / "out", "dmc", Look(formats=("svg",)))[2].read_text()
    assert "<!-- A over C † -->" in text
    assert "<!-- A over B -->" in text


def test_labels_are_compared_on_the_tasks_that_all_have(tmp_path):
    """What only one label has, or what has no reference, is left out, and the note says so."""
    more = [("A", "lsac", "dm_control/e-f-v0", [1, 2]), ("A", "lsac", "Hopper-v5", [1]), ("A", "lsac", "Ant-v5", [1])]
    (comparison,) = compare(two(tmp_path / "x") + lines(tmp_path / "y", more), references())
    assert comparison.envs == list(TASKS)
    assert "Left out: dm_control/e-f-v0, without scores of B." in comparison.words


def test_a_label_on_few_tasks_does_not_end_the_comparison(tmp_path):
    """The most results together: C was run on one of three tasks, and D of another suite is no part of it."""
    third = "dm_control/e-f-v0"
    more = [("A", "lsac", third, [1, 2]), ("B", "sac", third, [1, 2]), ("C", "td3", TASKS[0], [1])]
    found = two(tmp_path / "x") + lines(tmp_path / "y", [*more, ("D", "td3", "Ant-v4", [1])])
    (comparison,) = compare(found, references())
    assert (comparison.envs, [x.label for x in comparison.labels]) == ([*TASKS, third], ["A", "B"])
    assert comparison.words.endswith("Left out: C, with scores on 1 of 3 tasks.")
    assert not_compared(found, references()) == []


def test_a_half_finished_suite_is_compared_on_what_all_have(tmp_path):
    """A on four tasks, B and C on two: three labels on two tasks are more than two labels on two or one on four."""
    more = [("A", "lsac", f"dm_control/{name}-x-v0", [1]) for name in "ef"] + [("C", "td3", env, [1]) for env in TASKS]
    (comparison,) = compare(two(tmp_path / "x") + lines(tmp_path / "y", more), references())
    assert (comparison.envs, [x.label for x in comparison.labels]) == ([*TASKS], ["A", "B", "C"])


def test_why_there_is_no_comparison_is_said(tmp_path):
    """Each label on a task of its own, and none without a reference; the page has the sentence."""
    runs = [("A", "lsac", "Ant-v4", [1]), ("B", "sac", "Hopper-v4", [1]), ("A", "lsac", "Ant-v5", [1])]
    found = lines(tmp_path, runs)
    assert compare(found, references()) == []
    (reason,) = not_compared(found, references())
    assert reason == (
        "MuJoCo: not compared across tasks, for no label has scores on two of them: Ant-v5, which has no reference "
        "scores."
    )
    write_report([line.run for line in found], ["A", "B", "A"], tmp_path / "report", Look(formats=()))
    assert reason in (tmp_path / "report" / "index.html").read_text()


def test_returns_that_are_not_finite_are_no_scores(tmp_path):
    """A report of them is written, without a warning and without a number for them."""
    values = [("C", "td3", TASKS[0], [1.0, math.nan]), ("C", "td3", TASKS[1], [math.inf, -math.inf])]
    found = two(tmp_path / "x") + lines(tmp_path / "y", values)
    (comparison,) = compare(found, references())
    assert [x.label for x in comparison.labels] == ["A", "B"]
    assert f"Left out: C on {TASKS[0]}, with returns that are not finite; C on {TASKS[1]}, with" in comparison.words
    runs, names = [line.run for line in found], [line.label for line in found]
    write_report(runs, names, tmp_path / "report", Look(formats=("svg",)))
    assert {"NaN", "Infinity"}.isdisjoint((tmp_path / "report" / "index.html").read_text().split('id="data"')[1][:9999])
    alone = lines(tmp_path / "z", values)
    write_report([line.run for line in alone], ["C", "C"], tmp_path / "alone", Look(band="bootstrap", formats=("svg",)))


def test_ablations_of_returns_that_are_not_finite_have_no_probability(tmp_path):
    found = lines(tmp_path, [("A", "sac", TASKS[0], [1.0, 2.0]), ("B", "sac", TASKS[0], [1.0, math.nan])])
    _, row = results.ablations(found).rows
    assert math.isnan(row["probability"])
    assert row["too_narrow"] == ""


def test_one_task_is_no_comparison_across_tasks(tmp_path):
    one = [line for line in two(tmp_path) if line.env == TASKS[0]]
    assert compare(one, references()) == not_compared(one, references()) == []
    assert tables_of([]) == []


def test_runs_of_different_lengths_are_said_to_be(tmp_path):
    found = two(tmp_path)
    (comparison,) = compare(found, references())
    assert not comparison.uneven
    path = found[0].run.path
    write_lines(path, [{"step": 100, "seed": seed, "seconds": 1.0, "eval/mean_reward": 1.0} for seed in range(4, 9)])
    shorter = lines_of(load_runs([line.run.path for line in found]), [line.label for line in found])
    (comparison,) = compare(shorter, references())
    assert comparison.uneven
    assert "Runs on a task end at different steps." in comparison.words


def test_profiles_fall_from_one_to_zero(tmp_path):
    (comparison,) = compare(two(tmp_path), references())
    thresholds, found = comparison.thresholds, comparison.profiles
    assert (thresholds[0], thresholds[-1]) == (0, 1)
    for _, share, low, high in found:
        assert share[-1] == 0
        assert (np.diff(share) <= 0).all()
        assert ((low <= share) & (share <= high)).all()
    assert found[0][1][0] == 1
    assert found[1][1][0] == 0.8, "of 0, 100 … 400, one in five is not above 0"


def test_figures_across_tasks(tmp_path):
    (comparison,) = compare(two(tmp_path), references())
    written = draw_comparison(comparison, tmp_path / "out", "dmc", Look(formats=("svg",)))
    assert [path.name for path in written] == ["dmc-aggregates.svg", "dmc-profiles.svg", "dmc-improvement.svg"]
    text = written[2].read_text()
    assert "<!-- A over B † -->" in text, "of five seeds"
    assert "<!-- DeepMind Control, 2 tasks; normalised final scores; " in text


# ablations, efficiency, published numbers


def test_ablations_name_what_differs(tmp_path):
    paths = [
        make_run(tmp_path / "base", constant([1, 2, 3, 4, 5])),
        make_run(tmp_path / "gamma", constant([6, 7, 8, 9, 10]), gamma=0.9, seed=9, agent={"batch_size": 32}),
        make_run(tmp_path / "other", constant([1, 2]), "td3"),
    ]
    found = results.ablations(lines_of(load_runs(paths), ["base", "changed", "TD3"]))
    base, changed = found.rows
    assert (base["label"], base["changed"], base["too_narrow"]) == ("base", "first", "")
    assert math.isnan(base["probability"])
    assert changed["changed"] == "batch_size=32, gamma=0.9"
    assert (changed["probability"], changed["eval_final"]) == (1.0, 8.0)
    assert results.ablations(lines_of(load_runs(paths[1:]), ["a", "b"])) is None


def test_efficiency_is_that_of_the_metrics(tmp_path):
    """Two seeds, 100 updates each in 1 s: 200 updates per second, 5 ms each."""
    path = make_run(tmp_path / "run", table(2), env="Hopper-v4")
    (row,) = efficiency(lines_of(load_runs([path]), ["SAC"])).rows
    assert row["updates_per_second"] == pytest.approx(200)
    assert row["ms_per_update"] == pytest.approx(5)
    assert row["steps_per_second"] == 1006
    assert row["hours"] == pytest.approx(11 / 3600)
    assert math.isnan(row["seconds_to_200k_steps"])
    assert math.isnan(row["return_after_10_hours"])
    assert (row["paper_ms_per_update"], row["paper_parameters_millions"]) == (772, 0.146)


def test_seconds_to_a_step_and_returns_after_some_hours(tmp_path):
    path = make_run(tmp_path / "run", table(1))
    times = ((100_000, 4, 10.0), (200_000, 9, 20.0), (300_000, 11, 30.0))
    write_lines(path, [{"step": x, "seed": 4, "seconds": 3600 * h, "eval/mean_reward": r} for x, h, r in times])
    (row,) = efficiency(lines_of(load_runs([path]), ["SAC"])).rows
    assert (row["seconds_to_200k_steps"], row["return_after_10_hours"]) == (9 * 3600, 20.0)


def test_ours_beside_the_published(tmp_path):
    paths = [make_run(tmp_path / "a", constant([100.0, 300.0]), env="Hopper-v4"), make_run(tmp_path / "b", table(2))]
    found = results.published_numbers(lines_of(load_runs(paths), ["SAC", "SAC"]))
    (row,) = found.rows
    assert (row["env"], row["final"], row["steps"], row["paper"], row["paper_interval90"]) == (
        "Hopper-v4",
        200,
        1200,
        2919,
        165,
    )
    assert (row["paper_task"], row["best_budget"]) == ("Hopper-v3", "1 M environment steps")
    assert row["best"] > 4000
    assert {"its protocol", "public at 3 M steps"} < {shown.heading for shown in found.shown}
    assert row["best_protocol"].startswith("evaluation return")
    assert results.published_numbers(lines_of(load_runs(paths[1:]), ["SAC"])) is None, "Pendulum-v1 has none"
    changed = make_run(tmp_path / "c", table(2), env="HalfCheetah-v4", env_args=("forward_reward_weight=10",))
    assert results.published_numbers(lines_of(load_runs([changed]), ["SAC"])) is None, "its rewards are others"


def test_how_each_number_was_made(tmp_path):
    """A row for every run, also of pooled ones; what a file says is text, whatever it is."""
    paths = [make_run(tmp_path / name, table(2), seed=seed) for name, seed in (("a", 4), ("b", 8))]
    config = (paths[0] / "config.json").read_text().replace('"command": []', '"command": ["lsac", "train", "a b", 3]')
    (paths[0] / "config.json").write_text(config.replace('"device": "cpu"', '"device": ["x"]'))
    found = provenance(lines_of(load_runs(paths), ["A", "B"]))
    assert [row["command"] for row in found.rows] == ["lsac train 'a b' 3", ""]
    assert [row["device"] for row in found.rows] == ["['x']", "cpu"]
    assert [row["seeds"] for row in found.rows] == ["4 to 5", "8 to 9"]
    assert next(csv.DictReader(found.csv().splitlines()))["run"] == str(paths[0])


# colours

MACHADO = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""How linear RGB looks to people without one kind of cone (Machado et al. 2009)."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", MACHADO)
def test_colours_are_told_apart(kind):
    """A distance of 10 in CIELAB is seen at a glance."""
    seen = {name: lab(np.array(MACHADO[kind]) @ linear(colour)) for name, colour in ALGORITHMS.items()}
    nearest = min(np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2))
    assert nearest > 14


@pytest.mark.parametrize("back", ["#ffffff", "#16181d"])
def test_colours_are_seen_on_both_backgrounds(back):
    def light(colour):
        return float(TO_XYZ[1] @ linear(colour)) + 0.05

    for colour in ALGORITHMS.values():
        bright, dark = sorted((light(colour), light(back)), reverse=True)
        assert bright / dark > 2.2


def test_every_algorithm_has_its_own_colour_and_variants_their_own_marker():
    assert ALGORITHMS.keys() == AGENTS.keys()
    curves = [
        ("A", "sac", "x"),
        ("B", "td3", "x"),
        ("C", "sac", "x"),
        ("D", "sac", "y"),
        ("A", "sac", "y"),
        ("E", "ddpg", "x"),
    ]
    found = styles(curves)
    assert (found["A"].colour, found["A"].marker) == (ALGORITHMS["sac"], "")
    assert found["B"] == styles([("other", "td3", "z")])["other"], "the same in every report"
    assert found["C"].marker == found["D"].marker == "o", "they are on no environment together, but with A"
    assert found["C"].colour != found["A"].colour
    assert styles([("A", "sac", "x"), ("B", "sac", "y")])["B"].marker == "", "the only one on its environment"
    many = styles([(str(i), "sac", "x") for i in range(8)])
    assert len({*many.values()}) == 8
    assert transparent("#0072b2", 0.5) == "rgba(0,114,178,0.5)"
