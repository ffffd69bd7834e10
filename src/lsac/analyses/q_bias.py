"""The bias of the critics' values, by the protocol of Chen et al., *Randomized Ensembled Double Q-Learning*, 2021
(arXiv 2101.05982): episodes of the exploring policy, returns with the entropy bonus, bias relative to the return."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, load
from lsac.analyses.rollouts import FIRST, PAIRS, Pairs, play
from lsac.analysis.outcome import Outcome, colour
from lsac.errors import InputError
from lsac.runs.wording import counted

SMALLEST_RETURN = 10.0
"""A bias is divided by at least this, so that returns near 0 do not dominate the normalised bias."""
UNSEEN = 0.01
"""Weight of what an ended episode did not show, above which a pair counts as cut short."""

HELP = """Compare the critics' values with the returns that followed, at the newest checkpoint.

Every seed plays episodes of its exploring policy; of each, the first steps are kept, until there are enough pairs of
state and action. The return is discounted and has the entropy bonus of all later actions where the values have it. The
normalised bias is (Q − return) / max(|return|, 10). Q is the value that the agent itself acts on: the minimum of the
critics in SAC, their mean in REDQ, the mean over chains in LSAC.

Examples:
  lsac analyse q-bias runs/cheetah
  lsac analyse q-bias runs/cheetah --pairs 200 --starts replay
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    pairs: int = PAIRS
    """state-action pairs per seed, at least"""
    first: int = FIRST
    """steps of each episode that are kept, so that what a time limit hides hardly counts"""
    starts: Literal["reset", "replay"] = "reset"
    """where episodes start: at a reset of the environment, or in states of the replay"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


class Judged(NamedTuple):
    seed: int
    pairs: Pairs
    values: dict[str, np.ndarray]

    @property
    def bias(self) -> np.ndarray:
        return self.values["q"] - self.pairs.returns

    @property
    def normalised(self) -> np.ndarray:
        return self.bias / np.maximum(np.abs(self.pairs.returns), SMALLEST_RETURN)


COLUMNS: tuple[str, ...] = ("seed", "step", "pairs", "episodes", "q_mean", "return_mean", "bias_mean", "bias_std")
COLUMNS += ("normalised_bias_mean", "normalised_bias_std", "chain_spread_mean", "cut_short_share")


def analyse(options: Options, say: Say) -> Outcome:
    for name in ("pairs", "first"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name} {getattr(options, name)}: must be at least 1")
    run = load(options.run, transitions=options.starts == "replay")
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        say(f"seed {seed}: {i + 1} of {run.experiment.seeds}")
        pairs = play(run, i, options.pairs, options.first, options.starts == "replay")
        found.append(Judged(seed, pairs, values_at(run, i, pairs)))
    rows: list[Any] = [row(run.step, judged) for judged in found]
    cut = float(np.mean([x[-1] for x in rows]))
    sentences = [_sentence(run, rows)]
    if cut > 0.05:
        shorter = min(float(x.pairs.unseen.min()) for x in found) <= UNSEEN
        sentences.append(
            f"warning: {100 * cut:.0f} % of the pairs are so close to a time limit that over 1 % of their return is "
            f"missing; {'a smaller --first avoids it' if shorter else 'the episodes are too short for this discount'}"
        )
    starts = "resets" if options.starts == "reset" else "states of the replay"
    caption = (
        f"{run.name}, step {run.step:,}. Exploring policy, episodes from {starts}, first {options.first} steps of "
        f"each, at least {options.pairs} pairs per seed; normalised bias = (Q − return) / max(|return|, 10)."
    )
    return Outcome(
        "Bias of the critics", caption, sentences, COLUMNS, rows, (7.0, 3.0), lambda figure: _draw(figure, found)
    )


def values_at(run: Analysed, index: int, pairs: Pairs) -> dict[str, np.ndarray]:
    """The values that the critics of a seed predict for pairs, each [N]."""
    values: Any = run.agent.values
    compute = jax.jit(jax.vmap(values.value, in_axes=(None, 0, 0)))
    found = compute(values.critics(run.state(index)), pairs.obs, pairs.action)
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def row(step: int, judged: Judged) -> list[Any]:
    """One row of the table, with the numbers of one seed."""
    pairs, q = judged.pairs, judged.values["q"]
    numbers = [q.mean(), pairs.returns.mean()]
    for values in (judged.bias, judged.normalised):
        numbers += [values.mean(), values.std()]
    spread = judged.values["q_spread"].mean() if "q_spread" in judged.values else np.nan
    short = np.mean(pairs.unseen > UNSEEN)
    return [judged.seed, step, len(q), pairs.episodes, *map(float, (*numbers, spread, short))]


def _sentence(run: Analysed, rows: list[list[Any]]) -> str:
    table = np.array([row[4:] for row in rows])
    mean, std = table[:, 4].mean(), table[:, 5].mean()
    spread = table[:, 6].mean()
    more = "" if np.isnan(spread) else f"; the critics' values differ by {spread:.3g} (std)"
    where = f"{run.name}, step {run.step:,}, {counted(len(rows), 'seed')}"
    q, returns, bias = table[:, :3].mean(axis=0)
    return (
        f"{where}: bias {bias:.3g}, normalised bias {mean:.3g} (std over pairs {std:.3g}); values {q:.4g}, returns "
        f"{returns:.4g}{more}"
    )


def _draw(figure: Figure, found: list[Judged]) -> None:
    left, right = figure.subplots(1, 2)
    ends = [np.concatenate([x.values["q"], x.pairs.returns]) for x in found]
    low, high = min(x.min() for x in ends), max(x.max() for x in ends)
    for i, judged in enumerate(found):
        left.scatter(judged.pairs.returns, judged.values["q"], s=3, color=colour(i), alpha=0.4, linewidths=0)
        values = np.clip(judged.normalised, -2, 2)
        right.hist(values, bins=np.linspace(-2, 2, 61), histtype="step", color=colour(i), label=f"seed {judged.seed}")
    left.plot([low, high], [low, high], color="#444444", linewidth=0.8)
    left.set(xlabel="return that followed", ylabel="Q", title="line: Q = return")
    right.axvline(0, color="#444444", linewidth=0.8)
    right.set(xlabel="normalised bias (beyond ±2 at the edge)", ylabel="pairs")
    right.legend(frameon=False)
