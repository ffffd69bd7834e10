"""Soft Actor-Critic: Haarnoja et al., *Soft Actor-Critic Algorithms and Applications*, 2018 (arXiv 1812.05905).

A stochastic actor maximises Q plus α times its entropy; two critics learn the soft value by bootstrapping from
the smaller of their two slow copies; α is tuned so that the entropy stays near −dim(A).

Deviations, with reasons: docs/agents/sac.md.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.nn.distributions import tanh_normal_sample
from lsac.nn.networks import Critic, GaussianActor, ensemble, polyak, q_values, sample_actions
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "relu"
    """relu, gelu, tanh or mish"""
    critics: int = 2
    """number of critics; the target uses their minimum"""
    batch_size: int = 256
    """transitions per update"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    critic_lr: float = 3e-4
    """Adam step size of the critics"""
    alpha_lr: float = 3e-4
    """Adam step size of log α; 0 keeps α as it starts"""
    adam_beta2: float = 0.999
    """β₂ of Adam: how much of the running mean of squared gradients a step keeps"""
    tau: float = 0.005
    """share of the new parameters in the target critics at every update"""
    alpha_init: float = 1.0
    """entropy weight at the start"""
    target_entropy: float | None = None
    """entropy that α is tuned for; None is −dim(A)"""


class State(NamedTuple):
    actor: GaussianActor
    critics: Critic  # stacked [K]
    targets: Critic  # stacked [K]
    log_alpha: Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState


def act(actor: GaussianActor, obs: Array, key: Key, explore: bool) -> Array:
    mean, log_std = actor(obs)
    return tanh_normal_sample(mean, log_std, key)[0] if explore else jnp.tanh(mean)


def value(critics: Critic, obs: Array, action: Array) -> Metrics:
    return {"q": jnp.min(jax.vmap(lambda critic: critic(obs, action))(critics))}


def td_target(targets: Critic, actor: GaussianActor, alpha: Array, batch: Transition, key: Key) -> Array:
    """y = r + discount · (min_k Q̄_k(s', a') − α log π(a'|s')), a' ~ π: eq. (3) with the minimum of the targets."""
    action, log_prob = sample_actions(actor, batch.next_obs, key)
    value = jnp.min(q_values(targets, batch.next_obs, action), axis=0) - alpha * log_prob
    return batch.reward + batch.discount * value


def critic_loss(critics: Critic, batch: Transition, target: Array) -> tuple[Array, Array]:
    """½ (Q − y)², summed over critics: eq. (5). Also returns Q, [K, B]."""
    q = q_values(critics, batch.obs, batch.action)
    return 0.5 * jnp.sum(jnp.mean((q - target[None]) ** 2, axis=1)), q


def actor_loss(actor: GaussianActor, critics: Critic, alpha: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """α log π(a|s) − min_k Q_k(s, a), a ~ π reparameterised: eq. (9). Also returns the mean log density."""
    action, log_prob = sample_actions(actor, obs, key)
    q = jnp.min(q_values(critics, obs, action), axis=0)
    return jnp.mean(alpha * log_prob - q), jnp.mean(log_prob)


def alpha_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """α · (−log π − H̄): eq. (18)."""
    return jnp.exp(log_alpha) * jax.lax.stop_gradient(-log_prob - target_entropy)


def make(config: Config, spec: EnvSpec) -> Agent:
    rates = (config.actor_lr, config.critic_lr, config.alpha_lr)
    actor_adam, critic_adam, alpha_adam = (adam(lr, b2=config.adam_beta2) for lr in rates)
    target_entropy = -float(spec.action_dim) if config.target_entropy is None else config.target_entropy

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = GaussianActor(*spec, config.hidden, config.activation, actor_key, (-20.0, 2.0))
        critics = ensemble(lambda k: Critic(*spec, config.hidden, config.activation, k), config.critics, critic_key)
        log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
        return State(
            actor,
            critics,
            critics,
            log_alpha,
            actor_adam.init(actor),
            critic_adam.init(critics),
            alpha_adam.init(log_alpha),
        )

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, action_key = jax.random.split(key, 3)
        batch = rb.sample(replay, batch_key, config.batch_size)
        alpha = jnp.exp(state.log_alpha)

        target = td_target(state.targets, state.actor, alpha, batch, target_key)
        (q_loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        updates, critic_opt = critic_adam.update(grads, state.critic_opt)
        critics = optax.apply_updates(state.critics, updates)

        (pi_loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, critics, alpha, batch.obs, action_key
        )
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)

        a_loss, grads = jax.value_and_grad(alpha_loss)(state.log_alpha, log_prob, target_entropy)
        updates, alpha_opt = alpha_adam.update(grads, state.alpha_opt)
        log_alpha = optax.apply_updates(state.log_alpha, updates)

        targets = polyak(state.targets, critics, config.tau)
        metrics = {
            "critic_loss": q_loss,
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
    )
