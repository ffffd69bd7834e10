"""Puts a run together: environments, agent, learner, folder."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import gymnasium as gym
import jax

from lsac import memory, snapshot
from lsac import replay as rb
from lsac.envs import gymnasium as adapter
from lsac.envs.crew import Crew, Source, evaluation_lanes, training_lanes
from lsac.errors import InputError
from lsac.experiment import Experiment, find_algorithm
from lsac.folder import RunFolder
from lsac.learner import Learner
from lsac.loops import OffPolicy, Watch
from lsac.types import Agent, EnvSpec

Say = Callable[[str], None]


def cache_compilations() -> None:
    """Keeps compiled programs on disk, so that only the first run of a kind waits for the compiler."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("LSAC_CACHE", Path.home() / ".cache" / "lsac"))
        jax.config.update("jax_compilation_cache_dir", str(home / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def source_of(env: str | gym.Env) -> Source:
    """Environments named by an id can be made anywhere. An object is used itself, then copies made from its spec."""
    if isinstance(env, str):
        spec = adapter.find(env)
        return Source(spec, lambda: adapter.build(spec))
    originals = [env]
    return Source(None, lambda: originals.pop() if originals else _copy(env))


def evaluation_source_of(env: str | gym.Env) -> Source:
    """Like `source_of`, but an object, which is being trained on, is not touched."""
    return source_of(env) if isinstance(env, str) else Source(None, lambda: _copy(env))


def _copy(env: gym.Env) -> gym.Env:
    if env.spec is None:
        raise InputError(f"environment {type(env.unwrapped).__name__}: has no spec, so it cannot be copied")
    return adapter.build(env.spec)


def make_agent(algorithm: str, experiment: Experiment, spec: EnvSpec) -> Agent:
    return find_algorithm(algorithm).make(experiment.agent, spec)


def make_crew(
    source: Source,
    algorithm: str,
    experiment: Experiment,
    agent: Agent,
    *,
    episodes: int = 0,
    seeds: list[int],
) -> Crew:
    """Simulators for training, or for evaluations of that many episodes."""
    e = experiment
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = e.workers or (max(1, cores // 3) if episodes else cores)
    length, _ = snapshot.unflatten(agent)
    return Crew(
        source,
        evaluation_lanes(seeds, episodes) if episodes else training_lanes(seeds, e.num_envs),
        algorithm=algorithm,
        agent=dataclasses.asdict(e.agent),
        gamma=e.gamma,
        policy_shape=(len(seeds), length),
        workers=workers,
        timeout=e.env_timeout,
    )


def describe(source: Source) -> EnvSpec:
    env = source.make()
    try:
        return adapter.describe(env)
    finally:
        env.close()


def replay_memory(experiment: Experiment, spec: EnvSpec) -> str:
    """A sentence on the memory that the replay takes; refuses a replay that does not fit."""
    e = experiment
    what = f"replay of {e.seeds} × {e.capacity:,} transitions"
    return memory.require(rb.nbytes(spec, e.capacity, e.seeds), what, jax.devices()[0])


class Training:
    """A run with everything that must be closed after it."""

    def __init__(
        self,
        algorithm: str,
        experiment: Experiment,
        source: Source,
        spec: EnvSpec,
        folder: RunFolder | None,
        watch: Watch = lambda progress: None,
        say: Say = lambda text: None,
        evaluation_source: Source | None = None,
    ):
        e = experiment
        cache_compilations()
        agent = make_agent(algorithm, e, spec)
        say(f"{replay_memory(e, spec)}, on {jax.devices()[0]}")
        with ExitStack() as stack:
            self.crew = make_crew(source, algorithm, e, agent, seeds=e.seed_list)
            stack.callback(self.crew.close)
            self.evaluators = None
            if e.eval_every and evaluation_source is not None:
                self.evaluators = make_crew(
                    evaluation_source, algorithm, e, agent, episodes=e.eval_episodes, seeds=e.seed_list
                )
                stack.callback(self.evaluators.close)
            learner = Learner(agent, spec, e.seed_list, e.capacity, e.chunk, e.updates_per_chunk)
            say(f"compiling {e.updates_per_chunk} updates × {e.seeds} seeds into one program …")
            seconds = learner.compile()
            say(f"compiled in {seconds:.1f} s")
            self.loop = OffPolicy(algorithm, e, learner, self.crew, self.evaluators, folder, watch)
            stack.callback(self.loop.close)
            self._open = stack.pop_all()

    def close(self) -> None:
        self._open.close()
