"""Published numbers, shipped as CSV files in `data/`, each with its source, data budget and protocol."""

import csv
import re
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.analysis.text import encodable
from lsac.errors import InputError

MUJOCO, DMC, OTHER = "MuJoCo", "DeepMind Control", "other tasks"
WINDOWS = {MUJOCO: 11, DMC: 20, OTHER: 11}
"""Evaluations over which curves of a suite are smoothed before their maximum is taken, as in the LSAC paper."""
BOUNDS: dict[str, tuple[float, float]] = {
    "dm_control/*-v[0-9]": (0.0, 1000.0),
    "Pendulum-v1": (-np.inf, 0.0),
    "lsac/PointMaze-*-v[0-9]": (-np.inf, 0.0),
    "lsac/AntMaze-*-v[0-9]": (0.0, 1.0),
}
"""What a return can be at all, by patterns of ids: bands around a curve end there. Arguments and wrappers, which may
change rewards, come after an id and fit none of them."""
_KNOWN_MODULES = re.compile(r"(gymnasium|gymnasium_robotics|lsac)(\.\w+)*:")
_DMC_ID = re.compile(r"dm_control/(.+)-v\d+")
_MUJOCO_ID = re.compile(r"(HalfCheetah|Ant|Swimmer|Walker2d|Hopper|Humanoid)-v\d+")


class Task(NamedTuple):
    """What an environment's id stands for in published tables."""

    suite: str
    name: str
    """cheetah-run, HalfCheetah-v4"""

    @property
    def family(self) -> str:
        """The name without its version: the paper's tasks are -v3."""
        return self.name.rpartition("-v")[0] if self.suite == MUJOCO else self.name

    @property
    def window(self) -> int:
        return WINDOWS[self.suite]


def task_of(env: str) -> Task:
    """The task of an environment's id. With arguments, wrappers or a module of somebody else's, it is none that
    published numbers are of."""
    plain = _without_module(env)
    if found := _DMC_ID.fullmatch(plain):
        return Task(DMC, found[1])
    return Task(MUJOCO if _MUJOCO_ID.fullmatch(plain) else OTHER, plain)


def _without_module(env: str) -> str:
    """The id without a module that registers what it is known for; another may have the same id for something else."""
    return _KNOWN_MODULES.sub("", env, count=1) if _KNOWN_MODULES.match(env) else env


def bounds_of(env: str) -> tuple[float, float]:
    plain = _without_module(env)
    return next((bounds for known, bounds in BOUNDS.items() if fnmatchcase(plain, known)), (-np.inf, np.inf))


# the LSAC paper


class PaperReturn(NamedTuple):
    task: str
    mean: float
    half_width: float
    """of the 90 % interval"""
    seeds: int
    budget: str
    protocol: str
    source: str


class PaperCost(NamedTuple):
    """A row of the paper's two efficiency tables. Some are near a second per update, at which a million updates would
    take more than eleven days, so the unit (ms) is doubtful."""

    update: int
    critics: int
    millions: float


def paper_return(task: Task, algorithm: str) -> PaperReturn | None:
    """The return that the LSAC paper reports, for any version of a MuJoCo task."""
    return _paper_returns().get((task.suite, task.family, algorithm))


@cache
def _paper_returns() -> dict[tuple[str, str, str], PaperReturn]:
    found = {}
    for row in rows("paper_returns.csv"):
        numbers = (float(row["mean"]), float(row["interval90"]), int(row["seeds"]))
        task = Task(row["suite"], row["task"])
        words = (row["budget"], row["protocol"], row["source"])
        found[task.suite, task.family, row["algorithm"]] = PaperReturn(task.name, *numbers, *words)
    return found


@cache
def paper_costs(task: str) -> dict[str, PaperCost]:
    """The paper's milliseconds and parameters for a task without its version, by algorithm."""
    return {
        row["algorithm"]: PaperCost(int(row["update_ms"]), int(row["critics_ms"]), float(row["parameters_millions"]))
        for row in rows("paper_efficiency.csv")
        if row["task"] == task
    }


# public runs

MILLION = 1_000_000


class Method(NamedTuple):
    name: str
    """with the number of updates per decision, unless that is one"""
    budget: str
    protocol: str
    source: str
    checked: bool
    """whether the numbers are from a file of results or a table of the repository, and not quoted"""


class PublicCurve(NamedTuple):
    """Mean and standard deviation over seeds of returns that are public, some at a single step."""

    method: Method
    steps: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    seeds: int | None
    """None if not known"""


def public_curves(task: Task) -> list[PublicCurve]:
    """The public curves on a task, the highest final mean first, those that are only quoted last. Numbers of -v3 stand
    under -v4, which their protocol says; other versions of MuJoCo tasks are not mixed."""
    return _public_curves().get(task.name, [])


def until(curve: PublicCurve, last: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The steps and means of a curve as far as runs go that end at `last`; None if that is no curve, but a number."""
    there = curve.steps <= last
    return (curve.steps[there], curve.mean[there]) if there.sum() > 1 else None


def best_public(task: Task, longest: float, shortest: float = 0) -> PublicCurve | None:
    """The checked curve with the highest final mean, of those that end between two steps."""
    curves = [x for x in public_curves(task) if x.method.checked and shortest < x.steps[-1] <= longest]
    return curves[0] if curves else None


@cache
def _public_curves() -> dict[str, list[PublicCurve]]:
    methods = {row["id"]: _method(row) for row in rows("published_methods.csv")}
    points: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows("published_curves.csv"):
        points.setdefault((row["task"], row["id"]), []).append(row)
    found: dict[str, list[PublicCurve]] = {}
    for (task, number), curve in points.items():
        steps, mean, std = (
            np.array([float(row[name] or "nan") for row in curve])
            for name in ("env_steps", "mean_return", "std_over_seeds")
        )
        found.setdefault(task, []).append(PublicCurve(methods[number], steps, mean, std, _count(curve[-1]["seeds"])))
    key = lambda curve: (not curve.method.checked, -curve.mean[-1])  # noqa: E731
    return {task: sorted(curves, key=key) for task, curves in found.items()}


def _count(text: str) -> int | None:
    return int(text) if text else None


def _method(row: dict[str, str]) -> Method:
    updates = row["updates_per_decision"]
    name = f"{row['method']}, {updates} updates per decision" if updates not in ("", "1") else row["method"]
    return Method(name, row["budget"], row["protocol"], row["source"], row["checked"] == "yes")


# scores


class Reference(NamedTuple):
    """The returns that are the normalised scores 0 and 1."""

    env: str
    low: float
    high: float
    meaning: str
    """what the two returns are, and their source"""


def references(path: Path | None = None) -> list[Reference]:
    """The references that are shipped, after those of a CSV file with the columns env, low and high."""
    own = _read_own(path) if path else []
    shipped = [
        Reference(
            row["env"],
            float(row["low"]),
            float(row["high"]),
            f"{row['low_is']} and {row['high_is']}; {row['source']}",
        )
        for row in rows("reference_scores.csv")
    ]
    return own + shipped


def reference_of(env: str, known: list[Reference]) -> Reference | None:
    """The first that fits an environment as reports name it; `*` in a reference stands for anything."""
    plain = _without_module(env)
    return next((each for each in known if fnmatchcase(plain, each.env)), None)


def _read_own(path: Path) -> list[Reference]:
    def refuse(problem: str) -> InputError:
        return InputError(f"--references {path}: {problem}")

    try:
        table = list(csv.DictReader(path.read_text().splitlines()))
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error):
        raise refuse("is not a CSV file") from None
    if not table or not {"env", "low", "high"} <= table[0].keys():
        raise refuse("must have the columns env, low and high, and at least one row")
    found = []
    for number, row in enumerate(table, start=2):
        try:
            low, high = float(row["low"]), float(row["high"])
        except (TypeError, ValueError):
            raise refuse(f"line {number}: low and high must be numbers") from None
        if not (row["env"] and low < high and np.isfinite([low, high]).all()):
            raise refuse(f"line {number}: needs an env, and low must be less than high")
        found.append(Reference(row["env"], low, high, encodable(f"as in {path.name}")))
    return found


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a shipped file."""
    text = resources.files("lsac.analysis").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
