"""Shows evaluation episodes of a trained policy: as a video file, or in a window."""

import contextlib
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np

from lsac.collect import snapshot
from lsac.collect.actors import make_actors
from lsac.collect.groups import Discounts, Group
from lsac.collect.pool import evaluation_groups, group_size
from lsac.envs.gymnasium import Simulator
from lsac.envs.ids import first_line
from lsac.envs.rendering import INSTALL, has_display, working_backend
from lsac.envs.sources import of_experiment
from lsac.errors import InputError
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.wording import counted
from lsac.train.acting import cpu
from lsac.train.evaluate_run import Evaluated, load_policies
from lsac.train.logger import Say

FORMATS = (".mp4", ".gif")
DEFAULT_FPS = 30
"""Frames per second of an environment that does not say."""
GIF_FPS = 50
"""Most frames per second of a GIF."""
SAY_EVERY = 5.0
"""Seconds between two messages on the progress of a film."""

Sink = Callable[[np.ndarray], None]


class Shown(NamedTuple):
    """An episode that was shown."""

    reward: float
    steps: int


class Frames(gym.Wrapper):
    """Passes a picture of the first state of every episode, and of the states after its first steps, to a sink."""

    def __init__(self, env: gym.Env, sink: Sink, steps: int | None):
        """`steps` is None for all."""
        super().__init__(env)
        self._sink, self._steps, self._done = sink, steps, 0

    def reset(self, **options: Any) -> Any:
        found, self._done = self.env.reset(**options), 0
        self._picture()
        return found

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        self._done += 1
        if self._steps is None or self._done <= self._steps:
            self._picture()
        return found

    def _picture(self) -> None:
        picture: Any = self.env.render()
        self._sink(np.asarray(picture))


class Player:
    """Plays the first evaluation episodes of one seed: the same ones that `lsac eval` counts.

    An episode is played together with the others of its group, because the last bits of an action depend on how many
    are chosen at once, and after a thousand steps a return can depend on these bits.
    """

    def __init__(self, loaded: Evaluated, seed: int, env: gym.Env, counted: int, deterministic: bool):
        """`counted` is the number of episodes of the evaluation; `env` is drawn, the others of its group are not."""
        e = loaded.experiment
        agent = make_agent(e, loaded.spec)
        self._policy = snapshot.unflatten(agent)[1](loaded.policies[e.seed_list.index(seed)])
        self._actors, self._discounts = make_actors(agent, loaded.spec.action_dim), Discounts(e.gamma)
        self._source, self._action_repeat = loaded.source, e.action_repeat
        self._seed, self._drawn, self._counted = seed, Simulator(env, e.action_repeat), counted
        self._group_size = group_size(loaded.spec)
        self._step, self._deterministic = max(loaded.steps), deterministic

    def episode(self, number: int) -> Shown:
        episodes = self._counted if number < self._counted else number + 1
        plans = evaluation_groups([self._seed], episodes, size=self._group_size)
        plan = next(plan for plan in plans if number in plan.envs)
        place = plan.envs.index(number)
        others = [Simulator(self._source.make(), self._action_repeat) for _ in plan.envs[1:]]
        simulators = [*others[:place], self._drawn, *others[place:]]
        try:
            with jax.default_device(cpu()):
                group = Group(plan, simulators, self._actors, self._discounts, np.zeros(2, np.int64))
                played = group.evaluate(self._policy, self._step, self._deterministic)
        finally:
            for simulator in others:
                simulator.close()
        return Shown(float(played.returns[place]), int(played.lengths[place]))


def require_seed(loaded: Evaluated, seed: int | None) -> int:
    seeds = loaded.experiment.seed_list
    if seed is not None and seed not in seeds:
        raise InputError(f"--seed {seed}: must be one of {', '.join(map(str, seeds))}")
    return seeds[0] if seed is None else seed


def drawn(experiment: Experiment, render_mode: str, option: str) -> gym.Env:
    """An environment of a run that draws itself; rejects one that cannot."""
    others = [arg for arg in experiment.env_args if not arg.startswith("render_mode=")]
    wanted = dataclasses.replace(experiment, env_args=(*others, f"render_mode={render_mode}"))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*possible render_modes", UserWarning)  # some do not name their modes
            source = of_experiment(wanted).evaluation
            assert source is not None
            env = source.make()
    except InputError as error:  # without a render mode, it was created
        none = str(error).startswith("--env-args render_mode")
        reason = "it has no render_mode" if none else first_line(error)
        raise InputError(f"{option}: {experiment.env} cannot be drawn ({reason})") from None
    try:
        require_drawable(env, experiment.env, option)
    except InputError:
        env.close()
        raise
    return env


def require_drawable(env: gym.Env, name: str, option: str) -> None:
    if env.render_mode is None:
        raise InputError(f"{option}: {name} cannot be drawn (it has no render_mode)")
    try:
        env.reset(seed=0)
        picture: Any = env.render()
    except Exception as error:
        missing = isinstance(error, gym.error.DependencyNotInstalled)
        hint = f"; {INSTALL}" if not missing and working_backend() is None else ""
        raise InputError(f"{option}: {name} cannot be drawn: {first_line(error)}{hint}") from None
    if env.render_mode == "rgb_array" and np.ndim(picture) != 3:
        raise InputError(f"{option}: {name} draws no pictures, but {type(picture).__name__}")


# Video


class Filmed(NamedTuple):
    """What of a run is filmed."""

    which: str
    """last or best"""
    seed: int | None
    episodes: int
    steps: int | None
    """of each episode; None for all"""
    deterministic: bool
    counted: int
    """episodes of the evaluation"""


def record(path: Path, video: Path, filmed: Filmed, say: Say) -> str:
    """Writes the first evaluation episodes of one seed as a video, and returns a sentence on it."""
    if video.suffix not in FORMATS:
        raise InputError(f"--video {video}: must end in {' or '.join(FORMATS)}")
    loaded = load_policies(path, filmed.which)
    chosen = require_seed(loaded, filmed.seed)
    env = drawn(loaded.experiment, "rgb_array", f"--video {video}")
    fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
    aside = video.with_name(f".{video.stem}.tmp{video.suffix}")
    try:
        video.parent.mkdir(parents=True, exist_ok=True)
        with Film(aside, fps, say) as film:
            player = Player(loaded, chosen, Frames(env, film.add, filmed.steps), filmed.counted, filmed.deterministic)
            shown = [player.episode(i) for i in range(filmed.episodes)]
        os.replace(aside, video)
    except OSError as error:
        raise InputError(f"--video {video}: cannot be written ({error.strerror or first_line(error)})") from None
    finally:
        with contextlib.suppress(OSError):  # its folder may be a file
            aside.unlink(missing_ok=True)
        env.close()
    length = f"{counted(film.frames, 'frame')} at {film.fps:.3g} per second, {film.frames / film.fps:.1f} s"
    returns = ", ".join(f"{episode.reward:.1f}" for episode in shown)
    return f"video: {video}, {length}; seed {chosen}, {counted(filmed.episodes, 'episode')}, return {returns}"


class Film:
    """A video file; GIF files are written by Pillow, others by FFmpeg.

    A GIF shows a picture for a multiple of 10 ms, and many programs slow down those that ask for less than 20 ms, so
    that only every second or third picture of a fast environment is kept.
    """

    def __init__(self, path: Path, fps: float, say: Say):
        try:
            import imageio.v2 as imageio
        except ImportError:
            raise InputError("--video: needs the package imageio; install it with: pip install 'lsac[video]'") from None
        self.frames, self.fps, self._seen, self._every = 0, fps, 0, 1
        options: dict[str, Any] = {"fps": fps, "macro_block_size": 2, "format": "FFMPEG"}
        if path.suffix == ".gif":
            self._every = math.ceil(fps / GIF_FPS)
            shown = max(1000 // GIF_FPS, round(100 * self._every / fps) * 10)
            options, self.fps = {"duration": shown, "loop": 0}, 1000 / shown
        self._open = lambda: imageio.get_writer(path, mode="I", **options)
        self._say, self._began = say, time.monotonic()
        self._said = self._began

    def __enter__(self) -> "Film":
        try:
            self._writer = self._open()
        except ImportError as error:
            hint = "install it with: pip install 'lsac[video]'"
            raise InputError(f"--video: FFmpeg is missing ({first_line(error)}); {hint}") from None
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.close()

    def add(self, picture: np.ndarray) -> None:
        """Adds a picture; one row or column is repeated where the format needs even sizes."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        height, width = picture.shape[:2]
        with warnings.catch_warnings():
            # JAX warns of every fork; this one, at the first picture, only starts FFmpeg
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            self._writer.append_data(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
        self.frames += 1
        now = time.monotonic()
        if now - self._said > SAY_EVERY:
            self._said = now
            self._say(f"filmed {self.frames} frames, {self.frames / (now - self._began):.1f} per second")


# A window


def show(path: Path, which: str, seed: int | None, episodes: int, deterministic: bool) -> str:
    """Shows the first evaluation episodes of one seed in a window, and returns a sentence on each."""
    if not has_display():
        raise InputError("--render: there is no display here; --video FILE.mp4 writes a file instead")
    loaded = load_policies(path, which)
    chosen = require_seed(loaded, seed)
    env = drawn(loaded.experiment, "human", "--render")
    try:
        player = Player(loaded, chosen, env, episodes, deterministic)
        shown = [player.episode(i) for i in range(episodes)]
    finally:
        env.close()
    lines = [f"seed {chosen}, episode {i + 1}: return {x.reward:.1f}, {x.steps} steps" for i, x in enumerate(shown)]
    return "\n".join(lines)
