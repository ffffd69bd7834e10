"""Twin Delayed DDPG: Fujimoto, van Hoof, Meger, *Addressing Function Approximation Error in Actor-Critic Methods*,
ICML 2018 (arXiv 1802.09477).

A deterministic actor climbs the first of two critics. Both critics bootstrap from the smaller of their slow copies, at
the slow actor's action plus a little clipped noise; the actor and all slow copies move at every second update only.

Deviations, with reasons: docs/agents/td3.md.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.sac import value
from lsac.nn.networks import MLP, Critic, ensemble, polyak, q_values, select
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "relu"
    """relu, gelu, tanh or mish"""
    batch_size: int = 256
    """transitions per update"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    critic_lr: float = 3e-4
    """Adam step size of the critics"""
    adam_beta2: float = 0.999
    """β₂ of Adam: how much of the running mean of squared gradients a step keeps"""
    tau: float = 0.005
    """share of the new parameters in the slow copies whenever these move"""
    delay: int = 2
    """actor and all slow copies move at every so many updates"""
    exploration_noise: float = 0.1
    """std of the noise on actions while exploring"""
    target_noise: float = 0.2
    """std of the noise on the slow actor's action in the target"""
    noise_clip: float = 0.5
    """largest noise on an action in the target"""


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
    """π(s), plus N(0, noise²) while exploring, kept in [−1, 1]."""
    action = greedy(actor, obs)
    return jnp.clip(action + noise * jax.random.normal(key, action.shape), -1.0, 1.0) if explore else action


def smoothed(actor: MLP, obs: Array, key: Key, noise: float, noise_clip: float) -> Array:
    """ã = clip(π(s) + clip(N(0, noise²), ±noise_clip), ±1) for a batch [B, O]: target policy smoothing."""
    action = jax.vmap(greedy, in_axes=(None, 0))(actor, obs)
    drawn = jnp.clip(noise * jax.random.normal(key, action.shape), -noise_clip, noise_clip)
    return jnp.clip(action + drawn, -1.0, 1.0)


def td_target(targets: Critic, batch: Transition, next_action: Array) -> Array:
    """y = r + discount · min_k Q̄_k(s', ã): clipped double Q-learning."""
    return batch.reward + batch.discount * jnp.min(q_values(targets, batch.next_obs, next_action), axis=0)


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
        critics = ensemble(lambda k: Critic(*spec, config.hidden, config.activation, k), 2, critic_key)
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
        (q_loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        updates, critic_opt = critic_adam.update(grads, state.critic_opt)
        critics = optax.apply_updates(state.critics, updates)

        first = jax.tree.map(lambda leaf: leaf[0], critics)  # the actor never sees the other
        pi_loss, grads = jax.value_and_grad(actor_loss)(state.actor, first, batch.obs)
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)

        before = state._replace(critics=critics, critic_opt=critic_opt, updates=state.updates + 1)
        after = before._replace(
            actor=actor,
            target_actor=polyak(state.target_actor, actor, config.tau),
            targets=polyak(state.targets, critics, config.tau),
            actor_opt=actor_opt,
        )
        metrics = {"critic_loss": q_loss, "actor_loss": pi_loss, "q_mean": jnp.mean(q)}
        return select(before.updates % config.delay == 0, after, before), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=lambda actor, obs, key, explore: act(actor, obs, key, explore, config.exploration_noise),
        update=update,
        critics=lambda state: state.critics,
        value=value,
    )
