"""Trains jobs as tasks of Ray, on this machine or on a cluster.

A task only watches the process that trains. What there is to do is read from the run's folder, so Ray may start a task
again as often as it likes: a run that was finished stays as it is, any other continues from its checkpoint. On a
cluster all machines must see the folder of the sweep under the same path.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsac.envs.rates import cores
from lsac.errors import InputError
from lsac.runs.experiment import Experiment
from lsac.sweeps import machine
from lsac.sweeps.training import FAILED, LOG, Ended, Job, Training

OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory: tasks exchange only words."""


def train_job(job: Job, stop_file: str, environment: dict[str, str]) -> Ended:
    """The task: trains one job, and ends it early if a file says so."""
    training = Training(job, environment)
    while (end := training.poll()) is None:
        if os.path.exists(stop_file):
            training.stop()
        time.sleep(0.2)
    return end


class OnRay:
    """Trains jobs on Ray; `address` is that of a running cluster, or None to start Ray on this machine alone."""

    def __init__(self, jobs: int | None, address: str | None, experiments: Sequence[Experiment]):
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._ray = _started(address)
        for number, handler in handlers.items():  # Ray has set its own, which would end this process
            signal.signal(number, handler)
        total = self._ray.cluster_resources()
        count, gpus = int(total.get("CPU", 1)), total.get("GPU", 0.0)
        if address is None:
            jobs = machine.share(experiments, jobs).jobs
        room = int(gpus) or max(1, count // 2)  # the memory of a cluster's GPUs is not known
        self.jobs = jobs = max(1, min(jobs or room, len(experiments)))
        self.workers = machine.shared_cores(count, jobs, jobs).workers
        self._environment = machine.gpu_environment(None, machine.USABLE * min(1.0, gpus / jobs)) if gpus else {}
        self._environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))}
        self._task = self._ray.remote(train_job).options(
            num_cpus=_part(count / jobs),
            num_gpus=_part(gpus / jobs),
            max_retries=-1,  # of a task whose machine or worker is lost; the run itself is not repeated
        )
        self._token = secrets.token_hex(8)
        self._tasks: dict[Any, Job] = {}
        self._began = time.time()

    def submit(self, job: Job) -> None:
        stop_file = str(self._stop_file(job.folder))
        self._tasks[self._task.remote(job, stop_file, self._environment)] = job

    def ended(self) -> list[tuple[str, Ended]]:
        if not self._tasks:
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        found = []
        for task in ready:
            job = self._tasks.pop(task)
            try:
                end = Ended(*self._ray.get(task))
            except self._ray.exceptions.RayError as error:
                end = Ended(FAILED, f"Ray gave it up: {str(error).splitlines()[0]}")
            self._stop_file(job.folder).unlink(missing_ok=True)
            found.append((job.folder, end))
        return found

    def running(self) -> set[str]:
        """Those whose log was written to since this sweep began: Ray itself tells it only to its dashboard."""
        return {job.folder for job in self._tasks.values() if _written(Path(job.folder, LOG)) >= self._began}

    def stop(self, folder: str) -> None:
        file = self._stop_file(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def close(self) -> None:
        self._ray.shutdown()
        for job in self._tasks.values():
            self._stop_file(job.folder).unlink(missing_ok=True)

    def _stop_file(self, folder: str) -> Path:
        return Path(folder, f".stop-{self._token}")


def _started(address: str | None) -> Any:
    """Ray, connected to a cluster or started on this machine for itself alone: no dashboard, no other address than
    127.0.0.1, and nothing reported to anyone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU sees what it saw before
    if address is None:  # other users of this machine must not run anything on it
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    else:
        _require_answer(address)
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise InputError("--engine ray: Ray is not installed; install it with: pip install 'lsac[ray]'") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            hint = "" if "RAY_AUTH_MODE" in os.environ else "; if it demands a token, set RAY_AUTH_MODE=token"
            raise InputError(f"--address {address}: no Ray cluster answers there ({_line(error)}){hint}") from None
        return ray
    try:
        ray.init(
            address="local",
            num_cpus=cores(),
            num_gpus=len(machine.gpus()),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"--engine ray: Ray could not be started on this machine ({_line(error)})") from None
    return ray


def _require_answer(address: str) -> None:
    """Rejects an address at which nothing listens; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"--address {address}: no Ray cluster answers there ({_line(error)})") from None


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _part(share: float) -> float:
    """A number of cores or GPUs that Ray accepts: whole if it is more than one."""
    return float(int(share)) if share >= 1 else int(share * 1000) / 1000


def _written(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0
