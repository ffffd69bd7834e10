"""Saves and restores a run: everything that the rest of the run depends on, and nothing that depends on the time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect import wire
from lsac.collect.pool import Pool
from lsac.errors import CheckpointError, LsacError, SaveFailed
from lsac.replay.ring import PACKED, Stored
from lsac.runs.checkpoint import Checkpoint, Unsaved
from lsac.runs.datafile import field, named, unnamed
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train.evaluation import Best, Evaluations
from lsac.train.learner import Learner
from lsac.train.logger import Logger

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


class Saver:
    """Writes and reads the checkpoints of a run; without a folder it does nothing."""

    def __init__(self, parts: Parts, folder: RunFolder | None, say: Callable[[str], None]):
        self._parts, self._folder, self.say = parts, folder, say
        e = parts.experiment
        self._unsaved = Unsaved(e.capacity + e.chunk, min(e.checkpoint_every, e.replay_capacity))
        self._best_unwritten = False

    @property
    def active(self) -> bool:
        """Whether the run is saved at all."""
        return self._folder is not None

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
        e, best = self._parts.experiment, self._parts.evaluations.best
        record = {"algorithm": e.algorithm, "env": e.env, "seeds": e.seed_list}
        folder.checkpoints.save_best(best.policies, record | {"steps": best.steps, "returns": best.returns.tolist()})
        self._best_unwritten = False

    def save(self, position: Position, stopped: bool) -> None:
        """Saves everything that the rest of the run depends on."""
        if self._folder is None:
            return
        e, learner, pool, evaluations, logger = self._parts
        evaluation, evaluated = evaluations.record()
        groups, captured = wire.pack(pool.capture())
        pending = 0 if position.pending is None else position.pending[PACKED].shape[1]
        record = {
            "algorithm": e.algorithm,
            "env": e.env,
            "updates": learner.updates,
            "refreshed_at": learner.refresher.refreshed_at,
            "generated_at": learner.refresher.generated_at,
            "pending": pending,
            "evaluated_at": position.evaluated_at,
            "evaluation": evaluation,
            **logger.record(),
            "best": {"returns": evaluations.best.returns.tolist(), "steps": evaluations.best.steps},
            "simulators": groups,
        }
        arrays = named(Saved(learner.kept(), evaluations.best.policies))
        arrays |= {f"evaluation.{name}": array for name, array in evaluated.items()}
        arrays |= {f"simulator.{i}": array for i, array in enumerate(captured)}
        try:
            if self._best_unwritten:
                self._save_best(self._folder)
            total = position.step + pending
            self._folder.checkpoints.save(position.step, arrays, record, self._unsaved, total, stopped)
        except OSError as error:
            raise SaveFailed(
                f"{self._folder.path}: could not be saved at step {position.step:,} ({error.strerror or error})"
            ) from error

    def restore_newest(self) -> tuple[Position, str]:
        """Restores the newest checkpoint; returns its position, and `exact` or `episode`, see `Loop.resume`."""
        assert self._folder is not None
        return self.restore(self._folder.checkpoints.load())

    def restore(self, checkpoint: Checkpoint) -> tuple[Position, str]:
        e = self._parts.experiment
        checkpoint.require(e.algorithm, e.env)
        try:
            return self._restore(checkpoint)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            if isinstance(error, LsacError):
                raise
            raise CheckpointError(f"{checkpoint.path}: its record does not fit this run ({error!r})") from None

    def _require_fit(self, checkpoint: Checkpoint) -> None:
        """Rejects a checkpoint whose counters or transitions cannot be those of this run."""
        e, record, path = self._parts.experiment, checkpoint.record, checkpoint.path
        counters = [field(record, name, int, path) for name in COUNTERS]
        step, pending, updates, refreshed_at, generated_at = counters
        starts = -(-e.learning_starts // e.chunk) * e.chunk
        learned = max(0, step - starts) // e.chunk * e.updates_per_chunk
        fits = step >= 0 and step % e.chunk == 0 and pending in (0, e.chunk)
        last = self._parts.learner.refresher.last
        refreshes = {last(at, e.chunk, e.learning_starts) for at in (step, max(0, step - e.chunk))}  # done or due
        fits &= refreshed_at in refreshes and (generated_at == refreshed_at or refreshed_at == 0 <= generated_at)
        if not fits or updates != learned:
            found = ", ".join(f"{name} {count}" for name, count in zip(COUNTERS, counters, strict=True))
            raise CheckpointError(f"{path}: its counters cannot be those of this run ({found})")
        least = min(step + pending, self._unsaved.keep)
        columns = self._parts.learner.replay.layout.arrays()
        wanted = {name: ((e.seeds, *column.shape), column.dtype) for name, column in columns.items()}
        stored = checkpoint.stored
        found_columns = {name: ((x.shape[0], *x.shape[2:]), x.dtype.name) for name, x in stored.items()}
        if found_columns != wanted or not least <= stored[PACKED].shape[1] <= step + pending:
            shapes = {name: list(x.shape) for name, x in stored.items()}
            raise CheckpointError(f"{path}: its transitions are {shapes}, but {e.seeds} seeds with {least} are needed")

    def _restore(self, checkpoint: Checkpoint) -> tuple[Position, str]:
        self._require_fit(checkpoint)
        _, learner, pool, evaluations, logger = self._parts
        record, beside, stored = checkpoint.record, checkpoint.beside, checkpoint.stored
        evaluated = {k.split(".", 1)[1]: array for k, array in beside.items() if k.startswith("evaluation.")}
        captured = [beside[f"simulator.{i}"] for i in range(sum(k.startswith("simulator.") for k in beside))]
        like = Saved(learner.like(), jax.eval_shape(lambda: learner.policies))
        state, policies = unnamed(checkpoint.state, like, checkpoint.path)
        returns, steps = np.asarray(record["best"]["returns"], float), record["best"]["steps"]
        if returns.shape != policies.shape[:1] or [type(step) for step in steps] != [int] * len(returns):
            raise ValueError("best is not one return and one step per seed")
        evaluations.best = Best(returns, steps, policies)
        step, pending = record["step"], record["pending"]
        split = stored[PACKED].shape[1] - pending
        older, newest = ({name: x[:, part] for name, x in stored.items()} for part in _parts(split))
        learner.restore(state, older, step, record["updates"], record["generated_at"])
        learner.refresher.refreshed_at = record["refreshed_at"]
        self._unsaved.reset(checkpoint.tail)
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
            pool.reset(step + pending)
        logger.cut(record["metrics_lines"], step)  # last, so that a rejected checkpoint leaves all files unchanged
        position = Position(step, newest if pending else None, evaluated_at, exact)
        return position, "exact" if exact else "episode"


def _parts(split: int) -> tuple[slice, slice]:
    return slice(None, split), slice(split, None)
