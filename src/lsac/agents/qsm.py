"""Q-score matching (QSM): Psenka, Escontrela, Abbeel, Ma, ICML 2024 (arXiv 2312.11752).

From *Learning a Diffusion Model Policy from Rewards via Q-Score Matching*. The policy is a diffusion model of actions
given a state. Its score is not fitted to data but regressed onto M_q ∇_a Q at noisy actions, so that sampling an action
is a short noisy ascent of Q. M_q acts as the inverse temperature of the policy. Two critics without an entropy term,
with the minimum of their target networks in the TD target.

Deviations, with reasons: docs/agents/qsm.md.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents.redq import glorot
from lsac.agents.sac import value
from lsac.agents.td3 import critic_loss, td_target
from lsac.nn.diffusion import Ddpm, PredictNoise, ddpm, noised, sample_ddpm, vp_betas
from lsac.nn.networks import MLP, Critic, ensemble, polyak, q_values, redrawn
from lsac.nn.optimisers import adam, descend
from lsac.options import BatchSize, Between, Count, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition, Values, memoryless

FREQUENCIES, TIME = 32, 128
"""Fourier features of the diffusion step t, each a sine and a cosine, and the size of the embedding of t."""


@dataclass(frozen=True)
class Config:
    hidden: Layers = (512, 512)
    """width of each hidden layer, for actor (Mish) and critics (ReLU)"""
    denoising_steps: Annotated[int, Between(1, 10_000)] = 5
    """denoising steps from noise to an action"""
    score_scale: Positive = 50.0
    """M_q: the actor's score is fitted to M_q ∇Q; a larger value makes the policy greedier"""
    batch_size: BatchSize = 256
    """transitions per update"""
    actor_lr: Positive = 3e-4
    """initial Adam step size of the actor"""
    actor_decay: Count = 2_000_000
    """updates over which the actor's step size decays to 0, along a cosine"""
    critic_lr: Positive = 3e-4
    """Adam step size of the critics"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in the target critics, at every update"""
    exploration_noise: NotNegative = 0.1
    """std of the noise added to sampled actions while exploring"""
    target_noise: NotNegative = 0.1
    """std of the noise added to sampled actions in the TD target"""


class ScoreActor(eqx.Module):
    """ε(s, a_t, t), for one state and one action: minus the score at a noisy action, as in a DDPM."""

    frequencies: Array
    time: MLP
    mlp: MLP

    def __init__(self, obs_dim: int, action_dim: int, hidden: tuple[int, ...], key: Key):
        keys, draw = jax.random.split(key, 5), jax.nn.initializers.glorot_uniform()
        time = MLP((2 * FREQUENCIES, TIME, TIME), "mish", keys[0])
        mlp = MLP((action_dim + obs_dim + TIME, *hidden, action_dim), "mish", keys[1])
        self.frequencies = 0.2 * jax.random.normal(keys[2], (FREQUENCIES,))  # trained, too
        self.time = redrawn(time, draw, keys[3])
        self.mlp = redrawn(mlp, draw, keys[4], last_scale=0.01)  # an untrained policy is noise, not a corner

    def __call__(self, obs: Array, action: Array, t: Array) -> Array:
        angles = 2.0 * jnp.pi * t.astype(jnp.float32) * self.frequencies
        time = self.time(jnp.concatenate([jnp.cos(angles), jnp.sin(angles)]))
        return self.mlp(jnp.concatenate([action, obs, time]))


class State(NamedTuple):
    actor: ScoreActor
    critics: Critic  # stacked [2]
    targets: Critic  # stacked [2]
    actor_opt: optax.OptState
    critic_opt: optax.OptState


def drawn(predict: PredictNoise, schedule: Ddpm, shape: tuple[int, ...], key: Key, noise: float) -> Array:
    """a ~ π, sampled by the reverse diffusion, plus N(0, noise²), clipped to [−1, 1]."""
    start_key, step_key, noise_key = jax.random.split(key, 3)
    start = jax.random.normal(start_key, shape)
    action = sample_ddpm(predict, schedule, start, step_key, temperature=1.0, clip_clean=False)
    return jnp.clip(action + noise * jax.random.normal(noise_key, shape), -1.0, 1.0)


def act(actor: ScoreActor, schedule: Ddpm, obs: Array, key: Key, explore: bool, noise: float) -> Array:
    """A noisy sample while exploring; otherwise the noiseless diffusion from 0, the mean of the initial noise."""

    def predict(action: Array, t: Array) -> Array:
        return actor(obs, action, t)

    zero = jnp.zeros_like(actor.mlp.layers[-1].bias)
    if explore:
        return drawn(predict, schedule, zero.shape, key, noise)
    return sample_ddpm(predict, schedule, zero, key, temperature=0.0, clip_clean=False)


def q_slopes(critics: Critic, obs: Array, action: Array) -> Array:
    """[B, A]: ∇_a of the critics' mean, ½ Σ_k ∇_a Q_k(s, a)."""
    return jax.grad(lambda action: jnp.sum(jnp.mean(q_values(critics, obs, action), axis=0)))(action)


def actor_loss(
    actor: ScoreActor, critics: Critic, schedule: Ddpm, scale: float, batch: Transition, key: Key
) -> tuple[Array, Array]:
    """‖ε(s, a_t, t) + M_q ∇_a Q(s, a_t)‖² at a_t = √ᾱ_t a + √(1 − ᾱ_t) z with a from the replay and t uniform, averaged
    over the coordinates of an action. Also returns the mean of |∂Q/∂a|."""
    time_key, noise_key = jax.random.split(key)
    t = jax.random.randint(time_key, batch.reward.shape, 0, schedule.betas.shape[0])
    noise = jax.random.normal(noise_key, batch.action.shape)
    action = jax.vmap(noised, in_axes=(None, 0, 0, 0))(schedule, batch.action, t, noise)
    slopes = jax.lax.stop_gradient(q_slopes(critics, batch.obs, action))
    predicted = jax.vmap(actor)(batch.obs, action, t)
    return jnp.mean((predicted + scale * slopes) ** 2), jnp.mean(jnp.abs(slopes))


def make(config: Config, spec: EnvSpec) -> Agent:
    schedule = ddpm(vp_betas(config.denoising_steps))
    actor_adam = adam(optax.cosine_decay_schedule(config.actor_lr, config.actor_decay))
    critic_adam, noise = adam(config.critic_lr), config.exploration_noise

    def critic(key: Key) -> Critic:
        key, weight_key = jax.random.split(key)
        return glorot(Critic(spec.obs_dim, spec.action_dim, config.hidden, "relu", key), weight_key)

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = ScoreActor(spec.obs_dim, spec.action_dim, config.hidden, actor_key)
        critics = ensemble(critic, 2, critic_key)
        return State(actor, critics, critics, actor_adam.init(actor), critic_adam.init(critics))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, actor_key = jax.random.split(key, 3)
        batch = rb.sample(replay, batch_key, config.batch_size)

        def predict(action: Array, t: Array) -> Array:
            return jax.vmap(state.actor, in_axes=(0, 0, None))(batch.next_obs, action, t)

        next_action = drawn(predict, schedule, batch.action.shape, target_key, config.target_noise)
        target = td_target(state.targets, batch, next_action)
        critics = descend(critic_adam, critic_loss, state.critics, state.critic_opt, batch, target)
        data = critics.params, schedule, config.score_scale, batch, actor_key
        actor = descend(actor_adam, actor_loss, state.actor, state.actor_opt, *data)

        targets = polyak(state.targets, critics.params, config.tau)
        metrics = {"critic_loss": critics.loss, "actor_loss": actor.loss}
        metrics |= {"q_mean": jnp.mean(critics.aux), "q_slope": actor.aux}
        return State(actor.params, critics.params, targets, actor.opt, critics.opt), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=memoryless(lambda actor, obs, key, explore: act(actor, schedule, obs, key, explore, noise)),
        update=update,
        values=Values(lambda state: state.critics, value),
    )
