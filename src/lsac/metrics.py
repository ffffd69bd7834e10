"""Where numbers go: metrics.jsonl always, TensorBoard beside it."""

import json
import math
import os
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from lsac.errors import CheckpointError

Line = dict[str, Any]


class MetricsLog:
    """One JSON object per line, with `step`, `seed`, `seconds` first; one TensorBoard run per seed."""

    def __init__(self, folder: Path, seeds: list[int], resume_at: int | None = None, step: int | None = None):
        self._path = folder / "metrics.jsonl"
        if resume_at is not None:
            # what was written after the checkpoint will be written again
            if not self._path.is_file() or self._path.stat().st_size < resume_at:
                raise CheckpointError(f"{self._path}: is shorter than when the checkpoint was written, or gone")
            with self._path.open("r+b") as file:
                file.truncate(resume_at)
        self._file = self._path.open("ab")
        self._boards = {
            seed: SummaryWriter(str(folder / "tensorboard" / f"seed-{seed}"), purge_step=step) for seed in seeds
        }

    def write(self, lines: list[Line]) -> None:
        for line in lines:
            self._file.write(json.dumps(line, allow_nan=True).encode() + b"\n")
            board = self._boards[line["seed"]]
            for name, value in line.items():
                if "/" in name and isinstance(value, (int, float)) and math.isfinite(value):
                    board.add_scalar(name, value, line["step"])
        self._file.flush()

    def offset(self) -> int:
        """Bytes written so far, safely on the disk: where a resume cuts."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        for board in self._boards.values():
            board.close()
