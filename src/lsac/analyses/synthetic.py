"""How true LSAC's generated transitions are: against the replay, and against the simulator."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

from lsac.agents.lsac import synthesis
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, load, require_fitted, require_lsac
from lsac.analysis.outcome import Outcome, colour
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import for_run
from lsac.runs.wording import counted
from lsac.train import fidelity

SAMPLES, SIMULATED = 4_096, 512
MODELLED = ("obs", "action", "reward", "next_obs")
"""The columns whose marginals and correlations are compared; terminations are counted."""
COLUMNS = ("seed", "quantity", "generated", "replay", "shuffled")

HELP = """Compare transitions of an LSAC run's generator with its replay and, for MuJoCo tasks, with the simulator.

Marginals: differences of means and stds, in stds of the replay, and Kolmogorov-Smirnov distances, the largest and the
mean over dimensions. Correlations: the largest difference between two entries. As reference, the column `replay`
compares two halves of the replay. Dynamics: the simulator is put into s, applies a, and its answer is compared with s'
and r; an error of 1 is no better than to predict that nothing changes. The column `shuffled` has the error of real
transitions with permuted outcomes.

Examples:
  lsac analyse synthetic runs/ant --samples 1000
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    samples: int = SAMPLES
    """generated transitions, and as many of the replay, per seed"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


class Compared(NamedTuple):
    """The numbers of one seed: for each quantity, of generated transitions, of the replay, and of shuffled ones."""

    seed: int
    numbers: dict[str, tuple[float, float, float]]
    distances: np.ndarray
    """[D, 2] Kolmogorov-Smirnov distances of the dimensions that vary: generated, and between halves of the replay"""


def analyse(options: Options, say: Say) -> Outcome:
    if options.samples < 10:
        raise InputError(f"--samples {options.samples}: must be at least 10")
    require_lsac(options.run, "synthetic", synthetic=True)
    run = load(options.run, transitions=True)
    require_fitted(run, "synthetic")
    env = run.simulator()
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        say(f"seed {seed}: {i + 1} of {run.experiment.seeds}")
        made, real, other = samples(run, i, options.samples)
        found.append(compared(run, seed, made, real, other, env))
    rows: list[Any] = [[x.seed, name, *numbers] for x in found for name, numbers in x.numbers.items()]
    caption = (
        f"{run.name}, step {run.step:,}: {options.samples} generated transitions per seed against as many of the "
        "replay; reference: two halves of the replay."
    )
    return Outcome(
        "Generated transitions",
        caption,
        _sentences(run, found, env is not None),
        COLUMNS,
        rows,
        (7.0, 2.8),
        lambda figure: _draw(figure, found),
    )


def samples(run: Analysed, index: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[N, width] generated transitions, and two samples of the replay without a common transition."""
    config: Any = for_run(run.experiment).agent
    state: Any = run.inner(index)
    generate = jax.jit(lambda g, key: synthesis.generate(config.generator, run.spec, g, count, key))
    made = np.asarray(generate(state.generator, jax.random.key(index)))
    rows = run.rows(index)
    order = np.random.default_rng(0).permutation(len(rows))
    half = len(rows) // 2
    return made, rows[order[:half][:count]], rows[order[half:][:count]]


def compared(run: Analysed, seed: int, made: np.ndarray, real: np.ndarray, other: np.ndarray, env: Any) -> Compared:
    layout = rb.layout_of(run.spec)
    fields = layout.fields()
    keep = np.r_[tuple(fields[name] for name in MODELLED)]
    nan = float("nan")
    parts = [x[:, keep] for x in (made, real, other)]
    generated, reference = (fidelity.marginals(parts[1], x) for x in (parts[0], parts[2]))
    numbers = {name: (value, reference[name], nan) for name, value in generated.items()}
    gap, halves = (fidelity.correlation_gap(parts[1], x) for x in (parts[0], parts[2]))
    numbers["correlation_gap"] = (gap, halves, nan)
    ends, real_ends = (np.mean(x[:, fields["discount"]] == 0.0) for x in (made, np.concatenate([real, other])))
    numbers["termination_rate"] = (float(ends), float(real_ends), nan)
    if env is not None:
        unit = fidelity.unit(layout, real)
        wrong = fidelity.shuffled(layout, real[:SIMULATED])
        errors = [fidelity.dynamics_error(env, x[:SIMULATED], unit) for x in (made, other, wrong)]
        for name in ("next_obs_median", "reward_median", "next_obs_rmse", "reward_rmse"):
            numbers[f"dynamics_{name}"] = (errors[0][name], errors[1][name], errors[2][name])
    varying = parts[1].std(axis=0) > 0
    ks = fidelity.kolmogorov_smirnov
    pairs = [[ks(real_x, x[:, d]) for x in (parts[0], parts[2])] for d, real_x in enumerate(parts[1].T) if varying[d]]
    return Compared(seed, numbers, np.array(pairs))


def _sentences(run: Analysed, found: list[Compared], simulated: bool) -> list[str]:
    def mean(name: str) -> np.ndarray:
        """Of generated, replay and shuffled transitions, over seeds."""
        average: np.ndarray = np.mean([x.numbers[name] for x in found], axis=0)
        return average

    ks, correlation, ends = mean("ks_avg"), mean("correlation_gap"), mean("termination_rate")
    sentences = [
        f"{run.name}, step {run.step:,}, {counted(len(found), 'seed')}: mean KS distance {ks[0]:.3f} (halves of the "
        f"replay {ks[1]:.3f}), largest difference of correlations {correlation[0]:.2f} ({correlation[1]:.2f}), "
        f"terminations {100 * ends[0]:.2f} % (replay {100 * ends[1]:.2f} %)"
    ]
    if simulated:
        error = mean("dynamics_next_obs_median")
        sentences.append(
            f"dynamics error, median: {error[0]:.3f} (replay {error[1]:.1e}, shuffled outcomes {error[2]:.2f}; 1 is no "
            "better than to predict that nothing changes)"
        )
    else:
        sentences.append(f"no dynamics error: the state of {run.experiment.env} cannot be restored from an observation")
    return sentences


def _draw(figure: Figure, found: list[Compared]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for i, x in enumerate(found):
        for values, style in ((x.distances[:, 0], "o"), (x.distances[:, 1], "_")):
            left.plot(values, style, color=colour(i), ms=3)
    left.set(
        xlabel="dimension of a transition that varies", ylabel="KS distance", title="o generated   − replay halves"
    )
    left.set_ylim(0, None)
    names = [name for name in found[0].numbers if name.startswith("dynamics")] or ["ks_avg", "correlation_gap"]
    where = np.arange(len(names))
    for i, kind in enumerate(COLUMNS[2:]):
        heights = [np.mean([x.numbers[name][i] for x in found]) for name in names]
        right.bar(where + 0.27 * (i - 1), heights, 0.25, color=colour(i), label=kind)
    right.set_xticks(where, [name.removeprefix("dynamics_").replace("_", "\n") for name in names])
    right.set_title("error in the simulator" if names[0].startswith("dynamics") else "differences")
    right.legend(frameon=False)
