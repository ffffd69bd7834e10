"""The training loop: the host acts and simulates while the device learns.

Chunk c+1 is collected with the policy after chunk c−1, while the device learns from chunk c. This lag is constant and
does not depend on which computation finishes first, so a run repeats bit for bit on a busy and on an idle machine.
An on-policy agent allows no lag: host and device then take turns.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lsac.errors import CheckpointError, Diverged, EnvironmentFault, SaveFailed, Stopped
from lsac.replay.ring import Stored
from lsac.runs.checkpoint import Checkpoint
from lsac.train.refresh import Fitting, Inspect, Refreshed
from lsac.train.resume import Parts, Position, Saver
from lsac.train.stopping import Stop, interruptible


class Loop:
    """The schedule of one run with all its seeds, from step 0 or from a checkpoint."""

    def __init__(
        self, parts: Parts, saver: Saver, stop: Stop, inspect: Inspect | None, after_chunk: Callable[[int], None]
    ):
        self._saver, self._stop, self._inspect, self._after_chunk = saver, stop, inspect, after_chunk
        self._experiment, self._pool, self._logger = parts.experiment, parts.pool, parts.logger
        self.learner, self._evaluations = parts.learner, parts.evaluations
        self.position = Position()
        self._saved_at = -1  # the step of the newest checkpoint
        self._warned = False  # that generated transitions are useless
        self.started = False
        """whether the simulators have made steps and, if the run continues a model, the model is saved"""
        self.ended = False
        """whether `run` has come to its end or to a stop, so that all parts of the run fit together"""

    @property
    def step(self) -> int:
        """Environment steps of each seed that the learner has received."""
        return self.position.step

    @property
    def _learned(self) -> int:
        """The same, also in the middle of a chunk, where an error may come."""
        return self.learner.added * self._experiment.action_repeat

    @property
    def returns(self) -> np.ndarray | None:
        """[S] mean returns of the newest evaluation; None if there was none."""
        return self._evaluations.latest

    def record(self, name: str, value: float) -> None:
        """Adds a number to the next line of metrics."""
        self._logger.record(name, value)

    def resume(self) -> str:
        """Restores the newest checkpoint; returns whether the simulators were restored too (exact) or not (episode)."""
        self.position, kind = self._saver.restore_newest()
        self._saved_at = self.step
        return kind

    def restore(self, checkpoint: Checkpoint) -> str:
        """Restores a checkpoint that does not belong to the folder of this run; returns the same as `resume`."""
        self.position, kind = self._saver.restore(checkpoint, own=False)
        return kind

    def checkpoint(self, safe: bool) -> Checkpoint:
        """The present state of the run. It is `safe` to read the simulators between two chunks, in a callback and at
        the end, but not after an error: they start new episodes then."""
        if safe:
            return self._saver.checkpoint(self.position)
        return self._saver.checkpoint(Position(self._learned), simulators=False)

    def run(self, save_first: bool = False) -> bool:
        """Trains to the end (True) or until a stop is requested (False); either way the run is saved."""
        self._logger.open(self.step)
        if self.step < self._experiment.steps and self.position.pending is None:
            if not self.position.simulators_restored:
                self._pool.reset(self.step)
            lagged = self.position.lagged
            self._collect(np.asarray(self.learner.policies if lagged is None else lagged), self.step)
            self._receive()
        if save_first:
            self._save()
        self.started = True
        self._saver.settle()
        try:
            finished = self._train_to_end_or_stop()
            self._require_finite(self.learner.finite)  # also in runs without checkpoints
            self._save(stopped=not finished)
        except EnvironmentFault:
            self._save_after_fault()
            raise
        self.ended = True
        return finished

    def _train_to_end_or_stop(self) -> bool:
        try:
            self._train()
        except Stopped:  # raised only at points from which a resume gives the same run
            return False
        return True

    def _train(self) -> None:
        if self._refresh_due():  # it was interrupted by a stop
            self._conclude_chunk()
        while self.step < self._experiment.steps:
            self._stop.check()
            self._evaluate_if_due()
            self._advance()
            self._conclude_chunk()
        self._evaluate_if_due()
        self._finish_evaluation()

    def _advance(self) -> None:
        """Learns from the pending chunk while the next one is collected."""
        chunk, lagged, finite = self.position.pending, self.learner.policies, self.learner.finite
        assert chunk is not None
        if self._experiment.on_policy:
            self._learn(chunk)
            self._collect_next(self.learner.policies, self.learner.finite)
        elif _is_ready(lagged):
            self._collect_next(lagged, finite)  # both orders give the same numbers; start first what need not wait
            self._learn(chunk)
        else:
            self._learn(chunk)
            self._collect_next(lagged, finite)
        self.position.step += self._experiment.chunk_steps
        self.position.pending = None
        if self.step < self._experiment.steps:
            self._receive()

    def _learn(self, chunk: Stored) -> None:
        if self.step >= self._experiment.learning_starts:
            self._logger.learned(self.learner.learn(chunk), self.step + self._experiment.chunk_steps)
        else:
            self.learner.store(chunk)

    def _collect_next(self, policies: jax.Array, finite: jax.Array) -> None:
        """Starts to collect the chunk after the pending one, unless the run ends before it."""
        following = self.step + self._experiment.chunk_steps
        self.position.lagged = policies
        if following < self._experiment.steps:
            snapshots = np.asarray(policies)
            self._require_finite(finite)
            self._collect(snapshots, following)

    def _collect(self, policies: np.ndarray, step: int) -> None:
        e = self._experiment
        random = e.steps_before + step < e.learning_starts
        self._pool.collect(policies, step, e.chunk // e.num_envs, random)

    def _receive(self) -> None:
        self.position.pending, episodes = self._pool.collected()
        self._saver.keep(self.position.pending)
        self._logger.played(episodes)

    def _conclude_chunk(self) -> None:
        e = self._experiment
        if self._refresh_due():
            self._refresh()
        if self._due(e.log_every) and self.step != self._logger.logged_at:
            self._require_finite(self.learner.finite)
            self._logger.diagnosed(self.learner.diagnostics() if self.learner.updates else {})
            self._logger.write(self.step, self.learner.updates)
        if self._due(e.checkpoint_every) and self.step < e.steps:
            self._save_or_warn()
        self._after_chunk(self.step)

    def _due(self, every: int) -> bool:
        """Whether an action that takes place every `every` steps, and at the end of the run, is due now."""
        crossed = every > 0 and self.step // every > (self.step - self._experiment.chunk_steps) // every
        return crossed or (every > 0 and self.step >= self._experiment.steps)

    # Refresh

    def _refresh_due(self) -> bool:
        """A refresh due at the very last step is skipped if the process is about to exit; extending the run does it."""
        e, refresher = self._experiment, self.learner.refresher
        skipped = self._stop.final and self.step >= e.steps
        return not skipped and refresher.refreshed_at != refresher.last(self.step, e.chunk_steps, e.learning_starts)

    def _refresh(self) -> None:
        learner = self.learner
        learner.state = learner.kept()  # until the refresh is done, the learner holds compact states
        refreshed = interruptible(
            self._stop, lambda: learner.refresher.run(learner.state, learner.replay, self.step, self._fitting)
        )
        self._require_finite_refresh(refreshed)  # first, so that a model does not keep what is not finite
        refreshed = self._inspected(refreshed)
        learner.state = refreshed.state
        learner.refresher.done(self.step)
        self._logger.refreshed(refreshed)

    def _inspected(self, refreshed: Refreshed) -> Refreshed:
        """Compares the generated transitions with the simulator, if that is possible. Training waits for it, because
        the agents may depend on the result."""
        if self._inspect is None:
            return refreshed
        started, seconds = time.monotonic(), refreshed.numbers["time/refresh_seconds"]
        try:
            found = self._inspect(refreshed.sample)
        except Exception as error:  # a diagnostic must not end a healthy run
            self._saver.say(f"warning: generated transitions could not be inspected ({error!r})")
            found = {}
        found["time/refresh_seconds"] = seconds + np.float32(time.monotonic() - started)
        judged = self.learner.refresher.judged(refreshed, found)
        self._warn_of_useless_data(judged.numbers)
        return judged

    def _warn_of_useless_data(self, numbers: dict[str, np.ndarray]) -> None:
        if not self._warned and not np.any(numbers.get("synthetic_share", True)):
            self._warned = True
            self._saver.say(
                f"warning: generated transitions are wrong (dynamics error {np.min(numbers['dynamics_error']):,.1f}; 1 "
                f"is no better than to predict that nothing changes), so none is used (step {self.step:,}); "
                "a run without generated data saves the time of the fits"
            )

    def _fitting(self, fitting: Fitting) -> None:
        self._logger.fitting(fitting)
        self._stop.check()

    # Evaluation

    def _evaluate_if_due(self) -> None:
        e, position = self._experiment, self.position
        due = e.eval_every and (self.step == 0 or self._due(e.eval_every)) and self.step != position.evaluated_at
        if due and self._evaluations.possible:
            self._finish_evaluation()
            position.evaluated_at = self.step
            self._evaluations.start(self.step)

    def _finish_evaluation(self) -> None:
        """Logs the running evaluation, if there is one, and saves the best policies if they changed."""
        before = self._evaluations.best
        finished = self._evaluations.finish(self._stop.check)
        if finished is not None:
            self._logger.write_evaluation(finished.step, finished.numbers, self.step)
            if self._evaluations.best is not before:
                self._saver.save_best_or_warn()

    # Checks and checkpoints

    def _require_finite(self, finite: jax.Array) -> None:
        """Ends the run if a loss or a policy is not finite; existing checkpoints are unchanged."""
        good = np.asarray(finite)
        if good.all():
            return
        seed_index = int(np.argmin(good))
        names, step = self._logger.first_bad(seed_index)
        raise Diverged(
            f"seed {self._experiment.seed_list[seed_index]}: {', '.join(names)} became NaN or infinite in the updates "
            f"before step {step:,}; {self._last_checkpoint()}"
        )

    def _require_finite_refresh(self, refreshed: Refreshed) -> None:
        checked = {**refreshed.numbers, "a generated transition": np.asarray(refreshed.sample.generated)}
        for name, values in checked.items():
            for seed_index, seed in enumerate(self._experiment.seed_list):
                if not np.isfinite(values[seed_index]).all():
                    raise Diverged(
                        f"seed {seed}: {name} became NaN or infinite in the refresh at step {self.step:,}; "
                        f"{self._last_checkpoint()}"
                    )

    def _last_checkpoint(self) -> str:
        return (
            "there is no checkpoint from before that"
            if self._saved_at < 0
            else "the last checkpoint is from before that"
        )

    def _save(self, stopped: bool = False) -> None:
        if self._saver.active:
            self._require_finite(self.learner.finite)
            self._saver.save(self.position, stopped)
            self._saved_at = self.step

    def _save_after_fault(self) -> None:
        """Saves what was learned before a simulator failed; a resume starts new episodes."""
        step = self._learned
        if not self._saver.active or step <= max(0, self._saved_at) or not np.asarray(self.learner.finite).all():
            return
        pending = self.position.pending if step == self.step else None  # the saver has these transitions already
        try:
            position = Position(step, pending, self.position.evaluated_at)
            self._saver.save(position, stopped=True, simulators=False)
            self._saver.say(f"saved at step {step:,}, before the fault; a resume starts new episodes")
        except (SaveFailed, CheckpointError) as error:
            self._saver.say(f"warning: {error}")

    def _save_or_warn(self) -> None:
        """A full disk does not end a run: there may be space at the next checkpoint."""
        started = time.monotonic()
        try:
            self._save()
        except (SaveFailed, CheckpointError) as error:
            self._saver.say(f"warning: {error}; training continues")
        self._logger.saved(time.monotonic() - started)


def _is_ready(array: Any) -> bool:
    """Whether the device has finished computing the array."""
    return bool(array.is_ready())
