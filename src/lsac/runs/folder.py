"""A run is a folder: config.json, metrics.jsonl, tensorboard/ and checkpoints/. Nothing else is needed."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lsac.errors import CheckpointError, InputError
from lsac.runs.checkpoint import Checkpoints
from lsac.runs.datafile import read_json, write_bytes
from lsac.runs.experiment import Experiment, from_json, to_json


class Resumed(NamedTuple):
    """One continuation of a run: from which step, and whether its simulators went on too (exact), began new episodes
    (episode), or the run had not been saved and began anew (start)."""

    step: int
    kind: str


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None
        self.checkpoints = Checkpoints(path / "checkpoints")

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @classmethod
    def create(cls, path: Path, algorithm: str, experiment: Experiment, **notes: bool) -> "RunFolder":
        """A new run, with notes for its config.json: whether it `inherits`, that is begins with a model's parameters,
        and whether its environment was `made_in_python`, so that its id does not tell how."""
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            if folder.config.exists():
                raise InputError(f"--out {path}: already holds a run; continue it with 'lsac resume {path}'")
            folder.write_config(algorithm, experiment, notes=notes)
        except OSError as error:
            folder.release()
            raise InputError(f"--out {path}: cannot be written ({error.strerror})") from None
        except BaseException:
            folder.release()
            raise
        return folder

    @classmethod
    def open(cls, path: Path, to_train: bool = False, to_run: bool = True) -> tuple["RunFolder", str, Experiment]:
        """A run that is there: locked if it is `to_train`; its environment may be anything if it is not `to_run`."""
        folder = cls(path)
        if not folder.config.is_file():
            raise InputError(f"{path}: is not the folder of a run (it has no config.json)")
        if to_train:
            folder.lock()
        try:
            config = read_json(folder.config)
            algorithm, experiment = from_json(config, str(folder.config), to_run)
            if to_run and config.get("made_in_python"):
                raise InputError(
                    f"{path}: its environment was made in Python, and {experiment.env} does not tell how; "
                    "load the run there: load(path, env=…)"
                )
        except BaseException:
            folder.release()
            raise
        return folder, algorithm, experiment

    def write_config(
        self,
        algorithm: str,
        experiment: Experiment,
        resumed: Resumed | None = None,
        notes: Mapping[str, bool] | None = None,
    ) -> None:
        """Writes config.json; a resume is added to what it tells of the beginning."""
        config = to_json(algorithm, experiment)
        if resumed:
            before = read_json(self.config)
            told = {name: before[name] for name in ("command", "inherits", "resumes") if name in before}
            config |= told | {"resumes": [*told.get("resumes", []), resumed._asdict()]}
        config |= {name: True for name, noted in (notes or {}).items() if noted}
        write_bytes(self.config, [json.dumps(config, indent=2).encode(), b"\n"])

    def require_unsaved(self, experiment: Experiment) -> None:
        """Refuses to begin a run again that got further than its first checkpoint, which somebody took away, or whose
        beginning only a checkpoint would tell."""
        if read_json(self.config).get("inherits"):
            raise CheckpointError(
                f"{self.checkpoints.root}: holds no checkpoint, and the run began with a model, which is not here; "
                "let the model learn again"
            )
        metrics, step = self.path / "metrics.jsonl", 0
        for line in metrics.read_bytes().splitlines() if metrics.is_file() else []:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                step = max(step, int(json.loads(line)["step"]))
        if experiment.checkpoint_every and step > experiment.checkpoint_every + experiment.chunk:
            raise CheckpointError(
                f"{self.checkpoints.root}: holds no checkpoint, but the run got to step {step:,}; "
                f"to begin it again, remove {metrics}"
            )

    def lock(self) -> None:
        """Keeps every other process from training here, until `release` or the end of this process, however it ends."""
        if self._lock is not None:
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise InputError(f"{self.path}: another process is training in this folder") from None
        self._lock = folder

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def default_path(algorithm: str, env: str, seed: int) -> Path:
    name = f"{env.replace('/', '-')}-{algorithm}-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / name
