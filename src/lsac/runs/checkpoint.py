"""The checkpoints of a run: data files, and nothing in them that could be run.

checkpoints/step-000050000.safetensors      agent, optimisers, simulators, counters: the newest two are kept
checkpoints/stopped.safetensors             the same where a run was stopped, until it is saved again
checkpoints/best.safetensors                each seed's best evaluated policy
checkpoints/replay/rows-….safetensors       transitions, each written once
"""

import os
import re
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.errors import CheckpointError
from lsac.runs.datafile import Arrays, Record, field, read_record, read_verified, require_file, require_inside, write
from lsac.runs.experiment import printable, shown

BESIDE = ("simulator.", "evaluation.")
"""How the names of arrays begin that are no part of the agents."""
TAIL = "rows"
"""The array of a checkpoint with the transitions that are in no file of their own yet."""
STEP = re.compile(r"step-[0-9]{10,}\.safetensors")


class Checkpoint(NamedTuple):
    path: Path
    record: Record
    state: Arrays
    """of the agents"""
    beside: Arrays
    """of simulators, and of an evaluation under way"""
    rows: np.ndarray
    """[S, n, width]: the newest transitions of every seed, in the order they were collected"""
    tail: np.ndarray
    """the last of them, which no file of transitions holds yet"""

    def require(self, algorithm: str, env: str) -> None:
        """Refuses a checkpoint of another run."""
        belongs = tuple(field(self.record, name, str, self.path) for name in ("algorithm", "env"))
        if belongs != (algorithm, env):
            found = printable(" on ".join(belongs))
            raise CheckpointError(f"{self.path}: belongs to {found}, not to {algorithm} on {env}")


class Unsaved:
    """Transitions [S, n, width] that no file holds yet, as far back as `save` may want them."""

    def __init__(self, keep: int, segment: int):
        self.keep, self.segment = keep, segment
        self._parts: deque[np.ndarray] = deque()
        self._count = 0

    def add(self, rows: np.ndarray) -> None:
        self._parts.append(rows)
        self._count += rows.shape[1]
        while self._count - self._parts[0].shape[1] >= self.keep + self.segment:
            self._count -= self._parts.popleft().shape[1]

    def reset(self, rows: np.ndarray) -> None:
        """All others are in files now."""
        self._parts, self._count = deque([rows]), rows.shape[1]

    def until(self, total: int) -> tuple[np.ndarray, int]:
        """Those that a checkpoint after `total` transitions needs, and how many came before them.

        That is a matter of where the run is, not of when it was saved before.
        """
        rows = np.concatenate(self._parts, axis=1)
        needed = total - self.keep
        aligned = needed // self.segment * self.segment if self.segment else needed
        start = max(total - rows.shape[1], aligned)
        return rows[:, rows.shape[1] - (total - start) :], start


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, root: Path):
        self.root = root
        self.replay = root / "replay"
        self.stopped = root / "stopped.safetensors"

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

        Whole segments of them, counted from the run's first, go into files of their own, the rest into the checkpoint:
        which files there are then depends on no more than where the run is.
        """
        segment, (rows, first) = unsaved.segment, unsaved.until(total)
        require_inside(self.replay, self.root.parent)
        self.replay.mkdir(parents=True, exist_ok=True)
        newest = self.newest()
        segments = [s for s in _segments(newest) if s["stop"] <= first] if newest else []
        while segment and first % segment == 0 and total - first >= segment:
            part, rows, stop = rows[:, :segment], rows[:, segment:], first + segment
            file = f"rows-{first:010d}-{stop:010d}.safetensors"
            digest = write(self.replay / file, {"rows": part}, {"first": first})
            segments.append({"file": file, "stop": stop, "sha256": digest})
            first = stop
        segments = [s for s in segments if s["stop"] > total - unsaved.keep]
        path = self.stopped if stopped else self.root / _name(step)
        write(path, state | {TAIL: rows}, record | {"step": step, "replay": segments})
        if not stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()
        unsaved.reset(rows.copy())  # or all of which they are a part would stay

    def load(self, with_rows: bool = True) -> Checkpoint:
        """The newest checkpoint, with its transitions, or with the last of them only."""
        path = self._required()
        state, record, _ = self._read(path)
        if "replay" not in record or TAIL not in state:
            raise CheckpointError(f"{path}: is not a checkpoint of a run")
        step = field(record, "step", int, path)
        # or a file that calls itself the newest would hide all that follow
        if path != self.stopped and path.name != _name(step):
            raise CheckpointError(f"{path}: field step is {shown(step)}, which its name denies")
        rows, tail = np.zeros((0, 0, 0), np.float32), _of_rank(state.pop(TAIL), 3, TAIL, path)
        beside = {name: state.pop(name) for name in list(state) if name.startswith(BESIDE)}
        segments = _replay(record, path) if with_rows else []
        parts = [self._rows(segment) for segment in segments] + [tail][: tail.shape[1]]
        if parts:
            if len({(part.shape[0], part.shape[2]) for part in parts}) > 1:
                raise CheckpointError(f"{path}: its transitions differ in their number of seeds or in their width")
            rows = np.concatenate(parts, axis=1)
        return Checkpoint(path, record, state, beside, rows, tail)

    def step(self) -> int:
        """Of the newest checkpoint, most of which stays unread; 0 if there is none yet."""
        newest = self.newest()
        return _step(newest) if newest else 0

    def _required(self) -> Path:
        path = self.newest()
        if path is None:
            raise CheckpointError(f"{self.root}: holds no checkpoint")
        return path

    def newest(self) -> Path | None:
        """What a stop left counts if nothing was saved since."""
        paths = self.paths()
        if self.stopped.is_file() and (not paths or _step(self.stopped) >= _step(paths[-1])):
            return self.stopped
        return paths[-1] if paths else None

    def save_best(self, policies: np.ndarray, record: Record) -> None:
        require_inside(self.root, self.root.parent)
        self.root.mkdir(parents=True, exist_ok=True)
        write(self.root / "best.safetensors", {"policies": policies}, record)

    def load_best(self) -> tuple[np.ndarray, Record] | None:
        path = self.root / "best.safetensors"
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
        """Of all checkpoints, the newest last."""
        found = [path for path in self.root.glob("step-*.safetensors") if STEP.fullmatch(path.name)]
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def _read(self, path: Path) -> tuple[Arrays, Record, str]:
        require_file(path)
        require_inside(path, self.root.parent)
        return read_verified(path)

    def _rows(self, segment: Record) -> np.ndarray:
        path = self.replay / Path(segment["file"]).name
        arrays, _, digest = self._read(path)
        if "rows" not in arrays or (path.name, digest) != (segment["file"], segment["sha256"]):
            raise CheckpointError(f"{path}: is not the file that the checkpoint was written with")
        return _of_rank(arrays["rows"], 3, "rows", path)

    def tidy(self) -> None:
        """Removes what a run that was killed right after it wrote its last checkpoint had no time to remove."""
        if self.newest() != self.stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()

    def _prune(self) -> None:
        """Keeps two checkpoints and the transitions that they name; removes what a crash left half-written."""
        paths = self.paths()
        for old in paths[:-2]:
            old.unlink()
        kept = [*paths[-2:], self.stopped] if self.stopped.is_file() else paths[-2:]
        wanted = {s["file"] for path in kept for s in _segments(path)}
        for file in (*self.replay.iterdir(), *self.root.glob(".*.tmp")):
            if file.name not in wanted and not file.is_dir():
                file.unlink()


def _name(step: int) -> str:
    return f"step-{step:010d}.safetensors"


def _of_rank(array: np.ndarray, rank: int, name: str, path: Path) -> np.ndarray:
    if array.ndim != rank or array.dtype != np.float32:
        found = f"{array.dtype}{list(array.shape)}"
        raise CheckpointError(f"{path}: array {name} is {found}, but float32 with {rank} axes is expected")
    return array


def _replay(record: Record, path: Path) -> list[Record]:
    """The files of transitions that a checkpoint names, each once: to read one a million times would take forever."""
    segments = field(record, "replay", list, path)
    files = set()
    for i, segment in enumerate(segments):
        if not isinstance(segment, dict):
            raise CheckpointError(f"{path}: field replay[{i}] is {shown(segment)}, not a table")
        for name, kind in {"file": str, "stop": int, "sha256": str}.items():
            field(segment, name, kind, path, f"replay[{i}].")
        if segment["file"] in files or len(segment["file"]) > 255 or not segment["file"].isprintable():
            problem = "is named twice" if segment["file"] in files else "is no name of a file"
            raise CheckpointError(f"{path}: field replay[{i}].file, {shown(segment['file'])}, {problem}")
        files.add(segment["file"])
    return segments


def _segments(path: Path) -> list[Record]:
    return _replay(read_record(path), path)


def _step(path: Path) -> int:
    step: int = field(read_record(path), "step", int, path)
    return step
