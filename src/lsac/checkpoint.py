"""Checkpoints are data: safetensors with a JSON record and a SHA-256 inside. Loading one cannot run code.

    checkpoints/step-000050000.safetensors      agent, optimisers, simulators, counters: the newest two are kept
    checkpoints/stopped.safetensors             the same where a run was stopped, until it is saved again
    checkpoints/best.safetensors                each seed's best evaluated policy
    checkpoints/replay/rows-….safetensors       transitions, each written once

Every file is written aside, flushed to the disk and renamed, so that it is whole or absent.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
import safetensors.numpy

from lsac.errors import CheckpointError
from lsac.experiment import FORMAT

Arrays = dict[str, np.ndarray]
Record = dict[str, Any]

LABEL = "lsac"
"""Of a file's one label: the SHA-256 of its content, then the record as JSON."""
DIGITS = 64
TAIL = "rows"
"""The array of a checkpoint with the transitions that are in no file of their own yet."""


def named(tree: Any) -> Arrays:
    """The leaves of a pytree by their path, on the host."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unnamed(arrays: Arrays, like: Any, where: Path) -> Any:
    """Arrays by path → a pytree of `like`'s structure, refusing what is missing, extra or of another shape."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    for name in sorted(expected.keys() ^ arrays.keys()):
        problem = "is missing" if name in expected else "does not belong here"
        raise CheckpointError(f"{where}: array {name} {problem}")
    for name, leaf in expected.items():
        got = arrays[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            found, right = f"{got.dtype}{list(got.shape)}", f"{leaf.dtype}{list(leaf.shape)}"
            raise CheckpointError(f"{where}: array {name} is {found}, but {right} is expected")
    return jax.tree.unflatten(tree, [arrays[name] for name in expected])


def write_bytes(path: Path, data: bytes) -> None:
    """Writes aside, flushes and renames: the path holds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)  # on a full disk, the half-written file is what fills it
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(path: Path, arrays: Arrays, record: Record) -> str:
    """Writes arrays and a JSON record as one file; returns its digest."""
    text = json.dumps({"format": FORMAT, **record})
    digest = _digest(arrays, text)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One label only: safetensors writes several in no fixed order, and equal content should be an equal file.
    write_bytes(path, safetensors.numpy.save(arrays, {LABEL: digest + text}))
    return digest


def read(path: Path) -> tuple[Arrays, Record]:
    """Reads a file that `write` wrote, and nothing else."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            labels = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is not a readable safetensors file ({error})") from None
    if LABEL not in labels:
        raise CheckpointError(f"{path}: was not written by lsac (it has no record)")
    digest, text = labels[LABEL][:DIGITS], labels[LABEL][DIGITS:]
    if digest != _digest(arrays, text):
        raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match)")
    record = json.loads(text)
    if record["format"] != FORMAT:
        raise CheckpointError(f"{path}: has format {record['format']}; this version reads format {FORMAT}")
    return arrays, record


def _label(path: Path) -> Record:
    """The record of a checkpoint; its arrays stay unread."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return dict(json.loads(file.metadata()[LABEL][DIGITS:]))
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: is not a readable checkpoint ({error})") from None


def _segments(path: Path) -> list[Record]:
    return list(_label(path)["replay"])


def _step(path: Path) -> int:
    return int(_label(path)["step"])


def _digest(arrays: Arrays, text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not readable JSON ({error})") from None


class Checkpoint(NamedTuple):
    path: Path
    record: Record
    state: Arrays
    rows: np.ndarray
    """[S, n, width]: the newest transitions of every seed, in the order they were collected"""
    tail: np.ndarray
    """the last of them, which no file of transitions holds yet"""


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
        rows: np.ndarray,
        first: int,
        keep: int,
        segment: int,
        stopped: bool = False,
    ) -> np.ndarray:
        """Writes a checkpoint. `rows` follow the `first` transitions already written; `keep` of all are needed.

        Whole segments of `segment` transitions, counted from the run's first, go into files of their own, the rest
        into the checkpoint: which files there are then depends on no more than where the run is. Returns that rest,
        which the next call has to be given again.
        """
        self.replay.mkdir(parents=True, exist_ok=True)
        newest, total = self.newest(), first + rows.shape[1]
        segments = [s for s in _segments(newest) if s["stop"] <= first] if newest else []
        while segment and first % segment == 0 and total - first >= segment:
            part, rows, stop = rows[:, :segment], rows[:, segment:], first + segment
            file = f"rows-{first:010d}-{stop:010d}.safetensors"
            digest = write(self.replay / file, {"rows": part}, {"first": first})
            segments.append({"file": file, "stop": stop, "sha256": digest})
            first = stop
        segments = [s for s in segments if s["stop"] > total - keep]
        path = self.stopped if stopped else self.root / f"step-{step:010d}.safetensors"
        write(path, state | {TAIL: rows}, record | {"step": step, "replay": segments})
        if not stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()
        return rows

    def load(self) -> Checkpoint:
        """The newest checkpoint, with its transitions."""
        path = self.newest()
        if path is None:
            raise CheckpointError(f"{self.root}: holds no checkpoint")
        state, record = read(path)
        if "replay" not in record or TAIL not in state:
            raise CheckpointError(f"{path}: is not a checkpoint of a run")
        tail = state.pop(TAIL)
        parts = [self._rows(segment) for segment in record["replay"]] + [tail][: tail.shape[1]]
        rows = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0, 0), np.float32)
        return Checkpoint(path, record, state, rows, tail)

    def newest(self) -> Path | None:
        """What a stop left counts if nothing was saved since."""
        paths = self.paths()
        if self.stopped.is_file() and (not paths or _step(self.stopped) >= _step(paths[-1])):
            return self.stopped
        return paths[-1] if paths else None

    def save_best(self, policies: np.ndarray, record: Record) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write(self.root / "best.safetensors", {"policies": policies}, record)

    def load_best(self) -> tuple[np.ndarray, Record] | None:
        path = self.root / "best.safetensors"
        if not path.is_file():
            return None
        arrays, record = read(path)
        if "policies" not in arrays:
            raise CheckpointError(f"{path}: holds no policies")
        return arrays["policies"], record

    def paths(self) -> list[Path]:
        return sorted(self.root.glob("step-*.safetensors"))

    def _rows(self, segment: Record) -> np.ndarray:
        path = self.replay / Path(segment["file"]).name
        arrays, record = read(path)
        if "rows" not in arrays or segment["sha256"] != _digest(arrays, json.dumps(record)):
            raise CheckpointError(f"{path}: is not the file that the checkpoint was written with")
        return arrays["rows"]

    def _prune(self) -> None:
        """Keeps two checkpoints and the transitions that they name; removes what a crash left half-written."""
        paths = self.paths()
        for old in paths[:-2]:
            old.unlink()
        kept = [*paths[-2:], self.stopped] if self.stopped.is_file() else paths[-2:]
        wanted = {s["file"] for path in kept for s in _segments(path)}
        for file in (*self.replay.iterdir(), *self.root.glob(".*.tmp")):
            if file.name not in wanted:
                file.unlink()
