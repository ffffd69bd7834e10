"""Checkpoints are data: safetensors with a JSON record and a SHA-256 inside. Loading one cannot run code.

    checkpoints/step-000050000.safetensors      agent, optimisers, counters: the newest two are kept
    checkpoints/best.safetensors                each seed's best evaluated policy
    checkpoints/replay/rows-….safetensors       transitions, each written once, by the checkpoint that follows it

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
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
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


def _segments(path: Path) -> list[Record]:
    """The transitions that a checkpoint names; its arrays stay unread."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return list(json.loads(file.metadata()[LABEL][DIGITS:])["replay"])


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


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, root: Path):
        self.root = root
        self.replay = root / "replay"

    def save(self, step: int, state: Arrays, record: Record, rows: np.ndarray, first: int, keep: int) -> None:
        """Writes a checkpoint. `rows` follow the `first` transitions already written; `keep` of all are needed."""
        self.replay.mkdir(parents=True, exist_ok=True)
        paths = self.paths()
        segments = [s for s in _segments(paths[-1]) if s["stop"] <= first] if paths else []
        stop = first + rows.shape[1]
        if stop > first:
            file = f"rows-{first:010d}-{stop:010d}.safetensors"
            digest = write(self.replay / file, {"rows": rows}, {"first": first})
            segments.append({"file": file, "stop": stop, "sha256": digest})
        segments = [s for s in segments if s["stop"] > stop - keep]
        write(self.root / f"step-{step:010d}.safetensors", state, record | {"step": step, "replay": segments})
        self._prune()

    def load(self) -> Checkpoint:
        """The newest checkpoint, with its transitions."""
        paths = self.paths()
        if not paths:
            raise CheckpointError(f"{self.root}: holds no checkpoint")
        state, record = read(paths[-1])
        if "replay" not in record:
            raise CheckpointError(f"{paths[-1]}: is not a checkpoint of a run")
        parts = [self._rows(segment) for segment in record["replay"]]
        rows = np.concatenate(parts, axis=1) if parts else np.zeros((0, 0, 0), np.float32)
        return Checkpoint(paths[-1], record, state, rows)

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
        wanted = {s["file"] for path in paths[-2:] for s in _segments(path)}
        for file in (*self.replay.iterdir(), *self.root.glob(".*.tmp")):
            if file.name not in wanted:
                file.unlink()
