"""The number of parameters that a run has trained, from the shapes of the arrays in its newest checkpoint."""

import dataclasses
import functools
import math
from typing import Any

import jax
import safetensors
from jax.tree_util import keystr

from lsac.analysis.load import Run
from lsac.runs.checkpoint import Checkpoints
from lsac.runs.datafile import read_record, require_inside
from lsac.runs.experiment import Experiment, make_agent
from lsac.types import Agent, EnvSpec

ANY = EnvSpec(obs_shape=(2,), action_dim=1, gamma=0.99)
"""An agent has the same arrays, if of other shapes, for every environment; a run's own may not be installed here."""


def learnt(agent: Agent, state: Any) -> Any:
    """What an agent trains: its policy and its critics, without target networks."""
    assert agent.values is not None
    return agent.policy(state), agent.values.critics(state)


def parameters(run: Run) -> float:
    """The parameters of one seed of a run; NaN if it has no readable checkpoint, or learns from images."""
    try:
        settings = dataclasses.replace(run.experiment, env="", seed=0, seeds=1)
        names, newest = _names(settings), Checkpoints(run.path / "checkpoints").newest()
        if newest is None or not names:
            return math.nan
        require_inside(newest, run.path)
        read_record(newest)  # rejects what is no file of ours
        with safetensors.safe_open(newest, framework="numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in names]
    except (ValueError, TypeError, OSError, safetensors.SafetensorError):  # the table can do without
        return math.nan
    seeds = len(run.experiment.seed_list)
    if any(shape[:1] != [seeds] for shape in shapes):
        return math.nan
    return float(sum(math.prod(shape[1:]) for shape in shapes))


@functools.cache
def _names(experiment: Experiment) -> tuple[str, ...]:
    """The names in a checkpoint of the arrays that an agent trains; none if it does not say which they are."""
    agent = make_agent(experiment, ANY)
    if agent.values is None:
        return ()
    leaves, tree = jax.tree_util.tree_flatten_with_path(jax.eval_shape(agent.init, jax.random.key(0)))
    traced = jax.make_jaxpr(lambda *arrays: learnt(agent, jax.tree.unflatten(tree, arrays)))(*(x for _, x in leaves))
    inputs, outputs = traced.jaxpr.invars, {id(x) for x in traced.jaxpr.outvars}  # what is computed is not trained
    return tuple(f".agent{keystr(path)}" for (path, _), x in zip(leaves, inputs, strict=True) if id(x) in outputs)
