"""What runs beside the simulators: a station obeys orders on its lanes; `main` runs one as a process of its own.

Orders and answers are JSON and raw arrays of numbers: nothing that arrives here can be code.
"""

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from lsac import streams
from lsac.agents import AGENTS
from lsac.collect import snapshot
from lsac.collect.groups import Lane, LanePlan, make_actors
from lsac.envs.gymnasium import Simulator, build
from lsac.errors import CheckpointError, EnvironmentFault, InputError, LsacError
from lsac.runs.experiment import read_options


class Station:
    """Some lanes, the actor that drives them, and the table of policies [S, P] they read from."""

    def __init__(
        self,
        brief: dict[str, Any],
        make_env: Callable[[], gym.Env],
        policies: np.ndarray,
        progress: np.ndarray,
    ):
        plans = [LanePlan(**plan) for plan in brief["lanes"]]
        simulators = [[Simulator(make_env()) for _ in plan.envs] for plan in plans]
        spec = simulators[0][0].spec
        module = AGENTS[brief["algorithm"]]
        agent = module.make(read_options(module.Config, brief["agent"], "agent"), spec)
        actors = make_actors(agent, spec.action_dim)
        _, self._restore = snapshot.unflatten(agent)
        self._policies = policies
        self.lanes = [
            Lane(plan, group, actors, brief["gamma"], progress[i], brief["cut"])
            for i, (plan, group) in enumerate(zip(plans, simulators, strict=True))
        ]

        # Compiled now, so that no compilation counts as a simulator's time.
        blank = self._restore(np.zeros_like(policies[0]))
        for size in {len(plan.envs) for plan in plans}:
            obs, key = np.zeros((size, spec.obs_dim), np.float32), streams.root(0, streams.ACT)
            moment, envs = np.int32(0), np.zeros(size, np.int32)
            actors.uniform(key, moment, envs)
            for choose in (actors.explore, actors.exploit):
                choose(blank, obs, key, moment, envs)

    def obey(self, order: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Carries out one order on every lane: what to say, and the arrays that go with it, one per lane."""
        if order["do"] == "capture":
            captured = [lane.capture() for lane in self.lanes]
            found = [c for c in captured if c is not None]
            told = [c and c[0] for c in captured]
            return {"simulators": told}, [array for _, group in found for array in group]
        if order["do"] == "restore":
            for lane, told in zip(self.lanes, order["simulators"], strict=True):
                lane.restore(told, arrays[: 2 + len(told)])
                arrays = arrays[2 + len(told) :]
            return {}, []
        step = order["step"]
        if order["do"] == "reset":
            for lane in self.lanes:
                lane.reset(step)
            return {}, []
        policies = {row: self._restore(self._policies[row]) for row in {lane.plan.row for lane in self.lanes}}
        if order["do"] == "evaluate":
            done = [lane.evaluate(policies[lane.plan.row], step, order["deterministic"]) for lane in self.lanes]
            return {}, [array for returns, lengths, visits in done for array in (np.stack([returns, lengths]), visits)]
        results = [lane.collect(policies[lane.plan.row], step, order["count"], order["random"]) for lane in self.lanes]
        return {"episodes": [episodes for _, episodes in results]}, [rows for rows, _ in results]

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()


ERRORS: dict[str, type[LsacError]] = {"fault": EnvironmentFault, "checkpoint": CheckpointError, "input": InputError}
"""Those that mean the same on both sides of the connection."""


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as an answer."""
    kind = next((name for name, cls in ERRORS.items() if isinstance(error, cls)), "bug")
    return {"error": kind, "message": str(error), "traceback": "".join(traceback.format_exception(error))}


def send(connection: Connection, header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    header = header | {"arrays": [(array.shape, array.dtype.str) for array in arrays]}
    connection.send_bytes(json.dumps(header).encode())
    for array in arrays:
        connection.send_bytes(np.ascontiguousarray(array).tobytes())


def receive(connection: Connection) -> tuple[dict[str, Any], list[np.ndarray]]:
    header = json.loads(connection.recv_bytes())
    arrays = [np.frombuffer(connection.recv_bytes(), dtype).reshape(shape) for shape, dtype in header["arrays"]]
    return header, arrays


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM):  # a whole group may be told to stop: the parent decides when
        signal.signal(name, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # lets the parent show where a hanging simulator is stuck
    connection = Connection(int(sys.argv[1]))
    brief, _ = receive(connection)
    jax.config.update("jax_compilation_cache_dir", brief["cache"])
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # acting is too short to hand to another thread
    gym.logger.min_level = gym.logger.ERROR  # the parent has shown Gymnasium's advice once
    policies = np.memmap(brief["policies"]["file"], np.float32, "r", shape=tuple(brief["policies"]["shape"]))
    progress = np.memmap(brief["progress"]["file"], np.int64, "r+", shape=tuple(brief["progress"]["shape"]))
    spec = gym.envs.registration.EnvSpec.from_json(brief["env"])
    lanes = slice(brief["first"], brief["first"] + len(brief["lanes"]))
    station = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            try:
                if station is None:
                    station = Station(brief, lambda: build(spec), policies, progress[lanes])
                    send(connection, {}, [])
                header, arrays = station.obey(*receive(connection))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                send(connection, failure(error), [])
                break
            send(connection, header, arrays)
    if os.getppid() != brief["parent"]:  # killed, and nobody else is left to remove what we shared
        shutil.rmtree(Path(brief["policies"]["file"]).parent, ignore_errors=True)
    os._exit(0)  # a simulator's own threads or atexit hooks must not keep a worker alive


if __name__ == "__main__":
    main()
