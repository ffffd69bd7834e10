"""A data file: arrays and a JSON record as one safetensors file with a SHA-256 inside. Reading one cannot run code.

Every file is written aside, flushed to the disk and renamed, so that it is whole or absent.

A digest tells damage, not malice: whoever makes a file can make its digest too. So what a file says is checked before
it is used, and a run's files are neither read nor written through a link that leaves the run's folder.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors

from lsac.errors import CheckpointError
from lsac.runs.experiment import printable, shown

Arrays = dict[str, np.ndarray]
Record = dict[str, Any]

DTYPES = {"bool": "BOOL"} | {
    f"{kind}{8 * n}": f"{kind[0].upper()}{8 * n}" for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)
}
"""How safetensors calls NumPy's numbers."""
FORMAT = 3
"""Of data files; raised whenever another program could misread one. 3: a layer holds its weights [out, in]."""
LABEL = "lsac"
"""Of a file's one label: the SHA-256 of its content, then the record as JSON."""
DIGITS = 64
HEADER_LIMIT = 32 * 2**20
"""Bytes of a file's header, which holds the record; a run that saves at every chunk needs five million."""
ARRAYS_LIMIT = 50_000
"""Of one file; an agent has some hundreds, and a simulator adds one."""
CONFIG_LIMIT = 2**20


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


def write_bytes(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Writes aside, flushes and renames: the path holds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    try:
        with aside.open("xb") as file:  # never through a link that somebody put there
            for part in parts:
                file.write(part)
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
    # In a fixed order, so that equal content is an equal file; the widest numbers first, so that all are aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    parts = [np.asarray(arrays[name], order="C") for name in names]
    header: Record = {"__metadata__": {LABEL: digest + text}}
    stop = 0
    for name, part in zip(names, parts, strict=True):
        start, stop = stop, stop + part.nbytes
        header[name] = {"dtype": DTYPES[part.dtype.name], "shape": part.shape, "data_offsets": [start, stop]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_LIMIT:
        raise CheckpointError(f"{path}: its record would be too large to be read again; lower --log-every")
    # Not with safetensors.numpy.save, which copies all of it: a large checkpoint then takes half as long again.
    write_bytes(path, [len(head).to_bytes(8, "little"), head, *(part.data for part in parts)])
    return digest


def read(path: Path) -> tuple[Arrays, Record]:
    """Reads a file that `write` wrote, and nothing else."""
    arrays, record, _ = read_verified(path)
    return arrays, record


def read_verified(path: Path) -> tuple[Arrays, Record, str]:
    """Arrays, record and digest of a file, after all three were found to belong together."""
    arrays, label = _parts(path)
    digest, text = label[:DIGITS], label[DIGITS:]
    if digest != _digest(arrays, text):
        raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match)")
    return arrays, _record(text, path), digest


def read_record(path: Path) -> Record:
    """The record of a file; its arrays stay unread."""
    _, label = _parts(path, with_arrays=False)
    return _record(label[DIGITS:], path)


def _parts(path: Path, with_arrays: bool = True) -> tuple[Arrays, str]:
    """The arrays and the label of a file."""
    require_file(path)
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


def _digest(arrays: Arrays, text: str) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def read_json(path: Path) -> Any:
    """The content of a run's config.json."""
    require_file(path)
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


def require_file(path: Path) -> None:
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
