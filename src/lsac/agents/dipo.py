"""DIPO (model-free online RL with diffusion policy): Yang et al., 2023 (arXiv 2305.13122).

From *Policy Representation via Diffusion Probability Model for Reinforcement Learning*. The policy is a diffusion model
of actions given a state, so it can be multimodal. It is never differentiated through Q. Instead, actions from the
replay are moved along ∇Q by a few Adam steps, the improved actions are stored, and the model is trained to denoise
them. Two critics without an entropy term, with the minimum of their target networks in the TD target.

Deviations, with reasons: docs/agents/dipo.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import tyro

from lsac.agents.sac import value
from lsac.agents.td3 import critic_loss, td_target
from lsac.errors import InputError
from lsac.nn.diffusion import Ddpm, PredictNoise, cosine_betas, ddpm, noised, sample_ddpm
from lsac.nn.networks import ACTIVATIONS, MLP, Activation, Critic, ensemble, min_q, polyak, redrawn, select
from lsac.nn.optimisers import adam, descend
from lsac.options import (
    AddedLater,
    BatchSize,
    Between,
    BufferSize,
    Count,
    CountOrZero,
    Decay,
    Layers,
    NotNegative,
    Positive,
    PositiveShare,
    RunOptions,
)
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Values, memoryless

TIME = 32
"""Size of the embedding of the diffusion step t."""

DRAW = jax.nn.initializers.variance_scaling(0.25, "fan_in", "normal")
"""Initialiser of weights; biases are 0. With random biases an untrained actor may choose one corner in all states."""


@dataclass(frozen=True)
class Config:
    hidden: Layers = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "mish"
    """relu, gelu, elu, tanh or mish"""
    denoising_steps: Annotated[int, Between(1, 10_000)] = 100
    """denoising steps from noise to an action"""
    batch_size: BatchSize = 256
    """transitions per update for the critics, and state-action pairs per update for the actor"""
    actor_lr: Positive = 3e-4
    """Adam step size of the actor"""
    critic_lr: Positive = 3e-4
    """Adam step size of the critics"""
    adam_beta2: Annotated[Decay, AddedLater(before=0.999)] = 0.999
    """β₂ of Adam for actor and critics: decay rate of the running mean of squared gradients"""
    grad_norm: NotNegative = 2.0
    """norm to which the gradients of the actor and of all critics together are clipped; 0 means no clipping"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in the target critics and the target actor"""
    target_every: Count = 1
    """updates between two updates of the target actor"""
    action_steps: CountOrZero = 20
    """Adam steps along ∇Q for a sampled action, per update"""
    action_lr: Positive = 0.03
    """Adam step size of these steps"""
    action_clip: NotNegative = 0.1
    """norm to which the gradient of a whole batch of actions is clipped, per action dimension; 0 means no clipping"""
    pair_capacity: BufferSize = 1_000_000
    """improved actions stored; at least as many as the replay has transitions"""
    no_write_back: tyro.conf.FlagCreatePairsOff[bool] = False
    """use improved actions once and do not store them, as in the published code"""

    def check(self, experiment: RunOptions) -> None:
        needed = min(experiment.replay_capacity, experiment.steps)
        if self.pair_capacity < needed:
            raise InputError(
                f"--pair-capacity {self.pair_capacity}: must be at least the replay's {needed} transitions"
            )


class DiffusionActor(eqx.Module):
    """ε(s, a_t, t): the noise in a_t, for one state and one action."""

    time: MLP
    mlp: MLP

    def __init__(self, obs_dim: int, action_dim: int, hidden: tuple[int, ...], activation: str, key: Key):
        keys = jax.random.split(key, 4)
        self.time = redrawn(MLP((TIME, hidden[0], TIME), activation, keys[0]), DRAW, keys[1])
        sizes = (action_dim + TIME + obs_dim, *hidden, action_dim)
        self.mlp = redrawn(MLP(sizes, activation, keys[2]), DRAW, keys[3])

    def __call__(self, obs: Array, action: Array, t: Array) -> Array:
        return self.mlp(jnp.concatenate([action, self.time(waves(t)), obs]))

    def given(self, obs: Array, steps: int) -> PredictNoise:
        """ε(s, ·, ·) for one state; the contributions of state and time to the first layer are computed once."""
        activate = ACTIVATIONS[self.mlp.activation]
        (first, *middle, last), size = self.mlp.layers, self.mlp.layers[-1].bias.shape[0]
        by_action, by_time, by_obs = jnp.split(first.weight, (size, size + TIME), axis=1)
        from_time = jax.vmap(lambda t: jnp.inner(self.time(waves(t)), by_time))(jnp.arange(steps))
        from_obs = jnp.inner(obs, by_obs) + first.bias

        def predict(action: Array, t: Array) -> Array:
            x = activate(jnp.inner(action, by_action) + from_time[t] + from_obs)
            for layer in middle:
                x = activate(layer(x))
            return last(x)

        return predict


class State(NamedTuple):
    actor: DiffusionActor
    target_actor: DiffusionActor
    critics: Critic  # stacked [K]
    targets: Critic  # stacked [K]
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    updates: Array
    pairs: Array  # [M, 2A]: original and improved action of the transition with the same index in the replay


def waves(t: Array) -> Array:
    """[TIME] sines and cosines of t, with periods from 2π to 2π·10⁴."""
    half = TIME // 2
    angles = t.astype(jnp.float32) * jnp.exp(-jnp.log(1e4) / (half - 1) * jnp.arange(half, dtype=jnp.float32))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])


def denoised(actor: DiffusionActor, schedule: Ddpm, obs: Array, start: Array, key: Key, temperature: float) -> Array:
    """The action that the denoising steps from `start` lead to, with x̂ clipped to [−1, 1] at each step: a ~ π(·|s) for
    normal `start` and temperature 1."""
    predict = actor.given(obs, len(schedule.betas))
    return sample_ddpm(predict, schedule, start, key, temperature=temperature, clip_clean=True)


def improved(config: Config, critics: Critic, obs: Array, action: Array) -> Array:
    """a after steps of a new Adam that maximises Σ_B min_k Q_k(s, a), clipped to [−1, 1].

    The norm of the gradient [B, A] of the whole batch is clipped to `action_clip` · dim(A).
    """
    optimiser = adam(config.action_lr, max_norm=config.action_clip * action.shape[1], eps=1e-5)
    gradient = jax.grad(lambda action: -jnp.sum(min_q(critics, obs, action)))

    def step(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
        action, opt = carry
        updates, opt = optimiser.update(gradient(action), opt)
        return (jnp.clip(action + updates, -1.0, 1.0), opt), None

    return jax.lax.scan(step, (action, optimiser.init(action)), None, length=config.action_steps)[0][0]


def actor_loss(actor: DiffusionActor, schedule: Ddpm, obs: Array, action: Array, key: Key) -> Array:
    """E (ε(s, √ᾱ_t a + √(1 − ᾱ_t) noise, t) − noise)², t uniform: denoising of the improved actions."""
    time_key, noise_key = jax.random.split(key)
    t = jax.random.randint(time_key, action.shape[:1], 0, len(schedule.betas))
    noise = jax.random.normal(noise_key, action.shape)
    noisy = jax.vmap(noised, in_axes=(None, 0, 0, 0))(schedule, action, t, noise)
    return jnp.mean((jax.vmap(actor)(obs, noisy, t) - noise) ** 2)


def newest(pairs: Array, index: Array, visited: Array) -> Array:
    """[B, A] the current improved actions of these transitions of the replay.

    A pair belongs to the transition with its index if its original action equals the transition's action. Otherwise the
    transition is newer than the pair, or its index is beyond the last pair, and its own action is returned.
    """
    origin, action = jnp.split(pairs.at[index].get(mode="fill", fill_value=jnp.nan), 2, axis=1)
    return jnp.where(jnp.all(origin == visited, axis=1, keepdims=True), action, visited)


class Optimisers(NamedTuple):
    actor: optax.GradientTransformation
    critics: optax.GradientTransformation


def first_state(config: Config, spec: EnvSpec, optimisers: Optimisers, key: Key) -> State:
    sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)

    def critic(key: Key) -> Critic:
        key, draw_key = jax.random.split(key)
        plain = Critic(*sizes, key)
        return eqx.tree_at(lambda c: c.mlp, plain, redrawn(plain.mlp, DRAW, draw_key))

    actor_key, critic_key = jax.random.split(key)
    actor = DiffusionActor(*sizes, actor_key)
    critics = ensemble(critic, 2, critic_key)
    return State(
        actor=actor,
        target_actor=actor,
        critics=critics,
        targets=critics,
        actor_opt=optimisers.actor.init(actor),
        critic_opt=optimisers.critics.init(critics),
        updates=jnp.zeros((), jnp.int32),
        pairs=jnp.zeros((config.pair_capacity, 2 * spec.action_dim)),
    )


def make(config: Config, spec: EnvSpec) -> Agent:
    schedule = ddpm(cosine_betas(config.denoising_steps))
    options = {"max_norm": config.grad_norm, "b2": config.adam_beta2, "eps": 1e-5}
    optimisers = Optimisers(adam(config.actor_lr, **options), adam(config.critic_lr, **options))

    def act(actor: DiffusionActor, obs: Array, key: Key, explore: bool) -> Array:
        """A sample of the policy; without exploration, the result of noiseless denoising from 0."""
        start_key, key = jax.random.split(key)
        start = jax.random.normal(start_key, (spec.action_dim,)) if explore else jnp.zeros(spec.action_dim)
        return denoised(actor, schedule, obs, start, key, float(explore))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, pair_key, loss_key = jax.random.split(key, 4)
        batch = rb.sample(replay, batch_key, config.batch_size)
        keys = jax.random.split(target_key, config.batch_size)
        next_action = jax.vmap(act, in_axes=(None, 0, 0, None))(state.target_actor, batch.next_obs, keys, True)
        target = td_target(state.targets, batch, next_action)
        critics, critic_opt, q_loss, q, _ = descend(
            optimisers.critics, critic_loss, state.critics, state.critic_opt, batch, target
        )

        index = rb.indices(replay, pair_key, (config.batch_size,))
        visited = rb.take(replay, index)
        before = newest(state.pairs, index, visited.action)
        after = improved(config, critics, visited.obs, before)
        pairs = state.pairs
        if not config.no_write_back:
            pairs = pairs.at[index].set(jnp.concatenate([visited.action, after], axis=1), mode="drop")
        data = schedule, visited.obs, after, loss_key
        actor, actor_opt, pi_loss, *_ = descend(
            optimisers.actor, actor_loss, state.actor, state.actor_opt, *data, has_aux=False
        )

        target_actor = polyak(state.target_actor, actor, config.tau)
        if config.target_every > 1:
            target_actor = select(state.updates % config.target_every == 0, target_actor, state.target_actor)
        gain = min_q(critics, visited.obs, after) - min_q(critics, visited.obs, before)
        metrics = {
            "critic_loss": q_loss,
            "actor_loss": pi_loss,
            "q_mean": jnp.mean(q),
            "improvement": jnp.mean(gain),
        }
        targets = polyak(state.targets, critics, config.tau)
        return State(actor, target_actor, critics, targets, actor_opt, critic_opt, state.updates + 1, pairs), metrics

    return Agent(
        init=partial(first_state, config, spec, optimisers),
        policy=lambda state: state.actor,
        act=memoryless(act),
        update=update,
        values=Values(lambda state: state.critics, value),
    )
