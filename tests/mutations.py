"""Small good files of a run, and thousands of ways to spoil them.

A spoiled file is refused with a typed error, or it loads as the original does, or, where there is no digest or the
digest was made anew, it loads as exactly what it now says. Ten thousand of them, from the folder of the tests:

    python -c "import mutations; print(mutations.count_outcomes(10_000, seed=0))"
"""

import copy
import dataclasses
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import small

from lsac.errors import LsacError
from lsac.runs import datafile
from lsac.runs.checkpoint import Checkpoints
from lsac.runs.datafile import LABEL
from lsac.runs.experiment import Experiment, to_json
from lsac.runs.folder import RunFolder

STEP = "step-0000000016.safetensors"
SEEDS, WIDTH = 2, 3
GOOD = ("refused", "identical", "as written")
"""What may become of a spoiled file; every other outcome is a mistake of the reader."""


def signed(arrays: datafile.Arrays, text: str) -> bytes:
    """A file with any text for its record and the digest that belongs to it, as an attacker would make it."""
    return safetensors.numpy.save(arrays, {LABEL: datafile._digest(arrays, text) + text})


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def transitions(count: int, first: int = 0) -> datafile.Arrays:
    """Stored transitions [S, count, …], others for every `first`."""
    return {"vectors": numbers(SEEDS, count, WIDTH) + np.float32(first), "first": numbers(SEEDS, count) > first / 16}


def make_config() -> dict[str, Any]:
    experiment = Experiment(small.config("sac"), "Pendulum-v1", seeds=SEEDS)
    return json.loads(json.dumps(to_json(experiment)))


def make_run(folder: Path) -> Path:
    """A run with two files of transitions, one checkpoint and a best policy; its networks are a few numbers."""
    root = folder / "checkpoints"
    (root / "replay").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(make_config(), indent=2))
    segments = []
    for first in (0, 8):
        file = f"rows-{first:010d}-{first + 8:010d}.safetensors"
        digest = datafile.write(root / "replay" / file, transitions(8, first), {"first": first})
        segments.append({"file": file, "stop": first + 8, "sha256": digest})
    state = {"weight": numbers(SEEDS, 5), "count": np.arange(SEEDS, dtype=np.int32)}
    state |= {f"rows.{name}": array for name, array in transitions(0).items()}
    record = {"algorithm": "sac", "env": "Pendulum-v1", "best": [-np.inf, None], "step": 16, "replay": segments}
    datafile.write(root / STEP, state, record)
    Checkpoints(root).save_best(numbers(SEEDS, 5), {"steps": [8, 16], "returns": [1.5, -np.inf]})
    return folder


def load_run(folder: Path) -> tuple[Any, ...]:
    opened, experiment = RunFolder.open(folder)
    loaded, best = opened.checkpoints.load(), opened.checkpoints.load_best()
    assert best is not None
    return experiment.algorithm, experiment, loaded.record, loaded.state, loaded.stored, *best


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


# bytes


def flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def duplicate(rng: random.Random, data: bytes) -> bytes:
    start, stop = sorted(rng.choices(range(len(data) + 1), k=2))
    return data[:stop] + data[start:stop] + data[stop:]


BYTES: list[Callable[[random.Random, bytes], bytes]] = [flip, truncate, duplicate]


# fields

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 16, 2**31, 2**63, -(2**63), 10**300, 10**4000, 0.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "x", "sac", "lsac", "../x", "/etc/passwd", "\0", "\x1b[2J", "\ud800", "x" * 5000),
    *("os:x", "antigravity:Env-v0", "::", "a/b", [], {}, [[]], [1], ["x"], [10**30], {"": 0}, {"file": "x"}),
    *(json.loads("[" * 150 + "]" * 150), {"file": "x", "stop": 1, "sha256": "x"}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields and items."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, item in inner for found in [(*path, name), *places(item, (*path, name))]]


def spoil(rng: random.Random, table: dict[str, Any]) -> dict[str, Any]:
    """One field replaced, removed, renamed or moved."""
    table = copy.deepcopy(table)
    *path, name = rng.choice(places(table))
    inner: Any = table
    for step in path:
        inner = inner[step]
    kind = rng.randrange(8)
    if kind == 0:
        del inner[name]
    elif kind == 1 and isinstance(inner, dict):
        inner[rng.choice(["", "x", "\n", f"{name}s", "format"])] = inner.pop(name)
    elif kind == 2:
        inner[name] = [inner[name]]
    else:
        inner[name] = rng.choice(VALUES)
    return table


def as_written(found: Experiment, data: dict[str, Any]) -> bool:
    """Whether an experiment is exactly what its file says; a whole number may stand for a float."""
    return json.loads(json.dumps(dataclasses.asdict(found))) == data["experiment"]


def outcome(load: Callable[[], tuple[Any, ...]], good: tuple[Any, ...], said: Callable[[Any], bool]) -> str:
    """In one word what became of a spoiled file."""
    try:
        found = load()
    except LsacError as error:
        return "refused" if "\n" not in str(error) and str(error).isprintable() else f"not a sentence: {error}"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"[:200]
    if same(found, good):
        return "identical"
    return "as written" if said(found) else "wrong: loaded as something else"


def count_outcomes(n: int, seed: int) -> dict[str, int]:
    """What became of n spoiled files, by outcome; those in `GOOD` are right."""
    rng, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "run")
        good = load_run(folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        content = {path: path.read_bytes() for path in files}
        newest, config = folder / "checkpoints" / STEP, folder / "config.json"
        state, record = datafile.read(newest)
        for _ in range(n):
            kind = rng.choice(("bytes", "record", "config"))
            if kind == "bytes":
                path = rng.choice(files)
                path.write_bytes(rng.choice(BYTES)(rng, content[path]))

                def said(loaded: Any, path: Path = path) -> bool:
                    return path == config and as_written(loaded[1], json.loads(config.read_bytes()))
            elif kind == "record":
                path, table = newest, spoil(rng, record)
                path.write_bytes(signed(state, json.dumps(table)))

                def said(loaded: Any, table: Any = table) -> bool:
                    firsts = [int(segment["file"][5:15]) for segment in table["replay"]]
                    stored = {
                        name: np.concatenate([array[:, :0], *(array[:, i : i + 8] for i in firsts)], axis=1)
                        for name, array in good[4].items()
                    }
                    return same(loaded[2:], (table, good[3], stored, *good[5:]))
            else:
                path, table = config, spoil(rng, make_config())
                path.write_text(json.dumps(table))

                def said(loaded: Any, table: Any = table) -> bool:
                    return as_written(loaded[1], table) and same(loaded[2:], good[2:])

            found[outcome(lambda: load_run(folder), good, said)] += 1
            path.write_bytes(content[path])
    return dict(found)
