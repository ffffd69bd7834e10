"""Twin Delayed DDPG (TD3): Fujimoto, van Hoof, Meger, ICML 2018 (arXiv 1802.09477).

From *Addressing Function Approximation Error in Actor-Critic Methods*. A deterministic actor maximises the first of two
critics. The TD target is the minimum of the two target critics at the target actor's action plus clipped noise (target
policy smoothing). The actor and all target networks are updated only at every second update.

Deviations, with reasons: docs/agents/td3.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.sac import value
from lsac.nn.networks import MLP, Activation, Critic, ensemble, min_q, polyak, q_values, select
from lsac.nn.optimisers import adam, descend
from lsac.options import AddedLater, BatchSize, Count, Decay, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition, Values, memoryless


@dataclass(frozen=True)
class Config:
    hidden: Layers = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "relu"
    """relu, gelu, elu, tanh or mish"""
    batch_size: BatchSize = 256
    """transitions per update"""
    actor_lr: Positive = 3e-4
    """Adam step size of the actor"""
    critic_lr: Positive = 3e-4
    """Adam step size of the critics"""
    adam_beta2: Annotated[Decay, AddedLater(before=0.999)] = 0.999
    """β₂ of Adam: decay rate of the running mean of squared gradients"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in the target networks, whenever these are updated"""
    delay: Count = 2
    """critic updates per update of the actor and all target networks"""
    exploration_noise: NotNegative = 0.1
    """std of the noise on actions while exploring"""
    target_noise: NotNegative = 0.2
    """std of the noise on the target actor's action in the TD target"""
    noise_clip: NotNegative = 0.5
    """bound to which the noise in the TD target is clipped"""


class State(NamedTuple):
    actor: MLP
    target_actor: MLP
    critics: Critic  # stacked [2]
    targets: Critic  # stacked [2]
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    updates: Array


def greedy(actor: MLP, obs: Array) -> Array:
    """π(s) = tanh of the network."""
    return jnp.tanh(actor(obs))


def act(actor: MLP, obs: Array, key: Key, explore: bool, noise: float) -> Array:
    """π(s), plus N(0, noise²) while exploring, clipped to [−1, 1]."""
    action = greedy(actor, obs)
    return jnp.clip(action + noise * jax.random.normal(key, action.shape), -1.0, 1.0) if explore else action


def smoothed(actor: MLP, obs: Array, key: Key, noise: float, noise_clip: float) -> Array:
    """ã = clip(π(s) + clip(N(0, noise²), ±noise_clip), ±1) for a batch [B, O]: target policy smoothing."""
    action = jax.vmap(greedy, in_axes=(None, 0))(actor, obs)
    clipped = jnp.clip(noise * jax.random.normal(key, action.shape), -noise_clip, noise_clip)
    return jnp.clip(action + clipped, -1.0, 1.0)


def td_target(targets: Critic, batch: Transition, next_action: Array) -> Array:
    """y = r + discount · min_k Q̄_k(s', ã): clipped double Q-learning."""
    return batch.reward + batch.discount * min_q(targets, batch.next_obs, next_action)


def critic_loss(critics: Critic, batch: Transition, target: Array) -> tuple[Array, Array]:
    """(Q − y)², summed over critics. Also returns Q, [2, B]."""
    q = q_values(critics, batch.obs, batch.action)
    return jnp.sum(jnp.mean((q - target[None]) ** 2, axis=1)), q


def actor_loss(actor: MLP, critic: Critic, obs: Array) -> Array:
    """−Q_1(s, π(s)): the deterministic policy gradient."""
    action = jax.vmap(greedy, in_axes=(None, 0))(actor, obs)
    return -jnp.mean(jax.vmap(critic)(obs, action))


def make(config: Config, spec: EnvSpec) -> Agent:
    actor_adam, critic_adam = (adam(lr, b2=config.adam_beta2) for lr in (config.actor_lr, config.critic_lr))

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = MLP((spec.obs_dim, *config.hidden, spec.action_dim), config.activation, actor_key)
        sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)
        critics = ensemble(lambda k: Critic(*sizes, k), 2, critic_key)
        return State(
            actor=actor,
            target_actor=actor,
            critics=critics,
            targets=critics,
            actor_opt=actor_adam.init(actor),
            critic_opt=critic_adam.init(critics),
            updates=jnp.zeros((), jnp.int32),
        )

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, noise_key = jax.random.split(key)
        batch = rb.sample(replay, batch_key, config.batch_size)

        next_action = smoothed(state.target_actor, batch.next_obs, noise_key, config.target_noise, config.noise_clip)
        target = td_target(state.targets, batch, next_action)
        critics = descend(critic_adam, critic_loss, state.critics, state.critic_opt, batch, target)
        first = jax.tree.map(lambda leaf: leaf[0], critics.params)  # the actor maximises only the first critic
        actor = descend(actor_adam, actor_loss, state.actor, state.actor_opt, first, batch.obs, has_aux=False)

        before = state._replace(critics=critics.params, critic_opt=critics.opt, updates=state.updates + 1)
        after = before._replace(
            actor=actor.params,
            target_actor=polyak(state.target_actor, actor.params, config.tau),
            targets=polyak(state.targets, critics.params, config.tau),
            actor_opt=actor.opt,
        )
        metrics = {"critic_loss": critics.loss, "actor_loss": actor.loss, "q_mean": jnp.mean(critics.aux)}
        return select(before.updates % config.delay == 0, after, before), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=memoryless(partial(act, noise=config.exploration_noise)),
        update=update,
        values=Values(lambda state: state.critics, value, deterministic=True),
    )
