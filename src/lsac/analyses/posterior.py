"""What LSAC's chains know of their own uncertainty: how far they differ, how independently, and how rightly."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

from lsac.agents.lsac.agent import chain_q, judged
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, load, require_lsac
from lsac.analyses.rollouts import FIRST, PAIRS, Pairs, play
from lsac.analysis.figures import finish_axes
from lsac.analysis.load import Curve, load_run
from lsac.analysis.outcome import Outcome, colour
from lsac.errors import InputError
from lsac.runs.wording import counted

LOGGED = ("eval/q_spread", "eval/q_error", "eval/q_bias", "eval/calibration")
"""Metrics that evaluations log along training."""
BINS = 10

HELP = """Show spread, correlation and calibration of the chains of an LSAC run.

Along training, from the metrics of its evaluations: the std of Q over chains, and the mean of |Q − return|. At the
newest checkpoint, from the chains themselves, at pairs of state and action of the exploring policy: the correlation of
the chains' Q over pairs, and of their errors Q − return; and whether |Q − return| is large where the chains differ
(rank correlation, and means in tenths of the pairs).

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
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        say(f"seed {seed}: {i + 1} of {run.experiment.seeds}")
        pairs = play(run, i, options.pairs, options.first)
        found.append(Posterior(seed, chain_values(run, i, pairs), pairs.returns))
    curves = {name: logged.curve(name) for name in LOGGED}
    rows: list[Any] = [
        [int(seed), int(step), "metrics", name.removeprefix("eval/"), float(curve.values[i, t])]
        for name, curve in curves.items()
        for i, seed in enumerate(logged.seeds)
        for t, step in enumerate(curve.steps)
    ]
    rows += [[x.seed, run.step, "chains", name, value] for x in found for name, value in x.numbers().items()]
    caption = (
        f"{run.name}. Left: std of Q over chains (solid) and mean |Q − return| (dashed) at evaluations, one colour per "
        f"seed. Middle: correlation of the chains' Q over pairs, mean over seeds, step {run.step:,}. Right: pairs of "
        "each seed in tenths by spread; on the line, the spread is as large as the error."
    )
    return Outcome(
        "Posterior of the critics",
        caption,
        [_sentence(run, found)],
        ("seed", "step", "source", "quantity", "value"),
        rows,
        (7.0, 2.6),
        lambda figure: _draw(figure, curves, found, int(run.step)),
    )


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


def _draw(figure: Figure, curves: dict[str, Curve], found: list[Posterior], step: int) -> None:
    left, middle, right = figure.subplots(1, 3)
    for name, style in (("eval/q_spread", "-"), ("eval/q_error", "--")):
        for i, values in enumerate(curves[name].values):
            left.plot(curves[name].steps, values, style, color=colour(i), linewidth=1)
    finish_axes(left, "spread and error", step)
    if (curves["eval/q_spread"].values > 0).any():
        left.set_yscale("log")
    else:
        left.text(0.5, 0.5, "no evaluation compared\nvalues with returns", transform=left.transAxes, ha="center")
    matrix = np.mean([np.corrcoef(x.q) for x in found], axis=0)
    shown = middle.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    figure.colorbar(shown, ax=middle, shrink=0.7)
    ticks = range(0, len(matrix), max(1, len(matrix) // 5))
    middle.set(title="correlation", xlabel="chain", ylabel="chain", xticks=ticks, yticks=ticks)
    for i, x in enumerate(found):
        right.plot(*tenths(x.spread, x.error), "o-", color=colour(i), ms=3, label=f"seed {x.seed}")
    ends = [f(values) for x in found for values in tenths(x.spread, x.error) for f in (np.min, np.max)]
    right.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#444444", linewidth=0.8)
    right.set(title="calibration", xlabel="spread over chains", ylabel="|Q − return|", xscale="log", yscale="log")
    right.legend(frameon=False)
