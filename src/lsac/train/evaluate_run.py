"""Loads the policies of a finished or stopped run from its folder, and evaluates them."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lsac.collect import snapshot
from lsac.envs.sources import Environments, Source, of_experiment
from lsac.errors import CheckpointError
from lsac.options import printable
from lsac.runs.checkpoint import Checkpoint
from lsac.runs.datafile import unnamed
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.folder import RunFolder
from lsac.runs.wording import counted
from lsac.train.resume import Saved
from lsac.train.run import cache_compilations, choose_workers, evaluation_pool
from lsac.types import Agent, EnvSpec


def agents_of(checkpoint: Checkpoint, agent: Agent, seeds: int) -> Any:
    """The compact states [S, …] of the agents in a checkpoint."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))  # a file may claim any number
    state = jax.eval_shape(jax.vmap(agent.init), keys)
    like = Saved(
        agent.refresh.compact(state) if agent.refresh else state,
        jax.eval_shape(jax.vmap(lambda key: snapshot.flatten(agent.policy(agent.init(key)))), keys),
    )
    return unnamed(checkpoint.state, like, checkpoint.path, checkpoint.record["format"]).agent


def snapshots_of(checkpoint: Checkpoint, agent: Agent, seeds: int) -> np.ndarray:
    """Snapshots [S, P] of the policies in a checkpoint. Only the arrays of the policies are read, by their names, so
    that runs of earlier versions, whose states differ in other arrays, can still be evaluated."""
    state = jax.eval_shape(agent.init, jax.random.key(0))
    leaves, tree = jax.tree_util.tree_flatten_with_path(Saved(state, None))
    names = jax.tree.unflatten(tree, [jax.tree_util.keystr(path) for path, _ in leaves])
    shapes = jax.tree.leaves(agent.policy(state))
    arrays = []
    for name, like in zip(jax.tree.leaves(agent.policy(names.agent)), shapes, strict=True):
        array, expected = checkpoint.state.get(name), (seeds, *like.shape)
        if array is None:
            raise CheckpointError(f"{checkpoint.path}: array {printable(name)} is missing")
        if array.shape != expected or array.dtype != like.dtype:
            found, right = f"{array.dtype}{list(array.shape)}", f"{like.dtype}{list(expected)}"
            raise CheckpointError(f"{checkpoint.path}: array {printable(name)} is {found}, but {right} is expected")
        arrays.append(array.reshape(seeds, -1))
    return np.concatenate(arrays, axis=1)


def policies_of(folder: RunFolder, experiment: Experiment, spec: EnvSpec, which: str) -> tuple[np.ndarray, list[int]]:
    """Snapshots [S, P] of a run's last or best policies, and the step of each."""
    e = experiment
    if which == "best":
        best = folder.checkpoints.load_best()
        if best is None:
            raise CheckpointError(f"{folder.path}: has no best policy, because it was trained without evaluations")
        return best[0], best[1]["steps"]
    checkpoint = folder.checkpoints.load_agents()
    checkpoint.require(e.algorithm, e.env)
    return snapshots_of(checkpoint, make_agent(e, spec), e.seeds), [checkpoint.record["step"]] * e.seeds


class Evaluated(NamedTuple):
    """The policies of a run, and the environments in which they are evaluated."""

    experiment: Experiment
    environments: Environments
    spec: EnvSpec
    policies: np.ndarray
    """[S, P] snapshots"""
    steps: list[int]
    """the step of each policy"""

    @property
    def source(self) -> Source:
        assert self.environments.evaluation is not None
        return self.environments.evaluation


def load_policies(path: Path, which: str) -> Evaluated:
    """The last or best policies of a run."""
    folder, e = RunFolder.open(path)
    environments = of_experiment(e)
    spec = environments.spec(e.gamma, e.frame_stack)
    policies, steps = policies_of(folder, e, spec, which)
    expected = (e.seeds, snapshot.unflatten(make_agent(e, spec))[0])
    if policies.shape != expected:
        raise CheckpointError(f"{path}: its policies are {list(policies.shape)}, not {list(expected)}")
    return Evaluated(e, environments, spec, policies, steps)


def evaluate_run(path: Path, episodes: int, which: str, deterministic: bool) -> str:
    """Runs evaluation episodes and returns a summary, one line per seed."""
    cache_compilations()
    e, _, spec, policies, steps = loaded = load_policies(path, which)
    workers = choose_workers(loaded.source, e, say=lambda text: None)
    with evaluation_pool(e, spec, loaded.source, episodes, workers) as pool:
        pool.evaluate(policies, max(steps), deterministic)
        played = pool.evaluated()
    lines = [
        f"seed {seed}: return {x.returns.mean():.1f} ± {x.returns.std():.1f} over {counted(episodes, 'episode')} "
        f"(mean length {x.lengths.mean():.0f}, policy of step {step:,})"
        for seed, x, step in zip(e.seed_list, played, steps, strict=True)
    ]
    mean = np.mean([x.returns.mean() for x in played])
    lines.append(f"{e.algorithm} on {e.env}: mean over {counted(len(played), 'seed')} {mean:.1f}")
    return "\n".join(lines)
