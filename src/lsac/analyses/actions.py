"""Densities of LSAC's actions: those of the replay, those that its generator made, and those after refinement."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from lsac import streams
from lsac.agents.lsac import synthesis
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, chosen_seed, load, require_fitted, require_lsac
from lsac.analysis.outcome import Outcome
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import for_run

SAMPLES = 1_000
GRID = 80
"""Points of the density in each direction."""
KINDS = ("replay", "generated", "refined")

HELP = """Draw where the actions of an LSAC run lie: of the replay, of the generator, and refined along ∇Q.

Two dimensions of the action are drawn as Gaussian kernel densities over [−1, 1]². Refined actions are the generated
ones with the displacements that training has written back since the last fit of the generator, which has to be run
again for it: on a CPU this takes minutes for a run with the default sizes.

Examples:
  lsac analyse actions runs/ant
  lsac analyse actions runs/ant --dims 0 1 --seed 0
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    dims: tuple[int, int] = (1, 2)
    """the two dimensions of the action that are drawn; the first dimension is 0"""
    samples: int = SAMPLES
    """actions of each kind"""
    seed: int | None = None
    """the seed; default: the first"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


def analyse(options: Options, say: Say) -> Outcome:
    if options.samples < 3:
        raise InputError(f"--samples {options.samples}: must be at least 3")
    require_lsac(options.run, "actions", synthetic=True)
    run = load(options.run, transitions=True)
    dims = _require_dims(options.dims, run.spec.action_dim)
    index = chosen_seed(run, options.seed)
    found = dict(zip(KINDS, actions(run, index, options.samples, say), strict=True))
    points = {kind: x[:, dims] for kind, x in found.items()}
    moved = np.abs(found["refined"] - found["generated"])
    seed = run.experiment.seed_list[index]
    spread = ", ".join(f"{kind} {x.std(axis=0).mean():.3f}" for kind, x in found.items())
    sentences = [
        f"{run.name}, seed {seed}, step {run.step:,}: std of the actions, mean over all dimensions: {spread}",
        f"refinement has moved generated actions by {moved.mean():.4f} on average and by {moved.max():.3f} at most",
    ]
    names = [f"action_{dim}" for dim in dims]
    rows: list[Any] = [[kind, *map(float, row)] for kind, x in points.items() for row in x]
    caption = (
        f"{run.name}, seed {seed}, step {run.step:,}: Gaussian kernel density of {options.samples} actions of each "
        f"kind in dimensions {dims[0]} and {dims[1]}, counted from 0. Refined: generated actions with the "
        "displacements written back so far."
    )
    draw = lambda figure: _draw(figure, points, names)  # noqa: E731
    return Outcome("Actions", caption, sentences, ["kind", *names], rows, (7.0, 2.5), draw)


def _require_dims(dims: tuple[int, int], count: int) -> list[int]:
    if len(set(dims)) < 2 or not all(0 <= dim < count for dim in dims):
        right = f"two different numbers from 0 to {count - 1}" if count > 1 else "drawn only for two dimensions or more"
        raise InputError(f"--dims {dims[0]} {dims[1]}: must be {right}; the environment has actions of size {count}")
    return list(dims)


def actions(run: Analysed, index: int, count: int, say: Say) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[N, A] actions of the replay, of D' as generated, and of D' with its displacements: each `count` of them."""
    at = require_fitted(run, "actions")
    fields, rows = rb.layout_of(run.spec).fields(), run.rows(index)
    random = np.random.default_rng(0)
    real = rows[random.integers(len(rows), size=count), fields["action"]]
    state: Any = run.inner(index)
    config: Any = for_run(run.experiment).agent
    made = min(config.synthetic_capacity, config.generator.sample_batch)
    key = jax.random.fold_in(streams.root(run.experiment.seed_list[index], streams.GENERATE), at)
    say(f"generating {made:,} transitions again, as at step {at:,} …")

    def generate(generator: Any, key: Any) -> Any:
        return synthesis.generate(config.generator, run.spec, generator, config.synthetic_capacity, key, made)

    generated = np.asarray(jax.jit(generate)(state.generator, key))[:, fields["action"]]
    chosen = random.integers(len(generated), size=count)
    refined = np.clip(generated + np.asarray(state.moved)[: len(generated)], -1.0, 1.0)
    return real, generated[chosen], refined[chosen]


def density(points: np.ndarray) -> np.ndarray | None:
    """[GRID, GRID] kernel density of points [N, 2] over [−1, 1]²; None if they lie on a line."""
    from scipy.stats import gaussian_kde

    if np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-6 * len(points) ** 0.5) < 2:
        return None
    along = np.linspace(-1.0, 1.0, GRID)
    grid = np.stack(np.meshgrid(along, along), axis=0).reshape(2, -1)
    found: np.ndarray = gaussian_kde(points.T)(grid).reshape(GRID, GRID)
    return found


def _draw(figure: Figure, points: dict[str, np.ndarray], names: list[str]) -> None:
    densities = {kind: density(x) for kind, x in points.items()}
    top = max((x.max() for x in densities.values() if x is not None), default=1.0)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, (kind, found) in zip(panels, densities.items(), strict=True):
        if found is not None:
            axes.imshow(found, extent=(-1, 1, -1, 1), origin="lower", cmap="viridis", vmin=0, vmax=top)
        else:
            axes.scatter(*points[kind].T, s=2)
        axes.set(title=kind, xlabel=names[0], xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
    panels[0].set_ylabel(names[1])
    figure.colorbar(ScalarMappable(Normalize(0, top), "viridis"), ax=panels, shrink=0.7, label="density")
