"""Randomised Ensembled Double Q-learning: Chen, Wang, Zhou, Ross, ICLR 2021 (arXiv 2101.05982).

SAC that learns twenty times from every environment step and does not overestimate for it: of ten critics, a random
two give the target at each of the twenty critic steps, by their minimum. The actor then moves once, up the mean of all
ten. One `update` is the whole of this, so that it stands for one environment step as SAC's does.

What is not defined here is SAC. Deviations, with reasons: docs/agents/redq.md.
"""

from dataclasses import dataclass
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents.sac import State, act, alpha_loss, critic_loss, td_target
from lsac.nn.networks import Critic, GaussianActor, ensemble, polyak, q_values, redrawn, sample_actions
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics

Network = TypeVar("Network", Critic, GaussianActor)


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "relu"
    """relu, gelu, tanh or mish"""
    critics: int = 10
    """number of critics N; the actor follows their mean"""
    subset: int = 2
    """number of critics M, drawn anew for every critic step, whose minimum is the target"""
    critic_updates: int = 20
    """critic steps G per update, each on its own batch; the actor and α move once, after the last"""
    batch_size: int = 256
    """transitions per critic step"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    critic_lr: float = 3e-4
    """Adam step size of the critics"""
    alpha_lr: float = 3e-4
    """Adam step size of log α; 0 keeps α as it starts"""
    tau: float = 0.005
    """share of the new parameters in the target critics at every critic step"""
    alpha_init: float = 1.0
    """entropy weight at the start"""
    target_entropy: float | None = None
    """entropy that α is tuned for; None is −dim(A)"""


def glorot(network: Network, key: Key) -> Network:
    """The network with Glorot-uniform weights and zero biases."""
    mlp = redrawn(network.mlp, jax.nn.initializers.glorot_uniform(), key)
    return eqx.tree_at(lambda x: x.mlp, network, mlp)


def subset(critics: Critic, count: int, key: Key) -> Critic:
    """A set M of `count` different critics, all sets equally likely."""
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
    """What the actor climbs, and how far the critics are apart."""
    q = jax.vmap(lambda critic: critic(obs, action))(critics)
    return {"q": jnp.mean(q), "q_spread": jnp.std(q)}


def make(config: Config, spec: EnvSpec) -> Agent:
    actor_adam, critic_adam, alpha_adam = (adam(lr) for lr in (config.actor_lr, config.critic_lr, config.alpha_lr))
    target_entropy = -float(spec.action_dim) if config.target_entropy is None else config.target_entropy

    def critic(key: Key) -> Critic:
        key, weight_key = jax.random.split(key)
        return glorot(Critic(*spec, config.hidden, config.activation, key), weight_key)

    def init(key: Key) -> State:
        actor_key, weight_key, critic_key = jax.random.split(key, 3)
        actor = GaussianActor(*spec, config.hidden, config.activation, actor_key, (-20.0, 2.0))
        actor = glorot(actor, weight_key)
        critics = ensemble(critic, config.critics, critic_key)
        log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
        opts = actor_adam.init(actor), critic_adam.init(critics), alpha_adam.init(log_alpha)
        return State(actor, critics, critics, log_alpha, *opts)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        critic_key, action_key = jax.random.split(key)
        alpha = jnp.exp(state.log_alpha)

        def critic_step(carry: tuple, key: Key) -> tuple[tuple, tuple[Array, Array, Array]]:
            critics, targets, opt = carry
            batch_key, subset_key, target_key = jax.random.split(key, 3)
            batch = rb.sample(replay, batch_key, config.batch_size)
            drawn = subset(targets, config.subset, subset_key)
            target = td_target(drawn, state.actor, alpha, batch, target_key)
            (loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(critics, batch, target)
            updates, opt = critic_adam.update(grads, opt)
            critics = optax.apply_updates(critics, updates)
            return (critics, polyak(targets, critics, config.tau), opt), (batch.obs, loss, jnp.mean(q))

        start = state.critics, state.targets, state.critic_opt
        (critics, targets, critic_opt), (obs, q_loss, q) = jax.lax.scan(
            critic_step, start, jax.random.split(critic_key, config.critic_updates)
        )

        (pi_loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, critics, alpha, obs[-1], action_key
        )
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)

        a_loss, grads = jax.value_and_grad(alpha_loss)(state.log_alpha, log_prob, target_entropy)
        updates, alpha_opt = alpha_adam.update(grads, state.alpha_opt)
        log_alpha = optax.apply_updates(state.log_alpha, updates)

        metrics = {
            "critic_loss": jnp.mean(q_loss),
            "actor_loss": pi_loss,
            "ent_coef": alpha,
            "ent_coef_loss": a_loss,
            "entropy": -log_prob,
            "q_mean": jnp.mean(q),
        }
        return State(actor, critics, targets, log_alpha, actor_opt, critic_opt, alpha_opt), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=act,
        update=update,
        critics=lambda state: state.critics,
        value=value,
        gradient_steps=config.critic_updates,
    )
