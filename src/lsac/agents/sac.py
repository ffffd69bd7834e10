"""Soft Actor-Critic: Haarnoja et al., *Soft Actor-Critic Algorithms and Applications*, 2018 (arXiv 1812.05905).

A stochastic actor maximises Q plus α times its entropy. Two critics learn the soft action value; their TD target uses
the minimum of the two target networks. α is tuned so that the entropy stays near −dim(A).

Deviations, with reasons: docs/agents/sac.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from lsac.nn.distributions import tanh_normal_sample
from lsac.nn.networks import (
    WIDE_LOG_STD,
    Activation,
    Critic,
    GaussianActor,
    ensemble,
    gaussian_actor,
    min_q,
    polyak,
    q_values,
    sample_actions,
)
from lsac.nn.optimisers import adam, descend
from lsac.options import AddedLater, BatchSize, Count, Decay, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, Entropy, EnvSpec, Key, Metrics, Transition, Values, memoryless


@dataclass(frozen=True)
class Config:
    hidden: Layers = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "relu"
    """relu, gelu, elu, tanh or mish"""
    critics: Count = 2
    """number of critics; the target uses their minimum"""
    batch_size: BatchSize = 256
    """transitions per update"""
    actor_lr: Positive = 3e-4
    """Adam step size of the actor"""
    critic_lr: Positive = 3e-4
    """Adam step size of the critics"""
    alpha_lr: NotNegative = 3e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    adam_beta2: Annotated[Decay, AddedLater(before=0.999)] = 0.999
    """β₂ of Adam: decay rate of the running mean of squared gradients"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in the target critics, at every update"""
    alpha_init: Positive = 1.0
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means −dim(A)"""


class State(NamedTuple):
    actor: GaussianActor
    critics: Critic  # stacked [K]
    targets: Critic  # stacked [K]
    log_alpha: Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState


EntropyRange = Literal["unit", "env"]
"""The range of actions that a target entropy is meant for: [−1, 1] or the environment's own."""

SacLike = TypeVar("SacLike", bound=Any)
"""A state with at least SAC's actor, critics, log α and their optimiser states."""


class PolicyLosses(NamedTuple):
    """The losses that `improve_policy` minimises; each algorithm has its own."""

    actor: Callable[..., tuple[Array, Array]]
    """actor, critics, α, obs, key → loss, mean log density"""
    alpha: Callable[..., Array]
    """log α, mean log density, target entropy → loss"""


def act(actor: GaussianActor, obs: Array, key: Key, explore: bool) -> Array:
    mean, log_std = actor(obs)
    return tanh_normal_sample(mean, log_std, key)[0] if explore else jnp.tanh(mean)


def neg_log_prob(actor: GaussianActor, memory: Any, obs: Array, key: Key) -> Array:
    """−log π(a|s) of the action a that `act` samples with this key; from the sample before tanh, so that it is also
    accurate where |a| rounds to 1."""
    return -tanh_normal_sample(*actor(obs), key)[1]


ENTROPY = Entropy(lambda state: jnp.exp(state.log_alpha), neg_log_prob)
"""The entropy bonus in the values of SAC, and of the agents that act as it does and have its log α."""


def value(critics: Critic, obs: Array, action: Array) -> Metrics:
    return {"q": jnp.min(jax.vmap(lambda critic: critic(obs, action))(critics))}


def td_target(targets: Critic, actor: GaussianActor, alpha: Array, batch: Transition, key: Key) -> Array:
    """y = r + discount · (min_k Q̄_k(s', a') − α log π(a'|s')), a' ~ π: eq. (3) with the minimum of the targets."""
    action, log_prob = sample_actions(actor, batch.next_obs, key)
    value = min_q(targets, batch.next_obs, action) - alpha * log_prob
    return batch.reward + batch.discount * value


def critic_loss(critics: Critic, batch: Transition, target: Array) -> tuple[Array, Array]:
    """½ (Q − y)², summed over critics: eq. (5). Also returns Q, [K, B]."""
    q = q_values(critics, batch.obs, batch.action)
    return 0.5 * jnp.sum(jnp.mean((q - target[None]) ** 2, axis=1)), q


def actor_loss(actor: GaussianActor, critics: Critic, alpha: Array, obs: Array, key: Key) -> tuple[Array, Array]:
    """α log π(a|s) − min_k Q_k(s, a), a ~ π reparameterised: eq. (9). Also returns the mean log density."""
    action, log_prob = sample_actions(actor, obs, key)
    return jnp.mean(alpha * log_prob - min_q(critics, obs, action)), jnp.mean(log_prob)


def alpha_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """α · (−log π − H̄): eq. (18)."""
    return jnp.exp(log_alpha) * jax.lax.stop_gradient(-log_prob - target_entropy)


class Optimisers(NamedTuple):
    actor: optax.GradientTransformation
    critics: optax.GradientTransformation
    alpha: optax.GradientTransformation


def entropy_target(target_entropy: float | None, spec: EnvSpec, meant_for: EntropyRange = "unit") -> float:
    """The target entropy H̄ of actions in [−1, 1]; by default −dim(A). One that is meant for the environment's own
    range is converted: actions h times as large have an entropy that is larger by log h per dimension."""
    target = -float(spec.action_dim) if target_entropy is None else target_entropy
    return target - spec.log_action_scale if meant_for == "env" else target


def first_state(actor: GaussianActor, critics: Critic, alpha: float, optimisers: Optimisers) -> State:
    log_alpha = jnp.log(jnp.asarray(alpha, jnp.float32))
    return State(
        actor=actor,
        critics=critics,
        targets=critics,
        log_alpha=log_alpha,
        actor_opt=optimisers.actor.init(actor),
        critic_opt=optimisers.critics.init(critics),
        alpha_opt=optimisers.alpha.init(log_alpha),
    )


def improve_policy(
    optimisers: Optimisers, state: SacLike, losses: PolicyLosses, obs: Array, target_entropy: float, key: Key
) -> tuple[SacLike, Metrics]:
    """One gradient step of the actor, and one of α with the entropy of the actor before that step."""
    alpha = jnp.exp(state.log_alpha)
    actor = descend(optimisers.actor, losses.actor, state.actor, state.actor_opt, state.critics, alpha, obs, key)
    log_prob = actor.aux
    tuned = descend(
        optimisers.alpha, losses.alpha, state.log_alpha, state.alpha_opt, log_prob, target_entropy, has_aux=False
    )
    after = state._replace(actor=actor.params, actor_opt=actor.opt, log_alpha=tuned.params, alpha_opt=tuned.opt)
    metrics = {"actor_loss": actor.loss, "ent_coef": alpha, "ent_coef_loss": tuned.loss, "entropy": -log_prob}
    return after, metrics


def make(config: Config, spec: EnvSpec) -> Agent:
    rates = (config.actor_lr, config.critic_lr, config.alpha_lr)
    optimisers = Optimisers(*(adam(lr, b2=config.adam_beta2) for lr in rates))
    target_entropy = entropy_target(config.target_entropy, spec)
    sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = gaussian_actor(*sizes, actor_key, WIDE_LOG_STD)
        critics = ensemble(lambda k: Critic(*sizes, k), config.critics, critic_key)
        return first_state(actor, critics, config.alpha_init, optimisers)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, action_key = jax.random.split(key, 3)
        batch = rb.sample(replay, batch_key, config.batch_size)

        target = td_target(state.targets, state.actor, jnp.exp(state.log_alpha), batch, target_key)
        critics = descend(optimisers.critics, critic_loss, state.critics, state.critic_opt, batch, target)
        state = state._replace(critics=critics.params, critic_opt=critics.opt)

        losses = PolicyLosses(actor_loss, alpha_loss)
        state, metrics = improve_policy(optimisers, state, losses, batch.obs, target_entropy, action_key)
        state = state._replace(targets=polyak(state.targets, state.critics, config.tau))
        return state, metrics | {"critic_loss": critics.loss, "q_mean": jnp.mean(critics.aux)}

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=memoryless(act),
        update=update,
        values=Values(lambda state: state.critics, value, ENTROPY),
    )
