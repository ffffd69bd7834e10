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
    differences = array.copy()
    differences[:, 1:] -= array[:, :-1]
    raw = memoryview(np.ascontiguousarray(differences).reshape(-1).data)
    blocks = _each(lambda i: zlib.compress(raw[i : i + BLOCK], LEVEL), range(0, len(raw), BLOCK))
    return np.frombuffer(b"".join(blocks), np.uint8), {"shape": list(array.shape), "sizes": [len(b) for b in blocks]}


def restore(data: np.ndarray, record: Any) -> np.ndarray:
    """The inverse of `compress`. Raises ValueError for anything that it cannot have made."""
    shape, sizes = _checked(data, record)
    total = math.prod(shape)
    starts = [0, *np.cumsum(sizes).tolist()]
    packed = memoryview(data.data)

    def inflate(i: int) -> bytes:
        wanted = min(BLOCK, total - i * BLOCK)
        stream = zlib.decompressobj()
        found = stream.decompress(packed[starts[i] : starts[i + 1]], wanted + 1)
        if len(found) != wanted or not stream.eof:
            raise ValueError("a block of frames does not have the size that it should")
        return found

    try:
        blocks = _each(inflate, range(len(sizes)))
    except zlib.error as error:
        raise ValueError(f"a block of frames cannot be inflated ({error})") from None
    array = np.frombuffer(b"".join(blocks), np.uint8).reshape(shape)
    return np.cumsum(array, axis=1, dtype=np.uint8)


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
    return shape, sizes


def _each(function: Callable[[int], T], items: Iterable[int]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as threads:  # zlib runs without the interpreter's lock
        return list(threads.map(function, items))
