"""Statistics of one task and across tasks, against numbers worked by hand, published examples and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from lsac.analysis.aggregate import (
    AGGREGATES,
    aggregate,
    improvement,
    iqm,
    mean,
    median,
    optimality_gap,
    profile,
    resample,
    too_narrow,
)
from lsac.analysis.stats import (
    FEW_SEEDS,
    LEVEL,
    band,
    centre,
    final,
    final_points,
    interval,
    max_of_mean,
    mean_of_max,
    median_band,
    smooth,
)

# one task


def test_the_90_percent_interval_of_ten_seeds():
    """Student's t for nine degrees of freedom is 1.833 (from a table): ± 1.833 s / √10, as the paper of LSAC has it."""
    values = np.random.default_rng(0).normal(100, 20, 10)
    half = 1.833 * values.std(ddof=1) / math.sqrt(10)
    assert interval(values, 0.9) == pytest.approx((values.mean(), values.mean() - half, values.mean() + half), rel=1e-4)


def test_the_final_score_is_the_mean_of_the_last_ten():
    """1 … 12: the last ten are 3 … 12, mean 7.5; of three evaluations, all count."""
    values = np.stack([np.arange(1.0, 13.0), np.zeros(12)])
    assert final(values).tolist() == [7.5, 0.0]
    assert final(values[:, :3]).tolist() == [2.0, 0.0]
    assert [final_points(values[:, :n]) for n in (12, 10, 3)] == [10, 10, 3]


def test_a_window_is_centred_and_shorter_at_the_edges():
    """0, 3, 6, 30, 0 over three points: (0+3)/2, (0+3+6)/3, (3+6+30)/3, (6+30+0)/3, (30+0)/2."""
    values = np.array([[0.0, 3.0, 6.0, 30.0, 0.0]])
    assert smooth(values, 3).tolist() == [[1.5, 3.0, 13.0, 12.0, 15.0]]
    assert smooth(values, 1).tolist() == values.tolist()


def test_an_even_window_reaches_further_back():
    """Four points: two before the centre and one after it. At index 2: (0+3+6+30)/4."""
    assert smooth(np.array([0.0, 3.0, 6.0, 30.0, 0.0]), 4).tolist() == [1.5, 3.0, 9.75, 9.75, 12.0]


def test_a_wide_window_is_the_mean_of_what_there_is():
    assert smooth(np.array([1.0, 2.0, 6.0]), 11).tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("window", [1, 2, 5, 11, 20])
def test_smoothing_agrees_with_a_plain_loop(window):
    values = np.random.default_rng(window).normal(size=(3, 40))
    before, after = window // 2, (window - 1) // 2
    expected = [[row[max(0, i - before) : i + after + 1].mean() for i in range(40)] for row in values]
    np.testing.assert_allclose(smooth(values, window), expected, atol=1e-12)


def test_what_is_not_finite_stays_in_its_windows():
    found = smooth(np.array([[1.0, 3.0, math.inf, 3.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, math.nan]]), 3)
    np.testing.assert_array_equal(found[0], [2.0, math.nan, math.nan, math.nan, 5 / 3, 1.0])
    np.testing.assert_array_equal(found[1], [1.0, 1.0, 1.0, 1.0, math.nan, math.nan])


def test_maximum_of_the_mean_and_mean_of_the_maxima():
    """Means over seeds 1, 3, 2: the maximum is at index 1, where the seeds have 0 and 6. Their maxima are 4 and 6."""
    values = np.array([[2.0, 0.0, 4.0], [0.0, 6.0, 0.0]])
    best, (point, low, high) = max_of_mean(values, 1)
    assert (best, point) == (1, 3.0)
    assert (low, high) == pytest.approx((3 - 6.3138 * 3, 3 + 6.3138 * 3), abs=1e-3)  # t of one degree of freedom, 90 %
    assert mean_of_max(values)[0] == 5.0


def test_the_window_comes_before_the_maximum():
    """A single high evaluation is not the maximum of what is smoothed over three points: (0+9+0)/3 < 4."""
    values = np.array([[0.0, 0.0, 9.0, 0.0, 0.0, 4.0, 4.0, 4.0]])
    assert max_of_mean(values, 3)[0] == 6
    assert max_of_mean(values, 1)[0] == 2


def test_a_median_curve_and_its_band():
    """Odd and even numbers of seeds, against SciPy's bootstrap with many more draws."""
    for seeds in (7, 10):
        values = np.random.default_rng(seeds).normal(100, 20, (seeds, 3))
        low, high = band(values, "median")
        draws = {"n_resamples": 20_000, "method": "percentile", "confidence_level": LEVEL, "rng": 0}
        expected = scipy_stats.bootstrap((values,), np.median, **draws).confidence_interval
        np.testing.assert_allclose(low, expected.low, atol=2.5)
        np.testing.assert_allclose(high, expected.high, atol=2.5)
        np.testing.assert_array_equal(centre(values, "median"), np.median(values, axis=0))
        np.testing.assert_array_equal(centre(values, "t"), np.mean(values, axis=0))
    assert (median_band(values)[0] == low).all(), "always the same draws"


def test_the_bootstrap_of_a_median_of_three_by_hand():
    """Of 27 resamples of 1, 2, 3, the median is 1 in 7, 2 in 13 and 3 in 7, so the 5 % and 95 % points are 1 and 3."""
    values = np.array([[1.0], [2.0], [3.0]])
    assert [float(x[0]) for x in median_band(values)] == [1.0, 3.0]
    assert [float(x[0]) for x in median_band(values, level=0.4)] == [2.0, 2.0], "30 % and 70 % are inside the 13"


def test_coverage_of_the_median_band():
    """Of 400 samples of 15 seeds, the 90 % interval holds the true median in about 360; of 3 seeds, in at most 300:
    the largest and smallest of three hold it in three of four cases."""

    def covered(seeds):
        low, high = median_band(np.random.default_rng(seeds).normal(size=(seeds, 400)))
        return float(np.mean((low <= 0) & (high >= 0)))

    assert 0.86 < covered(15) < 0.97
    assert covered(3) < 0.8


# across tasks


def test_the_interquartile_mean_of_the_encyclopaedia():
    """Wikipedia's example of twelve numbers: without the three lowest and highest, 5 6 6 7 7 8, whose mean is 6.5."""
    values = np.array([5.0, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6])
    assert iqm([values]) == 6.5
    assert iqm([values[:5], values[5:]]) == 6.5, "runs of all tasks together"


@pytest.mark.parametrize("count", [4, 9, 10, 15, 50])
def test_the_interquartile_mean_is_scipys_trimmed_mean(count):
    values = np.random.default_rng(count).normal(size=count)
    assert iqm([values]) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


def test_mean_median_and_gap_by_hand():
    """Task means 0.5, 1.5 and 0.1. The gap: runs 0.0 and 1.0 lack 1 and 0, those of 1.5 nothing, 0.1 lacks 0.9."""
    scores = [np.array([0.0, 1.0]), np.array([1.2, 1.8]), np.array([0.1, 0.1])]
    assert mean(scores) == pytest.approx(0.7)
    assert median(scores) == pytest.approx(0.5)
    assert optimality_gap(scores) == pytest.approx((0.5 + 0.0 + 0.9) / 3)


def test_tasks_with_more_seeds_do_not_count_more():
    scores = [np.array([0.0]), np.array([1.0, 1.0, 1.0])]
    assert mean(scores) == 0.5
    point, *_ = profile(scores, np.array([0.5]))
    assert point[0] == 0.5


def test_improvement_is_that_of_the_tortoises_and_hares():
    """Wikipedia's example of the Mann-Whitney test: they arrive T H H H H H T T T T T H, so that the six tortoises are
    ahead of hares in 11 of 36 pairs and the hares of tortoises in 25."""
    places = np.arange(12, 0, -1)  # the first has the highest score
    order = np.array(list("THHHHHTTTTTH"))
    tortoises, hares = places[order == "T"], places[order == "H"]
    assert improvement([tortoises], [hares])[0] == pytest.approx(11 / 36)
    assert improvement([hares], [tortoises])[0] == pytest.approx(25 / 36)


def test_ties_count_half():
    """1 and 2 against 2 and 3: one tie among four pairs, no win."""
    point, low, high = improvement([np.array([1.0, 2.0])], [np.array([2.0, 3.0])])
    assert point == 0.125
    assert 0 <= low <= point <= high <= 1
    same = np.array([1.0, 2.0, 3.0])
    assert improvement([same], [same])[0] == 0.5


def test_improvement_agrees_with_scipy_and_is_a_mean_over_tasks():
    generator = np.random.default_rng(2)
    ours, theirs = ([generator.integers(0, 9, n).astype(float) for n in sizes] for sizes in ((8, 5), (6, 7)))
    shares = [scipy_stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(ours, theirs, strict=True)]
    assert improvement(ours, theirs)[0] == pytest.approx(np.mean(shares))


def test_intervals_that_are_too_narrow():
    """Complete separation gives [1, 1], whatever the number of seeds. Of 200 samples of five and of ten seeds that
    differ by two standard deviations, the 95 % interval holds the true probability of 0.921 in 60 and in 84 %."""
    certain = improvement([np.arange(20.0) + 20], [np.arange(20.0)])
    assert certain == pytest.approx((1, 1, 1))
    assert max(certain) <= 1
    assert too_narrow(20, certain)
    assert not too_narrow(FEW_SEEDS, (0.5, 0.4, 0.6))
    assert too_narrow(FEW_SEEDS - 1, (0.5, 0.4, 0.6))
    true, generator = scipy_stats.norm.cdf(math.sqrt(2)), np.random.default_rng(0)

    def covered(seeds):
        samples = [generator.normal([[2.0], [0.0]], 1.0, (2, seeds)) for _ in range(200)]
        found = [improvement([ours], [theirs]) for ours, theirs in samples]
        return float(np.mean([low <= true <= high for _, low, high in found]))

    assert covered(5) < 0.7 < 0.78 < covered(FEW_SEEDS)


def test_one_pair_on_every_task_has_no_interval():
    """Resamples of one seed are that seed. Where one task has two, they differ."""
    one, two = [np.array([3.0]), np.array([1.0])], [np.array([2.0]), np.array([2.0])]
    point, low, high = improvement(one, two)
    assert point == 0.5
    assert np.isnan([low, high]).all()
    found = aggregate(one)
    assert {name: round(point, 6) for name, (point, *_) in found.items()} == {
        "IQM": 2.0,
        "mean": 2.0,
        "median": 2.0,
        "optimality gap": 0.0,
    }
    assert np.isnan([limits for _, *limits in found.values()]).all()
    assert too_narrow(1, (point, low, high))
    more = [np.array([3.0, 1.0]), np.array([1.0])]
    assert np.isfinite([*improvement(more, two), *improvement(one, more), *aggregate(more)["mean"]]).all()


def test_a_performance_profile_by_hand():
    """Scores 0.2 and 0.8, and 0.5 twice: above 0.1 all; above 0.5 one of four, for 0.5 does not exceed itself."""
    scores = [np.array([0.2, 0.8]), np.array([0.5, 0.5])]
    point, low, high = profile(scores, np.array([0.1, 0.4, 0.5, 0.8]))
    assert point.tolist() == [1.0, 0.75, 0.25, 0.0]
    assert (low <= point).all()
    assert (high >= point).all()
    assert (low[0], high[0]) == (1.0, 1.0)
    assert (low[1], high[1]) == (0.5, 1.0), "the task of 0.2 and 0.8 has 0, 1 or 2 above in a resample"


def test_resamples_stay_within_their_task_and_are_always_the_same():
    scores = [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0])]
    first, second = resample(scores), resample(scores)
    assert [x.shape[1] for x in first] == [3, 2]
    assert {*np.unique(first[0])} == {1, 2, 3}
    assert {*np.unique(first[1])} == {10, 20}
    assert all((x == y).all() for x, y in zip(first, second, strict=True))


def test_the_interval_of_a_stratified_mean_agrees_with_theory():
    """Two tasks of 40 seeds: the bootstrap's standard error of the mean is √(s₁² + s₂²) / (2 √40), with s over n."""
    scores = [np.random.default_rng(i).normal(i, 1 + i, 40) for i in range(2)]
    point, low, high = aggregate(scores)["mean"]
    error = math.sqrt(sum(x.var() for x in scores)) / (2 * math.sqrt(40))
    assert point == pytest.approx(np.mean([x.mean() for x in scores]))
    assert (low, high) == pytest.approx((point - 1.96 * error, point + 1.96 * error), abs=0.1 * error)
    assert aggregate(scores).keys() == AGGREGATES.keys()


def test_coverage_of_the_interval_of_the_interquartile_mean():
    """300 times 3 tasks of 10 seeds, symmetric around 0, where the interquartile mean of all runs is 0: a 95 %
    interval of a percentile bootstrap holds it somewhat less often."""
    generator = np.random.default_rng(1)
    found = [aggregate(list(generator.normal(size=(3, 10))))["IQM"] for _ in range(300)]
    assert 0.88 < np.mean([low <= 0 <= high for _, low, high in found]) < 0.98
