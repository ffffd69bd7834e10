"""Evaluations: they run beside training, on simulators of their own, with a copy of the policy."""

from typing import Any, NamedTuple

import numpy as np

from lsac.checkpoint import Record
from lsac.envs.crew import Crew
from lsac.learner import Learner


class Result(NamedTuple):
    returns: np.ndarray  # [S, episodes]
    lengths: np.ndarray  # [S, episodes]
    judged: list[dict[str, float]]  # per seed, what the critics said and what came true


class Running(NamedTuple):
    step: int
    policies: np.ndarray
    critics: Any
    result: Result | None = None


class Best(NamedTuple):
    """Every seed's best evaluated policy."""

    returns: np.ndarray
    steps: list[int]
    policies: np.ndarray


class Evaluations:
    """At most one is under way. When it is told of depends on counters alone, not on when it was done."""

    def __init__(self, crew: Crew, learner: Learner):
        self._crew, self._learner = crew, learner
        self.running: Running | None = None

    def start(self, step: int) -> None:
        policies = np.array(self._learner.policies)
        self._crew.policies[:] = policies
        self._crew.order(do="evaluate", step=step, deterministic=True)
        self.running = Running(step, policies, self._learner.critics())

    def wait(self) -> Running | None:
        """The evaluation under way, with its result."""
        if self.running is not None and self.running.result is None:
            returns, lengths, visits = self._crew.evaluated()
            result = Result(returns, lengths, self._learner.judge(self.running.critics, visits))
            self.running = self.running._replace(result=result, critics=None)
        return self.running

    def finish(self) -> tuple[Running, Result] | None:
        """Ends the evaluation under way, if there is one."""
        done, self.running = self.wait(), None
        return None if done is None or done.result is None else (done, done.result)

    def record(self) -> tuple[Record | None, dict[str, np.ndarray]]:
        """The evaluation under way as data, for a run that is stopped before it would have been told of."""
        done = self.wait()
        if done is None or done.result is None:
            return None, {}
        arrays = {"policies": done.policies, "returns": done.result.returns, "lengths": done.result.lengths}
        return {"step": done.step, "judged": done.result.judged}, arrays

    def restore(self, record: Record | None, arrays: dict[str, np.ndarray]) -> None:
        if record is not None:
            result = Result(arrays["returns"], arrays["lengths"], record["judged"])
            self.running = Running(record["step"], arrays["policies"], None, result)


def improved(best: Best, done: Running, result: Result) -> Best | None:
    """The best policies after an evaluation; None if none became better."""
    means = result.returns.mean(axis=1)
    better = means > best.returns
    if not better.any():
        return None
    policies = np.where(better[:, None], done.policies, best.policies)
    steps = [done.step if b else old for b, old in zip(better, best.steps, strict=True)]
    return Best(np.where(better, means, best.returns), steps, policies)
