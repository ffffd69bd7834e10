"""Writes metrics to metrics.jsonl and to TensorBoard."""

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from lsac.errors import CheckpointError, SaveFailed
from lsac.runs.datafile import require_inside

Line = dict[str, Any]


class MetricsLog:
    """One JSON object per line, with `step`, `seed`, `seconds` first; one TensorBoard run per seed."""

    def __init__(self, folder: Path, seeds: list[int], say: Callable[[str], None], keep: int = 0, step: int = 0):
        """Keeps the first `keep` lines of a run that resumes at `step`; later lines will be written again."""
        self._path, self._say = folder / "metrics.jsonl", say
        require_inside(self._path, folder)
        kept = self._path.read_bytes().splitlines(keepends=True)[:keep] if keep and self._path.is_file() else []
        if len(kept) < keep or (kept and not kept[-1].endswith(b"\n")):
            raise CheckpointError(f"{self._path}: is shorter than when the checkpoint was written, or gone")
        self.seconds = _seconds(kept[-1], self._path) if kept else 0.0
        """duration of the run so far, from its last line"""
        self._lines, self._unwritten, self._warned = keep, b"", False
        self._end = sum(map(len, kept))
        self._file = self._path.open("r+b" if self._path.is_file() else "w+b", buffering=0)
        self._file.truncate(self._end)
        self._file.seek(self._end)
        self._boards = {
            seed: SummaryWriter(str(folder / "tensorboard" / f"seed-{seed}"), purge_step=step) for seed in seeds
        }

    def write(self, lines: list[Line]) -> None:
        for line in lines:
            self._unwritten += json.dumps(line, allow_nan=True).encode() + b"\n"
            self._lines += 1
        self._flush()
        for line in lines:
            board = self._boards.get(line["seed"])
            if board is None or not _alive(board):  # its thread ends at a failed write; the next one would block
                if self._boards.pop(line["seed"], None) is not None:
                    self._say(f"warning: TensorBoard events of seed {line['seed']} can no longer be written")
                continue
            for name, value in line.items():
                if "/" in name and isinstance(value, (int, float)) and math.isfinite(value):
                    board.add_scalar(name, value, line["step"])

    def _flush(self) -> None:
        """Writes the lines that are not yet written; if that fails, they stay in memory until the disk has space."""
        try:
            if self._file.write(self._unwritten) != len(self._unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(self._end)  # remove a partly written line
            self._file.seek(self._end)
            if not self._warned:
                self._say(f"warning: {self._path}: cannot be written ({error.strerror}); lines are kept in memory")
            self._warned = True
            return
        self._end += len(self._unwritten)
        self._unwritten, self._warned = b"", False

    def lines(self) -> int:
        """The number of lines that are safely on the disk; a resume removes all later ones."""
        self._flush()
        if self._unwritten:
            raise SaveFailed(f"{self._path}: could not be written")
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SaveFailed(f"{self._path}: could not be written ({error.strerror})") from error
        return self._lines

    def close(self) -> None:
        self._file.close()
        for board in self._boards.values():
            if _alive(board):
                board.close()


def _alive(board: SummaryWriter) -> bool:
    return bool(board.file_writer.event_writer._worker.is_alive())


def _seconds(line: bytes, path: Path) -> float:
    try:
        return float(json.loads(line)["seconds"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path}: its last line has no seconds") from None
