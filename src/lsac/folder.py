"""A run is a folder: config.json, metrics.jsonl, tensorboard/ and checkpoints/. Nothing else is needed."""

import json
import time
from pathlib import Path

from lsac.checkpoint import Checkpoints, read_json, write_bytes
from lsac.errors import InputError
from lsac.experiment import Experiment, from_json, to_json


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @classmethod
    def create(cls, path: Path, algorithm: str, experiment: Experiment) -> "RunFolder":
        folder = cls(path)
        if folder.config.exists() and not folder.checkpoints.paths():
            raise InputError(f"--out {path}: holds a run that was never saved; remove it or choose another folder")
        if folder.config.exists():
            raise InputError(
                f"--out {path}: already holds a run; continue it with 'lsac resume {path}' or choose another"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder.write_config(algorithm, experiment)
        except OSError as error:
            raise InputError(f"--out {path}: cannot be written ({error.strerror})") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", str, Experiment]:
        folder = cls(path)
        if not folder.config.is_file():
            raise InputError(f"{path}: is not the folder of a run (it has no config.json)")
        algorithm, experiment = from_json(read_json(folder.config), str(folder.config))
        return folder, algorithm, experiment

    def write_config(self, algorithm: str, experiment: Experiment) -> None:
        write_bytes(self.config, json.dumps(to_json(algorithm, experiment), indent=2).encode() + b"\n")


def default_path(algorithm: str, env: str, seed: int) -> Path:
    name = f"{env.replace('/', '-')}-{algorithm}-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / name
