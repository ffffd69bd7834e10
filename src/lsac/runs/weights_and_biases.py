"""Metrics of a run on Weights & Biases: one of its runs per seed, in one group, with the names of metrics.jsonl.

Nothing here may end a training: a failure to begin is an error before the first step, a later one a warning.
"""

import dataclasses
import json
import re
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsac.errors import CheckpointError, InputError
from lsac.runs.datafile import read_json, require_inside, write_bytes
from lsac.runs.experiment import Experiment
from lsac.runs.metrics import Line

FILE = "wandb.json"
"""Holds the project and the ids of the seeds, with which a resume continues the same runs."""
PROJECT = "lsac"
ID = re.compile(r"[\w-]{1,64}")


class Board:
    """The runs of all seeds on Weights & Biases."""

    def __init__(self, folder: Path, experiment: Experiment, project: str | None, say: Callable[[str], None]):
        """`project` is None for that of the folder, or else `PROJECT`."""
        try:
            import wandb
        except ImportError:
            raise InputError("--wandb: needs the package wandb; install it with: pip install 'lsac[wandb]'") from None
        self._say, self._failed = say, False
        project, ids = identify(folder, experiment.seed_list, project)
        config = {"algorithm": experiment.algorithm} | dataclasses.asdict(experiment)
        self._runs: dict[int, Any] = {}
        try:
            for seed, identity in ids.items():
                with warnings.catch_warnings():
                    # JAX warns of every fork; this one only starts W&B's own process
                    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                    self._runs[seed] = wandb.init(
                        project=project,
                        id=identity,
                        name=f"{folder.name}-seed-{seed}",
                        group=folder.name,
                        dir=folder,
                        config=config | {"seed": seed},
                        resume="allow",
                        reinit="create_new",
                        settings=wandb.Settings(silent=True, console="off", save_code=False),
                    )
                self._runs[seed].define_metric("step")
                self._runs[seed].define_metric("*", step_metric="step")
            record = {"project": project, "ids": {str(seed): identity for seed, identity in ids.items()}}
            # last, so that a project that cannot be used is not that of the folder
            write_bytes(folder / FILE, [json.dumps(record, indent=2).encode(), b"\n"])
        except Exception as error:
            self.close(failed=True)
            reason = str(error).strip().splitlines()
            raise InputError(f"--wandb: could not start ({reason[0] if reason else type(error).__name__})") from None

    def log(self, lines: list[Line]) -> None:
        """Logs lines of metrics; after the first failure, none."""
        if self._failed:
            return
        try:
            for line in lines:
                self._runs[line["seed"]].log({name: value for name, value in line.items() if name != "seed"})
        except Exception as error:
            self._fail(error)

    def close(self, failed: bool = False) -> None:
        for run in self._runs.values():
            try:
                run.finish(exit_code=int(failed))
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._say(f"warning: W&B gets no further metrics ({type(error).__name__}: {error}); metrics.jsonl has all")
        self._failed = True


def identify(folder: Path, seeds: list[int], project: str | None) -> tuple[str, dict[int, str]]:
    """The project and the id of every seed: those of the folder, or new ones."""
    path = folder / FILE
    require_inside(path, folder)
    if not path.is_file():
        return project or PROJECT, {seed: secrets.token_hex(4) for seed in seeds}
    stored = read_json(path)
    own = stored.get("project") if isinstance(stored, dict) else None
    named = stored.get("ids") if isinstance(stored, dict) else None
    if not isinstance(own, str) or not isinstance(named, dict) or named.keys() != {str(seed) for seed in seeds}:
        raise CheckpointError(f"{path}: does not hold a project and an id for every seed")
    if not all(isinstance(name, str) and ID.fullmatch(name) for name in named.values()):
        raise CheckpointError(f"{path}: an id is not made of letters, digits, - and _")
    if project not in (None, own):
        raise InputError(f"--wandb-project {project}: the run is in the project {own} already")
    return own, {seed: named[str(seed)] for seed in seeds}
