"""Loads the metrics of runs from their folders, and pools runs over their seeds."""

import contextlib
import dataclasses
import functools
import gc
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsac.analysis.stats import interval
from lsac.analysis.text import encodable
from lsac.errors import InputError
from lsac.runs.datafile import read_json
from lsac.runs.experiment import Experiment, for_run, from_json

EVALUATIONS, EPISODES = "eval/mean_reward", "rollout/ep_rew_mean"
UNRELATED = ("steps", "seed", "seeds", "eval_every", "log_every", "checkpoint_every", "workers", "env_timeout")
"""Options in which runs may differ and still be pooled: they do not affect what a seed has learned at a step. Runs
with and without evaluations are not pooled."""
NUMBERS = {int, float}


class Curve(NamedTuple):
    """One metric of a run: values [S, T] at steps [T], written at `seconds` [S, T] of the run."""

    steps: np.ndarray
    values: np.ndarray
    seconds: np.ndarray


class Block(NamedTuple):
    """The lines of a run that hold the same metrics, in their order."""

    columns: dict[str, int]
    numbers: np.ndarray
    """number of each line in the file"""
    steps: np.ndarray
    seeds: np.ndarray
    values: np.ndarray
    """[lines, columns]"""


@dataclass(frozen=True)
class Run:
    path: Path
    experiment: Experiment
    blocks: tuple[Block, ...]
    seeds: tuple[int, ...]
    notes: dict[str, Any] = field(default_factory=dict)
    """config.json without the experiment: command, versions, device, resumes; unchecked"""
    others: tuple["Run", ...] = ()
    """the runs that are pooled with this one"""
    _curves: dict[str, Curve] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def algorithm(self) -> str:
        return self.experiment.algorithm

    @property
    def env(self) -> str:
        """The environment's id with its arguments and wrappers: with others it is another task."""
        changes = (*sorted(self.experiment.env_args), *self.experiment.wrappers)
        return f"{self.experiment.env} ({', '.join(changes)})" if changes else self.experiment.env

    @property
    def name(self) -> str:
        return f"{self.algorithm} on {self.env}"

    @property
    def parts(self) -> tuple["Run", ...]:
        """This run and those that are pooled with it."""
        return (self, *self.others)

    @property
    def folder(self) -> str:
        """The path as text."""
        return str(encodable(str(self.path)))

    @property
    def where(self) -> str:
        return " + ".join(run.folder for run in self.parts)

    @property
    def last_step(self) -> int:
        return max((int(block.steps.max()) for block in self.blocks), default=0)

    @property
    def finished(self) -> bool:
        """Whether every part has metrics of its last step."""
        return all(
            max((int(block.steps.max()) for block in run.blocks), default=0) >= run.experiment.total_steps
            for run in self.parts
        )

    def curve(self, metric: str) -> Curve:
        """A metric at the steps at which every seed has a value."""
        if metric not in self._curves:
            self._curves[metric] = self._curve(metric)
        return self._curves[metric]

    def _curve(self, metric: str) -> Curve:
        blocks = [block for run in self.parts for block in run.blocks if metric in block.columns]
        count = len(self.seeds)
        if not blocks:
            return Curve(np.zeros(0, int), np.zeros((count, 0)), np.zeros((count, 0)))
        order = np.argsort(np.concatenate([block.numbers for block in blocks]), kind="stable")
        steps, at = np.unique(np.concatenate([block.steps for block in blocks])[order], return_inverse=True)
        seeds = self._rows(np.concatenate([block.seeds for block in blocks])[order])
        table = np.zeros((2, count + 1, len(steps)))  # the last row takes lines of seeds that the run does not have
        there = np.zeros((count + 1, len(steps)), bool)
        there[seeds, at] = True
        for number, name in enumerate((metric, "seconds")):
            found = [_column(block, name) for block in blocks]
            table[number, seeds, at] = np.concatenate(found)[order]  # where a line is repeated, the last one counts
        everywhere = there[:count].all(axis=0)
        values, seconds = table[:, :count, everywhere]
        return Curve(steps[everywhere], values, seconds)

    def _rows(self, seeds: np.ndarray) -> np.ndarray:
        """The row of each seed in a table; one too many for those that the run does not have."""
        known = np.array(self.seeds)
        order = np.argsort(known)
        at = np.minimum(np.searchsorted(known, seeds, sorter=order), len(known) - 1)
        return np.where(known[order[at]] == seeds, order[at], len(known))

    def evaluations(self) -> Curve:
        return self.curve(EVALUATIONS)

    def episodes(self) -> Curve:
        """Returns of training episodes."""
        return self.curve(EPISODES)

    def returns(self) -> tuple[str, Curve]:
        """The curve that is drawn: returns of evaluations or, without evaluations, of training episodes."""
        for title, metric in (("evaluation return", EVALUATIONS), ("episode return", EPISODES)):
            curve = self.curve(metric)
            if len(curve.steps):
                return title, curve
        if self.others:
            raise InputError(f"{self.where}: no step has a return of every seed, so they cannot be pooled")
        raise InputError(f"{self.path}: holds no returns yet")

    @property
    def has_returns(self) -> bool:
        return any(len(self.curve(metric).steps) for metric in (EVALUATIONS, EPISODES))

    def first_update(self) -> int | None:
        """The step at which updates began; None if no line reports an update."""
        updates = [
            block.steps[_column(block, "train/n_updates") > 0]
            for run in self.parts
            for block in run.blocks
            if "train/n_updates" in block.columns
        ]
        steps = np.concatenate(updates) if updates else np.zeros(0, int)
        if not len(steps):
            return None
        # a run that began with a trained model may have no random steps
        random = self.experiment.learning_starts
        return random if steps.min() >= random else 0

    def final_sentence(self) -> str:
        """A sentence with the final return and its interval."""
        try:
            title, curve = self.returns()
        except InputError:
            return f"{self.name}: finished without a return to show"
        mean, low, high = interval(curve.values[:, -1])
        spread = f" (95 % interval {low:.1f} to {high:.1f})" if len(curve.values) > 1 else ""
        seeds = "1 seed" if len(curve.values) == 1 else f"{len(curve.values)} seeds"
        return f"{self.name}: final {title} {mean:.1f}{spread}, {seeds}, step {curve.steps[-1]:,}"


def _column(block: Block, name: str) -> np.ndarray:
    """A metric of a block; not a number where it lacks it."""
    return block.values[:, block.columns[name]] if name in block.columns else np.full(len(block.steps), np.nan)


# reading


Progress = Callable[[int, int], None]
"""Called with the number of runs that were read, and of all."""


def load_runs(paths: Iterable[Path], progress: Progress = lambda done, all: None) -> list[Run]:
    """Loads runs, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if (same := found.setdefault(path.resolve(), path)) is not path:
            raise InputError(f"{path}: is the same run as {same}; name it once")
    runs, known = [], Known()
    with _no_garbage_collection():
        for number, path in enumerate(found.values(), start=1):
            runs.append(load_run(path, known))
            progress(number, len(found))
    return runs


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Parsed lines have no cycles, but make Python look for some, over and over, in all runs that were read before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_run(path: Path, known: "Known | None" = None) -> Run:
    run, metrics = load_settings(path, known), path / "metrics.jsonl"
    if not metrics.is_file():
        raise InputError(f"{path}: has no metrics yet")
    return dataclasses.replace(run, blocks=_blocks(_read_lines(metrics)))


def load_settings(path: Path, known: "Known | None" = None) -> Run:
    """A run without its metrics, which it may not have yet."""
    require_run(path)
    config = encodable(read_json(path / "config.json"))
    experiment = (known or Known()).experiment(config, str(path / "config.json"))
    notes = {name: value for name, value in config.items() if name != "experiment"}
    return Run(path, experiment, (), tuple(experiment.seed_list), notes)


def require_run(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise InputError(f"{path}: is not the folder of a run (it has no config.json)")


class Known:
    """Experiments that were read before: of thousands of runs, most differ in their seed alone, and checking all
    options of each takes longer than reading its metrics."""

    def __init__(self) -> None:
        self._found: dict[str, Experiment] = {}

    def experiment(self, config: Any, where: str) -> Experiment:
        options = config.get("experiment") if isinstance(config, dict) else None
        if not isinstance(options, dict) or type(seed := options.get("seed")) is not int:
            return from_json(config, where, to_run=False)
        rest = json.dumps([config.get("format"), config.get("algorithm"), options | {"seed": None}])
        if (same := self._found.get(rest)) is not None and 0 <= seed <= 2**31 - same.seeds:
            return dataclasses.replace(same, seed=seed)
        self._found[rest] = from_json(config, where, to_run=False)
        return self._found[rest]


def _read_lines(metrics: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, checked. One call for the whole file is twice as fast as one per line, so lines are
    read one by one only where that fails, to name the one that is wrong."""
    text = metrics.read_text(errors="replace")
    texts = text.splitlines()
    try:
        lines = json.loads(f"[{','.join(texts)}]")
        if len(lines) == len(texts) and all(map(_is_line, lines)):
            return lines
    except (ValueError, RecursionError):
        pass
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{metrics}, line {number}: is not JSON") from None
        if not _is_line(line):
            raise InputError(f"{metrics}, line {number}: is not a step, a seed and numbers by name")
        lines.append(line)
    return lines


def _is_line(line: Any) -> bool:
    if type(line) is not dict:
        return False
    step, seed = line.get("step"), line.get("seed")
    if type(step) is not int or type(seed) is not int or step < 0 or seed < 0:
        return False
    values = line.values()
    if not {*map(type, values)} <= NUMBERS:
        return False
    return all(-(2**63) < value < 2**63 for value in values if type(value) is int)


def _blocks(lines: list[dict[str, Any]]) -> tuple[Block, ...]:
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, Any]]]] = {}
    for number, line in enumerate(lines):
        groups.setdefault(tuple(line), []).append((number, line))
    blocks = []
    for names, group in groups.items():
        numbers = np.array([number for number, _ in group])
        steps, seeds = (np.array([line[name] for _, line in group], np.int64) for name in ("step", "seed"))
        values = np.array([[*line.values()] for _, line in group], float)
        blocks.append(Block(_columns(names), numbers, steps, seeds, values))
    return tuple(blocks)


@functools.cache
def _columns(names: tuple[str, ...]) -> dict[str, int]:
    """One table of columns for all runs with these metrics."""
    return {name: i for i, name in enumerate(names)}


# pooling


def pool(runs: list[Run]) -> list[Run]:
    """Joins the runs of equal settings into one with all their seeds, in the order of the first of each."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_settings(run), []).append(run)
    return [_joined(group) for group in groups.values()]


def _settings(run: Run) -> str:
    """Everything that affects what a seed learns, also what the agent derives from the length of the run."""
    settings = dataclasses.asdict(for_run(run.experiment))
    kept = {name: value for name, value in settings.items() if name not in UNRELATED}
    return run.algorithm + json.dumps(kept | {"evaluated": settings["eval_every"] > 0}, default=repr)


def _joined(runs: list[Run]) -> Run:
    holder: dict[int, Run] = {}
    for run in runs:
        for seed in run.seeds:
            if seed in holder:
                raise InputError(
                    f"--pool: {holder[seed].path} and {run.path} have the same settings and both hold seed {seed}; "
                    "leave one of them out"
                )
            holder[seed] = run
    return dataclasses.replace(runs[0], seeds=tuple(holder), others=tuple(runs[1:]))
