"""A worker: `GroupRunner` executes commands on groups of simulators; `main` is a process that holds one."""

import contextlib
import faulthandler
import os
import shutil
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np

from lsac import streams
from lsac.collect import observations, snapshot, wire
from lsac.collect.actors import Rule, make_actors
from lsac.collect.groups import Discounts, Group
from lsac.envs.gymnasium import Simulator
from lsac.envs.sources import create
from lsac.errors import InputError
from lsac.runs.experiment import Experiment, from_json, make_agent


class GroupRunner:
    """Some groups of simulators, their actors, and the shared table of policies [S, P] that they read."""

    def __init__(
        self,
        experiment: Experiment,
        plans: list[wire.GroupPlan],
        make_env: Callable[[], gym.Env],
        policies: np.ndarray,
        progress: np.ndarray,
    ):
        e, self._policies = experiment, policies
        simulators = [[Simulator(make_env(), e.action_repeat) for _ in plan.envs] for plan in plans]
        if len({id(one.env) for group in simulators for one in group}) < sum(map(len, simulators)):
            raise InputError("env: the function returned the same environment twice; it must create a new one")
        spec = simulators[0][0].spaces.spec(e.gamma, e.frame_stack)
        agent = make_agent(e, spec)
        actors = make_actors(agent, spec.action_dim)
        _, self._restore = snapshot.unflatten(agent)
        discounts = Discounts(e.gamma, e.time_limits_terminate)
        self.groups = [
            Group(plan, together, actors, discounts, progress[i])
            for i, (plan, together) in enumerate(zip(plans, simulators, strict=True))
        ]

        # Compile now, so that compilation does not count towards the timeout of a simulator.
        blank, key = self._restore(np.zeros_like(policies[0])), streams.root(0, streams.ACT)

        def compile_for(size: int, *rules: Rule) -> None:
            obs, memory = observations.blank(spec, size), actors.memory(size)
            for rule in rules:
                rule.actor(key, np.zeros(size, np.int32)).follow(blank, memory, obs)(0, memory, obs)

        for size in {len(plan.envs) for plan in plans}:
            compile_for(size, actors.explore, actors.exploit, actors.uniform)
        if actors.sample:
            for size in {plan.value_episodes for plan in plans} - {0}:
                compile_for(size, actors.sample)

    def run(self, command: wire.Command) -> wire.Result:
        """Runs one command on every group."""
        match command:
            case wire.Capture():
                return wire.Captured([group.capture() for group in self.groups])
            case wire.Restore(states):
                for group, state in zip(self.groups, states, strict=True):
                    group.restore(state)
                return wire.Done()
            case wire.Reset(step):
                for group in self.groups:
                    group.reset(step)
                return wire.Done()
        policies = {i: self._restore(self._policies[i]) for i in {group.plan.seed_index for group in self.groups}}
        own = [policies[group.plan.seed_index] for group in self.groups]
        if isinstance(command, wire.Evaluate):
            return wire.Evaluated([group.evaluate(p, *command) for group, p in zip(self.groups, own, strict=True)])
        results = [group.collect(p, *command) for group, p in zip(self.groups, own, strict=True)]
        return wire.Collected([stored for stored, _ in results], [episodes for _, episodes in results])


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM):  # a signal may reach the whole process group; the parent handles it
        signal.signal(name, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # lets the parent print where a simulator hangs
    connection = Connection(int(sys.argv[1]))
    try:
        setup: wire.Setup = wire.receive(connection)
    except (EOFError, ConnectionResetError):  # the parent failed before it could say what to do
        os._exit(0)
    sys.path[:] = setup.path
    jax.config.update("jax_compilation_cache_dir", setup.cache)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # acting is too short to dispatch to another thread
    gym.logger.min_level = gym.logger.ERROR  # the parent has already shown Gymnasium's warnings
    policies = np.memmap(setup.policies.file, np.float32, "r", shape=tuple(setup.policies.shape))
    progress = np.memmap(setup.progress.file, np.int64, "r+", shape=tuple(setup.progress.shape))
    own = progress[setup.first : setup.first + len(setup.plans)]
    runner = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has exited
        while True:
            try:
                if runner is None:
                    experiment = from_json(setup.config, "setup", to_run=False)
                    runner = GroupRunner(experiment, setup.plans, lambda: create(setup.env), policies, own)
                    wire.send(connection, wire.Done())
                result = runner.run(wire.receive(connection))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                wire.send(connection, wire.failed(error))
                break
            wire.send(connection, result)
    if os.getppid() != setup.parent:  # it was killed, and no other process removes the shared memory
        shutil.rmtree(Path(setup.policies.file).parent, ignore_errors=True)
    os._exit(0)  # threads or atexit hooks of a simulator must not keep the worker alive


if __name__ == "__main__":
    main()
