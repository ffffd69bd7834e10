"""How LSAC acts: with one actor or with one per chain, on observations or on their embeddings."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lsac.agents import sac
from lsac.agents.lsac import embedding
from lsac.agents.lsac.config import Config
from lsac.nn.networks import MLP, GaussianActor, in_float32
from lsac.types import Array, Entropy, Key

UNDECIDED = -1.0
"""The memory of a policy that has not drawn the chain of its episode yet."""


class Policy(NamedTuple):
    actor: GaussianActor
    """the actor, or one per chain [C]"""
    slow: GaussianActor | None
    """what the deterministic policy uses in place of the actor, if anything"""
    encoder: MLP | None
    """f of the embedding that the actor sees, if it sees one"""
    slow_encoder: MLP | None
    """the same of the slow actor"""


def policy(config: Config, state: Any) -> Policy:
    actor = in_float32(state.actor)
    slow = in_float32(state.target_actor) if config.slow_evaluation else None
    if not config.embedding:
        return Policy(actor, slow, None, None)
    older = state.embedding.target.of_state if config.slow_evaluation else None
    return Policy(actor, slow, state.embedding.frozen.of_state, older)


def memory(config: Config) -> Any:
    """With an actor per chain, the chain of the episode, as a float32 number."""
    return jnp.full((), UNDECIDED, jnp.float32) if config.actors == "per_chain" else ()


def act(config: Config, policy: Policy, memory: Any, obs: Array, key: Key, explore: bool) -> tuple[Array, Any]:
    memory, key = _decided(config, memory, key)
    actor, encoder = policy.actor, policy.encoder
    if not explore and policy.slow is not None:
        actor, encoder = policy.slow, policy.slow_encoder
    return sac.act(_chosen(config, actor, memory), _seen(encoder, obs), key, explore), memory


def entropy(config: Config) -> Entropy:
    def neg_log_prob(policy: Policy, memory: Any, obs: Array, key: Key) -> Array:
        memory, key = _decided(config, memory, key)
        return sac.neg_log_prob(_chosen(config, policy.actor, memory), (), _seen(policy.encoder, obs), key)

    return Entropy(sac.ENTROPY.alpha, neg_log_prob)


def _decided(config: Config, memory: Any, key: Key) -> tuple[Any, Key]:
    """Draws the chain at the first step of an episode and keeps it until the last: Thompson sampling. Also returns the
    key of the action."""
    if config.actors == "shared":
        return memory, key
    chain_key, action_key = jax.random.split(key)
    drawn = jax.random.randint(chain_key, (), 0, config.chains).astype(jnp.float32)
    return jnp.where(memory == UNDECIDED, drawn, memory), action_key


def _chosen(config: Config, actor: GaussianActor, memory: Any) -> GaussianActor:
    if config.actors == "shared":
        return actor
    return jax.tree.map(lambda x: x[memory.astype(jnp.int32)], actor)


def _seen(encoder: MLP | None, obs: Array) -> Array:
    return obs if encoder is None else embedding.embedded(encoder, obs)
