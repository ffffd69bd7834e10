"""Curves as PNG, tables as CSV."""

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
COLOURS = ("#2458a6", "#c8501e", "#2e7d4f", "#7a4fa3", "#8a6d1b", "#b03060", "#3a8fa8", "#555555")


def _draw(axes: plt.Axes, curve: Curve, label: str, colour: str) -> None:
    bands = np.array([interval(curve.values[:, t]) for t in range(len(curve.steps))])
    for values in curve.values:
        axes.plot(curve.steps, values, color=colour, alpha=0.25, linewidth=0.8)
    if len(curve.values) > 1:
        axes.fill_between(curve.steps, bands[:, 1], bands[:, 2], color=colour, alpha=0.18, linewidth=0)
    axes.plot(curve.steps, bands[:, 0], color=colour, linewidth=2, label=label)


def _finish(figure: plt.Figure, axes: plt.Axes, path: Path) -> Path:
    axes.set_xlabel("environment steps per seed")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axes.legend(frameon=False, loc="best")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def curve_of_run(run: Run, path: Path) -> Path:
    return draw_curves([run], path)


def draw_curves(runs: list[Run], path: Path) -> Path:
    """Mean (line), 95 % interval over seeds (band) and every seed (thin lines) of runs on one environment."""
    returns = [run.returns() for run in runs]
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for i, (run, (title, curve)) in enumerate(zip(runs, returns, strict=True)):
        seeds = f"{len(curve.values)} seed{'s' if len(curve.values) > 1 else ''}"
        _draw(axes, curve, f"{run.algorithm}, {seeds}", COLOURS[i % len(COLOURS)])
        axes.set_ylabel(title)
    axes.set_title(runs[0].experiment.env, loc="left")
    return _finish(figure, axes, path)


def write_table(runs: list[Run], path: Path) -> Path:
    """One row per run: the final return and the mean of the last ten points, with their intervals over seeds."""
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
    """One picture per environment and one table for all."""
    envs = dict.fromkeys(run.experiment.env for run in runs)
    pictures = [
        draw_curves([r for r in runs if r.experiment.env == env], out / f"{env.replace('/', '-')}.png") for env in envs
    ]
    return [*pictures, write_table(runs, out / "table.csv")]
