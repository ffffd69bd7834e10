"""Saves and restores a run: everything that the rest of the run depends on, and nothing that depends on the time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect import wire
from lsac.collect.pool import Pool
from lsac.errors import CheckpointError, LsacError, SaveFailed
from lsac.replay.ring import PACKED, Stored
from lsac.runs.checkpoint import Checkpoint, Unsaved, joined
from lsac.runs.datafile import FORMAT, Arrays, Record, field, named, unnamed
from lsac.runs.experiment import Experiment, to_json
from lsac.runs.folder import RunFolder
from lsac.train.evaluation import Best, Evaluations
from lsac.train.learner import Learner
from lsac.train.logger import Logger

IN_MEMORY = Path("the model")
"""Stands for the path of a checkpoint that is not in a file, in messages."""
COUNTERS = ("step", "pending", "updates", "refreshed_at", "generated_at")


class Saved(NamedTuple):
    """The agents' arrays in a checkpoint, all with a leading seed axis."""

    agent: Any
    best: Any


class Parts(NamedTuple):
    """The parts of a run."""

    experiment: Experiment
    learner: Learner
    pool: Pool
    evaluations: Evaluations
    logger: Logger


@dataclass
class Position:
    """The position of the loop in its schedule."""

    step: int = 0
    pending: Stored | None = None
    """transitions [S, chunk, …] that were collected but not yet learned from"""
    evaluated_at: int = -1
    """the step at which the last evaluation started"""
    simulators_restored: bool = False
    lagged: Any = None
    """[S, P]: the policies with which the chunk after the pending one is collected"""


class Saver:
    """Writes and reads the checkpoints of a run; without a folder it does nothing."""

    def __init__(self, parts: Parts, folder: RunFolder | None, say: Callable[[str], None]):
        self._parts, self._folder, self.say = parts, folder, say
        e = parts.experiment
        self._unsaved = Unsaved(e.capacity + e.chunk, min(-(-e.checkpoint_every // e.action_repeat), e.replay_capacity))
        self._best_unwritten = False

    @property
    def active(self) -> bool:
        """Whether the run is saved at all."""
        return self._folder is not None

    def settle(self) -> None:
        """Called when the run has started."""
        if self._folder:
            self._folder.settle()

    def keep(self, chunk: Stored) -> None:
        """Keeps transitions for the next checkpoint."""
        if self._folder:
            self._unsaved.add(chunk)

    def save_best_or_warn(self) -> None:
        if self._folder:
            self._best_unwritten = True
            try:
                self._save_best(self._folder)
            except OSError as error:
                self.say(f"warning: the best policies could not be saved ({error.strerror}); training continues")

    def _save_best(self, folder: RunFolder) -> None:
        """Writes the best policies as a model that can be loaded: with the settings, but without times or commands, so
        that equal runs write equal files."""
        e, best = self._parts.experiment, self._parts.evaluations.best
        config = {name: value for name, value in to_json(e).items() if name in ("format", "algorithm", "experiment")}
        record = {"config": config, "made_in_python": folder.made_in_python()}
        record |= {"timesteps": e.steps_before + max(best.steps), "generated_at": 0, "steps": best.steps}
        folder.checkpoints.save_best(best.policies, record | {"returns": best.returns.tolist()})
        self._best_unwritten = False

    def save(self, position: Position, stopped: bool, simulators: bool = True) -> None:
        """Saves everything that the rest of the run depends on; without `simulators`, a resume starts new episodes."""
        if self._folder is None:
            return
        record, state, beside = self._contents(position, simulators)
        record["metrics_lines"] = self._parts.logger.lines()
        try:
            if self._best_unwritten:
                self._save_best(self._folder)
            total = position.step // self._parts.experiment.action_repeat + _pending(position)
            self._folder.checkpoints.save(position.step, state | beside, record, self._unsaved, total, stopped)
        except OSError as error:
            raise SaveFailed(
                f"{self._folder.path}: could not be saved at step {position.step:,} ({error.strerror or error})"
            ) from error

    def _contents(self, position: Position, simulators: bool) -> tuple[Record, Arrays, Arrays]:
        """The record of a checkpoint, the arrays of its agents and those beside them."""
        e, learner, pool, evaluations, logger = self._parts
        evaluation, evaluated = evaluations.record()
        groups, captured = wire.pack(pool.capture() if simulators else None)
        record = {
            "algorithm": e.algorithm,
            "env": e.env,
            "updates": learner.updates,
            "refreshed_at": learner.refresher.refreshed_at,
            "generated_at": learner.refresher.generated_at,
            "pending": _pending(position),
            "evaluated_at": position.evaluated_at,
            "evaluation": evaluation,
            **logger.unwritten(),
            "best": {"returns": evaluations.best.returns.tolist(), "steps": evaluations.best.steps},
            "latest": None if evaluations.latest is None else evaluations.latest.tolist(),
            "simulators": groups,
        }
        beside = {f"evaluation.{name}": array for name, array in evaluated.items()}
        beside |= {f"simulator.{i}": array for i, array in enumerate(captured)}
        if position.lagged is not None and position.pending is None:
            beside["lagged.policies"] = np.asarray(position.lagged)
        return record, named(Saved(learner.kept(), evaluations.best.policies)), beside

    def checkpoint(self, position: Position, simulators: bool = True) -> Checkpoint:
        """A checkpoint in memory. Its arrays are copies: the learner reuses the memory of its own."""
        record, state, beside = self._contents(position, simulators)
        state = {name: np.array(array) for name, array in state.items()}
        stored = self._parts.learner.transitions()
        if position.pending is not None:
            stored = joined([stored, position.pending])
        record |= {"step": position.step, "format": FORMAT}
        return Checkpoint(IN_MEMORY, record, state, beside, stored, {})

    def restore_newest(self) -> tuple[Position, str]:
        """Restores the newest checkpoint; returns its position, and `exact` or `episode`, see `Loop.resume`."""
        assert self._folder is not None
        return self.restore(self._folder.checkpoints.load())

    def restore(self, checkpoint: Checkpoint, own: bool = True) -> tuple[Position, str]:
        """Restores a checkpoint of this folder or, unless `own`, of a run whose files are elsewhere."""
        e = self._parts.experiment
        checkpoint.require(e.algorithm, e.env)
        try:
            return self._restore(checkpoint, own)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            if isinstance(error, LsacError):
                raise
            raise CheckpointError(f"{checkpoint.path}: its record does not fit this run ({error!r})") from None

    def _require_fit(self, checkpoint: Checkpoint) -> None:
        """Rejects a checkpoint whose counters or transitions cannot be those of this run."""
        e, record, path = self._parts.experiment, checkpoint.record, checkpoint.path
        counters = [field(record, name, int, path) for name in COUNTERS]
        step, pending, updates, refreshed_at, generated_at = counters
        starts = -(-e.learning_starts // e.chunk_steps) * e.chunk_steps
        learned = max(0, step - starts) // e.chunk_steps * e.updates_per_chunk
        fits = step >= 0 and step % e.chunk_steps == 0 and pending in (0, e.chunk)
        last = self._parts.learner.refresher.last
        before = max(0, step - e.chunk_steps)
        refreshes = {last(at, e.chunk_steps, e.learning_starts) for at in (step, before)}  # done or due
        fits &= refreshed_at in refreshes and (generated_at == refreshed_at or refreshed_at == 0 <= generated_at)
        if not fits or updates != learned:
            found = ", ".join(f"{name} {count}" for name, count in zip(COUNTERS, counters, strict=True))
            raise CheckpointError(f"{path}: its counters cannot be those of this run ({found})")
        added = step // e.action_repeat
        least = min(added, e.capacity) + pending
        columns = self._parts.learner.replay.layout.arrays()
        wanted = {name: ((e.seeds, *column.shape), column.dtype) for name, column in columns.items()}
        stored = checkpoint.stored
        found_columns = {name: ((x.shape[0], *x.shape[2:]), x.dtype.name) for name, x in stored.items()}
        if found_columns != wanted or not least <= stored[PACKED].shape[1] <= added + pending:
            shapes = {name: list(x.shape) for name, x in stored.items()}
            raise CheckpointError(f"{path}: its transitions are {shapes}, but {e.seeds} seeds with {least} are needed")

    def _restore(self, checkpoint: Checkpoint, own: bool) -> tuple[Position, str]:
        self._require_fit(checkpoint)
        e, learner, pool, evaluations, logger = self._parts
        record, beside, stored = checkpoint.record, checkpoint.beside, checkpoint.stored
        evaluated = {k.split(".", 1)[1]: array for k, array in beside.items() if k.startswith("evaluation.")}
        captured = [beside[f"simulator.{i}"] for i in range(sum(k.startswith("simulator.") for k in beside))]
        like = Saved(learner.like(), jax.eval_shape(lambda: learner.policies))
        state, policies = unnamed(checkpoint.state, like, checkpoint.path)
        returns, steps = np.asarray(record["best"]["returns"], float), record["best"]["steps"]
        if returns.shape != policies.shape[:1] or [type(step) for step in steps] != [int] * len(returns):
            raise ValueError("best is not one return and one step per seed")
        evaluations.best = Best(returns, steps, policies)
        evaluations.latest = latest_returns(record, len(returns))
        step, pending = record["step"], record["pending"]
        split = stored[PACKED].shape[1] - pending
        older, newest = ({name: x[:, part] for name, x in stored.items()} for part in _parts(split))
        learner.restore(state, older, step // e.action_repeat, record["updates"], record["generated_at"])
        learner.refresher.refreshed_at = record["refreshed_at"]
        self._unsaved.reset(checkpoint.tail if own else stored)
        self._best_unwritten = not own and any(np.isfinite(returns))
        evaluated_at, logged_at = (field(record, n, int, checkpoint.path) for n in ("evaluated_at", "logged_at"))
        evaluations.restore(record["evaluation"], evaluated)
        logger.restore(record, step, logged_at)
        groups = wire.unpack(record["simulators"], captured)
        exact = groups is not None
        if exact:
            if not isinstance(groups, list) or not all(isinstance(group, wire.GroupState) for group in groups):
                raise ValueError("simulators is not a list of groups")
            pool.restore(groups)
        elif pending:
            pool.reset(step + pending * e.action_repeat)
        lagged = beside.get("lagged.policies")
        if lagged is not None and (lagged.shape, lagged.dtype) != (policies.shape, policies.dtype):
            raise ValueError(f"the policies of the next chunk have shape {list(lagged.shape)}")
        if own:
            logger.cut(record["metrics_lines"], step)  # last, so that a rejected checkpoint leaves all files unchanged
        position = Position(step, newest if pending else None, evaluated_at, exact, lagged)
        return position, "exact" if exact else "episode"


def _pending(position: Position) -> int:
    return 0 if position.pending is None else position.pending[PACKED].shape[1]


def latest_returns(record: Record, seeds: int) -> np.ndarray | None:
    """[S] mean returns of a run's newest evaluation; None if there was none."""
    latest = record.get("latest")
    if latest is None:
        return None
    returns = np.asarray(latest, float)
    if returns.shape != (seeds,):
        raise ValueError("latest is not one return per seed")
    return returns


def _parts(split: int) -> tuple[slice, slice]:
    return slice(None, split), slice(split, None)
