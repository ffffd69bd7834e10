"""Randomised Ensembled Double Q-learning: Chen, Wang, Zhou, Ross, ICLR 2021 (arXiv 2101.05982).

SAC with twenty critic steps per environment step. To limit overestimation, it trains ten critics, and the target of
each critic step is the minimum of two target networks chosen at random. The actor is updated once, after the last
critic step, and maximises the mean of all ten critics. One `update` does all of this, so it corresponds to one
environment step, as in SAC.

Everything that is not defined here is SAC's. Deviations, with reasons: docs/agents/redq.md.
"""

from dataclasses import dataclass
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.agents import sac
from lsac.errors import InputError
from lsac.nn.networks import (
    WIDE_LOG_STD,
    Activation,
    Critic,
    GaussianActor,
    ensemble,
    gaussian_actor,
    polyak,
    q_values,
    redrawn,
    sample_actions,
)
from lsac.nn.optimisers import adam, descend
from lsac.options import BatchSize, Count, Layers, NotNegative, Positive, PositiveShare, RunOptions
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Values, memoryless

Network = TypeVar("Network", Critic, GaussianActor)


@dataclass(frozen=True)
class Config:
    hidden: Layers = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "relu"
    """relu, gelu, elu, tanh or mish"""
    critics: Count = 10
    """number of critics N; the actor maximises their mean"""
    subset: Count = 2
    """number of critics M, chosen at random for every critic step, whose minimum is the target"""
    critic_updates: Count = 20
    """critic steps G per update, each on its own batch; the actor and α are updated once, after the last"""
    batch_size: BatchSize = 256
    """transitions per critic step"""
    actor_lr: Positive = 3e-4
    """Adam step size of the actor"""
    critic_lr: Positive = 3e-4
    """Adam step size of the critics"""
    alpha_lr: NotNegative = 3e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in the target critics, at every critic step"""
    alpha_init: Positive = 1.0
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means −dim(A)"""

    def check(self, experiment: RunOptions) -> None:
        if self.subset > self.critics:
            raise InputError(f"--subset {self.subset}: must be at most --critics {self.critics}")


def glorot(network: Network, key: Key) -> Network:
    """The network with Glorot-uniform weights and zero biases."""
    mlp = redrawn(network.mlp, jax.nn.initializers.glorot_uniform(), key)
    return eqx.tree_at(lambda x: x.mlp, network, mlp)


def subset(critics: Critic, count: int, key: Key) -> Critic:
    """A random subset M of `count` different critics, all subsets equally likely."""
    total = jax.tree.leaves(critics)[0].shape[0]
    index = jax.random.choice(key, total, (count,), replace=False)
    return jax.tree.map(lambda leaf: leaf[index], critics)


def mean_q(critics: Critic, obs: Array, action: Array) -> Array:
    """[B]: (1/N) Σ_i Q_i(s, a)."""
    return jnp.mean(q_values(critics, obs, action), axis=0)


def actor_loss(actor: GaussianActor, critics: Critic, alpha: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """α log π(a|s) − (1/N) Σ_i Q_i(s, a), a ~ π reparameterised. Also returns the mean log density."""
    action, log_prob = sample_actions(actor, obs, key)
    return jnp.mean(alpha * log_prob - mean_q(critics, obs, action)), jnp.mean(log_prob)


def value(critics: Critic, obs: Array, action: Array) -> Metrics:
    """The mean of the critics, which the actor maximises, and their standard deviation."""
    q = jax.vmap(lambda critic: critic(obs, action))(critics)
    return {"q": jnp.mean(q), "q_spread": jnp.std(q)}


def make(config: Config, spec: EnvSpec) -> Agent:
    optimisers = sac.Optimisers(*(adam(lr) for lr in (config.actor_lr, config.critic_lr, config.alpha_lr)))
    target_entropy = sac.entropy_target(config.target_entropy, spec)
    sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)

    def critic(key: Key) -> Critic:
        key, weight_key = jax.random.split(key)
        return glorot(Critic(*sizes, key), weight_key)

    def init(key: Key) -> sac.State:
        actor_key, weight_key, critic_key = jax.random.split(key, 3)
        actor = glorot(gaussian_actor(*sizes, actor_key, WIDE_LOG_STD), weight_key)
        critics = ensemble(critic, config.critics, critic_key)
        return sac.first_state(actor, critics, config.alpha_init, optimisers)

    def update(state: sac.State, replay: rb.Replay, key: Key) -> tuple[sac.State, Metrics]:
        critic_key, action_key = jax.random.split(key)
        alpha = jnp.exp(state.log_alpha)

        def critic_step(carry: tuple, key: Key) -> tuple[tuple, tuple[Array, Array, Array]]:
            critics, targets, opt = carry
            batch_key, subset_key, target_key = jax.random.split(key, 3)
            batch = rb.sample(replay, batch_key, config.batch_size)
            chosen = subset(targets, config.subset, subset_key)
            target = sac.td_target(chosen, state.actor, alpha, batch, target_key)
            critics, opt, loss, q, _ = descend(optimisers.critics, sac.critic_loss, critics, opt, batch, target)
            return (critics, polyak(targets, critics, config.tau), opt), (batch.obs, loss, jnp.mean(q))

        start = state.critics, state.targets, state.critic_opt
        (critics, targets, critic_opt), (obs, q_loss, q) = jax.lax.scan(
            critic_step, start, jax.random.split(critic_key, config.critic_updates)
        )
        state = state._replace(critics=critics, targets=targets, critic_opt=critic_opt)
        losses = sac.PolicyLosses(actor_loss, sac.alpha_loss)
        state, metrics = sac.improve_policy(optimisers, state, losses, obs[-1], target_entropy, action_key)
        return state, metrics | {"critic_loss": jnp.mean(q_loss), "q_mean": jnp.mean(q)}

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=memoryless(sac.act),
        update=update,
        values=Values(lambda state: state.critics, value, sac.ENTROPY),
        gradient_steps=config.critic_updates,
    )
