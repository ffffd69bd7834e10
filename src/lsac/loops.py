"""The training loop: the host acts and simulates while the device learns.

Chunk c+1 is collected with the policy that chunk c−1 left behind, while the device learns chunk c. The lag is fixed by
counting, never by what happens to be ready, so a run repeats bit for bit on a busy machine and on an idle one.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.checkpoint import Checkpoint, named, unnamed
from lsac.envs.crew import Crew
from lsac.envs.lanes import Episode
from lsac.errors import CheckpointError
from lsac.experiment import Experiment
from lsac.folder import RunFolder
from lsac.learner import Learner
from lsac.metrics import Line, MetricsLog
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


class Stop:
    """A request to stop at the next chunk; signals and callbacks set it."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, *_: Any) -> None:
        self.requested = True


class OffPolicy:
    """One run of an off-policy agent: all its seeds, from step 0 or from a checkpoint."""

    def __init__(
        self,
        algorithm: str,
        experiment: Experiment,
        learner: Learner,
        crew: Crew,
        evaluators: Crew | None,
        folder: RunFolder | None,
        watch: Watch,
        inspect: Inspect | None = None,
    ):
        self.algorithm, self.experiment, self.learner = algorithm, experiment, learner
        self._crew, self._evaluators, self._folder, self._watch = crew, evaluators, folder, watch
        self.step = 0
        self.best = np.full(experiment.seeds, -np.inf)
        self._best_policies = np.array(learner.policies)
        self._best_steps = [0] * experiment.seeds
        self._pending: np.ndarray | None = None  # collected, not yet learned from
        self._unsaved: list[np.ndarray] = []  # collected since the last checkpoint
        self._window: list[dict[str, jax.Array]] = []
        self._rare: dict[str, np.ndarray] = {}  # of the last refresh, until they are written
        self._inspect, self._inspectors = inspect, ThreadPoolExecutor(1)
        self._inspection: tuple[int, Future[dict[str, np.ndarray]]] | None = None
        self._episodes: list[deque[Episode]] = [deque(maxlen=EPISODE_WINDOW) for _ in range(experiment.seeds)]
        self._evaluating: tuple[int, np.ndarray, Any] | None = None
        self._evaluated_at = -1
        self._seconds = 0.0
        self._log: MetricsLog | None = None

    def run(self, stop: Stop) -> bool:
        """Trains to the end (True) or until asked to stop (False); either way the run is saved."""
        e = self.experiment
        if self._folder and self._log is None:
            self._log = MetricsLog(self._folder.path, e.seed_list)
        self._started = self._last_log = time.monotonic()
        self._started -= self._seconds
        self._last_step = self.step
        if self.step < e.steps and self._pending is None:
            self._crew.reset(self.step)
            self._crew.policies[:] = np.asarray(self.learner.policies)
            self._order(self.step)
            self._receive()
        while self.step < e.steps and not stop.requested:
            self._evaluate_if_due()
            self._advance()
            if self._due(e.log_every):
                self._write_metrics()
            if self._due(e.checkpoint_every) and self.step < e.steps:
                self.save()
        finished = self.step >= e.steps
        if finished:
            self._evaluate_if_due()
        self._finish_evaluation()
        self.save()
        return finished

    def _advance(self) -> None:
        """One chunk: learn from the last one while the next one is collected."""
        rows, policies = self._pending, self.learner.policies
        assert rows is not None
        # Both orders give the same numbers; what can start at once goes first.
        policy_first = policies.is_ready()  # type: ignore[attr-defined]
        if policy_first:
            self._collect_next(policies)
        if self.step >= self.experiment.learning_starts:
            self._window.append(self.learner.learn(rows))
        else:
            self.learner.store(rows)
        if not policy_first:
            self._collect_next(policies)
        self.step += self.experiment.chunk
        if self.step > self.experiment.learning_starts and self._crossed(self.learner.refresh_every):
            self._rare, sample = self.learner.refresh(self.step)
            if self._inspect is not None:
                self._inspection = self.step, self._inspectors.submit(self._inspect, sample)
        self._pending = None
        if self.step < self.experiment.steps:
            self._receive()

    def _collect_next(self, policies: jax.Array) -> None:
        """Orders the chunk after the pending one, if the run has one."""
        if self.step + self.experiment.chunk < self.experiment.steps:
            self._crew.policies[:] = np.asarray(policies)
            self._order(self.step + self.experiment.chunk)

    def _order(self, step: int) -> None:
        e = self.experiment
        random = step < e.learning_starts
        self._crew.order(do="collect", step=step, count=e.chunk // e.num_envs, random=random)

    def _receive(self) -> None:
        self._pending, episodes = self._crew.collected()
        if self._folder:
            self._unsaved.append(self._pending)
            del self._unsaved[: -(self.experiment.capacity // self.experiment.chunk + 1)]  # older ones are overwritten
        for kept, new in zip(self._episodes, episodes, strict=True):
            kept.extend(new)

    def _due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and at the end, happens now."""
        return every > 0 and (self._crossed(every) or self.step >= self.experiment.steps)

    def _crossed(self, every: int) -> bool:
        """Whether the last chunk crossed a multiple of `every`."""
        return every > 0 and self.step // every > (self.step - self.experiment.chunk) // every

    # Evaluation runs beside training, on simulators of its own, with a copy of the policy.

    def _evaluate_if_due(self) -> None:
        e = self.experiment
        due = e.eval_every and (self.step == 0 or self._due(e.eval_every)) and self.step != self._evaluated_at
        if not due or self._evaluators is None:
            return
        self._evaluated_at = self.step
        self._finish_evaluation()
        policies = np.array(self.learner.policies)
        self._evaluators.policies[:] = policies
        self._evaluators.order(do="evaluate", step=self.step, deterministic=True)
        self._evaluating = (self.step, policies, self.learner.critics())

    def _finish_evaluation(self) -> None:
        if self._evaluating is None or self._evaluators is None:
            return
        step, policies, critics = self._evaluating
        self._evaluating = None
        returns, lengths, visits = self._evaluators.evaluated()
        judged = self.learner.judge(critics, visits)
        lines = [
            {
                **self._head(step, seed),
                "eval/mean_reward": float(returns[row].mean()),
                "eval/std_reward": float(returns[row].std()),
                "eval/mean_ep_length": float(lengths[row].mean()),
                **{f"eval/{name}": value for name, value in judged[row].items()},
            }
            for row, seed in enumerate(self.experiment.seed_list)
        ]
        self._emit(lines)
        better = returns.mean(axis=1) > self.best
        if better.any():
            self.best = np.where(better, returns.mean(axis=1), self.best)
            self._best_policies[better] = policies[better]
            self._best_steps = [step if b else old for b, old in zip(better, self._best_steps, strict=True)]
            if self._folder:
                record = {
                    "algorithm": self.algorithm,
                    "env": self.experiment.env,
                    "seeds": self.experiment.seed_list,
                }
                record |= {"steps": self._best_steps, "returns": self.best.tolist()}
                self._folder.checkpoints.save_best(self._best_policies, record)

    # Metrics stay on the device until the log interval.

    def _write_metrics(self) -> None:
        e, now = self.experiment, time.monotonic()
        fps = (self.step - self._last_step) * e.seeds / max(now - self._last_log, 1e-9)
        self._last_log, self._last_step = now, self.step
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
                line |= {f"train/{k}": float(values[row]) for k, values in sorted(rare.items())}
                line["train/n_updates"] = self.learner.updates
            lines.append(line)
        self._emit(lines, fps)

    def _finish_inspection(self) -> None:
        if self._inspection:
            self._rare |= self._inspection[1].result()
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

    # Checkpoints

    def save(self) -> None:
        """Saves everything that the rest of the run depends on."""
        if self._folder is None or self._log is None:
            return
        self._finish_evaluation()
        self._finish_inspection()
        self._seconds = time.monotonic() - self._started
        rows = np.concatenate(self._unsaved, axis=1) if self._unsaved else np.zeros((self.experiment.seeds, 0, 0))
        window = {k: [m[k].tolist() for m in jax.device_get(self._window)] for k in (self._window or [{}])[0]}
        pending = 0 if self._pending is None else self._pending.shape[1]
        record = {
            "algorithm": self.algorithm,
            "env": self.experiment.env,
            "updates": self.learner.updates,
            "pending": pending,
            "seconds": self._seconds,
            "evaluated_at": self._evaluated_at,
            "metrics_bytes": self._log.offset(),
            "window": window,
            "rare": {k: values.tolist() for k, values in self._rare.items()},
            "episodes": [list(episodes) for episodes in self._episodes],
            "best": {"returns": self.best.tolist(), "steps": self._best_steps},
        }
        keep = self.experiment.capacity + self.experiment.chunk
        self._folder.checkpoints.save(
            self.step,
            named(Saved(self.learner.state, self._best_policies)),
            record,
            rows.astype(np.float32),
            self.step + pending - rows.shape[1],
            keep,
        )
        self._unsaved = []

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint of this run."""
        e, record = self.experiment, checkpoint.record
        if (record["algorithm"], record["env"]) != (self.algorithm, e.env):
            found = f"{record['algorithm']} on {record['env']}"
            raise CheckpointError(f"{checkpoint.path}: belongs to {found}, not to {self.algorithm} on {e.env}")
        like = Saved(self.learner.like, jax.eval_shape(lambda: self.learner.policies))
        state, self._best_policies = unnamed(checkpoint.state, like, checkpoint.path)
        self.best, self._best_steps = np.asarray(record["best"]["returns"]), record["best"]["steps"]
        self.step, pending = record["step"], record["pending"]
        rows = checkpoint.rows
        learned = rows[:, : rows.shape[1] - pending]
        self.learner.restore(state, learned, self.step, record["updates"])
        self._pending = rows[:, rows.shape[1] - pending :] if pending else None
        self._seconds, self._evaluated_at = record["seconds"], record["evaluated_at"]
        window = record["window"]
        self._window = [
            {k: np.asarray(values[i], np.float32) for k, values in window.items()}  # type: ignore[misc]
            for i in range(len(next(iter(window.values()), [])))
        ]
        self._rare = {k: np.asarray(values) for k, values in record["rare"].items()}
        self._episodes = [
            deque((Episode(*x) for x in episodes), maxlen=EPISODE_WINDOW) for episodes in record["episodes"]
        ]
        if self._folder:
            self._log = MetricsLog(self._folder.path, e.seed_list, record["metrics_bytes"], self.step)
        if pending:
            self._crew.reset(self.step + pending)
