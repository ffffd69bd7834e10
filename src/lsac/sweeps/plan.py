"""A plan: experiments with labels, of a suite or of a Python file of the user's."""

import dataclasses
import json
import re
import runpy
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from lsac.analysis.names import published
from lsac.envs import ids
from lsac.errors import InputError, own_traceback
from lsac.options import printable, shown
from lsac.presets import preset as find_preset
from lsac.runs.datafile import read_json, write_bytes
from lsac.runs.experiment import Experiment, check
from lsac.runs.keywords import with_options

LABEL = r"(?!\.)[\w.+=-]{1,100}"
NAME = "experiments"
"""What a Python file of the user's has to define: a list, or a function that returns one."""


class Planned(NamedTuple):
    """One experiment of a plan, with all its seeds: the unit of work."""

    label: str
    """unique within its task"""
    experiment: Experiment

    @property
    def curve(self) -> str:
        """The name of its curve: an algorithm as it is has the name that its paper gives it."""
        return published(self.label) if self.label == self.experiment.algorithm else self.label

    @property
    def path(self) -> str:
        """Its folder within the folder of the sweep."""
        return f"{re.sub('[/:]', '-', self.experiment.env)}/{self.label}"


def experiment(
    algorithm: str,
    env: str,
    label: str | None = None,
    preset: str = "default",
    **options: Any,
) -> Planned:
    """One experiment of a plan: a preset of an algorithm on a task, with some of its options replaced.

    `options` are those of `lsac train`, as keyword arguments: `critic_lr=1e-3`, `generator__width=64`, `steps=10_000`.
    The label is the algorithm's name by default.
    """
    label = algorithm if label is None else label
    for name, value in {"algorithm": algorithm, "env": env, "label": label, "preset": preset}.items():
        if not isinstance(value, str):
            raise InputError(f"experiment: {name} {shown(value)} must be a string")
    own = {name: options.pop(name) for name in ("steps", "env_args", "wrappers") if name in options}
    base = dataclasses.replace(find_preset(algorithm, preset, env), **own)
    return Planned(label, with_options(base, options))


def from_file(path: Path) -> list[Planned]:
    """The plan of a Python file that the user named: it runs the file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; name a Python file, or a suite with --suite")
    try:
        found = runpy.run_path(str(path), run_name="lsac_sweep").get(NAME)
        plan = found() if callable(found) else found
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:
        failure = InputError(f"{path}: cannot be run ({type(error).__name__}: {ids.first_line(error)})")
        failure.detail = own_traceback(error).replace("Environment traceback", "Traceback")
        raise failure from error
    if not isinstance(plan, (list, tuple)):
        raise InputError(f"{path}: must define {NAME}, a list of experiments or a function that returns one")
    for item in plan:
        if not isinstance(item, Planned):
            raise InputError(f"{path}: {NAME} holds {shown(item)}, which lsac.sweeps.plan.experiment did not make")
    return list(plan)


def narrowed(
    plan: Sequence[Planned], algorithms: Sequence[str] = (), tasks: Sequence[str] = (), **replaced: int | None
) -> list[Planned]:
    """The experiments of these algorithms and tasks, with some options of all of them replaced; None leaves one as it
    is. A task is an id or a pattern such as *Cheetah*."""
    for option, wanted, known in (
        ("algorithms", algorithms, {item.experiment.algorithm for item in plan}),
        ("tasks", tasks, {item.experiment.env for item in plan}),
    ):
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise InputError(f"--{option} {printable(pattern)}: the plan has {', '.join(sorted(known))}")
    changes: dict[str, Any] = {name: value for name, value in replaced.items() if value is not None}
    return [
        item._replace(experiment=dataclasses.replace(item.experiment, **changes))
        for item in plan
        if _matches(item.experiment.algorithm, algorithms) and _matches(item.experiment.env, tasks)
    ]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def check_plan(plan: Sequence[Planned]) -> None:
    """Rejects experiments that could not be trained, and two of one name."""
    if not plan:
        raise InputError("the plan is empty: it has no experiments")
    paths: set[str] = set()
    for item in plan:
        if not re.fullmatch(LABEL, item.label):
            raise InputError(f"label {printable(item.label)}: must be letters, digits and _.+=- (it names a folder)")
        if item.path in paths:
            raise InputError(f"label {item.label}: occurs twice on {item.experiment.env}; each needs its own")
        paths.add(item.path)
        try:
            check(item.experiment)
        except InputError as error:
            raise InputError(f"{item.path}: {error}") from None
    for env in dict.fromkeys(item.experiment.env for item in plan):
        ids.find(env)


# sweep.json


def write_plan(folder: Path, name: str, plan: Sequence[Planned]) -> None:
    """Writes the list of experiments into the folder of the sweep; what an earlier command has listed there stays."""
    file = folder / "sweep.json"
    rows = {
        item.path: {
            "path": item.path,
            "label": item.curve,
            "env": item.experiment.env,
            "algorithm": item.experiment.algorithm,
        }
        for item in plan
    }
    before = _read_plan(file, name) if file.exists() else []
    listed = {row["path"]: row for row in before} | rows
    table = {"name": name, "experiments": list(listed.values())}
    text = json.dumps(table, indent=2).encode() + b"\n"
    if not file.exists() or file.read_bytes() != text:
        write_bytes(file, [text])


def _read_plan(file: Path, name: str) -> list[dict[str, str]]:
    data = read_json(file)
    rows: Any = data.get("experiments") if isinstance(data, dict) else None
    right = isinstance(rows, list) and all(isinstance(row, dict) and type(row.get("path")) is str for row in rows)
    if not right:
        raise InputError(f"{file}: is not the list of a sweep's experiments")
    if data.get("name") != name:
        raise InputError(f"--out {file.parent}: holds the sweep {shown(data.get('name'))}, not {name}; choose another")
    return list(rows)
