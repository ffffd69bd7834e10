"""DSAC-T: Duan et al., *Distributional Soft Actor-Critic with Three Refinements*, 2023 (arXiv 2310.05858).

Soft Actor-Critic whose two critics learn the whole return as a Gaussian. The mean follows the expected target, the
standard deviation a drawn one that is held near the mean, and the loss is scaled by the average variance, so that
step sizes need not know the size of rewards. Next actions come from a slow actor.

The loss of the released code is not the one of the paper: both are here. Deviations: docs/agents/dsact.md.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.lsac.chains import lower, returns, targets_of
from lsac.agents.sac import act
from lsac.nn.distributions import gaussian_return_loss, huber_return_loss
from lsac.nn.networks import GaussianActor, GaussianCritic, ensemble, polyak, sample_actions, select
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "gelu"
    """relu, gelu, tanh or mish"""
    loss: Literal["published", "released"] = "published"
    """loss of the critics: the gradient that the paper gives, or what its code does"""
    batch_size: int = 256
    """transitions per update"""
    actor_lr: float = 1e-4
    """Adam step size of the actor"""
    critic_lr: float = 1e-4
    """Adam step size of the critics"""
    alpha_lr: float = 3e-4
    """Adam step size of log α; 0 keeps α as it starts"""
    tau: float = 0.005
    """share of the new parameters in slow copies, and of a batch in running means"""
    delay: int = 2
    """actor, α and all slow copies move at every so many updates"""
    alpha_init: float = math.e
    """entropy weight at the start"""
    target_entropy: float | None = None
    """entropy that α is tuned for; None is −dim(A)"""
    bound_factor: float = 3.0
    """the std's target stays within this many mean stds of Q"""
    std_eps: float = 0.1
    """ε in the denominators of the loss, and in the scale of the published one"""


class State(NamedTuple):
    actor: GaussianActor
    target_actor: GaussianActor
    critics: GaussianCritic  # stacked [2]
    targets: GaussianCritic  # stacked [2]
    std_mean: Array  # [2] running mean of σ: bounds y_Z, and scales the released loss
    var_mean: Array  # [2] running mean of σ²: scales the published loss
    log_alpha: Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array


def value(critics: GaussianCritic, obs: Array, action: Array) -> Metrics:
    """The smaller mean return, and the mean std."""
    mean, std = jax.vmap(lambda critic: critic(obs, action))(critics)
    return {"q": jnp.min(mean), "return_std": jnp.mean(std)}


def running_mean(old: Array, x: Array, tau: float, updates: Array) -> Array:
    """old + τ (E_B[x] − old), x [2, B]; the first batch's mean where there is no old one yet."""
    new = jnp.mean(x, axis=1)
    return jnp.where(updates == 0, new, old + tau * (new - old))


def critic_loss(
    critics: GaussianCritic, batch: Transition, y_q: Array, y_z: Array, state: State, config: Config
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The chosen loss, summed over critics; also the running means and the mean and std [2, B] that are predicted."""
    mean, std = returns(critics, batch.obs, batch.action)
    fixed = jax.lax.stop_gradient(std)
    std_mean = running_mean(state.std_mean, fixed, config.tau, state.updates)
    var_mean = running_mean(state.var_mean, fixed**2, config.tau, state.updates)
    bound = config.bound_factor * std_mean
    if config.loss == "published":
        loss_of, scale = gaussian_return_loss, var_mean + config.std_eps
    else:
        loss_of, scale = huber_return_loss, std_mean**2
    over_critics = jax.vmap(loss_of, in_axes=(0, 0, None, None, 0, 0, None))
    loss = over_critics(mean, std, y_q, y_z, bound, scale, config.std_eps)
    return jnp.sum(loss), (std_mean, var_mean, mean, std)


def actor_loss(
    actor: GaussianActor, critics: GaussianCritic, alpha: Array, obs: Array, key: Key
) -> tuple[Array, Array]:
    """α log π(a|s) − min_k Q_k(s, a), a ~ π reparameterised. Also returns the mean log density."""
    action, log_prob = sample_actions(actor, obs, key)
    return jnp.mean(alpha * log_prob - lower(critics, obs, action)), jnp.mean(log_prob)


def alpha_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """−log α · (log π + H̄): SAC's without the factor α, so that steps are as large where α is small."""
    return -log_alpha * jax.lax.stop_gradient(log_prob + target_entropy)


def make(config: Config, spec: EnvSpec) -> Agent:
    actor_adam, critic_adam, alpha_adam = (adam(lr) for lr in (config.actor_lr, config.critic_lr, config.alpha_lr))
    target_entropy = -float(spec.action_dim) if config.target_entropy is None else config.target_entropy

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = GaussianActor(*spec, config.hidden, config.activation, actor_key, (-20.0, 0.5))
        critics = ensemble(lambda k: GaussianCritic(*spec, config.hidden, config.activation, k), 2, critic_key)
        log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
        return State(
            actor=actor,
            target_actor=actor,
            critics=critics,
            targets=critics,
            std_mean=jnp.zeros(2),
            var_mean=jnp.zeros(2),
            log_alpha=log_alpha,
            actor_opt=actor_adam.init(actor),
            critic_opt=critic_adam.init(critics),
            alpha_opt=alpha_adam.init(log_alpha),
            updates=jnp.zeros((), jnp.int32),
        )

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, action_key = jax.random.split(key, 3)
        batch = rb.sample(replay, batch_key, config.batch_size)
        alpha = jnp.exp(state.log_alpha)

        y_q, y_z = targets_of(state.targets, state.target_actor, alpha, batch, target_key)
        (_, aux), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, y_q, y_z, state, config)
        std_mean, var_mean, mean, std = aux
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

        before = state._replace(
            critics=critics,
            critic_opt=critic_opt,
            std_mean=std_mean,
            var_mean=var_mean,
            updates=state.updates + 1,
        )
        after = before._replace(
            actor=actor,
            target_actor=polyak(state.target_actor, actor, config.tau),
            targets=polyak(state.targets, critics, config.tau),
            log_alpha=log_alpha,
            actor_opt=actor_opt,
            alpha_opt=alpha_opt,
        )
        metrics = {
            "critic_loss": jnp.mean((mean - y_q[None]) ** 2),
            "actor_loss": pi_loss,
            "ent_coef": alpha,
            "ent_coef_loss": a_loss,
            "entropy": -log_prob,
            "q_mean": jnp.mean(mean),
            "q_std": jnp.mean(std),
        }
        return select(state.updates % config.delay == 0, after, before), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=act,
        update=update,
        critics=lambda state: state.critics,
        value=value,
    )
