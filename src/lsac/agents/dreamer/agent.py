"""Dreamer's actor and critic, which learn in imagined states, and the agent.

Deviations, with reasons: docs/agents/dreamer.md.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.dreamer.config import Config
from lsac.agents.dreamer.world_model import Encoder, WorldModel, model_loss
from lsac.nn import rssm
from lsac.nn.networks import MLP, compute_dtype
from lsac.nn.optimisers import adam, descend
from lsac.nn.rssm import Normal, Rssm, dense
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Pixels

MEAN_SCALE = 5.0
"""Bound on the mean of an action before tanh."""
INIT_STD = math.log(math.expm1(5.0))
"""softplus of it is 5, the initial std of an action before tanh."""
MIN_STD = 1e-4
"""Smallest std of an action before tanh."""
EPS = 1e-7
"""ε of Adam, as in TensorFlow."""


class State(NamedTuple):
    model: WorldModel
    actor: MLP
    critic: MLP
    model_opt: optax.OptState
    actor_opt: optax.OptState
    critic_opt: optax.OptState


# acting


class Policy(NamedTuple):
    encoder: Encoder
    rssm: Rssm
    actor: MLP


class Memory(NamedTuple):
    state: rssm.State
    action: Array


def before_tanh(actor: MLP, features: Array) -> Normal:
    """The Gaussian whose samples tanh maps to actions."""
    mean, raw = jnp.split(actor(features), 2)
    return Normal(MEAN_SCALE * jnp.tanh(mean / MEAN_SCALE), jax.nn.softplus(raw + INIT_STD) + MIN_STD)


def act(policy: Policy, memory: Memory, obs: Pixels, key: Key, explore: bool, noise: float) -> tuple[Array, Memory]:
    """A sample of the policy in a sampled state, plus N(0, noise²), clipped to [−1, 1]. Without exploration, all means
    take the place of samples."""
    state_key, action_key, noise_key = jax.random.split(key, 3)

    def drawn(key: Key, like: Array) -> Array:
        return jax.random.normal(key, like.shape) if explore else jnp.zeros_like(like)

    noise_of_state = drawn(state_key, memory.state.stochastic)
    state = policy.rssm.observe(memory.state, memory.action, policy.encoder(obs), noise_of_state)
    chosen = before_tanh(policy.actor, state.features)
    action = jnp.tanh(chosen.sample(drawn(action_key, chosen.mean)))
    action = jnp.clip(action + noise * drawn(noise_key, action), -1.0, 1.0)
    return action, Memory(state, action)


# imagination


class Imagined(NamedTuple):
    features: Array
    """[H, F] of the states that follow the start"""
    returns: Array
    """[H − 1] λ-returns of all states but the last"""
    weights: Array
    """[H − 1] products of the discounts since the first of these states"""


def imagine(model: WorldModel, actor: MLP, start: rssm.State, horizon: int, key: Key) -> Array:
    """[H, F] features of the states that follow a state if the actor acts. Actions depend on the actor's parameters,
    but not on the features that it reads: gradients flow through the actions into the dynamics."""
    state_key, action_key = jax.random.split(key)
    action_dim = actor.layers[-1].bias.shape[0] // 2
    noise = (
        jax.random.normal(state_key, (horizon, *start.stochastic.shape)),
        jax.random.normal(action_key, (horizon, action_dim)),
    )

    def step(state: rssm.State, noise: tuple[Array, Array]) -> tuple[rssm.State, Array]:
        chosen = before_tanh(actor, jax.lax.stop_gradient(state.features))
        state = model.rssm.predict(state, jnp.tanh(chosen.sample(noise[1])), noise[0])
        return state, state.features

    return jax.lax.scan(step, start, noise)[1]


def lambda_returns(reward: Array, value: Array, discount: Array, lam: float) -> Array:
    """[H − 1] R_τ = r_τ + γ_τ ((1 − λ) v_{τ+1} + λ R_{τ+1}), where R of the last state is its value: eq. (6).

    r_τ is the reward for reaching the state τ, which is therefore part of its value.
    """

    def step(later: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, discount, next_value = now
        found = reward + discount * ((1.0 - lam) * next_value + lam * later)
        return found, found

    return jax.lax.scan(step, value[-1], (reward[:-1], discount[:-1], value[1:]), reverse=True)[1]


def imagined(
    model: WorldModel, actor: MLP, critic: MLP, config: Config, gamma: float, start: rssm.State, key: Key
) -> Imagined:
    """What actor and critic learn from, for one start."""
    features = imagine(model, actor, start, config.horizon, key)
    reward, value = (jax.vmap(head)(features)[:, 0] for head in (model.reward, critic))
    discount = jnp.full_like(reward, gamma)
    if model.discount is not None:
        discount = jax.nn.sigmoid(jax.vmap(model.discount)(features)[:, 0])
    weights = jnp.cumprod(jnp.concatenate([jnp.ones_like(discount[:1]), discount[:-2]]))
    returns = lambda_returns(reward, value, discount, config.lam)
    return Imagined(features, returns, jax.lax.stop_gradient(weights))


def actor_loss(
    actor: MLP, model: WorldModel, critic: MLP, config: Config, gamma: float, starts: rssm.State, key: Key
) -> tuple[Array, Imagined]:
    """−E weight · R_τ, eq. (7), from the starts [N]. Also returns what was imagined, with a leading axis N."""
    keys = jax.random.split(key, len(starts.stochastic))
    found = jax.vmap(lambda start, key: imagined(model, actor, critic, config, gamma, start, key))(starts, keys)
    return -jnp.mean(found.weights * found.returns), found


def critic_loss(critic: MLP, found: Imagined) -> tuple[Array, Array]:
    """E ½ weight · (v_τ − R_τ)², eq. (8). Also returns v."""
    value = jax.vmap(jax.vmap(critic))(found.features[:, :-1])[..., 0]
    return 0.5 * jnp.mean(found.weights * (value - found.returns) ** 2), value


# the agent


def make(config: Config, spec: EnvSpec) -> Agent:
    model_adam, actor_adam, critic_adam = (
        adam(lr, config.grad_norm, eps=EPS) for lr in (config.model_lr, config.actor_lr, config.critic_lr)
    )
    features, units = config.deterministic_size + config.stochastic_size, config.units
    dtype = compute_dtype(config.compute_dtype)

    def init(key: Key, dtype: str = dtype) -> State:
        model_key, actor_key, critic_key = jax.random.split(key, 3)
        model = WorldModel(config, spec, model_key, dtype)
        actor = dense((features, *[units] * 4, 2 * spec.action_dim), actor_key, dtype)
        critic = dense((features, *[units] * 3, 1), critic_key, dtype)
        return State(model, actor, critic, model_adam.init(model), actor_adam.init(actor), critic_adam.init(critic))

    def policy(state: State) -> Policy:
        return Policy(state.model.encoder, state.model.rssm, state.actor)

    in_float32 = jax.tree.structure(jax.eval_shape(lambda key: policy(init(key, "float32")), jax.random.key(0)))

    def act_in_float32(policy: Any, memory: Memory, obs: Any, key: Key, explore: bool) -> tuple[Array, Memory]:
        """Acting is the same on every machine, and processors are slow in bfloat16."""
        policy = jax.tree.unflatten(in_float32, jax.tree.leaves(policy))
        return act(policy, memory, obs, key, explore, config.exploration_noise)

    def memory() -> Memory:
        state = rssm.State(jnp.zeros(config.deterministic_size), jnp.zeros(config.stochastic_size))
        return Memory(state, jnp.zeros(spec.action_dim))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        window_key, model_key, actor_key = jax.random.split(key, 3)
        windows = rb.sequences(replay, window_key, config.batch_size, config.batch_length)
        model = descend(model_adam, model_loss, state.model, state.model_opt, config, windows, model_key)
        seen, metrics = model.aux
        starts = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), seen)
        data = state.model, state.critic, config, spec.gamma, starts, actor_key  # the model that saw the windows
        actor = descend(actor_adam, actor_loss, state.actor, state.actor_opt, *data)
        critic = descend(critic_adam, critic_loss, state.critic, state.critic_opt, actor.aux)
        metrics |= {"actor_loss": actor.loss, "critic_loss": critic.loss, "q_mean": jnp.mean(critic.aux)}
        return State(model.params, actor.params, critic.params, model.opt, actor.opt, critic.opt), metrics

    return Agent(init=init, policy=policy, act=act_in_float32, update=update, memory=memory)
