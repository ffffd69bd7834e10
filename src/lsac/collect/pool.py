"""The pool: all simulators of a run behind one asynchronous interface. Start a command, then wait for its results.

Environments that another process can create run in worker processes, so that a hang or crash does not affect the
trainer. The others, for example objects, run in a thread of this process.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lsac.collect import snapshot, wire
from lsac.collect.handles import CheckStop, ProcessWorker, Share, Tables, ThreadWorker
from lsac.collect.wire import Episode, GroupPlan, GroupState
from lsac.envs.sources import Source
from lsac.errors import CheckpointError
from lsac.replay.ring import Stored
from lsac.runs.experiment import Experiment, make_agent
from lsac.types import EnvSpec

GROUP_SIZE = 2
"""Simulators per call of the actor, at most: a constant, so that results do not depend on the machine. Few, so that the
simulators of one seed, and the episodes of its evaluation, spread over many workers."""
PATIENCE = 1.0
"""Seconds until busy workers are killed at the end."""


def never() -> None:
    """A `CheckStop` that never stops."""


def group_size(spec: EnvSpec) -> int:
    """The size of a run's groups. Images of one simulator keep a processor busy, so that a group of two gains nothing
    and needs twice the time."""
    return GROUP_SIZE if spec.frame is None else 1


def _groups(seeds: list[int], count: int, stride: int, size: int, value_episodes: int = 0) -> list[GroupPlan]:
    blocks = [list(range(i, min(i + size, count))) for i in range(0, count, size)]
    return [
        GroupPlan(seed, index, block, stride, min(max(value_episodes - block[0], 0), len(block)))
        for index, seed in enumerate(seeds)
        for block in blocks
    ]


def training_groups(seeds: list[int], num_envs: int, action_repeat: int = 1, size: int = GROUP_SIZE) -> list[GroupPlan]:
    return _groups(seeds, num_envs, num_envs * action_repeat, size)


def evaluation_groups(
    seeds: list[int], episodes: int, value_episodes: int = 0, size: int = GROUP_SIZE
) -> list[GroupPlan]:
    return _groups(seeds, episodes, episodes, size, value_episodes)


class Pool:
    def __init__(self, experiment: Experiment, spec: EnvSpec, source: Source, plans: list[GroupPlan], workers: int):
        """`plans` is the result of `training_groups` or `evaluation_groups`."""
        self.plans = plans
        self.seeds = 1 + max(plan.seed_index for plan in plans)
        self._of_seed = [[i for i, plan in enumerate(plans) if plan.seed_index == seed] for seed in range(self.seeds)]
        worker: type[ThreadWorker | ProcessWorker] = ThreadWorker if source.recipe is None else ProcessWorker
        count = 1 if source.recipe is None else max(1, min(workers, len(plans)))
        self._memory = tempfile.TemporaryDirectory(prefix="lsac-", dir=_shared_memory())
        length, _ = snapshot.unflatten(make_agent(experiment, spec))
        self._tables = Tables(
            self._table("policies", np.float32, (self.seeds, length)),
            self._table("progress", np.int64, (len(plans), 2)),
        )
        splits = np.array_split(np.arange(len(plans)), count)
        self._shares = [Share(int(part[0]), plans[int(part[0]) : int(part[-1]) + 1]) for part in splits]
        self._workers: list[ThreadWorker | ProcessWorker] = []
        self._ready = False
        try:
            for share in self._shares:
                self._workers.append(worker(experiment, source, share, self._tables))
        except BaseException:
            self.close()
            raise

    def _table(self, name: str, dtype: type, shape: tuple[int, int]) -> np.memmap:
        return np.memmap(Path(self._memory.name, name), dtype, "w+", shape=shape)

    @property
    def policy_shape(self) -> tuple[int, ...]:
        """[S, P] of the snapshots that `collect` and `evaluate` take."""
        return self._tables.policies.shape

    # Commands: `collect` and `evaluate` return at once

    def collect(self, policies: np.ndarray, step: int, count: int, random: bool) -> None:
        """Starts `count` decisions in every simulator; `collected` waits for them."""
        self._start_with(policies, wire.Collect(step, count, random))

    def evaluate(self, policies: np.ndarray, step: int, deterministic: bool) -> None:
        """Starts one episode in every simulator; `evaluated` waits for them."""
        self._start_with(policies, wire.Evaluate(step, deterministic))

    def _start_with(self, policies: np.ndarray, command: wire.Command) -> None:
        self._tables.policies[:] = policies
        self._start(command)

    def collected(self) -> tuple[Stored, list[list[Episode]]]:
        """Result of `collect`: stored transitions [S, T·E, …] and the finished episodes of every seed."""
        results: list[wire.Collected] = self._results(never)
        stored = [group for result in results for group in result.stored]
        ended = [group for result in results for group in result.episodes]
        transitions = {
            name: np.stack([_joined([stored[i][name] for i in groups]) for groups in self._of_seed])
            for name in stored[0]
        }
        return transitions, [sorted(episode for i in groups for episode in ended[i]) for groups in self._of_seed]

    def evaluated(self, check_stop: CheckStop = never) -> list[wire.Played]:
        """Result of `evaluate`, one per seed."""
        results: list[wire.Evaluated] = self._results(check_stop)
        played = [group for result in results for group in result.groups]
        return [
            wire.Played(*map(np.concatenate, zip(*(played[i] for i in groups), strict=True)))
            for groups in self._of_seed
        ]

    def reset(self, step: int) -> None:
        self._start(wire.Reset(step))
        self._results(never)

    def capture(self) -> list[GroupState] | None:
        """The state of all simulators between two commands; None if some cannot be captured."""
        self._start(wire.Capture())
        results: list[wire.Captured] = self._results(never)
        found = [state for result in results for state in result.groups]
        kept = [state for state in found if state is not None]
        return kept if len(kept) == len(found) else None

    def restore(self, states: list[GroupState]) -> None:
        """Restores all simulators from captured states, independent of the worker and group they were captured in."""
        states = _regrouped(states, [len(plan.envs) for plan in self.plans])
        self._wait_for_start()
        for worker, share in zip(self._workers, self._shares, strict=True):
            worker.start(wire.Restore(states[share.first : share.first + len(share.plans)]))
        self._results(never)

    def _start(self, command: wire.Command) -> None:
        self._wait_for_start()
        for worker in self._workers:
            worker.start(command)

    def _wait_for_start(self) -> None:
        if not self._ready:
            self._results(never)
            self._ready = True

    def _results(self, check_stop: CheckStop) -> list[Any]:
        """Waits for one result per worker; calls `check_stop` while waiting."""
        return [worker.result(check_stop) for worker in self._workers]

    def close(self) -> None:
        """Ends the workers. One that is busy has as long as the others together, then it is killed."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.close(deadline)
        self._memory.cleanup()


def _regrouped(states: list[GroupState], sizes: list[int]) -> list[GroupState]:
    """The same simulators in groups of these sizes; an older version of the program may have made others."""
    found = [len(state.simulators) for state in states]
    if found == sizes:
        return states
    if sum(found) != sum(sizes):
        raise CheckpointError(f"the checkpoint has {sum(found)} simulators, but this run has {sum(sizes)}")
    stops = np.cumsum(sizes)[:-1]
    try:
        obs = np.split(np.concatenate([state.obs for state in states]), stops)
        counts = np.split(np.concatenate([state.counts for state in states], axis=1), stops, axis=1)
        leaves = zip(*(state.memory for state in states), strict=True)
        memory = [np.split(np.concatenate(leaf), stops) for leaf in leaves]
        shown = [state.frames for state in states if state.frames is not None]
        frames: list[Any] = np.split(np.concatenate(shown), stops) if shown else [None] * len(sizes)
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"the captured arrays of the simulators do not fit together ({error})") from None
    simulators = [simulator for state in states for simulator in state.simulators]
    starts = [0, *stops.tolist()]
    return [
        GroupState(obs[i], counts[i], [leaf[i] for leaf in memory], simulators[start : start + sizes[i]], frames[i])
        for i, start in enumerate(starts)
    ]


def _joined(groups: list[np.ndarray]) -> np.ndarray:
    """Joins arrays [T, E, …] of the groups of one seed to [T·E, …], with all its simulators in E."""
    block = np.concatenate(groups, axis=1) if len(groups) > 1 else groups[0]
    return block.reshape(-1, *block.shape[2:])


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
