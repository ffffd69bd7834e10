"""Trains jobs as tasks of Ray, on this machine or on a cluster.

A task only watches the process that trains. What there is to do is read from the run's folder, so Ray may start a task
again as often as it likes: a run that was finished stays as it is, any other continues from its checkpoint. On a
cluster all machines must see the folder of the sweep under the same path.
"""

import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    while True:
        if os.path.exists(stop_file):
            training.stop()
        if (end := training.poll()) is not None:
            return end
        time.sleep(0.2)


class Node(NamedTuple):
    """A machine of a cluster."""

    cpus: float
    gpus: int


class Part(NamedTuple):
    """What a task asks for, all of it on one machine."""

    cpus: float
    gpus: float


def parts(nodes: Sequence[Node], jobs: int | None, experiments: int) -> tuple[int, Part]:
    """How many tasks run at a time, and the part of each: the largest with which so many fit on the machines.

    By default one per GPU or, without GPUs, one per two CPUs. A task has at most one GPU.
    """
    serving = [node for node in nodes if node.cpus > 0]
    serving = [node for node in serving if node.gpus] or serving
    if not serving:
        raise InputError("--engine ray: none of its machines offers a CPU to tasks")
    gpus = sum(node.gpus for node in serving)
    room = gpus or int(sum(node.cpus for node in serving)) // 2
    jobs = max(1, min(jobs or room, experiments))
    per_gpu = math.ceil(jobs / gpus) if gpus else 0

    def fitting(cpus: float) -> int:
        return sum(min(int(node.cpus // cpus), per_gpu * node.gpus if gpus else jobs) for node in serving)

    sizes = {_part(node.cpus / runs) for node in serving for runs in range(1, jobs + 1)}
    for cpus in sorted(sizes - {0.0}, reverse=True):
        if fitting(cpus) >= jobs:
            return jobs, Part(cpus, _part(1 / per_gpu) if gpus else 0.0)
    raise InputError(f"--jobs {jobs}: the machines of Ray have no room for so many")


class OnRay:
    """Trains jobs on Ray; `address` is that of a running cluster, or None to start Ray on this machine alone."""

    def __init__(self, jobs: int | None, address: str | None, experiments: Sequence[Experiment]):
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._ray = _started(address)
        for number, handler in handlers.items():  # Ray has set its own, which would end this process
            signal.signal(number, handler)
        if address is None:
            jobs = jobs or _room_here(experiments)
        self.jobs, part = parts(self._nodes(), jobs, len(experiments))
        self.workers = 0 if self.jobs == 1 else max(1, int(part.cpus))
        # the memory of a cluster's GPUs is not known
        free = min((gpu.free / gpu.total for gpu in machine.gpus()), default=1.0) if address is None else 1.0
        limit = machine.USABLE * free * part.gpus
        self._environment = machine.gpu_environment(None, limit) if part.gpus else {}
        self._environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))}
        self._task = self._ray.remote(train_job).options(
            num_cpus=part.cpus,
            num_gpus=part.gpus,
            max_retries=-1,  # of a task whose machine or worker is lost; the run itself is not repeated
        )
        self._token = secrets.token_hex(8)
        self._tasks: dict[Any, Job] = {}
        self._began = time.time()

    def _nodes(self) -> list[Node]:
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return [Node(found.get("CPU", 0.0), int(found.get("GPU", 0.0))) for found in alive]

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


def _room_here(experiments: Sequence[Experiment]) -> int | None:
    """How many runs fit on this machine at a time. The tasks of Ray ask for equal parts, so the GPU that holds the
    fewest decides for all."""
    if not (found := machine.gpus()):
        return None
    needed = max(map(machine.memory_needed, experiments), default=0)
    return min(len(found) * max(1, min(machine.fitting_runs(found, needed))), cores())


def _started(address: str | None) -> Any:
    """Ray, connected to a cluster or started on this machine for itself alone: no dashboard, no other address than
    127.0.0.1, and nothing reported to anyone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU sees what it saw before
    if address is None:  # other users of this machine must not run anything on it
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # else Ray replaces 127.0.0.1 by the address that other machines know, also on Linux
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
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
