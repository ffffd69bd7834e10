"""Learning curves and diagnostics as PNG, tables as CSV."""

import csv
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lsac.analysis.load import Curve, Run
from lsac.analysis.stats import interval

COLUMNS: tuple[str, ...] = ("run", "algorithm", "env", "seeds", "step", "final_mean", "final_low95", "final_high95")
COLUMNS += ("last10_mean", "last10_low95", "last10_high95", "max_of_mean", "steps_per_second")
COLOURS: tuple[str, ...] = ("#2458a6", "#c8501e", "#2e7d4f", "#7a4fa3", "#8a6d1b", "#b03060", "#3a8fa8", "#555555")
COLOURS += ("#e0a000", "#7fb800", "#d17fc4", "#00c2a8")
FEW = 5
"""With at most this many runs, a figure shows every seed and has its legend inside."""


PANELS: dict[str, tuple[str, ...]] = {
    "Q (line), Monte-Carlo return (dashes)": ("eval/q", "eval/mc_return"),
    "bias of Q": ("eval/q_bias",),
    "spread of Q over chains or critics": ("eval/q_spread",),
    "std of the return": ("eval/return_std",),
    "α": ("train/ent_coef",),
    "entropy": ("train/entropy",),
    "norm of the critics' gradient": ("train/critic_grad_norm",),
    "norm of the actor's gradient": ("train/actor_grad_norm",),
    "share of saturated actions": ("train/saturation",),
    "critic error: real (line), synthetic (dashes)": ("train/critic_loss", "train/critic_loss_synthetic"),
    "generator loss": ("train/diffusion_loss",),
    "dynamics error: generated (line), shuffled (dashes)": ("train/dynamics_error", "train/dynamics_error_shuffled"),
}
"""Panels of the diagnostics, drawn if a run has the metric; a second metric is dashed."""


def _draw(
    axes: plt.Axes,
    curve: Curve,
    label: str,
    colour: str,
    style: str = "-",
    each_seed: bool = True,
    band: float = 0.18,
) -> None:
    bands = np.array([interval(curve.values[:, t]) for t in range(len(curve.steps))])
    for values in curve.values if each_seed else ():
        axes.plot(curve.steps, values, style, color=colour, alpha=0.25, linewidth=0.8)
    if len(curve.values) > 1:
        axes.fill_between(curve.steps, bands[:, 1], bands[:, 2], color=colour, alpha=band, linewidth=0)
    axes.plot(curve.steps, bands[:, 0], style, color=colour, linewidth=2, label=label)


def _tidy(axes: plt.Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))


def _finish(figure: plt.Figure, path: Path) -> Path:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def curve_of_run(run: Run, path: Path) -> Path:
    return draw_curves([run], path)


def draw_curves(runs: list[Run], path: Path) -> Path:
    """Mean (line), 95 % interval over seeds (band) and, with few runs, every seed (thin lines), on one environment."""
    returns, few = [run.returns() for run in runs], len(runs) <= FEW
    figure, axes = plt.subplots(figsize=(7, 4.2) if few else (9.5, 5))
    for i, (label, (title, curve)) in enumerate(zip(_labels(runs), returns, strict=True)):
        _draw(axes, curve, label, COLOURS[i % len(COLOURS)], each_seed=few, band=0.18 if few else 0.08)
        axes.set_ylabel(title)
    axes.set_title(runs[0].experiment.env, loc="left")
    axes.set_xlabel("environment steps per seed")
    values = np.concatenate([curve.values.ravel() for _, curve in returns])
    margin = 0.05 * (np.ptp(values) or 1.0)
    # the range of the data: intervals of few seeds exceed it
    axes.set_ylim(values.min() - margin, values.max() + margin)
    if few:
        axes.legend(frameon=False, loc="best")
    else:
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _tidy(axes)
    return _finish(figure, path)


def _labels(runs: list[Run]) -> list[str]:
    """Labels by algorithm, or by folder if several runs have the same algorithm."""
    algorithms = [run.algorithm for run in runs]
    names = algorithms if len(set(algorithms)) == len(runs) else [run.path.resolve().name for run in runs]
    counts = [run.experiment.seeds for run in runs]
    return [f"{name}, {n} seed{'s' if n > 1 else ''}" for name, n in zip(names, counts, strict=True)]


def draw_diagnostics(runs: list[Run], path: Path) -> Path | None:
    """Plots the diagnostics of runs on one environment; None if no run has any."""
    panels = {
        title: [[run.curve(metric) for metric in metrics] for run in runs]
        for title, metrics in PANELS.items()
        if any(len(run.curve(metrics[0]).steps) for run in runs)
    }
    if not panels:
        return None
    columns = min(3, len(panels))
    figure, grid = plt.subplots(
        -(-len(panels) // columns), columns, figsize=(4.6 * columns, 2.9 * -(-len(panels) // columns)), squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
        for i, (label, pair) in enumerate(zip(_labels(runs), curves, strict=True)):
            for curve, style in zip(pair, ("-", "--"), strict=False):
                if len(curve.steps):
                    _draw(axes, curve, label if style == "-" else "", COLOURS[i % len(COLOURS)], style)
        axes.set_title(title, loc="left", fontsize=9)
        _tidy(axes)
    grid.flat[0].legend(frameon=False, fontsize=8)
    figure.suptitle(runs[0].experiment.env, x=0.01, ha="left")
    return _finish(figure, path)


def write_table(runs: list[Run], path: Path) -> Path:
    """Writes one row per run: final return and mean of the last ten points, with intervals over seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for run in runs:
            _, curve = run.returns()
            final = interval(curve.values[:, -1])
            last = interval(curve.values[:, -10:].mean(axis=1))
            fps = run.curve("time/fps").values
            speed = float(np.median(fps[0, 1:])) if fps.shape[1] > 1 else float("nan")
            numbers = [*final, *last, curve.values.mean(axis=0).max(), speed]
            table.writerow(
                [run.path, run.algorithm, run.experiment.env, len(curve.values), curve.steps[-1]]
                + [f"{number:.2f}" for number in numbers]
            )
    return path


def write_report(runs: list[Run], out: Path) -> list[Path]:
    """Writes curves and diagnostics per environment, and one table of all runs."""
    pictures: list[Path | None] = []
    for env in dict.fromkeys(run.experiment.env for run in runs):
        same, name = [run for run in runs if run.experiment.env == env], env.replace("/", "-")
        pictures.append(draw_curves(same, out / f"{name}.png"))
        pictures.append(draw_diagnostics(same, out / f"{name}-diagnostics.png"))
    return [*(picture for picture in pictures if picture), write_table(runs, out / "table.csv")]
