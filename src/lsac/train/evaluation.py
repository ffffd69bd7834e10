"""Evaluations during training: they run concurrently, in separate simulators, with a copy of the policy."""

from typing import NamedTuple

import jax
import numpy as np

from lsac.collect.pool import CheckStop, Pool
from lsac.collect.wire import Played
from lsac.runs.datafile import Record
from lsac.train.diagnostics import Diagnostics
from lsac.train.learner import Critics, Learner


class Running(NamedTuple):
    """A running evaluation, with the policies and critics that it evaluates."""

    step: int
    policies: np.ndarray
    critics: Critics | None


class Finished(NamedTuple):
    step: int
    numbers: list[dict[str, float]]
    """for each seed, the metrics by name"""


class Best(NamedTuple):
    """Every seed's best evaluated policy."""

    returns: np.ndarray
    steps: list[int]
    policies: np.ndarray


class Evaluations:
    """At most one evaluation runs at a time. When its result is logged depends on step counters, never on wall-clock
    time, so logs are reproducible. Without a pool there are no evaluations."""

    def __init__(self, pool: Pool | None, learner: Learner, diagnostics: Diagnostics | None):
        self._pool, self._learner, self._diagnostics = pool, learner, diagnostics
        self.running: Running | None = None
        policies = np.array(learner.policies)
        self.best = Best(np.full(len(policies), -np.inf), [0] * len(policies), policies)
        self.latest: np.ndarray | None = None
        """[S] mean returns of the newest evaluation"""

    @property
    def possible(self) -> bool:
        return self._pool is not None

    def start(self, step: int) -> None:
        self._start(Running(step, np.array(self._learner.policies), self._learner.critics()))

    def _start(self, running: Running) -> None:
        assert self._pool is not None
        self._pool.evaluate(running.policies, running.step, deterministic=True)
        self.running = running

    def finish(self, check_stop: CheckStop) -> Finished | None:
        """Waits for the running evaluation, if there is one; it keeps running if `check_stop` raises."""
        if self.running is None or self._pool is None:
            return None
        played = self._pool.evaluated(check_stop)
        done, self.running = self.running, None
        self.latest = np.array([seed.returns.mean() for seed in played])
        self.best = better(self.best, done, self.latest)
        diagnosed: list[dict[str, float]] = [{} for _ in played]
        if self._diagnostics and done.critics:
            diagnosed = self._diagnostics.of(done.step, done.critics, [seed.states for seed in played])
        return Finished(done.step, [summary(seed) | more for seed, more in zip(played, diagnosed, strict=True)])

    def record(self) -> tuple[Record | None, dict[str, np.ndarray]]:
        """The inputs of the running evaluation. A stop does not wait for its episodes; a resume runs them again."""
        if self.running is None:
            return None, {}
        step, policies, critics = self.running
        leaves = {f"critics.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(critics))}
        return {"step": step}, {"policies": policies, **leaves}

    def restore(self, record: Record | None, arrays: dict[str, np.ndarray]) -> None:
        """Starts the recorded evaluation again, with the same policies and critics."""
        if record is None or self._pool is None:
            return
        like, tree = jax.tree.flatten(jax.eval_shape(self._learner.critics))
        leaves = [arrays[name] for name in (f"critics.{i}" for i in range(len(like))) if name in arrays]
        wanted = [(self._pool.policy_shape, np.dtype(np.float32)), *((x.shape, x.dtype) for x in like)]
        if [(x.shape, x.dtype) for x in (arrays["policies"], *leaves)] != wanted:
            raise ValueError("the arrays of the running evaluation have other shapes")
        step = record["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"the evaluation is of step {step!r}")
        self._start(Running(step, arrays["policies"], jax.tree.unflatten(tree, leaves)))


def summary(played: Played) -> dict[str, float]:
    return {
        "mean_reward": float(played.returns.mean()),
        "std_reward": float(played.returns.std()),
        "mean_ep_length": float(played.lengths.mean()),
    }


def better(best: Best, done: Running, means: np.ndarray) -> Best:
    """The best policies after an evaluation with these mean returns; `best` itself if no seed improved."""
    improved = means > best.returns
    if not improved.any():
        return best
    policies = np.where(improved[:, None], done.policies, best.policies)
    steps = [done.step if now else old for now, old in zip(improved, best.steps, strict=True)]
    return Best(np.where(improved, means, best.returns), steps, policies)
