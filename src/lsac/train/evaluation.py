"""Evaluations: they run beside training, on simulators of their own, with a copy of the policy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect.pool import Crew
from lsac.runs.datafile import Record
from lsac.train.learner import Learner


class Result(NamedTuple):
    returns: np.ndarray  # [S, episodes]
    lengths: np.ndarray  # [S, episodes]
    judged: list[dict[str, float]]  # per seed, what the critics said and what came true

    def numbers(self) -> list[dict[str, float]]:
        """Of every seed, by name."""
        return [
            {
                "mean_reward": float(returns.mean()),
                "std_reward": float(returns.std()),
                "mean_ep_length": float(lengths.mean()),
                **judged,
            }
            for returns, lengths, judged in zip(self.returns, self.lengths, self.judged, strict=True)
        ]


class Running(NamedTuple):
    step: int
    policies: np.ndarray
    critics: Any


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
        self._order(step, np.array(self._learner.policies), self._learner.critics())

    def _order(self, step: int, policies: np.ndarray, critics: Any) -> None:
        self._crew.policies[:] = policies
        self._crew.order(do="evaluate", step=step, deterministic=True)
        self.running = Running(step, policies, critics)

    def finish(self, heed: Callable[[], None]) -> tuple[Running, Result] | None:
        """Waits for the evaluation under way, if there is one; it stays under way if `heed` raises meanwhile."""
        if self.running is None:
            return None
        returns, lengths, visits = self._crew.evaluated(heed)
        done, self.running = self.running, None
        return done, Result(returns, lengths, self._learner.judge(done.critics, visits))

    def record(self) -> tuple[Record | None, dict[str, np.ndarray]]:
        """What the evaluation under way needs: a stop does not wait for its episodes, a resume plays them again."""
        if self.running is None:
            return None, {}
        step, policies, critics = self.running
        leaves = {f"critics.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(critics))}
        return {"step": step}, {"policies": policies, **leaves}

    def restore(self, record: Record | None, arrays: dict[str, np.ndarray]) -> None:
        """Starts the recorded evaluation again, with the same policies and the same critics to be judged."""
        if record is None:
            return
        like, tree = jax.tree.flatten(jax.eval_shape(self._learner.critics))
        leaves = [arrays[f"critics.{i}"] for i in range(len(like))]
        wanted = [(x.shape, x.dtype) for x in (self._crew.policies, *like)]
        if [(x.shape, x.dtype) for x in (arrays["policies"], *leaves)] != wanted:
            raise ValueError("what was under evaluation has other shapes")
        step = record["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"the evaluation is of step {step!r}")
        self._order(step, arrays["policies"], jax.tree.unflatten(tree, leaves))


def improved(best: Best, done: Running, result: Result) -> Best | None:
    """The best policies after an evaluation; None if none became better."""
    means = result.returns.mean(axis=1)
    better = means > best.returns
    if not better.any():
        return None
    policies = np.where(better[:, None], done.policies, best.policies)
    steps = [done.step if b else old for b, old in zip(better, best.steps, strict=True)]
    return Best(np.where(better, means, best.returns), steps, policies)
