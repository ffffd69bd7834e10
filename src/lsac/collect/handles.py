"""The trainer's side of a worker: a process or a thread that executes commands, and a watchdog for its simulators."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect import wire
from lsac.collect.wire import GroupPlan
from lsac.collect.worker import GroupRunner
from lsac.envs.recipes import search_path
from lsac.envs.sources import Source
from lsac.errors import EnvironmentFault, InputError, LsacError
from lsac.runs.experiment import Experiment, to_json

CheckStop = Callable[[], None]
"""Called while the trainer waits; it raises an exception to end the wait."""


class Tables(NamedTuple):
    """Arrays that the trainer and its workers share."""

    policies: np.memmap
    """[S, P] float32: a snapshot of every seed's policy"""
    progress: np.memmap
    """[groups, 2] int64: steps done and the active simulator, read by the watchdog"""


class Share(NamedTuple):
    """The groups of one worker: the index of the first, and their plans."""

    first: int
    plans: list[GroupPlan]


class Watchdog:
    """Detects that no group of a worker has made progress within the timeout."""

    def __init__(self, progress: np.ndarray, plans: list[GroupPlan], timeout: float):
        self._progress, self._plans, self._timeout = progress, plans, timeout
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
        """Describes the active environment; the groups of a worker take turns, so there is at most one."""
        i = int(np.argmax(self._progress[:, 1]))
        plan, env = self._plans[i], max(int(self._progress[i, 1]) - 1, 0)
        return f"environment {plan.envs[env]} of seed {plan.seed}, after {int(self._progress[i, 0])} steps"


class ProcessWorker:
    start_up = 120.0  # seconds for imports, creating simulators and compiling, independent of --env-timeout

    def __init__(self, experiment: Experiment, source: Source, share: Share, tables: Tables):
        assert source.recipe is not None
        progress = tables.progress[share.first : share.first + len(share.plans)]
        self._name = f"the worker of environments {_names(share.plans)}"
        self._watchdog = Watchdog(progress, share.plans, experiment.env_timeout)
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
            start_new_session=True,  # Ctrl-C reaches only the trainer, which then stops its workers
        )
        theirs.close()
        self._send(
            wire.Setup(
                config=to_json(experiment),
                env=source.recipe,
                path=search_path(),
                plans=share.plans,
                first=share.first,
                policies=_file(tables.policies),
                progress=_file(tables.progress),
                parent=os.getpid(),
                cache=jax.config.values["jax_compilation_cache_dir"],
            )
        )

    def start(self, command: wire.Command) -> None:
        self._grace = 0.0
        self._watchdog.start()
        self._send(command)

    def result(self, check_stop: CheckStop) -> wire.Result:
        started = time.monotonic()
        while True:
            check_stop()
            try:
                if self._mine.poll(0.5):
                    result = wire.receive(self._mine)
                    break
            except (EOFError, OSError):
                self._died()
            if self._process.poll() is not None and not self._mine.poll(0):
                self._died()
            if time.monotonic() - started > self._grace and (stuck := self._watchdog.stuck()):
                self._process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
                raise EnvironmentFault(f"{stuck}; its Python stack is printed above")
        wire.raise_failure(result)
        return result

    def _send(self, message: Any) -> None:
        try:
            wire.send(self._mine, message)
        except OSError:
            self._died()

    def _died(self) -> None:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise EnvironmentFault(f"{self._name} {how}; last seen: {self._watchdog.place()}")

    def hang_up(self) -> None:
        """An idle worker then ends by itself."""
        self._mine.close()

    def close(self, deadline: float) -> None:
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ThreadWorker:
    def __init__(self, experiment: Experiment, source: Source, share: Share, tables: Tables):
        progress = tables.progress[share.first : share.first + len(share.plans)]
        self._watchdog = Watchdog(progress, share.plans, experiment.env_timeout)
        try:
            self._cpu = jax.devices("cpu")[0]
        except RuntimeError:
            platforms = os.environ.get("JAX_PLATFORMS")
            raise InputError(f"JAX_PLATFORMS={platforms}: must include cpu, on which policies act") from None
        self._release = source.release
        with jax.default_device(self._cpu):
            self._runner = GroupRunner(experiment, share.plans, source.make, tables.policies, progress)
        self._result: wire.Result | LsacError = wire.Done()
        self._thread: threading.Thread | None = None

    def start(self, command: wire.Command) -> None:
        self._watchdog.start()
        self._thread = threading.Thread(target=self._run, args=(command,), daemon=True)
        self._thread.start()

    def _run(self, command: wire.Command) -> None:
        try:
            with jax.default_device(self._cpu):
                self._result = self._runner.run(command)
        except LsacError as error:
            self._result = error
        except Exception as error:
            self._result = wire.failed(error)

    def result(self, check_stop: CheckStop) -> wire.Result:
        while self._thread is not None and self._thread.is_alive():
            check_stop()
            self._thread.join(0.5)
            if self._thread.is_alive() and (stuck := self._watchdog.stuck()):
                raise EnvironmentFault(stuck)
        self._thread = None
        if isinstance(self._result, LsacError):
            raise self._result
        wire.raise_failure(self._result)
        return self._result

    def hang_up(self) -> None:
        """A thread waits for nothing."""

    def close(self, deadline: float) -> None:
        if self._thread is None or not self._thread.is_alive():  # a simulator that hangs cannot be closed
            for group in self._runner.groups:
                for simulator in group.simulators:
                    self._release(simulator.env)


def _file(table: np.memmap) -> wire.TableFile:
    return wire.TableFile(str(table.filename), list(table.shape))


def _names(plans: list[GroupPlan]) -> str:
    return ", ".join(f"{plan.envs[0]}–{plan.envs[-1]} of seed {plan.seed}" for plan in plans)
