"""Proximal Policy Optimization: Schulman et al., *Proximal Policy Optimization Algorithms*, 2017 (arXiv 1707.06347).

Every chunk of steps is learned from a few times, then dropped. A Gaussian policy climbs the advantage of its actions,
weighted by how much likelier they have become since they were drawn; where that ratio has left 1 ± ε in the direction
of the gain, nothing more is to be gained. A value function, in units of the size of returns, gives the advantages.

Deviations, with reasons: docs/agents/ppo.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from lsac.agents import on_policy
from lsac.agents.on_policy import Actor, ActorCritic, Batch
from lsac.nn.distributions import normal_log_prob
from lsac.nn.networks import MLP
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.replay import rollouts
from lsac.types import Agent, Array, EnvSpec, Key, Metrics


@dataclass(frozen=True)
class Config:
    on_policy: ClassVar[bool] = True
    hidden: tuple[int, ...] = (64, 64)
    """width of each hidden layer, for actor and critic"""
    activation: str = "tanh"
    """relu, gelu, tanh or mish"""
    epochs: int = 5
    """how often a chunk is learned from"""
    minibatches: int = 16
    """steps of Adam per epoch, each on an equal part of the chunk"""
    actor_lr: float = 1e-3
    """Adam step size of the actor"""
    critic_lr: float = 1e-3
    """Adam step size of the critic"""
    adam_beta2: float = 0.999
    """β₂ of Adam: how much of the running mean of squared gradients a step keeps"""
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
    opt: optax.OptState  # of all parameters as one vector
    updates: Array


class Pair(NamedTuple):
    """Actor and critic as one stack of two networks: what takes two products alone takes one together.

    Gradient steps this small are a row of short kernels, and their number is what an update costs on a GPU.
    """

    mlps: MLP  # [2, …]: the actor's, and the critic's, widened by outputs that nothing reads
    log_std: Array


def paired(actor: Actor, critic: MLP) -> Pair:
    wide = lambda x: jnp.pad(x, [(0, actor.log_std.size - 1)] + [(0, 0)] * (x.ndim - 1))  # noqa: E731
    wider = eqx.tree_at(lambda mlp: mlp.layers[-1], critic, jax.tree.map(wide, critic.layers[-1]))
    return Pair(jax.tree.map(lambda *both: jnp.stack(both), actor.mlp, wider), actor.log_std)


def parted(pair: Pair) -> tuple[Actor, MLP]:
    mean, wider = (jax.tree.map(lambda x, i=i: x[i], pair.mlps) for i in (0, 1))
    critic = eqx.tree_at(lambda mlp: mlp.layers[-1], wider, jax.tree.map(lambda x: x[:1], wider.layers[-1]))
    return Actor(mean, pair.log_std), critic


def actor_loss(mean: Array, log_std: Array, batch: Batch, clip_ratio: float) -> tuple[Array, Metrics]:
    """−E min(ρ A, clip(ρ, 1 ± ε) A), ρ = π(a|s) / π_old(a|s): eq. (7). A comes standardised."""
    log_ratio = jax.vmap(normal_log_prob, (0, 0, None))(batch.action, mean, log_std) - batch.log_prob
    ratio, advantage = jnp.exp(log_ratio), batch.advantage
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio) * advantage)
    metrics = {
        "approx_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > clip_ratio, dtype=jnp.float32),
    }
    return -jnp.mean(gain), metrics


def loss(pair: Pair, batch: Batch, config: Config) -> tuple[Array, Metrics]:
    """The actor's loss, c₁ times the critic's and −c₂ times the entropy: eq. (9)."""
    mean, value = jax.vmap(lambda mlp: jax.vmap(mlp)(batch.obs))(pair.mlps)
    # With 64 rows XLA would work out the loss again for every number of the gradient: 27 ms, not 17, on an H200.
    mean, value, log_std = jax.lax.optimization_barrier((mean, value[:, 0], pair.log_std))
    pi_loss, metrics = actor_loss(mean, log_std, batch, config.clip_ratio)
    v_loss = on_policy.critic_loss(value, batch, config.clip_ratio if config.value_clip else None)
    entropy = on_policy.entropy(log_std)
    total = pi_loss + config.value_weight * v_loss - config.entropy_weight * entropy
    return total, metrics | {"actor_loss": pi_loss, "critic_loss": v_loss, "entropy": entropy}


def make(config: Config, spec: EnvSpec) -> Agent:
    limit = optax.clip_by_global_norm(config.grad_norm) if config.grad_norm else optax.identity()
    optimiser = optax.chain(limit, adam(1.0, b2=config.adam_beta2))  # its steps are then scaled by the step sizes

    def init(key: Key) -> State:
        networks = on_policy.init(spec, config.hidden, config.activation, config.mean_scale, config.log_std_init, key)
        vector, _ = ravel_pytree(paired(networks.actor, networks.critic))
        return State(networks, optimiser.init(vector), jnp.zeros((), jnp.int32))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        networks, rollout, log_prob = on_policy.prepared(state.networks, replay, config.obs_clip, config.lam)
        start, unravelled = ravel_pytree(paired(networks.actor, networks.critic))
        left = on_policy.remaining(state.updates, config.anneal_updates)
        each = lambda tree, lr: jax.tree.map(lambda x: jnp.broadcast_to(lr * left, x.shape), tree)  # noqa: E731
        rates, _ = ravel_pytree(paired(each(networks.actor, config.actor_lr), each(networks.critic, config.critic_lr)))

        def step(carry: tuple, batch: Batch) -> tuple[tuple, None]:
            vector, opt = carry
            grads = jax.grad(lambda vector: loss(unravelled(vector), batch, config)[0])(vector)
            direction, opt = optimiser.update(grads, opt)
            return (vector + rates * direction, opt), None

        def valued(pair: Pair) -> tuple[ActorCritic, Batch]:
            """The networks, and the chunk as their critic values it."""
            actor, critic = parted(pair)
            new = networks._replace(actor=actor, critic=critic)
            estimates = on_policy.estimates(new.values, rollout, config.lam)
            return new, Batch(rollout.steps.obs, rollout.steps.action, log_prob, *estimates)

        def epoch(carry: tuple, key: Key) -> tuple[tuple, Metrics]:
            before, chunk = valued(unravelled(carry[0]))
            batches = rollouts.minibatches(chunk, config.minibatches, key)
            batches = batches._replace(advantage=jax.vmap(on_policy.standardised)(batches.advantage))
            carry, _ = jax.lax.scan(step, carry, batches)
            return carry, on_policy.told(before.values, chunk.returns, chunk.value)

        (vector, opt), told = jax.lax.scan(epoch, (start, state.opt), jax.random.split(key, config.epochs))
        after, chunk = valued(unravelled(vector))
        whole = rollouts.joined(chunk._replace(advantage=on_policy.standardised(chunk.advantage)))
        _, metrics = loss(unravelled(vector), whole, config)
        metrics |= jax.tree.map(jnp.mean, told) | {"std": jnp.mean(jnp.exp(after.actor.log_std))}
        return State(after, opt, state.updates + 1), metrics

    return Agent(
        init=init,
        policy=lambda state: state.networks.policy,
        act=partial(on_policy.act, config.obs_clip),
        update=update,
        critics=lambda state: state.networks.values,
        value=partial(on_policy.value, config.obs_clip),
        gradient_steps=config.epochs * config.minibatches,
    )
