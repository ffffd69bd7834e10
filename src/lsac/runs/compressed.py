"""Lossless compression of the frames in data files.

Successive frames differ in few places, so each is stored as its difference from the one before, modulo 256, and
deflated in blocks, which are processed in parallel.
"""

import math
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from lsac.runs import main_memory

T = TypeVar("T")
LEAST = 2**16
"""Size in bytes from which an array of bytes is compressed."""
BLOCK = 2**22
LEVEL = 1
"""Of zlib: higher ones take several times as long and save little."""
MOST = 1100
"""No deflated block becomes larger than this many times its size."""
THREADS = 4


def worthwhile(array: np.ndarray) -> bool:
    """Whether an array holds frames [S, n, H, W, channels]."""
    return array.dtype == np.uint8 and array.ndim == 5 and array.nbytes >= LEAST


def compress(array: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Bytes, and the record that `restore` needs."""
    flat, frame = np.ascontiguousarray(array).reshape(-1), math.prod(array.shape[2:])
    starts = range(0, flat.size, frame * array.shape[1])  # of the seeds, whose first frames are stored as they are

    def deflated(start: int) -> bytes:
        stop = min(start + BLOCK, flat.size)
        differences, earlier = flat[start:stop].copy(), max(frame - start, 0)
        differences[earlier:] -= flat[start + earlier - frame : max(stop - frame, 0)]
        for first in starts:
            part = slice(max(first, start), min(first + frame, stop))
            if part.start < part.stop:
                differences[part.start - start : part.stop - start] = flat[part]
        return zlib.compress(differences.data, LEVEL)

    blocks = _each(deflated, range(0, flat.size, BLOCK))
    return np.frombuffer(b"".join(blocks), np.uint8), {"shape": list(array.shape), "sizes": [len(b) for b in blocks]}


def restore(data: np.ndarray, record: Any) -> np.ndarray:
    """The inverse of `compress`. Raises ValueError for anything that it cannot have made."""
    shape, sizes = _checked(data, record)
    total = math.prod(shape)
    starts = [0, *np.cumsum(sizes).tolist()]
    packed = memoryview(data.data)
    flat = np.empty(total, np.uint8)

    def inflate(i: int) -> None:
        wanted = min(BLOCK, total - i * BLOCK)
        stream = zlib.decompressobj()
        found = stream.decompress(packed[starts[i] : starts[i + 1]], wanted + 1)
        if len(found) != wanted or not stream.eof:
            raise ValueError("a block of frames does not have the size that it should")
        flat[i * BLOCK : i * BLOCK + wanted] = np.frombuffer(found, np.uint8)

    try:
        _each(inflate, range(len(sizes)))
    except zlib.error as error:
        raise ValueError(f"a block of frames cannot be inflated ({error})") from None
    array = flat.reshape(shape)
    if total:  # in place, some frames at a time: the whole may take half of the memory
        several = max(1, BLOCK * shape[1] // total)
        for start in range(0, shape[1], several):
            part = array[:, start : start + several]
            if start:
                part[:, 0] += array[:, start - 1]
            np.cumsum(part, axis=1, dtype=np.uint8, out=part)
    return array


def _checked(data: np.ndarray, record: Any) -> tuple[list[int], list[int]]:
    shape, sizes = (record.get(name) if isinstance(record, dict) else None for name in ("shape", "sizes"))
    for numbers in (shape, sizes):
        if not isinstance(numbers, list) or any(type(n) is not int or not 0 <= n < 2**40 for n in numbers):
            raise ValueError("the record of compressed frames is malformed")
    assert isinstance(shape, list)
    assert isinstance(sizes, list)
    total = math.prod(shape)
    fits = data.dtype == np.uint8 and data.ndim == 1 and sum(sizes) == len(data) and len(shape) == 5
    if not fits or len(sizes) != -(-total // BLOCK) or total > MOST * len(data):
        raise ValueError("compressed frames do not have the size that they should")
    free = main_memory.free()
    if free is not None and total > free:
        raise ValueError(f"its frames would take {total / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free")
    return shape, sizes


def _each(function: Callable[[int], T], items: Iterable[int]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:  # zlib runs without the interpreter's lock
        return list(threads.map(function, items))
