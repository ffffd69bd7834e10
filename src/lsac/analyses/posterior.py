"""What LSAC's chains know of their own uncertainty: how far they differ, how independently, and how rightly."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from lsac.agents.lsac.agent import chain_q, judged
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, load, require_lsac
from lsac.analyses.rollouts import FIRST, PAIRS, Pairs, play
from lsac.analysis.figures import finish_axes
from lsac.analysis.load import Curve, load_run
from lsac.analysis.outcome import Outcome, colour
from lsac.errors import CheckpointError, InputError
from lsac.runs.checkpoint import contents_of
from lsac.runs.datafile import read_verified, require_inside
from lsac.runs.folder import RunFolder
from lsac.runs.wording import counted
from lsac.train.evaluate_run import agents_of

LOGGED = ("eval/q_spread", "eval/q_error", "eval/q_bias", "eval/q_bias_std", "eval/calibration")
"""Metrics that evaluations log along training."""
BINS = 10
ESTIMATED = "error_correlation"
"""The name of an estimate from these metrics, which is no metric itself."""
ERROR_OF_SPREAD = float(np.sqrt(2 / np.pi))
"""The mean absolute error of a normal distribution, in standard deviations: 0.8, so a spread that is right is 1.25
times the error."""

HELP = """Show spread, correlation and calibration of the chains of an LSAC run.

Along training, from the metrics of its evaluations: the std of Q over chains, the mean of |Q − return|, and an estimate
of how much the errors Q − return of two chains correlate. A run keeps only its two newest checkpoints. At both, from
the chains themselves, at pairs of state and action of the exploring policy: the correlation of the chains' Q over
pairs, and of their errors; and whether |Q − return| is large where the chains differ (rank correlation; of the newest,
also means in tenths of the pairs).

The Q of good chains correlate, because all of them follow the returns; what independent chains do not share is their
errors. Chance in the returns is in the errors of all chains and makes their correlation larger.

Examples:
  lsac analyse posterior runs/ant --pairs 500
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    pairs: int = PAIRS
    """state-action pairs per seed, at least"""
    first: int = FIRST
    """steps of each episode that are kept"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


class Posterior(NamedTuple):
    """The chains of one seed at the pairs that it visits."""

    seed: int
    q: np.ndarray
    """[C, N]"""
    returns: np.ndarray
    """[N]"""

    @property
    def spread(self) -> np.ndarray:
        return self.q.std(axis=0)

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.q.mean(axis=0) - self.returns)

    def numbers(self) -> dict[str, float]:
        return {
            "spread": float(self.spread.mean()),
            "error": float(self.error.mean()),
            "calibration": float(self.spread.mean() / max(self.error.mean(), 1e-12)),
            "chain_correlation": between(self.q),
            "error_correlation": between(self.q - self.returns),
            "rank_correlation": rank_correlation(self.spread, self.error),
        }


def analyse(options: Options, say: Say) -> Outcome:
    for name in ("pairs", "first"):
        if getattr(options, name) < 2:
            raise InputError(f"--{name} {getattr(options, name)}: must be at least 2")
    require_lsac(options.run, "posterior", synthetic=False)
    run, logged = load(options.run, transitions=False), load_run(options.run)
    if for_chains(run) < 2:
        raise InputError(f"analyse posterior: {options.run} has one chain, a spread needs at least two")
    saved = [*earlier(run, say), run]
    measured = {each.step: _posteriors(each, options, say) for each in saved}
    found = measured[run.step]
    curves = {name: logged.curve(name) for name in LOGGED}
    curves[ESTIMATED] = estimated(curves["eval/q_spread"], curves["eval/q_bias_std"], for_chains(run))
    rows: list[Any] = [
        [int(seed), int(step), "metrics", name.removeprefix("eval/"), float(curve.values[i, t])]
        for name, curve in curves.items()
        for i, seed in enumerate(logged.seeds)
        for t, step in enumerate(curve.steps)
    ]
    rows += [
        [x.seed, step, "chains", name, value]
        for step, each in measured.items()
        for x in each
        for name, value in x.numbers().items()
    ]
    checkpoints = " and ".join(f"{step:,}" for step in measured)
    caption = (
        f"{run.name}. Above, at evaluations along training, one colour per seed: std of Q over chains (solid), mean "
        "|Q − return| (dashed), and their ratio; dotted: 1.25, where the spread of a normal distribution is right; the "
        f"correlation of two chains' errors Q − return, estimated there, and measured at step {checkpoints} (dots). "
        f"Below, at step {run.step:,} only: correlation of the chains' Q over pairs, mean over seeds; pairs of each "
        "seed in tenths by spread, with the error of 0.8 standard deviations that a right spread has as a line."
    )
    return Outcome(
        "Posterior of the critics",
        caption,
        [_sentence(run, found)],
        ("seed", "step", "source", "quantity", "value"),
        rows,
        (9.0, 5.0),
        lambda figure: _draw(figure, curves, measured, int(run.step)),
    )


def earlier(run: Analysed, say: Say) -> Iterator[Analysed]:
    """The run at its other checkpoints, the oldest first; those that cannot be read are left out."""
    for path in RunFolder(run.path).checkpoints.paths():
        try:
            require_inside(path, run.path)
            arrays, record, _ = read_verified(path)
            checkpoint = contents_of(path, record, arrays)
            checkpoint.require(run.experiment.algorithm, run.experiment.env)
            other = run._replace(checkpoint=checkpoint, states=agents_of(checkpoint, run.agent, run.experiment.seeds))
        except CheckpointError as error:
            say(f"{error}; left out")
            continue
        if other.step < run.step:
            yield other


def _posteriors(run: Analysed, options: Options, say: Say) -> list[Posterior]:
    """The chains of every seed at the pairs that its policy visits."""
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        say(f"step {run.step:,}, seed {seed}: {i + 1} of {run.experiment.seeds}")
        pairs = play(run, i, options.pairs, options.first)
        found.append(Posterior(seed, chain_values(run, i, pairs), pairs.returns))
    return found


def estimated(spread: Curve, error: Curve, chains: int) -> Curve:
    """The mean correlation of the errors of two chains, from the std of Q over chains and the std over pairs of the
    error of their mean.

    If errors have variance s and correlation ρ, their mean over C chains has variance v = s (1 + (C − 1) ρ) / C, and
    their variance over chains is s − v. The metrics have the mean of the std over chains, whose square is at most that
    variance, so the estimate is somewhat too high where the spread varies much between pairs.
    """
    steps, i, j = np.intersect1d(spread.steps, error.steps, return_indices=True)
    v, over_chains = error.values[:, j] ** 2, spread.values[:, i] ** 2
    values = (chains * v / np.maximum(v + over_chains, 1e-30) - 1) / (chains - 1)
    return Curve(steps, values, error.seconds[:, j])


def for_chains(run: Analysed) -> int:
    return int(run.experiment.agent.chains)


def chain_values(run: Analysed, index: int, pairs: Pairs) -> np.ndarray:
    """[C, N] the Q of every chain of a seed at pairs."""
    compute = jax.jit(jax.vmap(chain_q, in_axes=(None, 0, 0), out_axes=1))
    q = compute(judged(run.inner(index)), run.seen(index, pairs.obs), pairs.action)
    return run.reward_scale(index) * np.asarray(q, np.float64)


def between(values: np.ndarray) -> float:
    """The mean correlation of two different rows of [C, N]; NaN if a row is constant."""
    if np.any(values.std(axis=1) == 0):
        return float("nan")
    matrix = np.corrcoef(values)
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation, without a correction for equal values."""
    return between(np.stack([np.argsort(np.argsort(values)) for values in (x, y)]))


def tenths(spread: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean spread and mean error in groups of equal size, ordered by spread."""
    groups = np.array_split(np.argsort(spread), min(BINS, len(spread)))
    return np.array([spread[g].mean() for g in groups]), np.array([error[g].mean() for g in groups])


def _sentence(run: Analysed, found: list[Posterior]) -> str:
    numbers = [x.numbers() for x in found]
    mean = {name: float(np.mean([x[name] for x in numbers])) for name in numbers[0]}
    return (
        f"{run.name}, step {run.step:,}, {counted(len(found), 'seed')}, {for_chains(run)} chains: spread "
        f"{mean['spread']:.3g}, |Q − return| {mean['error']:.3g}, ratio {mean['calibration']:.2g}; chains correlate by "
        f"{mean['chain_correlation']:.3f}, their errors by {mean['error_correlation']:.3f}; rank correlation of spread "
        f"and error {mean['rank_correlation']:.2f}"
    )


def _draw(figure: Figure, curves: dict[str, Curve], measured: dict[int, list[Posterior]], step: int) -> None:
    panels = figure.subplot_mosaic([[*"aabbcc"], [*"dddeee"]])
    along, ratio, errors, matrix, tenth = (panels[name] for name in "abcde")
    styles = (("eval/q_spread", "-"), ("eval/q_error", "--"))
    _draw_along(along, [(curves[name], style) for name, style in styles], "spread and error", step)
    _draw_along(ratio, [(curves["eval/calibration"], "-")], "spread / error", step)
    ratio.axhline(1 / ERROR_OF_SPREAD, color="#444444", linestyle=":", linewidth=1)
    _draw_errors(errors, curves[ESTIMATED], measured, step)
    _draw_correlations(figure, matrix, measured[step])
    _draw_tenths(tenth, measured[step])


def _draw_along(axes: Axes, curves: list[tuple[Curve, str]], title: str, step: int) -> None:
    for curve, style in curves:
        marker = "o" if len(curve.steps) == 1 else ""
        for i, seed in enumerate(curve.values):
            axes.plot(curve.steps, seed, style, marker=marker, ms=3, color=colour(i), linewidth=1)
    finish_axes(axes, title, step)
    if any((curve.values > 0).any() for curve, _ in curves):
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    else:
        axes.text(0.5, 0.5, "no evaluation compared\nvalues with returns", transform=axes.transAxes, ha="center")


def _draw_errors(axes: Axes, curve: Curve, measured: dict[int, list[Posterior]], step: int) -> None:
    """The correlation of the errors of two chains: lines from the evaluations, dots from the chains."""
    for i, values in enumerate(curve.values):
        axes.plot(curve.steps, values, color=colour(i), linewidth=1, marker="." if len(curve.steps) == 1 else "")
    for i, seed in enumerate(zip(*measured.values(), strict=True)):
        values = [x.numbers()["error_correlation"] for x in seed]
        axes.plot(list(measured), values, "o", color=colour(i), ms=4)
    finish_axes(axes, "correlation of errors", step)
    axes.axhline(0, color="#444444", linestyle=":", linewidth=1)
    axes.set_ylim(top=1.03)


def _draw_correlations(figure: Figure, axes: Axes, found: list[Posterior]) -> None:
    matrix = np.mean([np.corrcoef(x.q) for x in found], axis=0)
    shown = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    figure.colorbar(shown, ax=axes, shrink=0.7)
    ticks = range(0, len(matrix), max(1, len(matrix) // 5))
    axes.set(title="correlation", xlabel="chain", ylabel="chain", xticks=ticks, yticks=ticks)


def _draw_tenths(axes: Axes, found: list[Posterior]) -> None:
    groups = [tenths(x.spread, x.error) for x in found]
    for i, (x, (spread, error)) in enumerate(zip(found, groups, strict=True)):
        axes.plot(spread, error, "o-", color=colour(i), ms=3, label=f"seed {x.seed}")
    ends = np.array([f(spread) for spread, _ in groups for f in (np.min, np.max)])
    ends = np.array([ends.min(), ends.max()])
    axes.plot(ends, ERROR_OF_SPREAD * ends, color="#444444", linewidth=0.8)
    axes.set(title="calibration", xlabel="spread over chains", ylabel="|Q − return|", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_log(axis)
    axes.legend(frameon=False)


def _plain_log(axis: Axis) -> None:
    """Few labels, of numbers as they are: powers of ten collide on less than two decades."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())
