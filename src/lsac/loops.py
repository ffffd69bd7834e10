"""The training loop: the host acts and simulates while the device learns.

Chunk c+1 is collected with the policy that chunk c−1 left behind, while the device learns chunk c. The lag is fixed by
counting, never by what happens to be ready, so a run repeats bit for bit on a busy machine and on an idle one.
An on-policy agent allows no lag: host and device then take turns.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.checkpoint import Checkpoint, Unsaved
from lsac.datafile import field, named, unnamed
from lsac.envs.crew import Crew, Simulators
from lsac.envs.lanes import Episode
from lsac.errors import CheckpointError, Diverged, LsacError, SaveFailed, Stopped
from lsac.evaluations import Best, Evaluations, improved
from lsac.experiment import Experiment
from lsac.folder import RunFolder
from lsac.learner import Learner, Refreshed
from lsac.metrics import Line, MetricsLog
from lsac.stopping import Stop, heeding
from lsac.types import Sample

EPISODE_WINDOW = 100
"""Episodes that `rollout/ep_rew_mean` averages over."""


class Progress(NamedTuple):
    """What a watcher is told at every log interval."""

    step: int
    steps: int
    fps: float
    """environment steps per second, of all seeds together"""
    lines: list[Line]


Watch = Callable[[Progress], None]
Inspect = Callable[[Sample], dict[str, np.ndarray]]
"""What the simulator says of generated transitions [S, N, width], one number per seed and name."""


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
        self._crew, self._folder, self._watch, self._say = crew, folder, watch, say
        self._evaluations = Evaluations(evaluators, learner) if evaluators else None
        self.step = 0
        seeds = experiment.seeds
        self.best = Best(np.full(seeds, -np.inf), [0] * seeds, np.array(learner.policies))
        self._best_unwritten = False
        self._pending: np.ndarray | None = None  # collected, not yet learned from
        self._resumed_simulators = False
        segment = min(experiment.checkpoint_every, experiment.replay_capacity)
        self._unsaved = Unsaved(experiment.capacity + experiment.chunk, segment)
        self._window: list[dict[str, jax.Array]] = []  # of every chunk since the last line
        self._learned_to = 0  # the step at which its last chunk ends
        self._rare: dict[str, np.ndarray] = {}  # of the last refresh, until they are written
        self._inspect, self._inspectors = inspect, ThreadPoolExecutor(1)
        self._inspection: tuple[int, Future[dict[str, np.ndarray]]] | None = None
        self._episodes: list[deque[Episode]] = [deque(maxlen=EPISODE_WINDOW) for _ in range(seeds)]
        self._evaluated_at = self._logged_at = -1
        self._stop = Stop()
        self._seconds = 0.0
        self._log: MetricsLog | None = None

    def run(self, stop: Stop) -> bool:
        """Trains to the end (True) or until asked to stop (False); either way the run is saved."""
        e, self._stop = self.experiment, stop
        if self._folder and self._log is None:
            self._log = MetricsLog(self._folder.path, e.seed_list, self._say)
        self._started = self._last_log = time.monotonic()
        self._started -= self._seconds
        self._last_step = self.step
        if self.step < e.steps and self._pending is None:
            if not self._resumed_simulators:
                self._crew.reset(self.step)
            self._crew.policies[:] = np.asarray(self.learner.policies)
            self._order(self.step)
            self._receive()
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
        if self._due(e.log_every) and self.step != self._logged_at:
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
        self._finish_inspection()
        refreshed = heeding(self._stop, lambda: self.learner.refreshed(self.step))
        self.learner.adopt(refreshed, self.step)
        self._rare |= refreshed.numbers
        self._refuse_bad_refresh(refreshed)
        if self._inspect is not None:
            self._inspection = self.step, self._inspectors.submit(self._inspect, refreshed.sample)

    def _learn(self, rows: np.ndarray) -> None:
        if self.step >= self.experiment.learning_starts:
            self._window.append(self.learner.learn(rows))
            self._learned_to = self.step + self.experiment.chunk
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
        for kept, new in zip(self._episodes, episodes, strict=True):
            kept.extend(new)

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
        row, chunk = int(np.argmin(good)), self.experiment.chunk
        window = jax.device_get(self._window)
        first = next((i for i, m in enumerate(window) if not all(np.isfinite(v[row]) for v in m.values())), len(window))
        names = [k for k, v in window[first].items() if not np.isfinite(v[row])] if first < len(window) else ["policy"]
        step = self._learned_to - max(0, len(window) - 1 - first) * chunk
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
        lines = [
            {
                **self._head(done.step, seed),
                "eval/mean_reward": float(result.returns[row].mean()),
                "eval/std_reward": float(result.returns[row].std()),
                "eval/mean_ep_length": float(result.lengths[row].mean()),
                **{f"eval/{name}": value for name, value in result.judged[row].items()},
            }
            for row, seed in enumerate(self.experiment.seed_list)
        ]
        self._emit(lines)
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

    # Metrics stay on the device until the log interval.

    def _write_metrics(self) -> None:
        e, now = self.experiment, time.monotonic()
        fps = (self.step - self._last_step) * e.seeds / max(now - self._last_log, 1e-9)
        self._last_log, self._last_step, self._logged_at = now, self.step, self.step
        self._refuse_nan(self.learner.finite)
        window = jax.device_get(self._window)
        if self._inspection and self._inspection[0] < self.step:  # it had the time since the last line
            self._finish_inspection()
        rare, self._window, self._rare = self._rare, [], {}
        lines = []
        for row, seed in enumerate(e.seed_list):
            line = {**self._head(self.step, seed), "time/fps": round(fps, 1)}
            if self._episodes[row]:
                line["rollout/ep_rew_mean"] = float(np.mean([ep.reward for ep in self._episodes[row]]))
                line["rollout/ep_len_mean"] = float(np.mean([ep.length for ep in self._episodes[row]]))
            if window:
                line |= {f"train/{k}": float(np.mean([m[k][row] for m in window])) for k in sorted(window[0])}
                line["train/n_updates"] = self.learner.updates
            told = {k if "/" in k else f"train/{k}": float(values[row]) for k, values in sorted(rare.items())}
            line |= {k: value for k, value in told.items() if np.isfinite(value)}
            lines.append(line)
        self._emit(lines, fps)

    def _finish_inspection(self) -> None:
        if self._inspection:
            try:
                self._rare |= self._inspection[1].result()
            except Exception as error:  # a diagnostic must not end a healthy run
                self._say(f"warning: generated transitions could not be inspected ({error!r})")
            self._inspection = None

    def _head(self, step: int, seed: int) -> Line:
        return {"step": step, "seed": seed, "seconds": round(time.monotonic() - self._started, 3)}

    def _emit(self, lines: list[Line], fps: float = 0.0) -> None:
        if self._log:
            self._log.write(lines)
        self._watch(Progress(self.step, self.experiment.steps, fps, lines))

    def close(self) -> None:
        self._inspectors.shutdown(cancel_futures=True)
        if self._log:
            self._log.close()

    # Checkpoints hold no clock: a run that was stopped and resumed leaves the same files as one that was not.

    def _save_or_warn(self) -> None:
        """A disk that is full must not end a run that may well outlast it."""
        started = time.monotonic()
        try:
            self.save()
        except (SaveFailed, CheckpointError) as error:
            self._say(f"warning: {error}; training goes on")
        self._rare["time/checkpoint_seconds"] = np.full(self.experiment.seeds, time.monotonic() - started)

    def save(self, stopped: bool = False) -> None:
        """Saves everything that the rest of the run depends on."""
        if self._folder is None or self._log is None:
            return
        e = self.experiment
        self._refuse_nan(self.learner.finite)
        self._finish_inspection()
        evaluation, evaluated = self._evaluations.record() if self._evaluations else (None, {})
        simulators = self._crew.capture()
        window = {k: [m[k].tolist() for m in jax.device_get(self._window)] for k in (self._window or [{}])[0]}
        pending = 0 if self._pending is None else self._pending.shape[1]
        record = {
            "algorithm": self.algorithm,
            "env": e.env,
            "updates": self.learner.updates,
            "refreshed_at": self.learner.refreshed_at,
            "generated_at": self.learner.generated_at,
            "pending": pending,
            "evaluated_at": self._evaluated_at,
            "logged_at": self._logged_at,
            "evaluation": evaluation,
            "metrics_lines": self._log.lines(),
            "window": window,
            "rare": {k: values.tolist() for k, values in self._rare.items() if not k.startswith("time/")},
            "episodes": [list(episodes) for episodes in self._episodes],
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
        e, record = self.experiment, checkpoint.record
        beside = checkpoint.beside
        evaluated = {k.split(".", 1)[1]: array for k, array in beside.items() if k.startswith("evaluation.")}
        captured = [beside[f"simulator.{i}"] for i in range(sum(k.startswith("simulator.") for k in beside))]
        like = Saved(self.learner.like(), jax.eval_shape(lambda: self.learner.policies))
        state, policies = unnamed(checkpoint.state, like, checkpoint.path)
        self.best = Best(np.asarray(record["best"]["returns"]), record["best"]["steps"], policies)
        self.step = self._learned_to = record["step"]
        pending, rows = record["pending"], checkpoint.rows
        stored = rows[:, : rows.shape[1] - pending]
        counters = record["updates"], record["refreshed_at"], record["generated_at"]
        self.learner.restore(state, stored, self.step, *counters)
        self._pending = rows[:, rows.shape[1] - pending :] if pending else None
        self._unsaved.reset(checkpoint.tail)
        self._evaluated_at = field(record, "evaluated_at", int, checkpoint.path)
        self._logged_at = field(record, "logged_at", int, checkpoint.path)
        if self._evaluations:
            self._evaluations.restore(record["evaluation"], evaluated)
        window = record["window"]
        self._window = [
            {k: np.asarray(values[i], np.float32) for k, values in window.items()}  # type: ignore[misc]
            for i in range(len(next(iter(window.values()), [])))
        ]
        self._rare = {k: np.asarray(values) for k, values in record["rare"].items()}
        self._episodes = [
            deque((Episode(*x) for x in episodes), maxlen=EPISODE_WINDOW) for episodes in record["episodes"]
        ]
        if record["simulators"] is not None:
            self._crew.restore(Simulators(record["simulators"], captured))
            self._resumed_simulators = True
        elif pending:
            self._crew.reset(self.step + pending)
        if self._folder:  # last: until here, a checkpoint that is refused leaves everything as it was
            lines = record["metrics_lines"]
            self._log = MetricsLog(self._folder.path, e.seed_list, self._say, lines, self.step)
            self._seconds = self._log.seconds
        return "exact" if record["simulators"] is not None else "episode"
