"""DSAC-T: Duan et al., *Distributional Soft Actor-Critic with Three Refinements*, 2023 (arXiv 2310.05858).

SAC with two critics that model the return as a Gaussian N(Q, σ²). Q is regressed onto the expected TD target, σ onto a
sampled target that is clipped to a range around Q. The loss is scaled by the running mean of σ², so that the step sizes
do not depend on the reward scale. Next actions come from a target actor.

The loss of the authors' code differs from the paper's; both are implemented. Deviations: docs/agents/dsact.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents import sac
from lsac.nn.batch_norm import AXIS
from lsac.nn.distributions import gaussian_return_loss, huber_return_loss
from lsac.nn.networks import (
    NARROW_LOG_STD,
    Activation,
    GaussianActor,
    GaussianCritic,
    ensemble,
    gaussian_actor,
    gaussian_critic,
    polyak,
    sample_actions,
    select,
)
from lsac.nn.optimisers import adam, descend
from lsac.options import AddedLater, BatchSize, Count, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition, Values, memoryless

LARGEST_Z = 3.0
"""A sampled return is clipped to this many stds around its mean, as in the published code."""


@dataclass(frozen=True)
class Config:
    hidden: Layers = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "gelu"
    """relu, gelu, elu, tanh or mish"""
    loss: Literal["published", "released"] = "published"
    """loss of the critics: that of the paper (published) or that of its code (released)"""
    batch_size: BatchSize = 256
    """transitions per update"""
    actor_lr: Positive = 1e-4
    """Adam step size of the actor"""
    critic_lr: Positive = 1e-4
    """Adam step size of the critics"""
    alpha_lr: NotNegative = 3e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in target networks, and of a batch in running means"""
    delay: Count = 2
    """critic updates per update of the actor, α and all target networks"""
    alpha_init: Positive = math.e
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means −dim(A)"""
    entropy_range: Annotated[sac.EntropyRange, AddedLater(before="unit")] = "unit"
    """range of the actions that target_entropy is meant for: unit is [−1, 1], env is the environment's own"""
    bound_factor: Positive = 3.0
    """the sampled return target is clipped to Q ± this many times the mean σ"""
    std_eps: NotNegative = 0.1
    """ε in the denominators of the loss, and in the scale of the published loss"""


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


def returns(critics: GaussianCritic, obs: Array, action: Array) -> tuple[Array, Array]:
    """Means and stds [K, B] of the returns that K critics predict on a batch."""
    return jax.vmap(lambda critic: jax.vmap(critic, axis_name=AXIS)(obs, action))(critics)


def min_mean(critics: GaussianCritic, obs: Array, action: Array) -> Array:
    """[B] min_k Q_k(s, a), the smallest mean return."""
    return jnp.min(returns(critics, obs, action)[0], axis=0)


def lowest(critics: GaussianCritic, obs: Array, action: Array) -> tuple[Array, Array]:
    """Mean and std [B] of the return by the critic with the smallest mean."""
    mean, std = returns(critics, obs, action)
    least = jnp.argmin(mean, axis=0)[None]
    mean, std = (jnp.take_along_axis(x, least, axis=0)[0] for x in (mean, std))
    return mean, std


def return_targets(
    targets: Any,
    actor: GaussianActor,
    alpha: Array,
    batch: Transition,
    key: Key,
    predicted: Callable[..., tuple[Array, Array]] = lowest,
) -> tuple[Array, Array]:
    """y_Q and y_Z [B]: soft TD targets from the mean of the return that the target critics predict, by default that of
    the critic with the smallest mean, and from a sample of it."""
    action_key, return_key = jax.random.split(key)
    action, log_prob = sample_actions(actor, batch.next_obs, action_key)
    mean, std = predicted(targets, batch.next_obs, action)
    z = jnp.clip(jax.random.normal(return_key, mean.shape), -LARGEST_Z, LARGEST_Z)
    entropy = alpha * log_prob
    y_q = batch.reward + batch.discount * (mean - entropy)
    y_z = batch.reward + batch.discount * (mean + std * z - entropy)
    return y_q, y_z


def running_mean(old: Array, x: Array, tau: float, updates: Array) -> Array:
    """old + τ (E_B[x] − old), x [2, B]; at the first update, the mean of the batch."""
    new = jnp.mean(x, axis=1)
    return jnp.where(updates == 0, new, old + tau * (new - old))


def critic_loss(
    critics: GaussianCritic, batch: Transition, y_q: Array, y_z: Array, state: State, config: Config
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The chosen loss, summed over critics. Also returns the running means and the predicted mean and std [2, B]."""
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
    return jnp.mean(alpha * log_prob - min_mean(critics, obs, action)), jnp.mean(log_prob)


def alpha_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """−log α · (log π + H̄): SAC's loss without the factor α, so that a small α does not slow its own tuning."""
    return -log_alpha * jax.lax.stop_gradient(log_prob + target_entropy)


def first_state(config: Config, spec: EnvSpec, optimisers: sac.Optimisers, key: Key) -> State:
    sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)
    actor_key, critic_key = jax.random.split(key)
    actor = gaussian_actor(*sizes, actor_key, NARROW_LOG_STD)
    critics = ensemble(lambda k: gaussian_critic(*sizes, k), 2, critic_key)
    log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
    return State(
        actor=actor,
        target_actor=actor,
        critics=critics,
        targets=critics,
        std_mean=jnp.zeros(2),
        var_mean=jnp.zeros(2),
        log_alpha=log_alpha,
        actor_opt=optimisers.actor.init(actor),
        critic_opt=optimisers.critics.init(critics),
        alpha_opt=optimisers.alpha.init(log_alpha),
        updates=jnp.zeros((), jnp.int32),
    )


def make(config: Config, spec: EnvSpec) -> Agent:
    optimisers = sac.Optimisers(*(adam(lr) for lr in (config.actor_lr, config.critic_lr, config.alpha_lr)))
    target_entropy = sac.entropy_target(config.target_entropy, spec, config.entropy_range)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, action_key = jax.random.split(key, 3)
        batch = rb.sample(replay, batch_key, config.batch_size)

        alpha = jnp.exp(state.log_alpha)
        y_q, y_z = return_targets(state.targets, state.target_actor, alpha, batch, target_key)
        data = batch, y_q, y_z, state, config
        critics = descend(optimisers.critics, critic_loss, state.critics, state.critic_opt, *data)
        std_mean, var_mean, mean, std = critics.aux
        before = state._replace(
            critics=critics.params,
            critic_opt=critics.opt,
            std_mean=std_mean,
            var_mean=var_mean,
            updates=state.updates + 1,
        )

        losses = sac.PolicyLosses(actor_loss, alpha_loss)
        after, metrics = sac.improve_policy(optimisers, before, losses, batch.obs, target_entropy, action_key)
        after = after._replace(
            target_actor=polyak(state.target_actor, after.actor, config.tau),
            targets=polyak(state.targets, after.critics, config.tau),
        )
        metrics |= {
            "critic_loss": jnp.mean((mean - y_q[None]) ** 2),
            "q_mean": jnp.mean(mean),
            "q_std": jnp.mean(std),
        }
        return select(state.updates % config.delay == 0, after, before), metrics

    return Agent(
        init=partial(first_state, config, spec, optimisers),
        policy=lambda state: state.actor,
        act=memoryless(sac.act),
        update=update,
        values=Values(lambda state: state.critics, value, sac.ENTROPY),
    )
