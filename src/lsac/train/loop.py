"""The training loop: the host acts and simulates while the device learns.

Chunk c+1 is collected with the policy that chunk c−1 left behind, while the device learns chunk c. The lag is fixed by
counting, never by what happens to be ready, so a run repeats bit for bit on a busy machine and on an idle one.
An on-policy agent allows no lag: host and device then take turns.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect.pool import Crew, Simulators
from lsac.errors import CheckpointError, Diverged, LsacError, SaveFailed, Stopped
from lsac.runs.checkpoint import Checkpoint, Unsaved
from lsac.runs.datafile import field, named, unnamed
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train.evaluation import Best, Evaluations, improved
from lsac.train.learner import Learner, Refreshed
from lsac.train.logger import Inspect, Journal, Watch
from lsac.train.stopping import Stop, heeding


class Saved(NamedTuple):
    """The arrays of a checkpoint, all with a leading axis of seeds."""

    agent: Any
    best: Any


class Loop:
    """One run of an agent: all its seeds, from step 0 or from a checkpoint."""

    def __init__(
        self,
        algorithm: str,
        experiment: Experiment,
        learner: Learner,
        crew: Crew,
        evaluators: Crew | None,
        folder: RunFolder | None,
        watch: Watch,
        say: Callable[[str], None] = lambda text: None,
        inspect: Inspect | None = None,
    ):
        self.algorithm, self.experiment, self.learner = algorithm, experiment, learner
        self._crew, self._folder, self._say = crew, folder, say
        self._journal = Journal(experiment, folder, watch, say, inspect)
        self._evaluations = Evaluations(evaluators, learner) if evaluators else None
        self.step = 0
        seeds = experiment.seeds
        self.best = Best(np.full(seeds, -np.inf), [0] * seeds, np.array(learner.policies))
        self._best_unwritten = False
        self._pending: np.ndarray | None = None  # collected, not yet learned from
        self._resumed_simulators = False
        segment = min(experiment.checkpoint_every, experiment.replay_capacity)
        self._unsaved = Unsaved(experiment.capacity + experiment.chunk, segment)
        self._evaluated_at = -1
        self._inherited = False  # whether only a checkpoint can tell with what the run began
        self._stop = Stop()

    def inherit(self, state: Any, generated_at: int) -> None:
        """Begins with the states of a model instead of new ones."""
        self.learner.inherit(state, generated_at)
        self._inherited = True

    def run(self, stop: Stop) -> bool:
        """Trains to the end (True) or until asked to stop (False); either way the run is saved."""
        e, self._stop = self.experiment, stop
        self._journal.open(self.step)
        if self.step < e.steps and self._pending is None:
            if not self._resumed_simulators:
                self._crew.reset(self.step)
            self._crew.policies[:] = np.asarray(self.learner.policies)
            self._order(self.step)
            self._receive()
        if self._inherited:
            self.save()
        try:
            self._train()
            finished = True
        except Stopped:  # raised only where what is saved below is the beginning of the same run
            finished = False
        self._refuse_nan(self.learner.finite)  # also where nothing is saved
        self.save(stopped=not finished)
        return finished

    def _train(self) -> None:
        if self._refresh_due():  # a stop had come in the middle of it
            self._conclude_chunk()
        while self.step < self.experiment.steps:
            self._stop.heed()
            self._evaluate_if_due()
            self._advance()
            self._conclude_chunk()
        self._evaluate_if_due()
        self._finish_evaluation()

    def _conclude_chunk(self) -> None:
        e = self.experiment
        if self._refresh_due():
            self._refresh()
        if self._due(e.log_every) and self.step != self._journal.told_at:
            self._write_metrics()
        if self._due(e.checkpoint_every) and self.step < e.steps:
            self._save_or_warn()

    def _advance(self) -> None:
        """One chunk: learn from the last one while the next one is collected."""
        rows, policies, finite = self._pending, self.learner.policies, self.learner.finite
        assert rows is not None
        if self.experiment.on_policy:
            self._learn(rows)
            self._collect_next(self.learner.policies, self.learner.finite)
        elif policies.is_ready():  # type: ignore[attr-defined]
            self._collect_next(policies, finite)  # both orders give the same numbers; what can start at once goes first
            self._learn(rows)
        else:
            self._learn(rows)
            self._collect_next(policies, finite)
        self.step += self.experiment.chunk
        self._pending = None
        if self.step < self.experiment.steps:
            self._receive()

    def _last_refresh(self, step: int) -> int:
        """The step of the refresh that precedes what is learned after `step`; 0 if none does."""
        e, every = self.experiment, self.learner.refresh_every
        last = -(-(step // every * every) // e.chunk) * e.chunk if every else 0
        return last if last > e.learning_starts else 0

    def _refresh_due(self) -> bool:
        """At the end of a run it is left to a resume that makes the run longer, if there may be one."""
        left = self._stop.final and self.step >= self.experiment.steps
        return not left and self.learner.refreshed_at != self._last_refresh(self.step)

    def _refresh(self) -> None:
        refreshed = heeding(self._stop, lambda: self.learner.refreshed(self.step))
        self.learner.adopt(refreshed, self.step)
        self._refuse_bad_refresh(refreshed)
        self._journal.refreshed(self.step, refreshed)

    def _learn(self, rows: np.ndarray) -> None:
        if self.step >= self.experiment.learning_starts:
            self._journal.learned(self.learner.learn(rows), self.step + self.experiment.chunk)
        else:
            self.learner.store(rows)

    def _collect_next(self, policies: jax.Array, finite: jax.Array) -> None:
        """Orders the chunk after the pending one, if the run has one."""
        if self.step + self.experiment.chunk < self.experiment.steps:
            self._crew.policies[:] = np.asarray(policies)
            self._refuse_nan(finite)
            self._order(self.step + self.experiment.chunk)

    def _order(self, step: int) -> None:
        e = self.experiment
        random = step < e.learning_starts
        self._crew.order(do="collect", step=step, count=e.chunk // e.num_envs, random=random)

    def _receive(self) -> None:
        self._pending, episodes = self._crew.collected()
        if self._folder:
            self._unsaved.add(self._pending)
        self._journal.played(episodes)

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and at the end, happens now."""
        return every > 0 and (self._crossed(every) or self.step >= self.experiment.steps)

    def _crossed(self, every: int) -> bool:
        """Whether the last chunk crossed a multiple of `every`."""
        return every > 0 and self.step // every > (self.step - self.experiment.chunk) // every

    def _refuse_nan(self, finite: jax.Array) -> None:
        """Ends the run where a loss or a policy is no longer a number; what is saved stays as it is."""
        good = np.asarray(finite)
        if good.all():
            return
        row = int(np.argmin(good))
        names, step = self._journal.first_bad(row)
        raise Diverged(
            f"seed {self.experiment.seed_list[row]}: {', '.join(names)} became NaN or infinite in the updates before "
            f"step {step:,}; the last checkpoint is from before that"
        )

    def _refuse_bad_refresh(self, refreshed: Refreshed) -> None:
        shown = {**refreshed.numbers, "what was generated": np.asarray(refreshed.sample.generated)}
        for name, values in shown.items():
            for row, seed in enumerate(self.experiment.seed_list):
                if not np.isfinite(values[row]).all():
                    raise Diverged(
                        f"seed {seed}: {name} became NaN or infinite in the refresh at step {self.step:,}; "
                        "the last checkpoint is from before that"
                    )

    # Evaluations

    def _evaluate_if_due(self) -> None:
        e = self.experiment
        due = e.eval_every and (self.step == 0 or self._due(e.eval_every)) and self.step != self._evaluated_at
        if not due or self._evaluations is None:
            return
        self._finish_evaluation()
        self._evaluated_at = self.step
        self._evaluations.start(self.step)

    def _finish_evaluation(self) -> None:
        """Tells of the evaluation under way, if there is one, and keeps what it found to be the best."""
        finished = self._evaluations.finish(self._stop.heed) if self._evaluations else None
        if finished is None:
            return
        done, result = finished
        self._journal.write_evaluation(done.step, result.numbers(), self.step)
        better = improved(self.best, done, result)
        if better is None:
            return
        self.best = better
        if self._folder:
            self._best_unwritten = True
            try:
                self._write_best()
            except OSError as error:
                self._say(f"warning: the best policies could not be saved ({error.strerror}); training goes on")

    def _write_best(self) -> None:
        assert self._folder is not None
        head = {"algorithm": self.algorithm, "env": self.experiment.env, "seeds": self.experiment.seed_list}
        record = head | {"steps": self.best.steps, "returns": self.best.returns.tolist()}
        self._folder.checkpoints.save_best(self.best.policies, record)
        self._best_unwritten = False

    def _write_metrics(self) -> None:
        self._refuse_nan(self.learner.finite)
        self._journal.write(self.step, self.learner.updates)

    def close(self) -> None:
        self._journal.close()

    # Checkpoints

    def _save_or_warn(self) -> None:
        """A disk that is full must not end a run that may well outlast it."""
        started = time.monotonic()
        try:
            self.save()
        except (SaveFailed, CheckpointError) as error:
            self._say(f"warning: {error}; training goes on")
        self._journal.saved(time.monotonic() - started)

    def save(self, stopped: bool = False) -> None:
        """Saves everything that the rest of the run depends on."""
        if self._folder is None:
            return
        e = self.experiment
        self._refuse_nan(self.learner.finite)
        evaluation, evaluated = self._evaluations.record() if self._evaluations else (None, {})
        simulators = self._crew.capture()
        pending = 0 if self._pending is None else self._pending.shape[1]
        record = {
            "algorithm": self.algorithm,
            "env": e.env,
            "updates": self.learner.updates,
            "refreshed_at": self.learner.refreshed_at,
            "generated_at": self.learner.generated_at,
            "pending": pending,
            "evaluated_at": self._evaluated_at,
            "evaluation": evaluation,
            **self._journal.record(),
            "best": {"returns": self.best.returns.tolist(), "steps": self.best.steps},
            "simulators": simulators and simulators.told,
        }
        arrays = named(Saved(self.learner.kept(), self.best.policies))
        arrays |= {f"evaluation.{name}": array for name, array in evaluated.items()}
        arrays |= {f"simulator.{i}": array for i, array in enumerate(simulators.arrays if simulators else [])}
        try:
            if self._best_unwritten:
                self._write_best()
            self._folder.checkpoints.save(self.step, arrays, record, self._unsaved, self.step + pending, stopped)
        except OSError as error:
            raise SaveFailed(
                f"{self._folder.path}: could not be saved at step {self.step:,} ({error.strerror or error})"
            ) from error

    def restore(self, checkpoint: Checkpoint) -> str:
        """Continues from a checkpoint of this run; says whether its simulators do too (exact) or not (episode)."""
        checkpoint.require(self.algorithm, self.experiment.env)
        try:
            return self._restore(checkpoint)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, LsacError):
                raise
            raise CheckpointError(f"{checkpoint.path}: its record does not fit this run ({error!r})") from None

    def _require_fit(self, checkpoint: Checkpoint) -> None:
        """Refuses a checkpoint whose counters or transitions cannot be those of this run."""
        e, record, path = self.experiment, checkpoint.record, checkpoint.path
        names = ("step", "pending", "updates", "refreshed_at", "generated_at")
        step, pending, updates, refreshed_at, generated_at = counters = [field(record, n, int, path) for n in names]
        first = -(-e.learning_starts // e.chunk) * e.chunk
        learned = max(0, step - first) // e.chunk * e.updates_per_chunk
        fits = step >= 0 and step % e.chunk == 0 and pending in (0, e.chunk)
        refreshes = {self._last_refresh(step), self._last_refresh(max(0, step - e.chunk))}  # done, or due
        fits &= refreshed_at in refreshes and (generated_at == refreshed_at or refreshed_at == 0 <= generated_at)
        if not fits or updates != learned:
            told = ", ".join(f"{name} {count}" for name, count in zip(names, counters, strict=True))
            raise CheckpointError(f"{path}: its counters cannot be those of this run ({told})")
        rows = (e.seeds, min(step + pending, self._unsaved.keep), self.learner.replay.layout.width)
        found = checkpoint.rows.shape
        if (found[0], found[2]) != (rows[0], rows[2]) or not rows[1] <= found[1] <= step + pending:
            raise CheckpointError(f"{path}: its transitions are {list(found)}, but {list(rows)} are needed")

    def _restore(self, checkpoint: Checkpoint) -> str:
        self._require_fit(checkpoint)
        record, beside = checkpoint.record, checkpoint.beside
        evaluated = {k.split(".", 1)[1]: array for k, array in beside.items() if k.startswith("evaluation.")}
        captured = [beside[f"simulator.{i}"] for i in range(sum(k.startswith("simulator.") for k in beside))]
        like = Saved(self.learner.like(), jax.eval_shape(lambda: self.learner.policies))
        state, policies = unnamed(checkpoint.state, like, checkpoint.path)
        self.best = Best(np.asarray(record["best"]["returns"]), record["best"]["steps"], policies)
        self.step = record["step"]
        pending, rows = record["pending"], checkpoint.rows
        stored = rows[:, : rows.shape[1] - pending]
        counters = record["updates"], record["refreshed_at"], record["generated_at"]
        self.learner.restore(state, stored, self.step, *counters)
        self._pending = rows[:, rows.shape[1] - pending :] if pending else None
        self._unsaved.reset(checkpoint.tail)
        self._evaluated_at, told_at = (field(record, n, int, checkpoint.path) for n in ("evaluated_at", "logged_at"))
        if self._evaluations:
            self._evaluations.restore(record["evaluation"], evaluated)
        self._journal.restore(record, self.step, told_at)
        if record["simulators"] is not None:
            self._crew.restore(Simulators(record["simulators"], captured))
            self._resumed_simulators = True
        elif pending:
            self._crew.reset(self.step + pending)
        self._journal.cut(record["metrics_lines"], self.step)  # a checkpoint refused until here leaves all as it was
        return "exact" if record["simulators"] is not None else "episode"
