"""Checkpoints are data: safetensors with a JSON record and a SHA-256 inside. Loading one cannot run code.

    checkpoints/step-000050000.safetensors      agent, optimisers, simulators, counters: the newest two are kept
    checkpoints/stopped.safetensors             the same where a run was stopped, until it is saved again
    checkpoints/best.safetensors                each seed's best evaluated policy
    checkpoints/replay/rows-….safetensors       transitions, each written once

Every file is written aside, flushed to the disk and renamed, so that it is whole or absent.

A digest tells damage, not malice: whoever makes a file can make its digest too. So what a file says is checked before
it is used, and a run's files are neither read nor written through a link that leaves the run's folder.
"""

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
import safetensors.numpy

from lsac.errors import CheckpointError
from lsac.experiment import FORMAT, printable, shown

Arrays = dict[str, np.ndarray]
Record = dict[str, Any]

LABEL = "lsac"
"""Of a file's one label: the SHA-256 of its content, then the record as JSON."""
DIGITS = 64
BESIDE = ("simulator.", "evaluation.")
"""How the names of arrays begin that are no part of the agents."""
TAIL = "rows"
"""The array of a checkpoint with the transitions that are in no file of their own yet."""
HEADER_LIMIT = 32 * 2**20
"""Bytes of a file's header, which holds the record; a run that saves at every chunk needs five million."""
ARRAYS_LIMIT = 50_000
"""Of one file; an agent has some hundreds, and a simulator adds one."""
CONFIG_LIMIT = 2**20
STEP = re.compile(r"step-[0-9]{10,}\.safetensors")


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
        raise CheckpointError(f"{where}: array {printable(name)} {problem}")
    for name, leaf in expected.items():
        got = arrays[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            found, right = f"{got.dtype}{list(got.shape)}", f"{leaf.dtype}{list(leaf.shape)}"
            raise CheckpointError(f"{where}: array {name} is {found}, but {right} is expected")
    return jax.tree.unflatten(tree, [arrays[name] for name in expected])


def write_bytes(path: Path, data: bytes) -> None:
    """Writes aside, flushes and renames: the path holds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    try:
        with aside.open("xb") as file:  # never through a link that somebody put there
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
    data = safetensors.numpy.save(arrays, {LABEL: digest + text})
    if int.from_bytes(data[:8], "little") > HEADER_LIMIT:
        raise CheckpointError(f"{path}: its record would be too large to be read again; lower --log-every")
    write_bytes(path, data)
    return digest


def read(path: Path) -> tuple[Arrays, Record]:
    """Reads a file that `write` wrote, and nothing else."""
    arrays, record, _ = _verified(path)
    return arrays, record


def _verified(path: Path) -> tuple[Arrays, Record, str]:
    """Arrays, record and digest of a file, after all three were found to belong together."""
    arrays, label = _parts(path)
    digest, text = label[:DIGITS], label[DIGITS:]
    if digest != _digest(arrays, text):
        raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match)")
    return arrays, _record(text, path), digest


def _parts(path: Path, with_arrays: bool = True) -> tuple[Arrays, str]:
    """The arrays and the label of a file."""
    _require_file(path)
    try:
        _check_header(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            labels = file.metadata() or {}
            names = file.keys() if with_arrays else []
            arrays = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not a readable safetensors file ({printable(str(error))})") from None
    if LABEL not in labels:
        raise CheckpointError(f"{path}: was not written by lsac (it has no record)")
    return arrays, labels[LABEL]


def _check_header(path: Path) -> None:
    """Refuses what safetensors would accept: a header that names something twice or is of an absurd size."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > HEADER_LIMIT:
            raise ValueError(f"its header would take {size} bytes")
        count = json.loads(file.read(size), object_pairs_hook=_count)  # keeps nothing of what it reads
    if count > ARRAYS_LIMIT:
        raise ValueError(f"it has {count} arrays")


def _record(text: str, path: Path) -> Record:
    try:
        record = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its record is not readable JSON ({printable(str(error))})") from None
    if not isinstance(record, dict):
        raise CheckpointError(f"{path}: its record is not a table")
    found = field(record, "format", int, path)
    if found != FORMAT:
        raise CheckpointError(f"{path}: has format {shown(found)}; this version reads format {FORMAT}")
    return record


def field(table: Record, name: str, kind: type, path: Path, within: str = "") -> Any:
    """A field of a record, if it is there and of its type; a bool is no int."""
    if name not in table:
        raise CheckpointError(f"{path}: field {within}{name} is missing")
    if type(table[name]) is not kind:
        raise CheckpointError(f"{path}: field {within}{name} is {shown(table[name])}, not of type {kind.__name__}")
    return table[name]


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


def _label(path: Path) -> Record:
    """The record of a checkpoint; its arrays stay unread."""
    _, label = _parts(path, with_arrays=False)
    return _record(label[DIGITS:], path)


def _segments(path: Path) -> list[Record]:
    return _replay(_label(path), path)


def _step(path: Path) -> int:
    step: int = field(_label(path), "step", int, path)
    return step


def _digest(arrays: Arrays, text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def read_json(path: Path) -> Any:
    """The content of a run's config.json."""
    _require_file(path)
    require_inside(path, path.parent)
    if path.stat().st_size > CONFIG_LIMIT:
        raise CheckpointError(f"{path}: is too large for a configuration ({path.stat().st_size} bytes)")
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not readable JSON ({printable(str(error))})") from None


def parse_json(text: str | bytes) -> Any:
    """JSON in which no table has a key twice: readers disagree on which of the two counts."""
    return json.loads(text, object_pairs_hook=_table)


def _table(pairs: list[tuple[str, Any]]) -> Record:
    _count(pairs)
    return dict(pairs)


def _count(pairs: list[tuple[str, Any]]) -> int:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{shown(name)} occurs twice")
        names.add(name)
    return len(names)


def _require_file(path: Path) -> None:
    """Only regular files are opened: a named pipe would never answer, a device never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: no file can have such a name
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: is not a regular file")


def require_inside(path: Path, folder: Path) -> None:
    """A run that somebody else made could otherwise have any file read, and any folder tidied up."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise CheckpointError(f"{path}: is a link that leaves the folder of the run")


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
        require_inside(self.replay, self.root.parent)
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
        path = self.stopped if stopped else self.root / _name(step)
        write(path, state | {TAIL: rows}, record | {"step": step, "replay": segments})
        if not stopped:
            self.stopped.unlink(missing_ok=True)
        self._prune()
        return rows

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
        _require_file(path)
        require_inside(path, self.root.parent)
        return _verified(path)

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
