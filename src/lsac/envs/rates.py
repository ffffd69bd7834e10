"""Measures how fast this machine simulates, in one process and in parallel, to choose the number of workers."""

import hashlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsac.envs.gymnasium import Simulator
from lsac.envs.recipes import Recipe, search_path
from lsac.envs.sources import create

START_UP = 60.0
"""Seconds that a process may take to import and build its simulator."""


class Rates(NamedTuple):
    cores: int
    alone: float
    """steps per second of one process"""
    together: float
    """total steps per second with one process per core"""

    @property
    def workers(self) -> int:
        """The number of processes that really run in parallel: fewer than the cores if these are shared or limited."""
        gain = self.together / self.alone
        return min(self.cores, math.ceil(gain)) if gain > 1.1 else 1

    def sentence(self) -> str:
        together = f", {self.together:,.0f} in {self.cores}" if self.cores > 1 else ""
        plural = "worker" if self.workers == 1 else "workers"
        return f"{self.alone:,.0f} steps/s in one process{together}: {self.workers} {plural}"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    return Path(os.environ.get("LSAC_CACHE", Path.home() / ".cache" / "lsac"))


def known(recipe: Recipe) -> Rates | None:
    """The stored measurement for this environment, these versions and this number of cores; None if there is none."""
    try:
        _, alone, together = json.loads(_file().read_text())[_key(recipe)]
        return Rates(cores(), float(alone), float(together))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure(recipe: Recipe, seconds: float) -> Rates | None:
    """Runs new simulators, alone and in parallel, `seconds` each, and stores the result; None if one of them failed."""
    count = cores()
    alone = _sum_of_rates(recipe, 1, seconds)
    together = _sum_of_rates(recipe, count, seconds) if alone and count > 1 else alone
    if not alone or not together:
        return None
    rates = Rates(count, alone, together)
    file = _file()
    try:
        table = json.loads(file.read_text())
    except (OSError, ValueError):
        table = {}
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({**(table if isinstance(table, dict) else {}), _key(recipe): rates}))
        aside.replace(file)
    except OSError:  # without a writable cache the next run measures again
        pass
    return rates


def _file() -> Path:
    return cache_folder() / "simulation.json"


def _key(recipe: Recipe) -> str:
    name = json.loads(recipe.spec)["id"] if recipe.spec else recipe.factory
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]  # tells arguments and wrappers apart
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("gymnasium", "mujoco"))
    return f"{name} {digest}, {cores()} cores, {versions}"


def _sum_of_rates(recipe: Recipe, processes: int, seconds: float) -> float | None:
    """Total steps per second of simulators that run at the same time, each in its own process."""
    command = [sys.executable, "-m", "lsac.envs.rates", str(seconds)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with ExitStack() as stack:
        children = [
            stack.enter_context(subprocess.Popen(command, env=environment, text=True, **pipes))
            for _ in range(processes)
        ]
        timer = threading.Timer(START_UP + seconds, lambda: list(map(subprocess.Popen.kill, children)))
        timer.start()
        stack.callback(timer.cancel)
        for child in children:
            stack.callback(child.kill)
        try:
            for child in children:
                _write(child, json.dumps([recipe, search_path()]))
            if any(child.stdout is None or child.stdout.readline() != "ready\n" for child in children):
                return None
            for child in children:  # only after all are ready
                _write(child, "go")
            return sum(float(child.communicate()[0]) for child in children)
        except (ValueError, OSError):
            return None


def _write(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


def rate(simulator: Simulator, seconds: float) -> float:
    """Steps per second under random actions."""
    rng = np.random.default_rng(0)
    simulator.reset(0)
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        _, _, terminated, truncated, _ = simulator.step(rng.uniform(-1, 1, simulator.spaces.action_dim))
        steps += 1
        if terminated or truncated:
            simulator.reset()
    return steps / (time.perf_counter() - started)


def main() -> None:
    """The child process of `_sum_of_rates`."""
    recipe, sys.path[:] = json.loads(sys.stdin.readline())
    simulator = Simulator(create(Recipe(*recipe)))
    rate(simulator, 0.02)
    print("ready", flush=True)
    sys.stdin.readline()
    print(rate(simulator, float(sys.argv[1])))


if __name__ == "__main__":
    main()
