"""The folder of a run: config.json, metrics.jsonl, tensorboard/ and checkpoints/."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lsac.errors import CheckpointError, InputError
from lsac.options import printable
from lsac.runs.checkpoint import Checkpoints
from lsac.runs.datafile import read_json, write_bytes
from lsac.runs.experiment import Experiment, from_json, to_json


class Resumed(NamedTuple):
    """One resume of a run: its step, and its kind. The simulators continued (exact) or started new episodes (episode),
    or there was no checkpoint and the run started again (start)."""

    step: int
    kind: str


WRITTEN = (
    *("checkpoints", "tensorboard", "wandb", "wandb.json", "analysis"),
    *("metrics.jsonl", "curve.png", "config.json"),
)
"""What a run writes into its folder."""

LOCK = ".lock"
"""Is there while a process trains in the folder, and after one was killed."""

REPLACED = ".replaced-"
"""How the name of the folder begins in which a run waits until the run that replaces it has started."""


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None
        self._created: list[Path] = []  # folders that `create` made, the innermost first
        self._found: set[str] = set()  # what was in the folder before the run
        self._replaced: Path | None = None  # where the files of the run are that this one replaces
        self.checkpoints = Checkpoints(path / "checkpoints")

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @classmethod
    def create(cls, path: Path, experiment: Experiment, overwrite: bool = False, **notes: bool) -> "RunFolder":
        """Creates the folder of a new run; with `overwrite`, what a run has written there before is removed.

        `notes` are added to config.json: `inherits` if the run starts from the parameters of a model, `made_in_python`
        if its environment cannot be recreated from its id alone.
        """
        folder = cls(path)
        folder._created = [part for part in (path, *path.parents) if not part.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.lock()
            if folder.config.exists():
                folder._require_run()
                if not overwrite:
                    what = f"--overwrite replaces it, {resume_command(path, folder._names())} continues it"
                    raise InputError(f"--out {path}: already holds a run; {what}")
                folder._replaced = Path(tempfile.mkdtemp(prefix=REPLACED, dir=path))
                folder._move(path, folder._replaced)
            folder._found = {entry.name for entry in path.iterdir()}
            folder.write_config(experiment, notes=notes)
        except OSError as error:
            folder.release()
            raise InputError(f"--out {path}: cannot be written ({error.strerror})") from None
        except BaseException:
            folder.release()
            raise
        return folder

    @classmethod
    def open(cls, path: Path, to_train: bool = False, to_run: bool = True) -> tuple["RunFolder", Experiment]:
        """Opens the folder of a run: locked if `to_train`; unless `to_run`, its environment need not be importable."""
        folder = cls(path)
        if not folder.config.is_file():
            raise InputError(f"{path}: is not the folder of a run (it has no config.json)")
        if to_train:
            folder.lock()
        try:
            config = read_json(folder.config)
            experiment = from_json(config, str(folder.config), to_run)
            if to_run and config.get("made_in_python"):
                raise InputError(
                    f"{path}: its environment was made in Python and cannot be recreated from {experiment.env}; "
                    "pass it in Python: load(path, env=…) or resume(path, env=…)"
                )
        except BaseException:
            folder.release()
            raise
        return folder, experiment

    def write_config(
        self,
        experiment: Experiment,
        resumed: Resumed | None = None,
        notes: Mapping[str, bool] | None = None,
    ) -> None:
        """Writes config.json; a resume is appended to the list of resumes, and the original command is kept."""
        config = to_json(experiment)
        if resumed:
            before = read_json(self.config)
            notes_before = ("command", "inherits", "made_in_python", "resumes")
            kept = {name: before[name] for name in notes_before if name in before}
            config |= kept | {"resumes": [*kept.get("resumes", []), resumed._asdict()]}
        config |= {name: True for name, noted in (notes or {}).items() if noted}
        write_bytes(self.config, [json.dumps(config, indent=2).encode(), b"\n"])

    def made_in_python(self) -> bool:
        """Whether the environment of the run cannot be created from config.json alone."""
        return bool(read_json(self.config).get("made_in_python"))

    def require_unsaved(self, experiment: Experiment) -> None:
        """Rejects a run without checkpoints that cannot start again: its metrics go beyond its first checkpoint, which
        must have been removed, or it started from a model, which only a checkpoint would contain."""
        if read_json(self.config).get("inherits"):
            raise CheckpointError(
                f"{self.checkpoints.root}: holds no checkpoint, and the run began with a model, which is not here; "
                "let the model learn again"
            )
        metrics, step = self.path / "metrics.jsonl", 0
        for line in metrics.read_bytes().splitlines() if metrics.is_file() else []:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                step = max(step, int(json.loads(line)["step"]))
        if experiment.checkpoint_every and step > experiment.checkpoint_every + experiment.chunk_steps:
            raise CheckpointError(
                f"{self.checkpoints.root}: holds no checkpoint, but the run got to step {step:,}; "
                f"to begin it again, remove {metrics}"
            )

    def discard(self) -> None:
        """Removes the folder of a run that has not started; what was there before it stays, also a replaced run."""
        self._remove([name for name in WRITTEN if name not in self._found])
        if self._replaced is not None:
            self._move(self._replaced, self.path)
            self._replaced.rmdir()
        self.release()
        for path in self._created:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()

    def settle(self) -> None:
        """Removes the files of the run that this one replaces; called when it has started."""
        for replaced in self.path.glob(f"{REPLACED}*"):
            shutil.rmtree(replaced)
        self._replaced = None

    @staticmethod
    def _move(source: Path, target: Path) -> None:
        """Moves what a run has written; config.json last, because what remains is a run as long as it is there."""
        for name in WRITTEN:
            if os.path.lexists(source / name):
                os.replace(source / name, target / name)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _require_run(self) -> None:
        """Rejects a folder whose config.json is of another program."""
        try:
            config = read_json(self.config)
        except InputError:
            config = None
        if not (isinstance(config, dict) and {"format", "algorithm", "experiment"} <= config.keys()):
            raise InputError(f"--out {self.path}: holds a config.json that is not of a run; choose another folder")

    def _names(self) -> list[str]:
        """The environment and the wrappers that config.json names, without a check."""
        experiment = read_json(self.config)["experiment"]
        if not isinstance(experiment, dict):
            return []
        wrappers = experiment.get("wrappers")
        return [printable(str(name)) for name in (experiment.get("env"), *(wrappers if type(wrappers) is list else []))]

    def lock(self) -> None:
        """Prevents other processes from training in this folder until `release` or the end of this process.

        The lock is on a file, because network file systems share locks between machines for files only. `release`
        removes the file, so what is locked may be one that another process has just removed: then there is a new one.
        """
        while self._lock is None:
            try:
                handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(handle), os.stat(self.path / LOCK)):
                        self._lock = handle
                finally:
                    if self._lock is None:
                        os.close(handle)
            except BlockingIOError:
                raise InputError(f"{self.path}: another process is training in this folder") from None
            except FileNotFoundError:
                if not self.path.is_dir():
                    raise
            except OSError as error:
                raise InputError(f"{self.path}: cannot be locked ({error.strerror})") from None

    def release(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the folder may be gone
                (self.path / LOCK).unlink()
            os.close(self._lock)
            self._lock = None


def resume_command(path: Path, names: Sequence[str]) -> str:
    """The command that continues a run whose environment and wrappers have these names, ready for a shell."""
    modules = dict.fromkeys(module for module, colon, _ in (name.partition(":") for name in names) if colon)
    needed = [module for module in modules if module.partition(".")[0] != "gymnasium"]
    return shlex.join(["lsac", "resume", str(path), *(word for name in needed for word in ("--module", name))])


def default_path(experiment: Experiment) -> Path:
    e = experiment
    name = f"{re.sub('[/:]', '-', e.env)}-{e.algorithm}-seed{e.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / name
