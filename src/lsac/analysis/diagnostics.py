"""Diagnostics of the agents: values against returns, losses, gradients, generated data."""

import math
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsac.analysis.figures import (
    ANYTHING,
    CUT_OFF,
    FIRST_UPDATE,
    SINGLE_SEEDS,
    STYLE,
    WIDTHS,
    Drawing,
    Line,
    Look,
    draw,
    finish,
    finish_axes,
    fit,
    mark_updates,
    shows_seeds,
)
from lsac.analysis.names import published

DECADES = 100
"""Ratio of the largest to the smallest value from which on a positive quantity has a logarithmic axis."""
POSITIVE = (0.0, math.inf)
OF_LOGARITHMS = "logarithmic axes: mean of the logarithms"


class Panel(NamedTuple):
    title: str
    metric: str
    dashed: str | None = None
    """a second metric, drawn with dashes"""
    words: str = ""
    """what the line and the dashes are"""
    log: bool = False
    """logarithmic if its values span two decades"""
    bounds: tuple[float, float] = ANYTHING
    """what the metric can be at all"""
    own: bool = False
    """each algorithm has a panel of its own, because it means something else by the metric"""

    def title_of(self, lines: list[Line]) -> str:
        title = f"{self.title}, {published(lines[0].run.algorithm)}" if self.own else self.title
        if self.dashed is None or not any(has(line, self.dashed) for line in lines):
            return title
        return f"{title}\n{self.words}"


PANELS: tuple[Panel, ...] = (
    Panel("value of the critics", "eval/q", "eval/mc_return", "Q (line), Monte-Carlo return (dashes)"),
    Panel("bias of Q", "eval/q_bias"),
    Panel("spread of Q over chains or critics", "eval/q_spread", bounds=POSITIVE),
    Panel("spread of Q relative to its error", "eval/calibration", bounds=POSITIVE),
    Panel("difference between twin critics", "eval/twin_gap", bounds=POSITIVE),
    Panel("std of the return", "eval/return_std", bounds=POSITIVE),
    Panel("entropy coefficient α", "train/ent_coef", log=True, bounds=POSITIVE),
    Panel("entropy of the policy", "train/entropy"),
    Panel("norm of the critics' gradient", "train/critic_grad_norm", log=True, bounds=POSITIVE),
    Panel("norm of the actor's gradient", "train/actor_grad_norm", log=True, bounds=POSITIVE),
    Panel("share of saturated actions", "train/saturation", bounds=(0.0, 1.0)),
    Panel(
        "critic loss",
        "train/critic_loss",
        "train/critic_loss_synthetic",
        "real (line), synthetic (dashes)",
        log=True,
        bounds=POSITIVE,
        own=True,
    ),
    Panel("generator loss", "train/diffusion_loss", log=True, bounds=POSITIVE),
    Panel(
        "dynamics error",
        "train/dynamics_error",
        "train/dynamics_error_shuffled",
        "generated (line), shuffled (dashes)",
        log=True,
        bounds=POSITIVE,
    ),
)
"""Panels of the diagnostics, drawn if a run has the metric."""


def has(line: Line, metric: str) -> bool:
    return len(line.run.curve(metric).steps) > 0


def draw_diagnostics(lines: list[Line], path: Path, look: Look) -> list[Path]:
    """Plots the diagnostics of runs on one environment, two columns wide; no file if no run has any."""
    panels = panels_of(lines)
    if not panels:
        return []
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    last = max(line.run.last_step for line in lines)
    with matplotlib.rc_context(STYLE | {"axes.titlesize": 7, "axes.labelsize": 7, "font.size": 7}):
        figure = Figure(figsize=(WIDTHS[2], down * (1.7 if across == 3 else 2.4)), layout="constrained")
        said: set[str] = set()
        for i, (panel, here) in enumerate(panels):
            axes = figure.add_subplot(down, across, i + 1)
            said |= _draw_panel(axes, panel, here, look)
            finish_axes(axes, panel.title_of(here), last)
            if mark_updates(axes, here, last):
                said.add(FIRST_UPDATE)
        shown = {line.label for _, here in panels for line in here}
        there = [line for line in lines if line.label in shown]
        return finish(figure, there, path, look, said, title=lines[0].env)


def panels_of(lines: list[Line]) -> list[tuple[Panel, list[Line]]]:
    """The panels with something to show, each with the runs that it shows."""
    found = []
    for panel in PANELS:
        here = [line for line in lines if has(line, panel.metric)]
        groups: dict[str, list[Line]] = {}
        for line in here:
            groups.setdefault(line.run.algorithm if panel.own else "", []).append(line)
        found += [(panel, group) for group in groups.values()]
    return found


def _draw_panel(axes: Axes, panel: Panel, lines: list[Line], look: Look) -> set[str]:
    curves = [(line, line.run.curve(panel.metric), "-") for line in lines]
    if panel.dashed:
        curves += [(line, line.run.curve(panel.dashed), "--") for line in lines]
    curves = [(line, curve, style) for line, curve, style in curves if len(curve.steps)]
    values = np.concatenate([curve.values.ravel() for _, curve, _ in curves])
    log = panel.log and bool(values.min() > 0 and values.max() >= DECADES * values.min())
    each_seed = shows_seeds(lines) and all(style == "-" for *_, style in curves)
    how = Drawing(look.band, each_seed, panel.bounds, log)
    drawn = [draw(axes, curve, line, how, dashes) for line, curve, dashes in curves]
    cut_off, several = fit(axes, drawn, log), any(len(line.run.seeds) > 1 for line in lines)
    said = {CUT_OFF: cut_off, SINGLE_SEEDS: several and each_seed, OF_LOGARITHMS: several and log}
    return {words for words, true in said.items() if true}
