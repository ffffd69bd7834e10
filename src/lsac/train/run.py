"""Puts a run together: environments, agent, learner, folder."""

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import ExitStack

import gymnasium as gym
import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from lsac.collect import snapshot
from lsac.collect.pool import Crew, Source, evaluation_lanes, training_lanes
from lsac.envs import gymnasium as adapter
from lsac.envs import rates
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, find_algorithm
from lsac.runs.folder import RunFolder
from lsac.train import memory
from lsac.train.learner import Learner
from lsac.train.logger import Inspect, Watch
from lsac.train.loop import Loop
from lsac.train.stopping import Stop, heeding
from lsac.types import Agent, EnvSpec

Say = Callable[[str], None]


def cache_compilations() -> None:
    """Keeps compiled programs on disk, so that only the first run of a kind waits for the compiler."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(rates.cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        reset_cache()  # JAX decides at its first compilation, which may be over, whether it has a cache


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


def annealed(experiment: Experiment, before: int = 0) -> Experiment:
    """With the updates over which step sizes fall, where that is the whole run; `before` are steps of earlier runs."""
    e = experiment
    if not e.on_policy or e.agent.anneal_updates is not None:
        return e
    updates = math.ceil((before + e.steps) / e.chunk)
    return dataclasses.replace(e, agent=dataclasses.replace(e.agent, anneal_updates=updates))


def make_agent(algorithm: str, experiment: Experiment, spec: EnvSpec) -> Agent:
    return find_algorithm(algorithm).make(annealed(experiment).agent, spec)


def choose_workers(source: Source, experiment: Experiment, say: Say) -> int:
    """How many processes simulate fastest, by measurement: no result depends on it. Measured once, then remembered."""
    e = experiment
    if e.workers:
        return e.workers
    if source.spec is None or rates.cores() == 1 or e.seeds * e.num_envs == 1:
        return 1
    found = rates.known(source.spec) or rates.measure(source.spec, 0.3)
    say(f"simulation: {found.sentence() if found else 'could not be measured, one worker per core'}")
    return found.workers if found else rates.cores()


def make_crew(
    source: Source,
    algorithm: str,
    experiment: Experiment,
    agent: Agent,
    *,
    episodes: int = 0,
    seeds: list[int],
    workers: int,
) -> Crew:
    """Simulators for training, or for evaluations of that many episodes."""
    e = experiment
    length, _ = snapshot.unflatten(agent)
    return Crew(
        source,
        evaluation_lanes(seeds, episodes) if episodes else training_lanes(seeds, e.num_envs),
        algorithm=algorithm,
        agent=dataclasses.asdict(e.agent),
        gamma=e.gamma,
        time_limits_terminate=e.time_limits_terminate,
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


def require_memory(algorithm: str, experiment: Experiment, spec: EnvSpec) -> str:
    """A sentence on the memory that replay and agent take for the whole run; refuses a run that does not fit."""
    e = experiment
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(make_agent(algorithm, e, spec).init, key)
    agent = e.seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    replay = rb.nbytes(spec, e.capacity, e.seeds)
    what = f"replay of {e.seeds} × {e.capacity:,} transitions ({memory.size(replay)}) and agents ({memory.size(agent)})"
    own = [name for name in ("synthetic_capacity", "pair_capacity") if hasattr(e.agent, name)]
    option = "--replay-capacity" if replay >= agent or not own else f"--{own[0].replace('_', '-')}"
    return memory.require(replay + agent, what, jax.devices()[0], f"lower {option} or --seeds")


def inspector(source: Source) -> Inspect | None:
    """Asks the simulator about generated transitions, where it can be put into the state of an observation."""
    from lsac.analysis import fidelity  # brings MuJoCo, which not every run needs

    if source.spec is None or not fidelity.knows(source.spec.id):
        return None
    env = source.make()
    return lambda sample: fidelity.inspect(env, np.asarray(sample.real), np.asarray(sample.generated))


def _compiled(agent: Agent, spec: EnvSpec, experiment: Experiment) -> Learner:
    e = experiment
    learner = Learner(agent, spec, e.seed_list, e.capacity, e.chunk, e.updates_per_chunk, e.num_envs)
    learner.compile(refresh=0 < agent.refresh_every <= math.ceil(e.steps / e.chunk) * e.chunk)
    return learner


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
        stop: Stop | None = None,
    ):
        e = experiment
        cache_compilations()
        agent = make_agent(algorithm, e, spec)
        say(f"{require_memory(algorithm, e, spec)}, on {jax.devices()[0]}")
        workers = choose_workers(source, e, say)
        with ExitStack() as stack:
            self.crew = make_crew(source, algorithm, e, agent, seeds=e.seed_list, workers=workers)
            stack.callback(self.crew.close)
            self.evaluators = None
            if e.eval_every and evaluation_source is not None:
                self.evaluators = make_crew(
                    evaluation_source,
                    algorithm,
                    e,
                    agent,
                    episodes=e.eval_episodes,
                    seeds=e.seed_list,
                    workers=e.workers or max(1, workers // 3),  # they run beside training and may take longer
                )
                stack.callback(self.evaluators.close)
            say(f"compiling {e.updates_per_chunk} updates × {e.seeds} seeds into one program …")
            started = time.monotonic()
            learner = heeding(stop or Stop(), lambda: _compiled(agent, spec, e))
            seconds = time.monotonic() - started
            say(f"compiled in {seconds:.1f} s")
            inspect = inspector(source) if agent.refresh else None
            self.loop = Loop(algorithm, e, learner, self.crew, self.evaluators, folder, watch, say, inspect)
            stack.callback(self.loop.close)
            self._open = stack.pop_all()

    def close(self) -> None:
        self._open.close()
