"""What is done with a trained run: its analyses, against numbers worked by hand and on one small run of LSAC; its
video, and its export."""

import base64
import csv
import json
import math
import re
import shlex
import shutil
import warnings
import xml.etree.ElementTree
from pathlib import Path

import imageio.v3 as imageio
import jax
import numpy as np
import pytest
from commands import TINY, lsac, metrics
from matplotlib.figure import Figure
from replays import spec_of
from small import config, flags

from lsac import streams
from lsac.agents.lsac import synthesis
from lsac.analyses import NAMES, coverage, find, imagination, of_run, posterior, q_bias, rollouts, stability, synthetic
from lsac.analyses import actions as of_actions
from lsac.analysis.load import Curve
from lsac.collect.groups import Step, Trace
from lsac.envs.mazes import POINT_MAZES, Maze
from lsac.envs.rendering import INSTALL
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train import fidelity, watching
from lsac.train.diagnostics import compared
from lsac.types import Pixels

# numbers by hand


def trace(terminated):
    rewards, entropies = (1.0, 2.0, 3.0), (0.1, 0.2, 0.3)
    steps = [Step(np.full(2, t), np.full(1, t), r, e) for t, (r, e) in enumerate(zip(rewards, entropies, strict=True))]
    return Trace(steps, terminated)


def test_returns_with_entropy_by_hand():
    """γ = ½, α = 2: R₂ = 3, R₁ = 2 + ½(3 + 2·0.3) = 3.8, R₀ = 1 + ½(3.8 + 2·0.2) = 3.1; an action's own entropy does
    not count."""
    pairs = rollouts.judged(trace(terminated=True), 0.5, 2.0, first=350)
    assert pairs.returns == pytest.approx([3.1, 3.8, 3.0])
    assert list(pairs.unseen) == [0, 0, 0]
    assert rollouts.judged(trace(terminated=True), 0.5, 0.0, first=350).returns == pytest.approx([2.75, 3.5, 3.0])


def test_only_the_first_steps_are_kept_and_the_hidden_rest_is_weighed():
    pairs = rollouts.judged(trace(terminated=False), 0.5, 2.0, first=2)
    assert pairs.returns == pytest.approx([3.1, 3.8]), "the steps that are not kept still count in the returns"
    assert pairs.unseen == pytest.approx([0.125, 0.25])
    assert pairs.obs.tolist() == [[0, 0], [1, 1]]


def test_bias_is_normalised_by_the_return_but_not_by_less_than_ten():
    pairs = rollouts.Pairs(np.zeros((2, 1)), np.zeros((2, 1)), np.array([-100.0, 1.0]), np.array([0.0, 0.5]), 3)
    judged = q_bias.Judged(7, pairs, {"q": np.array([-95.0, 6.0])})
    assert judged.normalised == pytest.approx([0.05, 0.5])
    row = dict(zip(q_bias.COLUMNS, q_bias.row(11, judged), strict=True))
    assert (row["seed"], row["step"], row["pairs"], row["episodes"]) == (7, 11, 2, 3)
    assert (row["bias_mean"], row["bias_std"]) == (5, 0)
    assert (row["normalised_bias_mean"], row["normalised_bias_std"]) == pytest.approx((0.275, 0.225))
    assert row["cut_short_share"] == 0.5
    assert math.isnan(row["chain_spread_mean"])


def test_correlations_and_tenths_by_hand():
    assert posterior.between(np.array([[1.0, 2, 3], [2, 4, 6], [3, 2, 1]])) == pytest.approx((1 - 1 - 1) / 3)
    assert math.isnan(posterior.between(np.array([[1.0, 1], [1, 2]])))
    assert posterior.rank_correlation(np.array([1.0, 2, 3]), np.array([1.0, 10, 100])) == pytest.approx(1)
    spread, error = posterior.tenths(np.array([3.0, 1.0, 2.0]), np.array([30.0, 10.0, 20.0]))
    assert (list(spread), list(error)) == ([1, 2, 3], [10, 20, 30])


def test_numbers_of_chains_by_hand():
    """Two chains at two pairs: means 1 and 3, stds 1 and 0, returns 2 and 1, so errors 1 and 2."""
    found = posterior.Posterior(0, np.array([[0.0, 3.0], [2.0, 3.0]]), np.array([2.0, 1.0])).numbers()
    assert (found["spread"], found["error"], found["calibration"]) == pytest.approx((0.5, 1.5, 1 / 3))
    assert found["rank_correlation"] == pytest.approx(-1)


def test_the_correlation_of_errors_is_estimated_from_two_metrics():
    """Four chains whose errors have variance 4 and correlation 0.5: their mean has 4 (1 + 3/2) / 4 = 2.5, and over
    chains they have 1.5. Errors that are the same correlate by 1, and those whose mean is 0 by −1/3."""
    steps, seconds = np.array([0, 10, 20]), np.zeros((1, 3))
    spread = Curve(steps, np.array([[math.sqrt(1.5), 0.0, 2.0]]), seconds)
    error = Curve(steps, np.array([[math.sqrt(2.5), 3.0, 0.0]]), seconds)
    found = posterior.estimated(spread, error, 4)
    assert found.values[0] == pytest.approx([0.5, 1.0, -1 / 3])
    later = posterior.estimated(spread._replace(steps=steps + 10), error, 4)
    assert later.steps.tolist() == [10, 20], "where both are known"
    assert later.values[0] == pytest.approx([(4 * 9 / (9 + 1.5) - 1) / 3, -1 / 3])


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
def test_the_estimate_of_the_correlation_of_errors_is_close_to_what_the_chains_show(correlation):
    """Ten chains with normal errors; the returns are common to all of them and say nothing of it."""
    random = np.random.default_rng(0)
    returns, shared, own = random.normal(0, 50, 4_000), random.normal(size=4_000), random.normal(size=(10, 4_000))
    q = returns + 3 * (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)
    measured = posterior.Posterior(0, q, returns).numbers()
    logged = compared({"q": q.mean(axis=0), "q_spread": q.std(axis=0)}, returns)
    spread, error = (
        Curve(np.zeros(1, int), np.array([[logged[x]]]), np.zeros((1, 1))) for x in ("q_spread", "q_bias_std")
    )
    assert measured["error_correlation"] == pytest.approx(correlation, abs=0.03)
    assert posterior.estimated(spread, error, 10).values[0, 0] == pytest.approx(correlation, abs=0.04)
    assert measured["chain_correlation"] > 0.99, "all of them follow the returns"


def test_a_spread_that_is_right_lies_on_the_line_of_the_figure():
    """The mean absolute error of normal values is 0.798 of their standard deviation."""
    draws = np.random.default_rng(0).normal(size=200_000)
    assert np.abs(draws).mean() == pytest.approx(posterior.ERROR_OF_SPREAD, rel=0.01)
    found = [posterior.Posterior(0, np.array([[1.0, 2.0, 5.0], [3.0, 6.0, 3.0]]), np.zeros(3))]
    figure = Figure()
    posterior._draw_tenths(axes := figure.subplots(), found)
    (low, high), errors = axes.lines[-1].get_data()
    assert (low, high) == (1, 2)
    assert errors == pytest.approx([0.798, 1.596], abs=1e-3)


def test_a_density_is_highest_where_points_are_and_needs_a_plane():
    points = np.random.default_rng(0).normal([0.5, -0.5], 0.1, (300, 2))
    row, column = np.unravel_index(of_actions.density(points).argmax(), (of_actions.GRID, of_actions.GRID))
    along = np.linspace(-1, 1, of_actions.GRID)
    assert (along[column], along[row]) == pytest.approx((0.5, -0.5), abs=0.1)
    assert of_actions.density(np.repeat(points[:, :1], 2, axis=1)) is None


def test_the_first_generated_transitions_are_those_of_the_whole_buffer():
    """Also where they are made in several batches; and not those of another key."""
    sizes = {"sample_batch": 8, "width": 8, "dim_t": 8, "blocks": 1, "sampler_steps": 3}
    settings, spec = config("lsac", generator=sizes).generator, spec_of(3, 2)
    state = synthesis.init(settings, spec, jax.random.key(0))
    whole = jax.jit(lambda key: synthesis.generate(settings, spec, state, 20, key))(jax.random.key(1))
    assert whole.shape[0] == 20
    first = jax.jit(lambda key: synthesis.generate(settings, spec, state, 20, key, 9))
    np.testing.assert_array_equal(first(jax.random.key(1)), whole[:9])
    assert not np.allclose(first(jax.random.key(2)), whole[:9])


def test_a_spread_over_seeds_by_hand():
    mean, std, low, high = stability.summary(np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert ([*mean], [*std], [*low], [*high]) == ([2, 2], [math.sqrt(2), 0], [1, 2], [3, 2])


# frames of a model


def frames_of(*values, shape=(1, 2, 3)):
    """One frame of a single brightness for each value."""
    return np.stack([np.full(shape, value, np.uint8) for value in values])


def test_errors_of_frames_by_hand():
    """Two of four frames are seen; the baseline repeats the second of them."""
    found = imagination.Imagined(0, 2, frames_of(0, 51, 102, 255), frames_of(51, 51, 0, 204))
    error, repeated = found.errors()
    assert error == pytest.approx([0.04, 0, 0.16, 0.04])
    assert repeated == pytest.approx([0, 0, 0.04, 0.64])


@pytest.mark.parametrize(
    ("predicted", "repeated", "words"),
    [
        (0.1, 0.4, "smaller than that of repeating the last seen frame, 0.4 (ratio 0.25)"),
        (0.4, 0.1, "larger than that of repeating the last seen frame, 0.1 (ratio 4)"),
        (0.1, 0.0, "while the frames do not change, so that repeating the last seen one has no error"),
    ],
)
def test_the_error_of_a_prediction_is_compared_in_words(predicted, repeated, words):
    assert imagination.comparison(predicted, repeated) == words


def test_an_image_of_several_frames_is_that_of_the_agent():
    """The newest frame is the last one, and the first one is repeated before it."""
    seen = imagination.stacked(frames_of(1, 2, 3, 4, shape=(1, 1, 1)), 3)
    assert seen[:, 0, 0].tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]


@pytest.mark.parametrize("channels", [1, 3])
def test_frames_lie_in_three_rows_with_a_line_before_the_first_prediction(channels):
    shape = (24, 24, channels)
    x = imagination.Imagined(4, 2, frames_of(0, 10, 20, 30, shape=shape), frames_of(0, 10, 50, 10, shape=shape))
    imagination._draw_frames(axes := Figure().subplots(), x, np.array([0, 1, 3]))
    picture = axes.images[0].get_array()
    assert picture.shape == (3 * 24 + 2 * 2, 3 * 24 + 2 * 2, 3)
    middles = [[int(picture[row, column, 0]) for column in (12, 38, 64)] for row in (12, 38, 64)]
    assert middles == [[0, 10, 30], [0, 10, 10], [0, 0, 20]]
    assert (np.diff(axes.get_xticks()).tolist(), [x.get_text() for x in axes.get_xticklabels()]) == (
        [26, 26],
        ["0", "1", "3"],
    )
    (line,) = axes.lines
    assert line.get_xdata()[0] == 50.5, "in the middle of the gap before the third column"
    assert np.all(picture[:, 50:52] == 255)


# the mazes

CORRIDOR = Maze(("######", "#S..G#", "#.##.#", "#....#", "######"), cell=2.0)
"""Two ways to the goal: along the upper edge, which is shorter, or around the wall in the middle."""


def along(*cells):
    """Positions in the middles of cells."""
    return np.array([CORRIDOR.centre(cell) for cell in cells])


def test_coverage_by_hand():
    """Ten free cells, four bins each with 2 per direction: the middles of three cells are in three of 40 bins."""
    path = along((1, 1), (1, 2), (1, 3), (1, 1))
    assert coverage.coverage(CORRIDOR, path, 1) == pytest.approx(3 / 10)
    assert coverage.coverage(CORRIDOR, path, 2) == pytest.approx(3 / 40)
    assert coverage.growth(CORRIDOR, path, 1) == pytest.approx([0.1, 0.2, 0.3, 0.3])
    inside = along((1, 1), (2, 2), (1, 2))  # the second is in a wall, which a body may touch
    assert coverage.growth(CORRIDOR, inside, 1) == pytest.approx([0.1, 0.1, 0.2])
    assert coverage.coverage(CORRIDOR, inside, 1) == pytest.approx(0.2)


def test_goals_and_routes_by_hand():
    straight = along((1, 1), (1, 2), (1, 3), (1, 4))
    around = along((1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (3, 4), (2, 4), (1, 4))
    back = along((1, 1), (1, 2), (1, 1), (2, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 4))
    assert coverage.outcome(CORRIDOR, straight) == (0, "shortest_1", (True,))
    assert coverage.outcome(CORRIDOR, around) == (0, "other", (False,))
    assert coverage.outcome(CORRIDOR, back) == (0, "shortest_1", (True,)), (
        "detours that end where they began do not count"
    )
    assert coverage.outcome(CORRIDOR, straight[:3]) == (-1, "", ())
    ways = [coverage.outcome(CORRIDOR, path) for path in (straight, around, straight[:3], straight[:2])]
    visited = coverage.Visited(0, straight, around, ways)
    found = coverage.numbers(CORRIDOR, visited, 1)
    assert (found["success"], found["success_goal_0"]) == (0.5, 0.5)
    assert (found["goal_0_shortest_1"], found["goal_0_other"]) == (0.25, 0.25)
    assert found["goal_0_above_obstacle_1"] == 0.25, "one of four went above the wall in the middle"
    assert found["coverage_training_1_bins"] == pytest.approx(0.4)
    assert found["coverage_evaluation_1_bins"] == pytest.approx(0.8)


def test_the_coverage_of_a_run_in_a_maze(tmp_path, monkeypatch):
    """A run whose replay holds all that it visited; one that has lost the beginning says so."""
    monkeypatch.chdir(tmp_path)
    train = ("train", "sac", "--env", "lsac/PointMaze-TwoGoals-v0", *TINY, "--seeds", "1", "--out", "runs/maze")
    assert lsac(*train, "--steps", "24").code == 0
    result = lsac("analyse", "coverage", "runs/maze", "--episodes", "2", "--bins", "2")
    assert result.code == 0, result.err
    assert "warning" not in result.out
    rows = {row["quantity"]: float(row["value"]) for row in table("coverage", "maze")}
    run = of_run.load(Path("runs/maze"), transitions=True)
    visited = run.rows(0)[:, 8:10]
    assert visited.shape == (24, 2)
    cells = {tuple(cell) for cell in POINT_MAZES["medium"].bin_of(visited, 2).tolist()}
    assert rows["coverage_training_2_bins"] == pytest.approx(len(cells) / (4 * 26)), "26 cells are free"
    assert rows["coverage_evaluation_2_bins"] > 0
    assert rows["success"] == rows["success_goal_0"] + rows["success_goal_1"]
    later = run._replace(checkpoint=run.checkpoint._replace(record={"step": 96}))
    found = [coverage.Visited(0, visited, visited, [coverage.Way()])]
    said = coverage._sentences(later, POINT_MAZES["medium"], found, coverage.Options(Path(), 1, 2))
    assert "the replay holds the newest 24 of 96 transitions" in said[-1]


# a small run


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a run of LSAC on Hopper-v5 under the names that the examples of the help texts use."""
    folder = tmp_path_factory.mktemp("desk")
    sizes = flags(
        "lsac",
        **{"chains": 3, "refresh_every": 32, "eval_every": 48, "checkpoint_every": 48, "log_every": 16},
        **{"replay_capacity": 96, "synthetic_capacity": 64},
    )
    more = ("--no-adaptive-share", "--normalise-observations")
    result = lsac("train", "lsac", "--env", "Hopper-v5", "--steps", "96", *sizes, *more, "--out", folder / "runs/ant")
    assert result.code == 0, result.err
    shutil.copytree(folder / "runs/ant", folder / "runs/cheetah")
    return folder


@pytest.fixture
def at_desk(desk, monkeypatch):
    monkeypatch.chdir(desk)
    return desk


@pytest.fixture(scope="module")
def dreams(desk):
    """A run of Dreamer at the same desk, from images of two frames; an episode has twelve decisions of two steps."""
    sizes = {"pixels": 24, "frame_stack": 2, "env_args": "length=24", "horizon": 3, "utd": 0.25, "eval_every": 24}
    words = ("--env", "lsac/SeenColour-v0", "--steps", "48", *flags("dreamer", **sizes))
    result = lsac("train", "dreamer", *words, "--out", desk / "runs/dreamer")
    assert result.code == 0, result.err
    return of_run.load(desk / "runs/dreamer", transitions=False, images=True)


@pytest.fixture(scope="module")
def run(desk):
    return of_run.load(desk / "runs/ant", transitions=True)


def table(name, run="ant"):
    with open(f"runs/{run}/analysis/{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "coverage"])
def test_every_analysis_does_what_its_help_says(name, at_desk, dreams):
    shown = lsac("analyse", name, "--help")
    assert shown.code == 0
    examples = re.search(r"^Examples:\n((?:  .*\n)+)", shown.out, re.MULTILINE)[1]
    for line in examples.splitlines():
        words = shlex.split(line)
        result = lsac(*words[1:])
        assert result.code == 0, result.err
        folder = at_desk / words[3] / "analysis"
        about = json.loads((folder / f"{name}.json").read_text())
        assert about.keys() == {"title", "caption", "command"}
        assert about["command"] == shlex.join(words)
        assert str(folder / f"{name}.csv") in str(at_desk / result.out.splitlines()[-4])
        assert imageio.imread(folder / f"{name}.png")[..., :3].std() > 5, "the figure is not empty"
        assert xml.etree.ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert len(table(name, words[3].split("/")[1])) >= 2
        assert "nan" not in result.out.splitlines()[0]


def test_chains_are_measured_at_every_checkpoint_and_their_errors_estimated_at_every_evaluation(at_desk):
    result = lsac("analyse", "posterior", "runs/ant", "--pairs", "20")
    assert result.code == 0, result.err
    rows = [row for row in table("posterior") if row["quantity"] == "error_correlation"]
    found = {(row["source"], int(row["step"]), row["seed"]): float(row["value"]) for row in rows}
    assert {x[1:] for x in found if x[0] == "chains"} == {(step, seed) for step in (48, 96) for seed in "01"}
    lines = [x for x in metrics(at_desk / "runs/ant") if "eval/q_spread" in x]
    assert lines
    for line in lines:
        v, over = line["eval/q_bias_std"] ** 2, line["eval/q_spread"] ** 2
        assert found["metrics", line["step"], str(line["seed"])] == pytest.approx(
            (3 * v / (v + over) - 1) / 2, rel=1e-5
        )
    assert len([x for x in found if x[0] == "metrics"]) == len(lines)
    values = {(row["step"], row["seed"]): row["value"] for row in rows if row["source"] == "chains"}
    assert len({*values.values()}) == 4, "every checkpoint has agents and pairs of its own"
    assert (
        "measured at step 48 and 96 (dots)"
        in json.loads(Path("runs/ant/analysis/posterior.json").read_text())["caption"]
    )


def test_an_earlier_checkpoint_that_is_damaged_is_left_out(at_desk, tmp_path):
    shutil.copytree("runs/ant", tmp_path / "ant")
    earlier = tmp_path / "ant/checkpoints/step-0000000048.safetensors"
    earlier.write_bytes(earlier.read_bytes()[:-1] + b"x")
    said = []
    assert list(posterior.earlier(of_run.load(tmp_path / "ant", transitions=False), said.append)) == []
    assert said == [f"{earlier}: is damaged (its SHA-256 does not match); left out"]


def test_the_table_of_stability_is_that_of_the_metrics(at_desk):
    assert lsac("analyse", "stability", "runs/ant").code == 0
    for row in table("stability"):
        found = {
            x["seed"]: x["eval/mean_reward"]
            for x in metrics(at_desk / "runs/ant")
            if "eval/mean_reward" in x and x["step"] == int(row["step"])
        }
        assert [float(row["seed_0"]), float(row["seed_1"])] == pytest.approx([found[0], found[1]], rel=1e-6)
        assert float(row["mean"]) == pytest.approx((found[0] + found[1]) / 2, rel=1e-6)


def test_pairs_are_reproducible_and_differ_between_seeds(run):
    first, again, other = (rollouts.play(run, i, pairs=20) for i in (0, 0, 1))
    np.testing.assert_array_equal(first.obs, again.obs)
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.obs.shape[1] == 11
    assert len(first.returns) >= 20
    assert not np.array_equal(first.obs[0], other.obs[0])


def test_episodes_start_in_states_of_the_replay(run):
    """All of them; those that start at a reset do not."""
    rows = run.rows(0)[:, :11]

    def starts(from_replay):
        pairs = rollouts.play(run, 0, pairs=1, first=1, from_replay=from_replay)
        assert pairs.episodes == rollouts.TOGETHER
        return [bool(np.any(np.all(np.abs(rows - obs) < 1e-5, axis=1))) for obs in pairs.obs]

    assert starts(True) == [True] * rollouts.TOGETHER
    assert starts(False) == [False] * rollouts.TOGETHER


def test_values_of_pairs_are_those_of_the_chains(run):
    pairs = rollouts.play(run, 0, pairs=10)
    values, chains = q_bias.values_at(run, 0, pairs), posterior.chain_values(run, 0, pairs)
    assert chains.shape == (3, len(pairs.returns))
    np.testing.assert_allclose(chains.mean(axis=0), values["q"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chains.std(axis=0), values["q_spread"], rtol=1e-3, atol=1e-5)


def test_refined_actions_are_generated_ones_with_their_displacement(run):
    """D' is generated again as a resume does, from the step of the last fit."""
    real, generated, refined = of_actions.actions(run, 0, 200, lambda text: None)
    key = jax.random.fold_in(streams.root(0, streams.GENERATE), 64)
    state, _ = run.agent.refresh.generate(run.state(0), key)
    fields = rb.layout_of(run.spec).fields()
    whole = np.asarray(state.agent.generated)[:, fields["action"]]
    where = [int(np.argmin(np.abs(whole - row).sum(axis=1))) for row in generated]
    np.testing.assert_allclose(generated, whole[where], atol=1e-5)
    moved = np.asarray(run.inner(0).moved)
    assert np.abs(moved).max() > 0
    np.testing.assert_allclose(refined, np.clip(whole[where] + moved[where], -1, 1), atol=1e-5)
    stored = run.rows(0)[:, fields["action"]]
    assert all(np.any(np.all(stored == row, axis=1)) for row in real)


def test_real_transitions_pass_for_generated_ones_and_shuffled_ones_do_not(run):
    env, layout = run.simulator(), rb.layout_of(run.spec)
    _, real, other = synthetic.samples(run, 0, 40)
    good = synthetic.compared(run, 0, other, real, other, env).numbers
    bad = synthetic.compared(run, 0, fidelity.shuffled(layout, other), real, other, env).numbers
    env.close()
    for name, (generated, reference, _) in good.items():
        if name != "termination_rate":
            assert generated == pytest.approx(reference), name
    assert good["dynamics_next_obs_median"][0] < 0.01
    assert bad["dynamics_next_obs_median"][0] > 0.3
    assert bad["ks_max"] == pytest.approx(good["ks_max"], nan_ok=True), "marginals do not show it"


# imagination of a run


def test_frames_and_actions_are_those_of_an_episode_without_exploration(dreams, monkeypatch):
    """The model gets what the policy saw and did. One that returned its images would have no error."""
    given = []
    monkeypatch.setattr(imagination, "_open_loop", lambda *args: given.append(args) or args[1].image)
    found = imagination.imagined(dreams, 1, steps=8, seen=3)
    model, obs, action, seen, _ = given[0]
    assert (len(action), obs.image.shape, seen, found.true.shape) == (8, (8, 24, 24, 6), 3, (8, 24, 24, 3))
    assert jax.tree.leaves(model)[0].tolist() == jax.tree.leaves(dreams.inner(1).model)[0].tolist()
    assert not found.errors()[0].any(), "the newest frame is compared"
    np.testing.assert_array_equal(obs.image[1:, ..., :3], found.true[:-1])
    assert np.any(found.true[1:] != found.true[:-1], axis=(1, 2, 3)).all(), "every step has a colour of its own"
    agent, memory = dreams.agent, dreams.agent.memory()
    policy, act = agent.policy(dreams.state(1)), jax.jit(agent.act, static_argnums=4)
    for t in range(8):
        one = Pixels(found.true[t], np.asarray(obs.vector[t]))
        chosen, memory = act(policy, memory, one, jax.random.key(t), False)
        np.testing.assert_allclose(action[t], chosen, atol=1e-4)


def test_the_table_of_imagination_has_every_step_of_every_seed(at_desk, dreams):
    """All seeds are in the table, and one in the picture."""
    result = lsac("analyse", "imagination", "runs/dreamer", "--seen", "4", "--seed", "1", "--frames", "6")
    assert result.code == 0, result.err
    rows = table("imagination", "dreamer")
    assert [(row["seed"], row["step"]) for row in rows] == [(seed, str(t)) for seed in "01" for t in range(12)]
    assert [row["kind"] for row in rows] == (["seen"] * 4 + ["predicted"] * 8) * 2
    for i in (0, 1):
        found = imagination.imagined(dreams, i, steps=50, seen=4)
        for name, values in zip(("error", "error_of_repeating"), found.errors(), strict=True):
            assert [float(row[name]) for row in rows[12 * i : 12 * i + 12]] == pytest.approx(values, rel=1e-6)
    mean = {
        name: np.mean([float(row[name]) for row in rows if row["kind"] == "predicted"])
        for name in rows[0]
        if "error" in name
    }
    size = "smaller" if mean["error"] < mean["error_of_repeating"] else "larger"
    assert f"of predicted frames is {mean['error']:.3g}, {size} than that of repeating" in result.out
    picture = xml.etree.ElementTree.parse("runs/dreamer/analysis/imagination.svg")
    assert len([x for x in picture.iter() if x.tag.endswith("image")]) == 1


def test_the_picture_of_imagination_is_in_the_report(at_desk, dreams, tmp_path):
    assert lsac("analyse", "imagination", "runs/dreamer").code == 0
    result = lsac("report", "runs/dreamer", "--format", "png", "--out", tmp_path)
    assert result.code == 0, result.err
    picture = Path("runs/dreamer/analysis/imagination.png").read_bytes()
    (copied,) = tmp_path.glob("*-imagination.png")
    assert copied.read_bytes() == picture
    page = (tmp_path / "index.html").read_text()
    assert "Imagination of the world model · Dreamer" in page
    assert base64.b64encode(picture).decode() in page


def test_other_analyses_do_not_take_images(at_desk, dreams):
    result = lsac("analyse", "q-bias", "runs/dreamer")
    assert (result.code, "learned from images, but this analysis reads vectors only" in result.sentence) == (2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seen", "12"], "--seen 12: an episode of seed 0 has 12 decisions; must be less than 12"),
        (["--seen", "50"], "--seen 50: must be less than --steps 50"),
        (["--seen", "0"], "--seen 0: must be at least 1"),
        (["--frames", "1"], "--frames 1: must be at least 2"),
        (["--seed", "0", "9"], "--seed 9: must be one of 0, 1"),
    ],
)
def test_bad_options_of_imagination_are_one_sentence(words, sentence, at_desk, dreams):
    result = lsac("analyse", "imagination", "runs/dreamer", *words)
    assert (result.code, result.sentence) == (2, f"lsac: {sentence}")


# what is missing is said


@pytest.fixture
def untrained(tmp_path):
    """The folder of a run of SAC that has not begun."""
    RunFolder.create(tmp_path / "sac", Experiment(agent=config("sac"), env="Pendulum-v1")).release()
    return tmp_path / "sac"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("q-bias", "holds no checkpoint"),
        ("coverage", "holds no checkpoint"),
        ("stability", "has no metrics yet"),
        ("actions", "is a run of sac; this analysis is of lsac only"),
        ("synthetic", "is a run of sac; this analysis is of lsac only"),
        ("posterior", "is a run of sac; this analysis is of lsac only"),
        ("imagination", "is a run of sac; this analysis is of dreamer only"),
    ],
)
def test_what_an_analysis_misses_is_one_sentence(name, sentence, untrained):
    result = lsac("analyse", name, untrained)
    assert result.code == 2
    assert sentence in result.sentence
    assert not (untrained / "analysis").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["actions", "--dims", "2", "3"], "--dims 2 3: must be two different numbers from 0 to 2"),
        (["actions", "--seed", "9"], "--seed 9: must be one of 0, 1"),
        (["coverage"], "analyse coverage: Hopper-v5 is no maze; needs lsac/PointMaze-TwoGoals-v0"),
        (["q-bias", "--pairs", "0"], "--pairs 0: must be at least 1"),
        (["synthetic", "--samples", "1"], "--samples 1: must be at least 10"),
    ],
)
def test_bad_options_are_one_sentence(words, sentence, at_desk):
    result = lsac("analyse", words[0], "runs/ant", *words[1:])
    assert (result.code, sentence in result.sentence) == (2, True), result.err


def test_a_link_out_of_the_run_is_not_followed(tmp_path):
    """Not even for the folder of the analyses."""
    lines = [{"step": 1, "seed": seed, "seconds": 0, "eval/mean_reward": 1.0} for seed in (0, 1)]
    run = tmp_path / "two"
    RunFolder.create(run, Experiment(agent=config("sac"), env="Pendulum-v1", seeds=2)).release()
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "elsewhere").mkdir()
    (run / "analysis").symlink_to(tmp_path / "elsewhere")
    assert "is a link that leaves the folder of the run" in lsac("analyse", "stability", run).sentence
    assert not list((tmp_path / "elsewhere").iterdir())


def test_names_are_checked():
    assert lsac("analyse", "stabilty", "x").sentence.endswith("did you mean stability?")
    assert lsac("analyse").code == 2
    assert all(find(name).HELP for name in NAMES)


def test_states_that_cannot_be_restored_are_refused(run):
    other = run._replace(environments=run.environments._replace(args=("a=1",)))
    with pytest.raises(InputError, match="cannot be restored from an observation"):
        rollouts.play(other, 0, from_replay=True)


# video and export of the same run


def decoded(path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX warns of every fork, here of FFmpeg
        warnings.simplefilter("ignore", ResourceWarning)  # imageio does not close FFmpeg's pipes
        return imageio.imread(path)


def test_a_video_shows_the_first_episode_of_the_evaluation(at_desk):
    words = ("--episodes", "1", "--video", "film.mp4", "--video-steps", "8", "--seed", "1")
    result = lsac("eval", "runs/ant", *words)
    assert result.code == 0, result.err
    said = re.search(
        r"video: film.mp4, (\d+) frames at ([\d.]+) per second, ([\d.]+) s; seed 1, .* return (\S+)", result.out
    )
    frames, fps, seconds = int(said[1]), float(said[2]), float(said[3])
    shown = re.search(r"seed 1: return (\S+) ± 0.0 over 1 episode \(mean length (\d+)", result.out)
    assert said[4] == shown[1], "it is the episode that was counted"
    assert frames == min(int(shown[2]), 8) + 1
    assert seconds == pytest.approx(frames / fps, abs=0.06)
    pictures = decoded("film.mp4")
    assert pictures.shape == (frames, 480, 480, 3)
    assert pictures.mean() > 30, "it is not black"
    assert np.abs(pictures[0].astype(float) - pictures[-1]).max() > 50, "something moves"


@pytest.mark.slow
def test_a_video_can_be_cut_and_be_a_gif(at_desk):
    result = lsac("eval", "runs/ant", "--episodes", "1", "--video", "film.gif", "--video-steps", "2")
    assert result.code == 0, result.err
    assert "3 frames" in result.out
    assert decoded("film.gif").shape == (3, 480, 480, 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--video", "film.avi"], "--video film.avi: must end in .mp4 or .gif"),
        (["--video", "film.mp4", "--seed", "5"], "--seed 5: must be one of 0, 1"),
        (["--seed", "1"], "--seed 1: chooses the seed of --video or --render"),
        (["--video", "a.mp4", "--render"], "--video a.mp4: a file and a window (--render) exclude each other"),
        (["--video", "a.mp4", "--video-steps", "0"], "--video-steps 0: must be at least 1"),
        (["--render"], "--render: there is no display here; --video FILE.mp4 writes a file instead"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(words, sentence, at_desk, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    result = lsac("eval", "runs/ant", *words)
    assert (result.code, result.sentence) == (2, f"lsac: {sentence}")
    assert not list(at_desk.glob(".*tmp*"))


class Undrawn(watching.gym.Env):
    render_mode = "rgb_array"

    def __init__(self, error):
        self._error = error

    def reset(self, seed=None, options=None):
        return 0, {}

    def render(self):
        raise self._error


NO_BACKEND = f"cannot be drawn: no context; {INSTALL}"


@pytest.mark.parametrize(
    ("error", "backend", "sentence"),
    [
        (
            watching.gym.error.DependencyNotInstalled("pygame is not installed"),
            None,
            "cannot be drawn: pygame is not installed",
        ),
        (RuntimeError("no context\nat all"), "egl", "cannot be drawn: no context"),
        (RuntimeError("no context\nat all"), None, NO_BACKEND),
    ],
)
def test_an_environment_that_cannot_be_drawn_is_named(error, backend, sentence, monkeypatch):
    """If MuJoCo cannot render, the sentence says what to install."""
    monkeypatch.setattr(watching, "working_backend", lambda: backend)
    with pytest.raises(InputError) as found:
        watching.require_drawable(Undrawn(error), "Hopper-v5", "--video x.mp4")
    assert str(found.value) == f"--video x.mp4: Hopper-v5 {sentence}"


def test_an_export_of_the_run_acts_like_it(at_desk):
    """Of the best seed by default, and of either policy, with the moments of the observations that it has seen."""
    import onnxruntime

    from lsac import LSAC

    result = lsac("export", "runs/ant", "--out", "out/policy.onnx", "--policy", "best", "--seed", "1")
    assert result.code == 0, result.err
    assert "lsac on Hopper-v5, seed 1, best policy" in result.out
    assert float(result.out.rsplit(" ", 1)[1]) < 1e-5
    session = onnxruntime.InferenceSession("out/policy.onnx", providers=["CPUExecutionProvider"])
    obs = np.random.default_rng(0).normal(size=(5, 11)).astype(np.float32)
    (actions,) = session.run(None, {"observation": obs})
    best, last = (LSAC.load("runs/ant", policy=policy) for policy in ("best", "last"))
    np.testing.assert_allclose(actions, best.predict(obs, deterministic=True, seed=1)[0], atol=1e-5)
    exported = last.export("last.onnx")
    assert exported.path.is_file()
    assert exported.difference < 1e-5
    (others,) = onnxruntime.InferenceSession(exported.path).run(None, {"observation": obs})
    np.testing.assert_allclose(others, last.predict(obs, deterministic=True)[0], atol=1e-5)
    assert lsac("export", "runs/ant", "--out", "x.onnx", "--seed", "4").sentence == (
        "lsac: --seed 4: must be one of 0, 1"
    )
