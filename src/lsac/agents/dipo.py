"""DIPO: Yang et al., *Policy Representation via Diffusion Probability Model for Reinforcement Learning*, 2023
(arXiv 2305.13122).

The policy is a diffusion model of actions given a state, and no gradient of a critic ever enters it. Instead every
visited action is moved up ∇Q and kept, and the model is fitted to the moved actions as to any data set: supervised
denoising. The policy can so have many modes. Two critics without entropy say which way is up.

Deviations, with reasons: docs/agents/dipo.md.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents.sac import value
from lsac.agents.td3 import critic_loss, td_target
from lsac.nn.diffusion import Ddpm, PredictNoise, cosine_betas, ddpm, noised, sample_ddpm
from lsac.nn.networks import ACTIVATIONS, MLP, Critic, ensemble, polyak, q_values, redrawn, select
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics

TIME = 32
"""Numbers that tell the network the time t."""

DRAW = jax.nn.initializers.variance_scaling(0.25, "fan_in", "normal")
"""How weights start; biases are 0. With the usual random biases an actor can start in one corner for all states."""


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "mish"
    """relu, gelu, tanh or mish"""
    denoising_steps: int = 100
    """steps from noise to an action"""
    batch_size: int = 256
    """transitions per update for the critics, and as many pairs of state and action for the actor"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    critic_lr: float = 3e-4
    """Adam step size of the critics"""
    adam_beta2: float = 0.999
    """β₂ of Adam for actor and critics: how much of the running mean of squared gradients a step keeps"""
    grad_norm: float = 2.0
    """largest norm of the actor's gradient, and of the critics' together; 0 is no limit"""
    tau: float = 0.005
    """share of the new parameters in the target critics and the target actor"""
    target_every: int = 1
    """updates between two moves of the target actor"""
    action_steps: int = 20
    """Adam steps that a visited action is moved up ∇Q per visit"""
    action_lr: float = 0.03
    """Adam step size of these"""
    action_clip: float = 0.1
    """largest norm of the gradient of a whole batch of actions, per dimension of an action; 0 is no limit"""
    pair_capacity: int = 1_000_000
    """improved actions kept; as many as the replay has rows"""
    no_write_back: bool = False
    """improved actions are used once and forgotten, as in the published code"""


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
        """ε(s, ·, ·) for one state; what state and time bring to the first layer is worked out once for all steps."""
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
    pairs: Array  # [M, 2A]: an action as it was visited, and as improved; beside the replay's row of the same index


def waves(t: Array) -> Array:
    """[TIME] sines and cosines of t, with periods from 2π to 2π·10⁴."""
    half = TIME // 2
    angles = t.astype(jnp.float32) * jnp.exp(-jnp.log(1e4) / (half - 1) * jnp.arange(half, dtype=jnp.float32))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])


def denoised(actor: DiffusionActor, schedule: Ddpm, obs: Array, start: Array, key: Key, temperature: float) -> Array:
    """The action that the steps from `start` lead to, with x̂ kept in [−1, 1] at each: a ~ π(·|s) for normal `start`
    and temperature 1."""
    predict = actor.given(obs, len(schedule.betas))
    return sample_ddpm(predict, schedule, start, key, temperature=temperature, clip_clean=True)


def lower(critics: Critic, obs: Array, action: Array) -> Array:
    """[B] min_k Q_k(s, a)."""
    return jnp.min(q_values(critics, obs, action), axis=0)


def improved(config: Config, critics: Critic, obs: Array, action: Array) -> Array:
    """a after steps of a fresh Adam up Σ_B min_k Q_k(s, a), kept in [−1, 1].

    The gradient [B, A] of the whole batch is clipped as one, at `action_clip` · dim(A).
    """
    optimiser = limited(config.action_lr, config.action_clip * action.shape[1])
    gradient = jax.grad(lambda action: -jnp.sum(lower(critics, obs, action)))

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
    """[B, A] the actions that these rows of the replay have been improved to so far.

    A pair belongs to the row of its index if it was made from the very action that stands there. If not, because the
    row is new or lies beyond the last pair, the visited action is all there is.
    """
    origin, action = jnp.split(pairs.at[index].get(mode="fill", fill_value=jnp.nan), 2, axis=1)
    return jnp.where(jnp.all(origin == visited, axis=1, keepdims=True), action, visited)


def limited(learning_rate: float, norm: float, **options: float) -> optax.GradientTransformation:
    """Adam on gradients that are scaled down to this norm where theirs is larger; 0 is no limit."""
    limit = optax.clip_by_global_norm(norm) if norm else optax.identity()
    return optax.chain(limit, adam(learning_rate, eps=1e-5, **options))


def make(config: Config, spec: EnvSpec) -> Agent:
    schedule = ddpm(cosine_betas(config.denoising_steps))
    rates = (config.actor_lr, config.critic_lr)
    actor_adam, critic_adam = (limited(lr, config.grad_norm, b2=config.adam_beta2) for lr in rates)

    def act(actor: DiffusionActor, obs: Array, key: Key, explore: bool) -> Array:
        """A draw from the policy; without exploration, the end of the noiseless path from 0."""
        start_key, key = jax.random.split(key)
        start = jax.random.normal(start_key, (spec.action_dim,)) if explore else jnp.zeros(spec.action_dim)
        return denoised(actor, schedule, obs, start, key, float(explore))

    def critic(key: Key) -> Critic:
        key, draw_key = jax.random.split(key)
        plain = Critic(*spec, config.hidden, config.activation, key)
        return eqx.tree_at(lambda c: c.mlp, plain, redrawn(plain.mlp, DRAW, draw_key))

    def init(key: Key) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = DiffusionActor(*spec, config.hidden, config.activation, actor_key)
        critics = ensemble(critic, 2, critic_key)
        return State(
            actor=actor,
            target_actor=actor,
            critics=critics,
            targets=critics,
            actor_opt=actor_adam.init(actor),
            critic_opt=critic_adam.init(critics),
            updates=jnp.zeros((), jnp.int32),
            pairs=jnp.zeros((config.pair_capacity, 2 * spec.action_dim)),
        )

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, target_key, pair_key, loss_key = jax.random.split(key, 4)
        batch = rb.sample(replay, batch_key, config.batch_size)
        keys = jax.random.split(target_key, config.batch_size)
        next_action = jax.vmap(act, in_axes=(None, 0, 0, None))(state.target_actor, batch.next_obs, keys, True)
        target = td_target(state.targets, batch, next_action)
        (q_loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        updates, critic_opt = critic_adam.update(grads, state.critic_opt)
        critics = optax.apply_updates(state.critics, updates)

        index = jax.random.randint(pair_key, (config.batch_size,), 0, replay.size)
        row = replay.layout.unpack(replay.rows[index])
        before = newest(state.pairs, index, row.action)
        after = improved(config, critics, row.obs, before)
        pairs = state.pairs
        if not config.no_write_back:
            pairs = pairs.at[index].set(jnp.concatenate([row.action, after], axis=1), mode="drop")

        pi_loss, grads = jax.value_and_grad(actor_loss)(state.actor, schedule, row.obs, after, loss_key)
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)

        target_actor = polyak(state.target_actor, actor, config.tau)
        if config.target_every > 1:
            target_actor = select(state.updates % config.target_every == 0, target_actor, state.target_actor)
        metrics = {
            "critic_loss": q_loss,
            "actor_loss": pi_loss,
            "q_mean": jnp.mean(q),
            "improvement": jnp.mean(lower(critics, row.obs, after) - lower(critics, row.obs, before)),
        }
        targets = polyak(state.targets, critics, config.tau)
        return State(actor, target_actor, critics, targets, actor_opt, critic_opt, state.updates + 1, pairs), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=act,
        update=update,
        critics=lambda state: state.critics,
        value=value,
    )
