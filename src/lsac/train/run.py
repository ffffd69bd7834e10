"""Builds, trains, saves and closes a run; the only place where its parts are put together."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from lsac.collect.pool import Pool, evaluation_groups, group_size, training_groups
from lsac.envs import rates
from lsac.envs.repeat import repeated
from lsac.envs.sources import Environments, Source, of_experiment
from lsac.errors import Stopped
from lsac.options import OwnBuffer, flag, marked
from lsac.replay import ring as rb
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.folder import Resumed, RunFolder
from lsac.runs.wording import counted
from lsac.train import device_memory, fidelity
from lsac.train.devices import Devices
from lsac.train.diagnostics import Diagnostics
from lsac.train.evaluation import Evaluations
from lsac.train.host_frames import nbytes_ahead
from lsac.train.learner import Learner, Sizes
from lsac.train.logger import Logger, Observer, Say
from lsac.train.loop import Loop
from lsac.train.refresh import Inspect
from lsac.train.resume import Parts, Saver
from lsac.train.stopping import Stop, interruptible
from lsac.types import Agent, EnvSpec

VALUES_EVERY = 10
"""An evaluation adds one episode of the exploring policy, for its values, per this many episodes."""
RESUMES = {
    "exact": "exact: the simulators continue where they were",
    "episode": "not exact: the simulators cannot be captured and start new episodes",
    "start": "exact: it had not been saved yet and starts again",
}


class Start(NamedTuple):
    """The states of a model from which a run starts with an empty replay."""

    state: Any
    generated_at: int


class Result(NamedTuple):
    finished: bool
    """False if a stop was requested; the run can be resumed"""
    step: int
    learner: Learner


def run(
    experiment: Experiment,
    environments: Environments | None = None,
    *,
    folder: RunFolder | None = None,
    resume: bool = False,
    start: Start | Checkpoint | None = None,
    observer: Observer | None = None,
    stop: Stop | None = None,
) -> Result:
    """Trains an experiment to its end, or until a stop is requested.

    `environments` default to those that the experiment names. With a `folder`, the run is saved, and the folder is
    released at the end. With `resume`, the run continues from the folder's newest checkpoint, or from step 0 if there
    is none. With `start`, it starts from the states of a model, or continues from a checkpoint of another folder. The
    folder of a new run that fails before its first step is removed.
    """
    observer, stop = observer or Observer(), stop or Stop()
    loop: Loop | None = None
    try:
        with assembled(experiment, environments, folder, observer, stop) as loop:
            if isinstance(start, Checkpoint):
                loop.restore(start)
            elif start is not None:
                loop.learner.start_from(start.state, start.generated_at)
            if resume:
                assert folder is not None
                saved = folder.checkpoints.newest() is not None
                kind = interruptible(stop, loop.resume) if saved else "start"
                made = environments is not None and not environments.recreatable
                folder.write_config(experiment, Resumed(loop.step, kind), {"made_in_python": made})
                observer.say(f"continuing at step {loop.step:,}; {RESUMES[kind]}")
            observer.began(loop)
            try:
                finished = loop.run(save_first=start is not None)
            finally:
                observer.ended(loop)
            return Result(finished, loop.step, loop.learner)
    except Exception as error:
        started = loop is not None and loop.started
        if folder is not None and not (resume or started or isinstance(error, Stopped)):
            folder.discard()
        raise
    finally:
        if folder is not None:
            folder.release()


@contextmanager
def assembled(
    experiment: Experiment,
    environments: Environments | None,
    folder: RunFolder | None,
    observer: Observer,
    stop: Stop,
) -> Iterator[Loop]:
    """The loop of a run; on exit, all its parts are closed."""
    e, found = experiment, environments or of_experiment(experiment)
    spec = found.spec(e.gamma, e.frame_stack)
    cache_compilations()
    agent = make_agent(e, spec)
    if e.action_repeat > 1:
        gammas = f"γ is {e.gamma:g} per decision, {e.gamma ** (1 / e.action_repeat):.4f} per step"
        observer.say(f"every action is taken {e.action_repeat} times; {gammas}")
    observer.say(require_memory(e, spec))
    if unused := Devices(e.seeds).unused():
        observer.say(unused)
    workers = choose_workers(found.training, e, observer.say)
    with ExitStack() as stack:
        groups = training_groups(e.seed_list, e.num_envs, e.action_repeat, group_size(spec))
        pool = Pool(e, spec, found.training, groups, workers)
        stack.callback(pool.close)
        evaluation = None
        if e.eval_every and found.evaluation is not None:
            share = e.workers or max(1, workers // 2)  # evaluations run beside training and may take longer
            value_episodes = judged_episodes(agent, e.eval_episodes)
            evaluation = stack.enter_context(
                evaluation_pool(e, spec, found.evaluation, e.eval_episodes, share, value_episodes)
            )
        work = f"{counted(e.updates_per_chunk, 'update')} × {counted(e.seeds, 'seed')}"
        observer.say(f"compiling {work} into one program …")
        started = time.monotonic()
        learner = interruptible(stop, partial(compiled_learner, agent, spec, e))
        observer.say(f"compiled in {time.monotonic() - started:.1f} s")
        logger = Logger(e, folder, observer, learner.refresher)
        stack.callback(logger.close)
        diagnostics = Diagnostics(agent.values, spec, e.seed_list, observer.say) if agent.values else None
        evaluations = Evaluations(evaluation, learner, diagnostics)
        parts = Parts(e, learner, pool, evaluations, logger)
        inspect = inspector(found, e.action_repeat) if agent.refresh else None
        yield Loop(parts, Saver(parts, folder, observer.say), stop, inspect, observer.after_chunk)


def judged_episodes(agent: Agent, episodes: int) -> int:
    """The episodes of an evaluation whose returns are compared with values: all, or those that are played for it."""
    if agent.values is None:
        return 0
    return episodes if agent.values.deterministic else math.ceil(episodes / VALUES_EVERY)


@contextmanager
def evaluation_pool(
    experiment: Experiment, spec: EnvSpec, source: Source, episodes: int, workers: int, value_episodes: int = 0
) -> Iterator[Pool]:
    """A pool for evaluations of `episodes` episodes per seed, and `value_episodes` for the values of its critics."""
    groups = evaluation_groups(experiment.seed_list, episodes, value_episodes, group_size(spec))
    pool = Pool(experiment, spec, source, groups, workers)
    try:
        yield pool
    finally:
        pool.close()


def new_folder(
    path: Path, experiment: Experiment, environments: Environments, overwrite: bool = False, **notes: bool
) -> RunFolder:
    """Creates the folder of a new run, after checking that the run fits into memory."""
    require_memory(experiment, environments.spec(experiment.gamma, experiment.frame_stack))
    return RunFolder.create(path, experiment, overwrite, **notes)


# Simulators


def choose_workers(source: Source, experiment: Experiment, say: Say) -> int:
    """The number of processes that simulate fastest, measured once and then cached. No result depends on it."""
    e = experiment
    if e.workers:
        return e.workers
    if source.recipe is None or rates.cores() == 1 or e.seeds * e.num_envs == 1:
        return 1
    found = rates.known(source.recipe) or rates.measure(source.recipe, 0.3)
    say(f"simulation: {found.sentence() if found else 'could not be measured, one worker per core'}")
    return found.workers if found else rates.cores()


def inspector(environments: Environments, action_repeat: int) -> Inspect | None:
    """A function that compares generated transitions with the simulator; None if an observation does not determine its
    state, or if it is an image."""
    changed = environments.args or environments.wrappers or environments.training.recipe is None
    changed = changed or environments.space.frame is not None
    if changed or not fidelity.knows(environments.name):
        return None
    env = repeated(environments.training.make(), action_repeat)
    return lambda sample: fidelity.inspect(env, np.asarray(sample.real), np.asarray(sample.generated))


# The device


def cache_compilations() -> None:
    """Caches compiled programs on disk, so that only the first run of its kind waits for the compiler."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(rates.cache_folder() / "xla"))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        reset_cache()  # JAX chooses its cache at the first compilation, which may have happened already


def compiled_learner(agent: Agent, spec: EnvSpec, experiment: Experiment) -> Learner:
    e = experiment
    on_host = e.replay_on == "host"
    sizes = Sizes(e.capacity, e.chunk, e.updates_per_chunk, e.num_envs, on_host)
    learner = Learner(agent, spec, e.seed_list, sizes)
    learner.compile(refresh=learner.refresher.schedule.until(e.total_steps)[0] > 0)
    return learner


class Bytes(NamedTuple):
    """What one seed takes."""

    replay: int
    """on the device: the replay and, if frames are kept elsewhere, those that are sent ahead"""
    agent: int
    """on the device"""
    frames: int = 0
    """in the host's memory, if frames are kept there"""


def bytes_per_seed(experiment: Experiment, spec: EnvSpec) -> Bytes:
    """The sizes of one seed's replay and of its agent."""
    e, agent, layout = experiment, make_agent(experiment, spec), rb.layout_of(spec)
    state = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
    size, whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)), rb.nbytes(layout, e.capacity)
    if e.replay_on == "device":
        return Bytes(whole, size)
    others = rb.nbytes(layout, e.capacity, frames=False)
    return Bytes(others + 2 * nbytes_ahead(agent, layout, e.updates_per_chunk), size, whole - others)


def require_memory(experiment: Experiment, spec: EnvSpec, replays: int = 1) -> str:
    """Rejects a run whose replay, or several copies of it, and agents do not fit into memory; otherwise returns a
    sentence on what they take."""
    e = experiment
    devices = Devices(e.seeds)
    seeds, found = device_memory.seeds_sharing(devices), bytes_per_seed(e, spec)
    main = 0 if device_memory.on_cpu(devices) else replays * e.seeds * found.frames
    replay, agent = seeds * replays * (found.replay + (0 if main else found.frames)), seeds * found.agent
    sizes = device_memory.size(replay), device_memory.size(agent)
    times = f"{replays} × " if replays > 1 else ""
    what = f"replay of {times}{seeds} × {e.capacity:,} transitions ({sizes[0]}) and agents ({sizes[1]})"
    own = marked(type(e.agent), OwnBuffer)
    option = flag("replay_capacity" if replay >= agent or not own else own[0])
    taken = device_memory.require(replay + agent, what, devices, f"lower {option} or --seeds")
    if not main:
        return taken
    what = f"frames of {times}{e.seeds} × {e.capacity:,} transitions"
    return f"{taken}; {device_memory.require_main(main, what, 'lower --replay-capacity or --seeds')}"
