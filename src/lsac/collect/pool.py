"""The simulators as the loop sees them: give an order, do something else, collect the answers.

Environments named by an id run in worker processes, which a hang or a crash cannot take the trainer down with.
Environments handed over as objects cannot leave this process, so they run in a thread of it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np

from lsac.collect.groups import Episode, LanePlan
from lsac.collect.worker import ERRORS, Station, failure, receive, send
from lsac.errors import CheckpointError, EnvironmentFault, InputError

Heed = Callable[[], None]
LANE_SIZE = 4
"""At most this many simulators share a call of the actor: a constant, so that no result depends on the machine."""


class Source(NamedTuple):
    """Where environments come from: a registered spec (for processes) or a function (for this process)."""

    spec: gym.envs.registration.EnvSpec | None
    make: Callable[[], gym.Env]


def training_lanes(seeds: list[int], num_envs: int) -> list[LanePlan]:
    blocks = [list(range(i, min(i + LANE_SIZE, num_envs))) for i in range(0, num_envs, LANE_SIZE)]
    return [LanePlan(seed, row, block, num_envs) for row, seed in enumerate(seeds) for block in blocks]


def evaluation_lanes(seeds: list[int], episodes: int) -> list[LanePlan]:
    return [LanePlan(seed, row, list(range(episodes)), episodes) for row, seed in enumerate(seeds)]


class Simulators(NamedTuple):
    """The captured state of a crew: for every lane its simulators' JSON, and two arrays and one more per simulator."""

    told: list[list[dict[str, Any]]]
    arrays: list[np.ndarray]


class Crew:
    def __init__(
        self,
        source: Source,
        lanes: list[LanePlan],
        *,
        algorithm: str,
        agent: dict[str, Any],
        gamma: float,
        policy_shape: tuple[int, int],
        workers: int,
        timeout: float,
        time_limits_terminate: bool = False,
    ):
        self.lanes = lanes
        brief = {"algorithm": algorithm, "agent": agent, "gamma": gamma, "cut": time_limits_terminate}
        share: type[_Thread | _Process] = _Thread if source.spec is None else _Process
        count = 1 if source.spec is None else max(1, min(workers, len(lanes)))
        self._memory = tempfile.TemporaryDirectory(prefix="lsac-", dir=_shared_memory())
        self.policies = self._table("policies", np.float32, policy_shape)
        progress = self._table("progress", np.int64, (len(lanes), 2))
        splits = np.array_split(np.arange(len(lanes)), count)
        self._shares = [len(part) for part in splits]
        self._workers = [
            share(source, brief, lanes, int(part[0]), int(part[-1]) + 1, self.policies, progress, timeout)
            for part in splits
        ]
        self._ready = False

    def _table(self, name: str, dtype: type, shape: tuple[int, int]) -> np.memmap:
        return np.memmap(Path(self._memory.name, name), dtype, "w+", shape=shape)

    def order(self, **order: Any) -> None:
        """Starts one order on all lanes; `results` waits for it."""
        self._wait_for_start()
        for worker in self._workers:
            worker.order(order, [])

    def _wait_for_start(self) -> None:
        if not self._ready:
            for worker in self._workers:
                worker.result(lambda: None)
            self._ready = True

    def results(self, heed: Heed = lambda: None) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
        """What the order led to. `heed` is called while there is none, and may raise to leave without it."""
        answers = [worker.result(heed) for worker in self._workers]
        return [header for header, _ in answers], [array for _, arrays in answers for array in arrays]

    def reset(self, step: int) -> None:
        self.order(do="reset", step=step)
        self.results()

    def capture(self) -> Simulators | None:
        """The state of all simulators between two orders; None where some cannot be captured."""
        self.order(do="capture")
        headers, arrays = self.results()
        told = [lane for header in headers for lane in header["simulators"]]
        return None if None in told else Simulators(told, arrays)

    def restore(self, simulators: Simulators) -> None:
        """Lets all simulators go on from a captured state, whichever worker they were on."""
        if [len(told) for told in simulators.told] != [len(lane.envs) for lane in self.lanes]:
            raise CheckpointError(f"the simulators of the checkpoint are not the {len(self.lanes)} lanes of this run")
        wanted = sum(2 + len(told) for told in simulators.told)
        if len(simulators.arrays) != wanted:
            raise CheckpointError(f"the checkpoint has {len(simulators.arrays)} arrays of simulators, not {wanted}")
        self._wait_for_start()
        arrays, first = simulators.arrays, 0
        for worker, count in zip(self._workers, self._shares, strict=True):
            told = simulators.told[first : first + count]
            used = sum(2 + len(lane) for lane in told)
            worker.order({"do": "restore", "simulators": told}, arrays[:used])
            arrays, first = arrays[used:], first + count
        self.results()

    def collected(self) -> tuple[np.ndarray, list[list[Episode]]]:
        """Answer to a `collect` order: rows [S, T·E, width] and the finished episodes of every seed."""
        headers, arrays = self.results()
        lane_episodes = [episodes for header in headers for episodes in header["episodes"]]
        rows, seeds = [], 1 + max(lane.row for lane in self.lanes)
        episodes: list[list[Episode]] = [[] for _ in range(seeds)]
        for row in range(seeds):
            mine = [i for i, lane in enumerate(self.lanes) if lane.row == row]
            block = np.concatenate([arrays[i] for i in mine], axis=1) if len(mine) > 1 else arrays[mine[0]]
            rows.append(block.reshape(-1, block.shape[-1]))
            episodes[row] = sorted(Episode(*e) for i in mine for e in lane_episodes[i])
        return np.stack(rows), episodes

    def evaluated(self, heed: Heed = lambda: None) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Answer to an `evaluate` order: returns and lengths, [S, episodes], and each seed's visits."""
        _, arrays = self.results(heed)
        both = np.stack(arrays[::2])
        return both[:, 0], both[:, 1], arrays[1::2]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._memory.cleanup()


def _shared_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _complain(header: dict[str, Any]) -> None:
    if "error" not in header:
        return
    if header["error"] in ERRORS:
        raise ERRORS[header["error"]](header["message"])
    raise RuntimeError(f"a simulator's worker failed:\n{header['traceback']}")


class _Watch:
    """Tells whether any lane of a worker has moved within the timeout."""

    def __init__(self, progress: np.ndarray, lanes: list[LanePlan], timeout: float):
        self._progress, self._lanes, self._timeout = progress, lanes, timeout
        self.start()

    def start(self) -> None:
        self._seen, self._since = self._progress.copy(), time.monotonic()

    def stuck(self) -> str | None:
        if not np.array_equal(self._seen, self._progress):
            self.start()
        if time.monotonic() - self._since < self._timeout:
            return None
        return f"{self.place()} did not answer within --env-timeout {self._timeout:g} s"

    def place(self) -> str:
        """The environment at work; lanes of a worker take turns, so there is one at most."""
        i = int(np.argmax(self._progress[:, 1]))
        lane, env = self._lanes[i], max(int(self._progress[i, 1]) - 1, 0)
        return f"environment {lane.envs[env]} of seed {lane.seed}, after {int(self._progress[i, 0])} steps"


class _Process:
    start_up = 120.0  # seconds allowed for imports, simulators and compiling, whatever --env-timeout is

    def __init__(
        self,
        source: Source,
        brief: dict[str, Any],
        lanes: list[LanePlan],
        first: int,
        last: int,
        policies: np.memmap,
        progress: np.memmap,
        timeout: float,
    ):
        assert source.spec is not None
        tables = {
            name: {"file": str(table.filename), "shape": table.shape}
            for name, table in (("policies", policies), ("progress", progress))
        }
        mine = lanes[first:last]
        self._name = f"the worker of environments {_names(mine)}"
        self._watch = _Watch(progress[first:last], mine, timeout)
        self._grace = self.start_up
        self._mine, theirs = Pipe()
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lsac.collect.worker", str(theirs.fileno())],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the trainer, which then stops its workers in good order
        )
        theirs.close()
        orders = (
            brief
            | tables
            | {
                "env": source.spec.to_json(),
                "lanes": [lane._asdict() for lane in mine],
                "first": first,
                "parent": os.getpid(),
                "cache": jax.config.values["jax_compilation_cache_dir"],
            }
        )
        self._tell(orders, [])

    def order(self, order: dict[str, Any], arrays: list[np.ndarray]) -> None:
        self._grace = 0.0
        self._watch.start()
        self._tell(order, arrays)

    def result(self, heed: Heed) -> tuple[dict[str, Any], list[np.ndarray]]:
        started = time.monotonic()
        while True:
            heed()
            try:
                if self._mine.poll(0.5):
                    header, arrays = receive(self._mine)
                    break
            except (EOFError, OSError):
                self._died()
            if self._process.poll() is not None and not self._mine.poll(0):
                self._died()
            if time.monotonic() - started > self._grace and (stuck := self._watch.stuck()):
                self._process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
                raise EnvironmentFault(f"{stuck}; its Python stack is printed above")
        _complain(header)
        return header, arrays

    def _tell(self, order: dict[str, Any], arrays: list[np.ndarray]) -> None:
        try:
            send(self._mine, order, arrays)
        except OSError:
            self._died()

    def _died(self) -> None:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise EnvironmentFault(f"{self._name} {how}; last seen: {self._watch.place()}")

    def close(self) -> None:
        self._mine.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Thread:
    def __init__(
        self,
        source: Source,
        brief: dict[str, Any],
        lanes: list[LanePlan],
        first: int,
        last: int,
        policies: np.ndarray,
        progress: np.ndarray,
        timeout: float,
    ):
        mine = lanes[first:last]
        self._watch = _Watch(progress[first:last], mine, timeout)
        orders = brief | {"lanes": [lane._asdict() for lane in mine]}
        try:
            self._cpu = jax.devices("cpu")[0]
        except RuntimeError:
            platforms = os.environ.get("JAX_PLATFORMS")
            raise InputError(f"JAX_PLATFORMS={platforms}: must include cpu, on which policies act") from None
        with jax.default_device(self._cpu):
            self._station = Station(orders, source.make, policies, progress[first:last])
        self._answer: tuple[dict[str, Any], list[np.ndarray]] = ({}, [])
        self._thread: threading.Thread | None = None

    def order(self, order: dict[str, Any], arrays: list[np.ndarray]) -> None:
        self._watch.start()
        self._thread = threading.Thread(target=self._obey, args=(order, arrays), daemon=True)
        self._thread.start()

    def _obey(self, order: dict[str, Any], arrays: list[np.ndarray]) -> None:
        try:
            with jax.default_device(self._cpu):
                self._answer = self._station.obey(order, arrays)
        except Exception as error:
            self._answer = failure(error), []

    def result(self, heed: Heed) -> tuple[dict[str, Any], list[np.ndarray]]:
        while self._thread is not None and self._thread.is_alive():
            heed()
            self._thread.join(0.5)
            if self._thread.is_alive() and (stuck := self._watch.stuck()):
                raise EnvironmentFault(stuck)
        self._thread = None
        header, arrays = self._answer
        _complain(header)
        return header, arrays

    def close(self) -> None:
        """Leaves the environments open: they belong to whoever made them."""


def _names(lanes: list[LanePlan]) -> str:
    return ", ".join(f"{lane.envs[0]}–{lane.envs[-1]} of seed {lane.seed}" for lane in lanes)
