"""Proximal Policy Optimization: Schulman et al., *Proximal Policy Optimization Algorithms*, 2017 (arXiv 1707.06347).

Every chunk of steps is learned from a few times, then dropped. A Gaussian policy climbs the advantage of its actions,
weighted by how much likelier they have become since they were drawn; where that ratio has left 1 ± ε in the direction
of the gain, nothing more is to be gained. A value function, in units of the size of returns, gives the advantages.

Deviations, with reasons: docs/agents/ppo.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac import on_policy, rollouts
from lsac import replay as rb
from lsac.networks import MLP
from lsac.on_policy import Actor, ActorCritic, Batch
from lsac.optimisers import adam
from lsac.types import Agent, Array, EnvSpec, Key, Metrics


@dataclass(frozen=True)
class Config:
    on_policy: ClassVar[bool] = True
    hidden: tuple[int, ...] = (64, 64)
    """width of each hidden layer, for actor and critic"""
    activation: str = "tanh"
    """relu, gelu, tanh or mish"""
    epochs: int = 10
    """how often a chunk is learned from"""
    minibatches: int = 32
    """steps of Adam per epoch, each on an equal part of the chunk"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    critic_lr: float = 3e-4
    """Adam step size of the critic"""
    anneal_updates: int | None = None
    """updates over which the step sizes fall linearly to 0; None is the whole run, 0 never"""
    lam: float = 0.95
    """λ of the generalised advantages: 0 trusts the critic, 1 the returns"""
    clip_ratio: float = 0.2
    """ε: how far the ratio of densities may leave 1 to the policy's gain"""
    value_clip: bool = True
    """hold values within ± ε of those at the start of the epoch, in units of the size of returns"""
    value_weight: float = 0.25
    """weight of the critic's loss"""
    entropy_weight: float = 0.0
    """weight of the policy's entropy"""
    grad_norm: float = 0.5
    """largest norm of the gradient of actor and critic together; 0 is no limit"""
    obs_clip: float = 10.0
    """observations are normalised by their running moments and kept within ± this; 0 takes them as they are"""
    mean_scale: float = 0.01
    """scale of the policy's last layer at the start"""
    log_std_init: float = -0.5
    """log std of the actions at the start"""


class State(NamedTuple):
    networks: ActorCritic
    opt: optax.OptState  # of actor and critic
    updates: Array


def actor_loss(actor: Actor, batch: Batch, clip_ratio: float) -> tuple[Array, Metrics]:
    """−E min(ρ A, clip(ρ, 1 ± ε) A), ρ = π(a|s) / π_old(a|s): eq. (7). A is standardised over the batch."""
    log_ratio = on_policy.log_probs(actor, batch.obs, batch.action) - batch.log_prob
    ratio, advantage = jnp.exp(log_ratio), on_policy.standardised(batch.advantage)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio) * advantage)
    metrics = {
        "approx_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > clip_ratio, dtype=jnp.float32),
    }
    return -jnp.mean(gain), metrics


def loss(both: tuple[Actor, MLP], batch: Batch, config: Config) -> tuple[Array, Metrics]:
    """The actor's loss, c₁ times the critic's and −c₂ times the entropy: eq. (9)."""
    actor, critic = both
    pi_loss, metrics = actor_loss(actor, batch, config.clip_ratio)
    v_loss = on_policy.critic_loss(critic, batch, config.clip_ratio if config.value_clip else None)
    entropy = on_policy.entropy(actor)
    total = pi_loss + config.value_weight * v_loss - config.entropy_weight * entropy
    return total, metrics | {"actor_loss": pi_loss, "critic_loss": v_loss, "entropy": entropy}


def make(config: Config, spec: EnvSpec) -> Agent:
    limit = optax.clip_by_global_norm(config.grad_norm) if config.grad_norm else optax.identity()
    optimiser = optax.chain(limit, adam(1.0))  # its steps are then scaled by the step sizes

    def init(key: Key) -> State:
        networks = on_policy.init(spec, config.hidden, config.activation, config.mean_scale, config.log_std_init, key)
        return State(networks, optimiser.init((networks.actor, networks.critic)), jnp.zeros((), jnp.int32))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        networks, rollout, log_prob = on_policy.prepared(state.networks, replay, config.obs_clip, config.lam)
        left = on_policy.remaining(state.updates, config.anneal_updates)

        def step(carry: tuple, batch: Batch) -> tuple[tuple, Metrics]:
            both, opt = carry
            (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(both, batch, config)
            directions, opt = optimiser.update(grads, opt)
            moves = tuple(
                jax.tree.map(lambda x, lr=lr: lr * left * x, direction)
                for lr, direction in zip((config.actor_lr, config.critic_lr), directions, strict=True)
            )
            return (optax.apply_updates(both, moves), opt), metrics

        def epoch(carry: tuple, key: Key) -> tuple[tuple, Metrics]:
            (_, critic), _ = carry
            values = networks._replace(critic=critic).values
            advantage, returns, value = on_policy.estimates(values, rollout, config.lam)
            batch = Batch(rollout.steps.obs, rollout.steps.action, log_prob, advantage, returns, value)
            carry, metrics = jax.lax.scan(step, carry, rollouts.minibatches(batch, config.minibatches, key))
            return carry, jax.tree.map(jnp.mean, metrics) | on_policy.told(values, returns, value)

        start = (state.networks.actor, state.networks.critic), state.opt
        ((actor, critic), opt), metrics = jax.lax.scan(epoch, start, jax.random.split(key, config.epochs))
        metrics = jax.tree.map(jnp.mean, metrics) | {"std": jnp.mean(jnp.exp(actor.log_std))}
        return State(networks._replace(actor=actor, critic=critic), opt, state.updates + 1), metrics

    return Agent(
        init=init,
        policy=lambda state: state.networks.policy,
        act=partial(on_policy.act, config.obs_clip),
        update=update,
        critics=lambda state: state.networks.values,
        value=partial(on_policy.value, config.obs_clip),
        gradient_steps=config.epochs * config.minibatches,
    )
