"""What a model has learned: in memory, in a file of its own, or in the folder of a run."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect import snapshot
from lsac.errors import CheckpointError, InputError
from lsac.options import shown
from lsac.runs import datafile
from lsac.runs.checkpoint import Checkpoint, contents_of
from lsac.runs.datafile import Arrays, Record
from lsac.runs.experiment import Experiment, from_json, make_agent, to_json
from lsac.runs.folder import RunFolder
from lsac.train.evaluate_run import agents_of, snapshots_of
from lsac.train.resume import latest_returns
from lsac.train.run import Start
from lsac.types import Agent, EnvSpec


class Trained(NamedTuple):
    """The result of training all seeds. An untrained model has none of these."""

    timesteps: int = 0
    """environment steps of each seed over the life of the model"""
    state: Any = None
    """compact states [S, …] of the agents; None for an untrained model and for one that holds only policies"""
    generated_at: int = 0
    """the step whose key generated the agents' data, 0 if there is none"""
    policies: np.ndarray | None = None
    """[S, P] snapshots, if only the policies were kept"""
    returns: np.ndarray | None = None
    """[S] mean returns of the evaluation that tells which seed is best"""
    run: Checkpoint | None = None
    """what a run continues from: replay, simulators and counters"""
    steps: list[int] | None = None
    """the timesteps of every seed's policy, if they differ; `timesteps` is then the largest"""

    def start(self) -> Start | Checkpoint | None:
        """What the next run starts from."""
        if self.run is not None or self.state is None:
            return self.run
        return Start(self.state, self.generated_at)

    def elsewhere(self, env: str) -> "Trained":
        """The same in another environment: simulators and returns no longer count."""
        if self.run is None:
            return self._replace(returns=None)
        best = {
            name: [value] * len(self.run.record["best"]["steps"])
            for name, value in (("returns", -np.inf), ("steps", 0))
        }
        changes = {"env": env, "simulators": None, "evaluation": None, "latest": None, "best": best}
        beside = {
            name: array for name, array in self.run.beside.items() if not name.startswith(("simulator.", "evaluation."))
        }
        return self._replace(returns=None, run=self.run._replace(record=self.run.record | changes, beside=beside))

    def of_seed(self, index: int) -> "Trained":
        """One seed alone, without the replay."""

        def one(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[index : index + 1], tree)

        kept = self._replace(state=one(self.state), policies=one(self.policies), returns=one(self.returns), run=None)
        return kept if self.steps is None else kept._replace(timesteps=self.steps[index], steps=None)


def trained_of(checkpoint: Checkpoint, agent: Agent, experiment: Experiment, complete: bool) -> Trained:
    """The agents of a checkpoint and, if it is `complete`, all that a run continues from. Of a checkpoint in an earlier
    format, whose agents have other arrays than now, only the policies are kept."""
    e, record, path = experiment, checkpoint.record, checkpoint.path
    step, generated_at = (_steps(record, name, path) for name in ("step", "generated_at"))
    returns = _returns(record.get("latest"), e.seeds, path)
    try:
        state = agents_of(checkpoint, agent, e.seeds)
    except CheckpointError:
        if complete or record["format"] == datafile.FORMAT:
            raise
        return Trained(e.steps_before + step, None, 0, snapshots_of(checkpoint, agent, e.seeds), returns)
    return Trained(e.steps_before + step, state, generated_at, None, returns, checkpoint if complete else None)


# Files of models


def save(path: Path, trained: Trained, experiment: Experiment, recreatable: bool, replay: bool) -> None:
    """Writes one file: the agents and settings and, with `replay`, all that a run continues from."""
    record: Record = {"config": to_json(experiment), "timesteps": trained.timesteps}
    record |= {"generated_at": trained.generated_at, "made_in_python": not recreatable}
    record["returns"] = None if trained.returns is None else trained.returns.tolist()
    arrays: Arrays = {}
    if replay:
        if trained.run is None:
            raise InputError("replay: True, but the model has no replay buffer; it gets one when it learns")
        arrays = trained.run.arrays()
        record["checkpoint"] = trained.run.record
    elif trained.policies is not None:
        arrays = {"policies": trained.policies}
    else:
        arrays = datafile.named(trained.state)
    path.parent.mkdir(parents=True, exist_ok=True)
    datafile.write(path, arrays, record)


class File(NamedTuple):
    """The content of a model's file, before its environment is known."""

    path: Path
    experiment: Experiment
    arrays: Arrays
    record: Record

    @property
    def made_in_python(self) -> bool:
        return bool(self.record.get("made_in_python"))

    def trained(self, spec: EnvSpec) -> Trained:
        e, record, path = self.experiment, self.record, self.path
        agent = make_agent(e, spec)
        if "checkpoint" in record:
            inner = datafile.field(record, "checkpoint", dict, path) | {"format": record["format"]}
            checkpoint = contents_of(path, inner, self.arrays)
            checkpoint.require(e.algorithm, e.env)
            return trained_of(checkpoint._replace(stored=checkpoint.tail, tail={}), agent, e, complete=True)
        timesteps, generated_at = (_steps(record, name, path) for name in ("timesteps", "generated_at"))
        returns = _returns(record.get("returns"), e.seeds, path)
        # checked before anything is allocated for the number of seeds that the file claims
        if not self.arrays or any(array.shape[:1] != (e.seeds,) for array in self.arrays.values()):
            raise CheckpointError(f"{path}: does not hold arrays for {e.seeds} seeds")
        if self.arrays.keys() == {"policies"}:
            return Trained(timesteps, None, 0, _policies(self.arrays["policies"], agent, path), returns)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), e.seeds))
        state = jax.eval_shape(jax.vmap(agent.init), keys)
        like = agent.refresh.compact(state) if agent.refresh else state
        state = datafile.unnamed(self.arrays, like, path, record["format"])
        return Trained(timesteps, state, generated_at, None, returns)


def read(path: Path, to_run: bool) -> File:
    """Reads a file that `save` wrote, or the best policies of a run; with `to_run`, its environment is created."""
    arrays, record = datafile.read(path)
    if "config" not in record:
        raise CheckpointError(f"{path}: is not a saved model; to load a run, pass its folder")
    return File(path, from_json(record["config"], str(path), to_run), arrays, record)


# Folders of runs


def best_of_run(folder: RunFolder, experiment: Experiment, spec: EnvSpec) -> Trained:
    """The policies of each seed's best evaluation."""
    best = folder.checkpoints.load_best()
    if best is None:
        raise CheckpointError(f"{folder.path}: has no best policy, because it was trained without evaluations")
    (policies, record), path = best, folder.checkpoints.best
    returns = _returns(record.get("returns"), experiment.seeds, path)
    steps = [experiment.steps_before + step for step in record["steps"]]
    policies = _policies(policies, make_agent(experiment, spec), path)
    return Trained(max(steps), None, 0, policies, returns, steps=steps)


def _policies(policies: np.ndarray, agent: Agent, path: Path) -> np.ndarray:
    length, _ = snapshot.unflatten(agent)
    if policies.ndim != 2 or policies.dtype != np.float32 or policies.shape[1] != length:
        found = f"{policies.dtype}{list(policies.shape)}"
        raise CheckpointError(f"{path}: array policies is {found}, but float32[{len(policies)}, {length}] is expected")
    return policies


def _returns(returns: Any, seeds: int, path: Path) -> np.ndarray | None:
    try:
        return latest_returns({"latest": returns}, seeds)
    except (ValueError, TypeError):
        raise CheckpointError(f"{path}: its returns are not one number per seed") from None


def _steps(record: Record, name: str, path: Path) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{path}: field {name} is {shown(value)}, not a number of steps")
    return value
