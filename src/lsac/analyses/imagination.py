"""What Dreamer's world model predicts: the frames of an episode, and those that the model makes of its first ones."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsac import streams
from lsac.agents.dreamer import open_loop
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, chosen_seed, load, require_algorithm
from lsac.analyses.rollouts import Stage
from lsac.analysis.outcome import Outcome
from lsac.collect.groups import Step
from lsac.errors import InputError
from lsac.runs.wording import counted
from lsac.types import Pixels

STEPS, SEEN, FRAMES = 50, 5, 12
DRAWN = 3
"""Seeds in the picture, if none are named."""
WIDTH = 9.0
"""Of the figure, in inches."""
KINDS = ("seen", "predicted")

HELP = """Show the frames that the world model of a Dreamer run predicts, beside the true ones.

The policy of every seed at the newest checkpoint plays an episode, without exploration. The model sees its first frames
and reconstructs them; from there, it predicts the frames that follow from the actions alone. The mean squared error per
pixel is compared with that of repeating the last frame that was seen.

Examples:
  lsac analyse imagination runs/dreamer
  lsac analyse imagination runs/dreamer --steps 12 --seen 4 --seed 0
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    steps: int = STEPS
    """decisions from the start of an episode; fewer if it is shorter"""
    seen: int = SEEN
    """the first of them, whose frames the model sees"""
    frames: int = FRAMES
    """frames in a row of the picture, at evenly spaced steps"""
    seed: tuple[int, ...] = ()
    """the seeds in the picture; default: the first three"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


class Imagined(NamedTuple):
    """The first steps of an episode of one seed."""

    seed: int
    seen: int
    true: np.ndarray
    """[T, H, W, channels] uint8"""
    model: np.ndarray
    """the same as the model makes it"""

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """[T] of the model, and of repeating the last seen frame, which is right as long as frames are seen."""
        repeated = self.true[np.minimum(np.arange(len(self.true)), self.seen - 1)]
        return squared_error(self.model, self.true), squared_error(repeated, self.true)


def squared_error(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """[T] mean over the pixels of images [T, H, W, channels] scaled to [0, 1]."""
    difference: np.ndarray = (found.astype(np.float64) - true) / 255
    return np.mean(difference**2, axis=(1, 2, 3))


def analyse(options: Options, say: Say) -> Outcome:
    require_algorithm(options.run, "imagination", "dreamer")
    _require(options)
    run = load(options.run, transitions=False, images=True)
    drawn = [chosen_seed(run, seed) for seed in options.seed] or list(range(min(DRAWN, run.experiment.seeds)))
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        say(f"seed {seed}: {i + 1} of {run.experiment.seeds}")
        found.append(imagined(run, i, options.steps, options.seen))
    rows: list[Any] = [
        [x.seed, t, KINDS[t >= x.seen], error, repeated]
        for x in found
        for t, (error, repeated) in enumerate(zip(*x.errors(), strict=True))
    ]
    caption = (
        f"{run.name}, step {run.step:,}: frames of an episode of the policy without exploration; the model's "
        f"reconstructions of the first {options.seen} of them, left of the line, and its predictions of the others, "
        "which follow the actions and see no further frame; absolute difference. Steps are decisions of the policy."
    )
    height, width, _ = found[0].true.shape[1:]
    each = 0.6 + 3 * (WIDTH - 0.6) / options.frames * height / width
    return Outcome(
        "Imagination of the world model",
        caption,
        [_sentence(run, found)],
        ("seed", "step", "kind", "error", "error_of_repeating"),
        rows,
        (WIDTH, each * len(drawn)),
        lambda figure: _draw(figure, [found[i] for i in drawn], options.frames),
    )


def _require(options: Options) -> None:
    for name, least in (("steps", 2), ("seen", 1), ("frames", 2)):
        if getattr(options, name) < least:
            raise InputError(f"--{name} {getattr(options, name)}: must be at least {least}")
    if options.seen >= options.steps:
        raise InputError(f"--seen {options.seen}: must be less than --steps {options.steps}")


_open_loop = jax.jit(open_loop, static_argnums=3)


def imagined(run: Analysed, index: int, steps: int, seen: int) -> Imagined:
    """The first steps of an episode of one seed."""
    seed = run.experiment.seed_list[index]
    episode = played(run, index)[:steps]
    if len(episode) <= seen:
        right = f"must be less than {len(episode)}" if len(episode) > 1 else "there is nothing to predict"
        raise InputError(f"--seen {seen}: an episode of seed {seed} has {counted(len(episode), 'decision')}; {right}")
    frames, vectors = (np.stack(x) for x in zip(*(step.obs for step in episode), strict=True))
    obs = Pixels(jnp.asarray(stacked(frames, run.spec.frame_stack)), jnp.asarray(vectors))
    action = np.stack([step.action for step in episode])
    key = jax.random.fold_in(streams.root(seed, streams.VALUES), run.step)
    made = np.asarray(_open_loop(run.inner(index).model, obs, action, seen, key))
    return Imagined(seed, seen, frames, made[..., -frames.shape[-1] :])


def played(run: Analysed, index: int) -> list[Step]:
    """An episode of one seed without exploration."""
    with Stage(run, index, together=1) as stage:
        (trace,) = stage.episodes(stage.actors.exploit, streams.VALUES)
    return trace.steps


def stacked(frames: np.ndarray, count: int) -> np.ndarray:
    """[T, H, W, channels · count] the images that the agent sees: the newest frame last, and the first one repeated
    where there are none before it."""
    steps = np.arange(len(frames))
    return np.concatenate([frames[np.maximum(steps - back, 0)] for back in reversed(range(count))], axis=-1)


def _sentence(run: Analysed, found: list[Imagined]) -> str:
    errors = [x.errors() for x in found]
    reconstructed = np.mean([error[: x.seen].mean() for x, (error, _) in zip(found, errors, strict=True)])
    predicted, repeated = (
        float(np.mean([each[i][x.seen :].mean() for x, each in zip(found, errors, strict=True)])) for i in (0, 1)
    )
    return (
        f"{run.name}, step {run.step:,}, {counted(len(found), 'seed')}: the mean squared error per pixel of predicted "
        f"frames is {predicted:.3g}, {comparison(predicted, repeated)}; of reconstructions it is {reconstructed:.3g}"
    )


def comparison(predicted: float, repeated: float) -> str:
    if repeated == 0:
        return "while the frames do not change, so that repeating the last seen one has no error"
    size = "smaller than" if predicted < repeated else "larger than" if predicted > repeated else "equal to"
    return f"{size} that of repeating the last seen frame, {repeated:.3g} (ratio {predicted / repeated:.2g})"


def _draw(figure: Figure, shown: list[Imagined], count: int) -> None:
    panels = figure.subplots(len(shown), squeeze=False)[:, 0]
    for axes, x in zip(panels, shown, strict=True):
        _draw_frames(axes, x, np.unique(np.linspace(0, len(x.true) - 1, count).round().astype(int)))
    panels[-1].set_xlabel("step")


def _draw_frames(axes: Axes, x: Imagined, steps: np.ndarray) -> None:
    """Three rows of frames, with a line before the first prediction."""
    true, model = x.true[steps], x.model[steps]
    difference = np.abs(model.astype(int) - true).astype(np.uint8)
    _, height, width, _ = true.shape
    gap = max(2, width // 12)
    axes.imshow(montage(np.stack([true, model, difference]), gap))
    across, down = ((np.arange(n) * (side + gap) + side / 2) for n, side in ((len(steps), width), (3, height)))
    border = np.sum(steps < x.seen) * (width + gap) - (gap + 1) / 2
    axes.axvline(border, color="#d55e00", linewidth=2)
    axes.set_title(f"seed {x.seed}: reconstructed to the left of the line, predicted to the right", loc="left")
    axes.set_xticks(across, labels=map(str, steps))
    axes.set_yticks(down, labels=("true", "model", "difference"))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_anchor("W")  # so that shorter episodes begin below longer ones


def montage(rows: np.ndarray, gap: int) -> np.ndarray:
    """One colour image of rows of frames [R, N, H, W, channels], with white gaps between them."""
    colours = rows[..., :3] if rows.shape[-1] >= 3 else np.repeat(rows[..., :1], 3, axis=-1)
    padded = np.pad(colours, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
    r, n, height, width, _ = padded.shape
    return padded.swapaxes(1, 2).reshape(r * height, n * width, 3)[:-gap, :-gap]
