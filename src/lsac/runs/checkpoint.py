"""The checkpoints of a run: data files that contain no code.

checkpoints/step-000050000.safetensors      agent, optimisers, simulators, counters: the newest two are kept
checkpoints/stopped.safetensors             the same, written at a stop and removed by the next checkpoint
checkpoints/best.safetensors                the policy of each seed's best evaluation
checkpoints/replay/rows-….safetensors       transitions, each written only once
"""

import os
import re
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.errors import CheckpointError
from lsac.options import printable, shown
from lsac.runs.datafile import (
    FORMAT,
    Arrays,
    Record,
    field,
    read_record,
    read_verified,
    require_file,
    require_inside,
    write,
)

BESIDE = ("simulator.", "evaluation.", "lagged.")
"""Prefixes of the names of arrays that do not belong to the agents."""
TAIL = "rows."
"""Prefix of the names of arrays of the newest transitions, which are not yet in a file of checkpoints/replay."""
OLD_TAIL = "rows"
"""The array of these transitions in files of format 3."""
STEP = re.compile(r"step-[0-9]{10,}\.safetensors")


class Checkpoint(NamedTuple):
    path: Path
    record: Record
    state: Arrays
    """arrays of the agents"""
    beside: Arrays
    """arrays of simulators and of a running evaluation"""
    stored: Arrays
    """[S, n, …]: the newest transitions of every seed, oldest first"""
    tail: Arrays
    """the last of these, which are not yet in a file of transitions"""

    def arrays(self) -> Arrays:
        """All arrays, with all transitions, for one file; `contents_of` is the inverse."""
        return self.state | self.beside | {TAIL + name: array for name, array in self.stored.items()}

    def require(self, algorithm: str, env: str) -> None:
        """Rejects a checkpoint of another run."""
        belongs = tuple(field(self.record, name, str, self.path) for name in ("algorithm", "env"))
        if belongs != (algorithm, env):
            found = printable(" on ".join(belongs))
            raise CheckpointError(f"{self.path}: belongs to {found}, not to {algorithm} on {env}")


def contents_of(path: Path, record: Record, arrays: Arrays) -> Checkpoint:
    """The checkpoint in a file with these arrays; transitions that are in separate files are not read."""
    state = dict(arrays)
    state.pop(OLD_TAIL, None)
    tail = {name.removeprefix(TAIL): state.pop(name) for name in list(state) if name.startswith(TAIL)}
    beside = {name: state.pop(name) for name in list(state) if name.startswith(BESIDE)}
    return Checkpoint(path, record, state, beside, {}, _transitions(tail, path))


class Unsaved:
    """Transitions [S, n, …] that are not yet in a file; keeps as many as `save` may need."""

    def __init__(self, keep: int, segment: int):
        self.keep, self.segment = keep, segment
        self._parts: deque[Arrays] = deque()
        self._count = 0

    def add(self, chunk: Arrays) -> None:
        self._parts.append(dict(chunk))
        self._count += count(chunk)
        while self._count - count(self._parts[0]) >= self.keep + self.segment:
            self._count -= count(self._parts.popleft())

    def reset(self, stored: Arrays) -> None:
        """Replaces the transitions by `stored`: all others are in files."""
        self._parts, self._count = deque([dict(stored)]), count(stored)

    def until(self, total: int) -> tuple[Arrays, int]:
        """The transitions that a checkpoint after `total` transitions needs, and the number of transitions before them.

        The result depends only on `total`, not on earlier checkpoints.
        """
        stored = joined(list(self._parts), empty=True)
        self._parts = deque([dict(stored)])
        needed = total - self.keep
        aligned = needed // self.segment * self.segment if self.segment else needed
        start = max(total - count(stored), aligned)
        return sliced(stored, slice(count(stored) - (total - start), None)), start


def count(stored: Arrays) -> int:
    """Transitions per seed in arrays [S, n, …]."""
    return next(iter(stored.values())).shape[1] if stored else 0


def _owned(array: np.ndarray) -> np.ndarray:
    """The array, copied if it is a part of a larger one, which it would keep in memory."""
    base = array.base
    whole = base is None or (isinstance(base, np.ndarray) and base.nbytes == array.nbytes)
    return array if whole else array.copy()


def sliced(stored: Arrays, part: slice) -> Arrays:
    return {name: array[:, part] for name, array in stored.items()}


def joined(parts: list[Arrays], empty: bool = False) -> Arrays:
    """The transitions of all parts. With `empty`, the parts are emptied on the way, so that they do not take the memory
    of the result a second time."""
    if len(parts) < 2:
        return dict(parts[0]) if parts else {}
    found, stops = {}, np.cumsum([count(part) for part in parts])
    for name, (seeds, _, *shape), dtype in [(name, x.shape, x.dtype) for name, x in parts[0].items()]:
        found[name] = np.empty((seeds, stops[-1], *shape), dtype)
        for part, stop in zip(parts, stops, strict=True):
            values = part.pop(name) if empty else part[name]
            found[name][:, stop - values.shape[1] : stop] = values
    return found


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, root: Path):
        self.root = root
        self.replay = root / "replay"
        self.stopped = root / "stopped.safetensors"
        self.best = root / "best.safetensors"

    def save(
        self,
        step: int,
        state: Arrays,
        record: Record,
        unsaved: Unsaved,
        total: int,
        stopped: bool = False,
    ) -> None:
        """Writes a checkpoint after `total` transitions.

        Complete segments of transitions, counted from the start of the run, are written to separate files, the rest to
        the checkpoint. Which files exist therefore depends only on the step of the run.
        """
        segment, (rest, first) = unsaved.segment, unsaved.until(total)
        require_inside(self.replay, self.root.parent)
        self.replay.mkdir(parents=True, exist_ok=True)
        newest = self.newest()
        segments = [s for s in _segments(newest) if s["stop"] <= first] if newest else []
        while segment and first % segment == 0 and total - first >= segment:
            stop = first + segment
            file = f"rows-{first:010d}-{stop:010d}.safetensors"
            digest = write(self.replay / file, sliced(rest, slice(segment)), {"first": first})
            rest = sliced(rest, slice(segment, None))
            segments.append({"file": file, "stop": stop, "sha256": digest})
            first = stop
        segments = [s for s in segments if s["stop"] > total - unsaved.keep]
        path = self.stopped if stopped else self.root / _name(step)
        tail = {TAIL + name: array for name, array in rest.items()}
        write(path, state | tail, record | {"step": step, "replay": segments})
        if not stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()
        unsaved.reset({name: _owned(array) for name, array in rest.items()})

    def load(self) -> Checkpoint:
        """The newest checkpoint, with its transitions."""
        found = self._load(frames=True)
        _require_current(found.record, found.path)
        segments = [self._segment(segment) for segment in _replay(found.record, found.path)]
        parts = [*segments, dict(found.tail)] if count(found.tail) or not segments else segments
        if len({_columns(part) for part in parts}) > 1:
            raise CheckpointError(f"{found.path}: its transitions differ in their number of seeds or in their columns")
        return found._replace(stored=joined(parts, empty=True))

    def load_agents(self) -> Checkpoint:
        """The newest checkpoint, without transitions."""
        return self._load(frames=False)._replace(tail={})

    def _load(self, frames: bool) -> Checkpoint:
        """The newest checkpoint, without the transitions in separate files, or without any frames."""
        path = self._required()
        arrays, record, _ = self._read(path, frames)
        if "replay" not in record:
            raise CheckpointError(f"{path}: is not a checkpoint of a run")
        step = field(record, "step", int, path)
        # otherwise a renamed file could hide all newer checkpoints
        if path != self.stopped and path.name != _name(step):
            raise CheckpointError(f"{path}: field step is {shown(step)}, but its name has another step")
        return contents_of(path, record, arrays)

    def step(self) -> int:
        """The step of the newest checkpoint, of which only the header is read; 0 if there is none."""
        newest = self.newest()
        return _step(newest) if newest else 0

    def require_resumable(self) -> None:
        """Rejects a run of an earlier version, before anything is compiled for it."""
        newest = self.newest()
        if newest:
            _require_current(read_record(newest), newest)

    def _required(self) -> Path:
        path = self.newest()
        if path is None:
            raise CheckpointError(f"{self.root}: holds no checkpoint")
        return path

    def newest(self) -> Path | None:
        """The newest checkpoint: the one of a stop, unless a later one was saved."""
        paths = self.paths()
        if self.stopped.is_file() and (not paths or _step(self.stopped) >= _step(paths[-1])):
            return self.stopped
        return paths[-1] if paths else None

    def save_best(self, policies: np.ndarray, record: Record) -> None:
        require_inside(self.root, self.root.parent)
        self.root.mkdir(parents=True, exist_ok=True)
        write(self.best, {"policies": policies}, record)

    def load_best(self) -> tuple[np.ndarray, Record] | None:
        path = self.best
        if not os.path.lexists(path):
            return None
        arrays, record, _ = self._read(path)
        if "policies" not in arrays:
            raise CheckpointError(f"{path}: holds no policies")
        policies = _of_rank(arrays["policies"], 2, "policies", path)
        steps = field(record, "steps", list, path)
        if len(steps) != len(policies) or any(type(step) is not int for step in steps):
            raise CheckpointError(f"{path}: field steps is not one whole number per seed")
        return policies, record

    def paths(self) -> list[Path]:
        """The paths of all checkpoints, newest last."""
        found = [path for path in self.root.glob("step-*.safetensors") if STEP.fullmatch(path.name)]
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def _read(self, path: Path, frames: bool = True) -> tuple[Arrays, Record, str]:
        require_file(path)
        require_inside(path, self.root.parent)
        return read_verified(path, frames)

    def _segment(self, segment: Record) -> Arrays:
        path = self.replay / Path(segment["file"]).name
        arrays, _, digest = self._read(path)
        if not arrays or (path.name, digest) != (segment["file"], segment["sha256"]):
            raise CheckpointError(f"{path}: is not the file that the checkpoint was written with")
        return _transitions(arrays, path)

    def tidy(self) -> None:
        """Removes the files that a run left if it was killed directly after it wrote its last checkpoint."""
        if self.newest() != self.stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()

    def _prune(self) -> None:
        """Keeps two checkpoints and the transitions that they name; removes all others and partly written files."""
        paths = self.paths()
        for old in paths[:-2]:
            old.unlink()
        kept = [*paths[-2:], self.stopped] if self.stopped.is_file() else paths[-2:]
        wanted = {s["file"] for path in kept for s in _segments(path)}
        for file in (*self.replay.glob("*"), *self.root.glob(".*.tmp")):
            if file.name not in wanted and not file.is_dir():
                file.unlink()


def _name(step: int) -> str:
    return f"step-{step:010d}.safetensors"


def _require_current(record: Record, path: Path) -> None:
    if record["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: was written by an earlier version of lsac (format {record['format']}, now {FORMAT}): "
            "it can be evaluated and reported, but not resumed"
        )


def _transitions(arrays: Arrays, path: Path) -> Arrays:
    """The columns [S, n, …] of one file, if they have the same number of seeds and transitions."""
    if any(array.ndim < 2 for array in arrays.values()) or len({array.shape[:2] for array in arrays.values()}) > 1:
        shapes = {printable(name): list(array.shape) for name, array in arrays.items()}
        raise CheckpointError(f"{path}: its transitions have unequal shapes ({shapes})")
    return arrays


def _columns(stored: Arrays) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Names, dtypes and shapes of the columns, without the number of transitions."""
    return tuple((name, x.dtype.name, (x.shape[0], *x.shape[2:])) for name, x in sorted(stored.items()))


def _of_rank(array: np.ndarray, rank: int, name: str, path: Path) -> np.ndarray:
    if array.ndim != rank or array.dtype != np.float32:
        found = f"{array.dtype}{list(array.shape)}"
        raise CheckpointError(f"{path}: array {name} is {found}, but float32 with {rank} axes is expected")
    return array


def _replay(record: Record, path: Path) -> list[Record]:
    """The files of transitions that a checkpoint names. No file may occur twice: a hostile record could repeat it."""
    segments = field(record, "replay", list, path)
    files = set()
    for i, segment in enumerate(segments):
        if not isinstance(segment, dict):
            raise CheckpointError(f"{path}: field replay[{i}] is {shown(segment)}, not a table")
        for name, kind in {"file": str, "stop": int, "sha256": str}.items():
            field(segment, name, kind, path, f"replay[{i}].")
        if segment["file"] in files or len(segment["file"]) > 255 or not segment["file"].isprintable():
            problem = "is named twice" if segment["file"] in files else "is not a valid file name"
            raise CheckpointError(f"{path}: field replay[{i}].file, {shown(segment['file'])}, {problem}")
        files.add(segment["file"])
    return segments


def _segments(path: Path) -> list[Record]:
    return _replay(read_record(path), path)


def _step(path: Path) -> int:
    step: int = field(read_record(path), "step", int, path)
    return step
