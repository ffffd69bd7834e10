"""What a machine has, and how the runs of a sweep share it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from lsac.envs.rates import cores
from lsac.envs.sources import of_experiment
from lsac.errors import InputError
from lsac.runs.experiment import Experiment

RUNS_PER_GPU = 4
"""At most, unless --jobs says otherwise: more would wait for each other."""
USABLE = 0.9
"""Share of a GPU's free memory that the runs on it may take together."""
WORKING_MEMORY = 2.0
"""Memory of a run on a GPU, relative to its replay and agents, which are updated into copies of themselves."""
CONTEXT = 2 * 2**30
"""Bytes that a process takes on a GPU besides."""


class Gpu(NamedTuple):
    name: str
    """as CUDA_VISIBLE_DEVICES names it"""
    free: int
    """bytes"""
    total: int


class Shares(NamedTuple):
    """How runs share a machine: one environment of variables for each run at a time."""

    slots: list[dict[str, str]]
    workers: int
    """processes that step the simulators of a run; 0: the run chooses by itself"""

    @property
    def jobs(self) -> int:
        return len(self.slots)


def gpus() -> list[Gpu]:
    """The GPUs that a run on this machine could use; JAX is not asked, because it would take their memory."""
    if shutil.which("nvidia-smi") is None or "cuda" not in os.environ.get("JAX_PLATFORMS", "cuda"):
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return visible(text, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(listed: str, allowed: str | None) -> list[Gpu]:
    """The GPUs in the answer of nvidia-smi that CUDA_VISIBLE_DEVICES allows."""
    found = []
    names = None if allowed is None else [name.strip() for name in allowed.split(",")]
    for row in listed.splitlines():
        index, uuid, free, total = (part.strip() for part in row.split(","))
        name = index if names is None or index in names else uuid
        if names is None or name in names:
            found.append(Gpu(name, int(free) * 2**20, int(total) * 2**20))
    return found


def share(experiments: Sequence[Experiment], jobs: int | None) -> Shares:
    """How this machine is shared by experiments of which `jobs` run at the same time; by default as many as fit."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1")
    found = gpus()
    if not found:
        return shared_cores(cores(), jobs or max(1, cores() // 2), len(experiments))
    needed = max(map(memory_needed, experiments), default=0)
    return shared_gpus(found, needed, cores(), jobs, len(experiments))


def shared_cores(count: int, jobs: int, experiments: int) -> Shares:
    jobs = max(1, min(jobs, experiments))
    return Shares([{} for _ in range(jobs)], _workers(count, jobs))


def shared_gpus(found: Sequence[Gpu], needed: int, count: int, jobs: int | None, experiments: int) -> Shares:
    """Each run is given to the GPU on which it has the most memory. A GPU gets more runs than fit only if all have as
    many as fit, and --jobs asks for more."""
    fitting = fitting_runs(found, needed)
    jobs = max(1, min(jobs or min(sum(fitting), count), experiments))
    counts = [0] * len(found)
    given = []
    for _ in range(jobs):
        open_ = [i for i in range(len(found)) if counts[i] < fitting[i]] or range(len(found))
        chosen = max(open_, key=lambda i: found[i].free / (counts[i] + 1))
        counts[chosen] += 1
        given.append(chosen)
    slots = [gpu_environment(found[i].name, USABLE * found[i].free / found[i].total / counts[i]) for i in given]
    return Shares(slots, _workers(count, jobs))


def fitting_runs(found: Sequence[Gpu], needed: int) -> list[int]:
    """How many runs fit on each GPU; if none fits anywhere, one on each may try, and is told why it does not."""
    fitting = [min(RUNS_PER_GPU, int(USABLE * gpu.free // needed)) for gpu in found]
    return fitting if any(fitting) else [1] * len(found)


def gpu_environment(name: str | None, fraction: float) -> dict[str, str]:
    """The variables of a run that may take a fraction of a GPU's memory; without a name, of the one it is given."""
    limits = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.3f}"}
    return limits if name is None else limits | {"CUDA_VISIBLE_DEVICES": name}


def _workers(count: int, jobs: int) -> int:
    return 0 if jobs == 1 else max(1, count // jobs)


def memory_needed(experiment: Experiment) -> int:
    """An estimate of the bytes that a run takes on a GPU."""
    import jax

    from lsac.train.run import bytes_per_seed

    jax.config.update("jax_platforms", "cpu")  # this process computes nothing, and must not take memory of the GPU
    spec = of_experiment(experiment).spec(experiment.gamma, experiment.frame_stack)
    found = bytes_per_seed(experiment, spec)
    return int(WORKING_MEMORY * experiment.seeds * (found.replay + found.agent) + CONTEXT)
