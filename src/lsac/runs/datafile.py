"""A data file: arrays and a JSON record as one safetensors file with a SHA-256 inside. Reading one cannot run code.

Every file is written under a temporary name, flushed to the disk and renamed, so that it is complete or absent.

The digest detects damage, not malice: the author of a file can also write its digest. The content of a file is
therefore checked before it is used, and a run's files are neither read nor written through a link that leaves the run's
folder.
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
from lsac.options import printable, shown
from lsac.runs import compressed

Arrays = dict[str, np.ndarray]
Record = dict[str, Any]

DTYPES = {"bool": "BOOL"} | {
    f"{kind}{8 * n}": f"{kind[0].upper()}{8 * n}" for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)
}
"""NumPy dtypes and their names in safetensors."""
FORMAT = 4
"""Format of data files; increased whenever another version could misread one. 4: transitions have named columns."""
READABLE = (3, FORMAT)
"""Formats that can be read; runs of format 3 can be evaluated and reported, but not resumed."""
LABEL = "lsac"
"""Key of a file's one metadata entry: the SHA-256 of its content, followed by the record as JSON."""
COMPRESSED = "compressed"
"""Field of the record that says which arrays are compressed, and how."""
DIGITS = 64
HEADER_LIMIT = 32 * 2**20
"""Maximum size in bytes of a file's header, which holds the record; a run that saves at every chunk needs 5 MB."""
ARRAYS_LIMIT = 50_000
"""Maximum number of arrays in one file; an agent has some hundreds, and each simulator adds one."""
CONFIG_LIMIT = 2**20


def named(tree: Any) -> Arrays:
    """The leaves of a pytree as NumPy arrays, by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unnamed(arrays: Arrays, like: Any, where: Path, written: int = FORMAT) -> Any:
    """The inverse of `named`, with the structure of `like`; rejects missing, extra or differently shaped arrays.

    In a file that was `written` in an earlier format, extra arrays are ignored: states held more then.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    if written < FORMAT:
        arrays = {name: array for name, array in arrays.items() if name in expected}
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
    """Writes a temporary file, flushes and renames it: the path holds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    try:
        with aside.open("xb") as file:  # never through an existing link
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)  # on a full disk, the partly written file takes the space
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(path: Path, arrays: Arrays, record: Record) -> str:
    """Writes arrays and a JSON record as one file, frames compressed; returns its digest."""
    frames = {name: compressed.compress(x) for name, x in arrays.items() if compressed.worthwhile(x)}
    if frames:
        arrays = arrays | {name: data for name, (data, _) in frames.items()}
        record = record | {COMPRESSED: {name: how for name, (_, how) in frames.items()}}
    text = json.dumps({"format": FORMAT, **record})
    digest = _digest(arrays, text)
    # The order is fixed, so that equal content gives equal files; the widest dtypes come first, for alignment.
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
    # safetensors.numpy.save would copy all arrays: a large checkpoint would take half as long again.
    write_bytes(path, [len(head).to_bytes(8, "little"), head, *(part.data for part in parts)])
    return digest


def read(path: Path) -> tuple[Arrays, Record]:
    """Reads arrays and record of a file that `write` wrote; rejects any other file."""
    arrays, record, _ = read_verified(path)
    return arrays, record


def read_verified(path: Path, frames: bool = True) -> tuple[Arrays, Record, str]:
    """Arrays, record and digest of a file, after the digest was verified; without `frames`, no compressed array."""
    arrays, label = _parts(path)
    digest, text = label[:DIGITS], label[DIGITS:]
    if digest != _digest(arrays, text):
        raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match)")
    record = _record(text, path)
    return _restored(arrays, record.pop(COMPRESSED, {}), path, frames), record, digest


def _restored(arrays: Arrays, how: Any, path: Path, frames: bool) -> Arrays:
    """The arrays after those that are compressed were restored, or left out."""
    if not isinstance(how, dict) or not how.keys() <= arrays.keys():
        raise CheckpointError(f"{path}: field {COMPRESSED} does not fit its arrays")
    if not frames:
        return {name: array for name, array in arrays.items() if name not in how}
    plain = {array.shape[:2] for name, array in arrays.items() if name not in how}
    found = dict(arrays)
    try:
        for name, record in how.items():
            shape = record.get("shape") if isinstance(record, dict) else None
            if isinstance(shape, list) and plain and tuple(shape[:2]) not in plain:
                raise ValueError("its frames are not as many as its transitions")
            found[name] = compressed.restore(arrays[name], record)
    except (ValueError, MemoryError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return found


def read_record(path: Path) -> Record:
    """The record of a file; its arrays are not read, and the digest is not verified."""
    _, label = _parts(path, with_arrays=False)
    return _record(label[DIGITS:], path)


def _parts(path: Path, with_arrays: bool = True) -> tuple[Arrays, str]:
    """The arrays and the metadata entry of a file."""
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
    """Rejects headers that safetensors would accept: those with duplicate names or of excessive size."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > HEADER_LIMIT:
            raise ValueError(f"its header would take {size} bytes")
        count = json.loads(file.read(size), object_pairs_hook=_count)  # counts, and keeps nothing
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
    if found not in READABLE:
        raise CheckpointError(f"{path}: has format {shown(found)}; this version reads format {FORMAT}")
    return record


def field(table: Record, name: str, kind: type, path: Path, within: str = "") -> Any:
    """A field of a record, if it exists and has this type; a bool is not an int."""
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
    """Parses JSON and rejects duplicate keys, which parsers treat differently."""
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
    """Rejects anything but a regular file: reading a named pipe or a device might never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: not a possible file name
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: is not a regular file")


def require_inside(path: Path, folder: Path) -> None:
    """Rejects links that leave the folder: through them an untrusted run could have other files read or deleted."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise CheckpointError(f"{path}: is a link that leaves the folder of the run")
