"""Runs the policies of a finished or stopped run."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from lsac.collect import snapshot
from lsac.errors import CheckpointError
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.datafile import unnamed
from lsac.runs.folder import RunFolder
from lsac.train.loop import Saved
from lsac.train.run import cache_compilations, choose_workers, describe, make_agent, make_crew, source_of
from lsac.types import Agent


def agents_of(checkpoint: Checkpoint, agent: Agent, seeds: int) -> Any:
    """The states [S, …] that a checkpoint keeps of the agents."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))  # a file may claim any number of them
    like = Saved(
        agent.compact(jax.eval_shape(jax.vmap(agent.init), keys)),
        jax.eval_shape(jax.vmap(lambda key: snapshot.flatten(agent.policy(agent.init(key)))), keys),
    )
    return unnamed(checkpoint.state, like, checkpoint.path).agent


def policies_of(folder: RunFolder, algorithm: str, experiment: object, which: str) -> tuple[np.ndarray, list[int]]:
    """Snapshots [S, P] of a run's policies, and the step each was taken at."""
    e = experiment
    if which == "best":
        best = folder.checkpoints.load_best()
        if best is None:
            raise CheckpointError(f"{folder.path}: has no best policy, because it was trained without evaluations")
        return best[0], best[1]["steps"]
    checkpoint = folder.checkpoints.load(with_rows=False)
    checkpoint.require(algorithm, e.env)  # type: ignore[attr-defined]
    agent = make_agent(algorithm, e, describe(source_of(e.env)))  # type: ignore[arg-type, attr-defined]
    state = agents_of(checkpoint, agent, e.seeds)  # type: ignore[attr-defined]
    policies = jax.vmap(lambda s: snapshot.flatten(agent.policy(s)))(state)
    return np.asarray(policies), [checkpoint.record["step"]] * e.seeds  # type: ignore[attr-defined]


def evaluate_run(path: Path, episodes: int, which: str, deterministic: bool) -> str:
    """Plays the episodes and says how they went, one line per seed."""
    cache_compilations()
    folder, algorithm, experiment = RunFolder.open(path)
    policies, steps = policies_of(folder, algorithm, experiment, which)
    source = source_of(experiment.env)
    agent = make_agent(algorithm, experiment, describe(source))
    workers = choose_workers(source, experiment, say=lambda text: None)
    seeds = experiment.seed_list
    crew = make_crew(source, algorithm, experiment, agent, episodes=episodes, seeds=seeds, workers=workers)
    try:
        if crew.policies.shape != policies.shape:
            raise CheckpointError(f"{path}: its policies are {list(policies.shape)}, not {list(crew.policies.shape)}")
        crew.policies[:] = policies
        crew.order(do="evaluate", step=max(steps), deterministic=deterministic)
        returns, lengths, _ = crew.evaluated()
    finally:
        crew.close()
    lines = [
        f"seed {seed}: return {returns[i].mean():.1f} ± {returns[i].std():.1f} over {episodes} episodes "
        f"(mean length {lengths[i].mean():.0f}, policy of step {steps[i]:,})"
        for i, seed in enumerate(experiment.seed_list)
    ]
    means = returns.mean(axis=1)
    lines.append(f"{algorithm} on {experiment.env}: mean over {len(means)} seeds {means.mean():.1f}")
    return "\n".join(lines)
