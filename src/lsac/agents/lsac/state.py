"""The state of LSAC, and how actor and targets read the critics in it."""

from typing import NamedTuple

import jax.numpy as jnp
import optax

from lsac.agents.lsac import embedding, synthesis
from lsac.agents.lsac.chains import Chains
from lsac.agents.lsac.config import Config
from lsac.agents.lsac.critics import Reading
from lsac.agents.lsac.embedding import Embedding
from lsac.nn.networks import GaussianActor
from lsac.types import Array, Transition


class State(NamedTuple):
    actor: GaussianActor  # one for all chains, or one for each [C]
    target_actor: GaussianActor
    chains: Chains
    log_alpha: Array
    actor_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array
    generated: Array | None  # [M, width], the synthetic buffer D' as generated; not in checkpoints
    moved: Array  # [M, A], displacement of the actions of D' by refinement so far
    share: Array  # of a batch that is generated: 0 before the first refresh, then at most ½
    generator: synthesis.State | None
    embedding: Embedding | None
    terminated: Array | None  # 1 once an episode has terminated, else 0; None if nothing depends on it


def embedded(state: State, batch: Transition) -> Transition:
    """A batch as actor and critics see it."""
    return batch if state.embedding is None else embedding.embedded_batch(state.embedding, batch)


def actor_reading(config: Config, state: State) -> Reading:
    """How the actor and the refinement of actions read the critics."""
    if state.embedding is None:
        return Reading(config.actor_pessimism)
    return Reading(config.actor_pessimism, embedding.pairs_seen(state.embedding.frozen))


def target_reading(config: Config, state: State) -> Reading:
    """How TD targets read the target critics."""
    pessimism: float | Array = config.pessimism
    if state.terminated is not None and config.endless_pessimism is not None:
        pessimism = jnp.where(state.terminated > 0, config.pessimism, config.endless_pessimism)
    if state.embedding is None:
        return Reading(pessimism)
    return Reading(pessimism, embedding.pairs_seen(state.embedding.target))
