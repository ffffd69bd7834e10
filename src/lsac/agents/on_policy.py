"""Shared by PPO and TRPO: a Gaussian policy, a value function, and the moments that normalise their inputs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from lsac.errors import InputError
from lsac.nn import normalisation
from lsac.nn.distributions import normal_log_prob
from lsac.nn.networks import MLP, orthogonal, redrawn
from lsac.nn.normalisation import Moments
from lsac.options import RunOptions
from lsac.replay import ring as rb
from lsac.replay import rollouts
from lsac.types import Array, EnvSpec, Key, Metrics


class Actor(eqx.Module):
    """Observation → mean and log std of a Gaussian over actions; the std does not depend on the observation."""

    mlp: MLP
    log_std: Array

    def __call__(self, obs: Array) -> tuple[Array, Array]:
        return self.mlp(obs), self.log_std


class Policy(NamedTuple):
    actor: Actor
    obs_moments: Moments


class Values(NamedTuple):
    """V(s) is the critic's output times the return scale."""

    critic: MLP
    obs_moments: Moments
    return_moments: Moments


class ActorCritic(NamedTuple):
    actor: Actor
    critic: MLP
    obs_moments: Moments
    return_moments: Moments

    @property
    def policy(self) -> Policy:
        return Policy(self.actor, self.obs_moments)

    @property
    def values(self) -> Values:
        return Values(self.critic, self.obs_moments, self.return_moments)


class Batch(NamedTuple):
    """Training data: `obs` is normalised, `returns` and `value` are in units of the return scale."""

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    returns: Array
    value: Array


class Annealed:
    """Options whose step sizes fall to 0 over `anneal_updates`; None stands for all updates of the run, 0 for never."""

    anneal_updates: int | None

    def for_run(self, updates: int) -> Self:
        """The options for a run of that many updates."""
        return self._with(updates) if self.anneal_updates is None else self

    def for_longer_run(self, more: int) -> Self:
        """The options for a run that is made longer by `more` updates: the step sizes reach 0 at its new end."""
        return self._with(max(1, self.anneal_updates + more)) if self.anneal_updates else self

    def _with(self, updates: int) -> Self:
        options: Any = self
        changed: Self = replace(options, anneal_updates=updates)
        return changed


def check_run(minibatches: int, run: RunOptions) -> None:
    """Rules between the options of PPO or TRPO and those of the run."""
    if run.chunk % minibatches:
        raise InputError(f"--minibatches {minibatches}: must divide --chunk {run.chunk}")
    if run.normalise_observations:
        raise InputError("--normalise-observations: this agent does so by itself, see --obs-clip")
    if run.scale_rewards:
        raise InputError("--scale-rewards: this agent scales its returns by itself")


def init(
    spec: EnvSpec, hidden: Sequence[int], activation: str, mean_scale: float, log_std: float, key: Key
) -> ActorCritic:
    """Orthogonal weights and zero biases; the policy's last layer is scaled down, so that its mean starts near 0."""
    keys = jax.random.split(key, 4)
    draw = partial(orthogonal, scale=2**0.5)
    mean = redrawn(MLP((spec.obs_dim, *hidden, spec.action_dim), activation, keys[0]), draw, keys[1], mean_scale)
    critic = redrawn(MLP((spec.obs_dim, *hidden, 1), activation, keys[2]), draw, keys[3])
    actor = Actor(mean, jnp.full((spec.action_dim,), log_std, jnp.float32))
    return ActorCritic(actor, critic, normalisation.empty((spec.obs_dim,)), normalisation.empty(()))


def scaled(moments: Moments, obs: Array, clip: float) -> Array:
    """One observation as input of the networks: normalised, unless `clip` is 0."""
    return normalisation.normalised(moments, obs, clip) if clip else obs


def act(obs_clip: float, policy: Policy, obs: Array, key: Key, explore: bool) -> Array:
    """The sampled action while exploring, which may exceed ±1: only the simulator clips it, so its density is exact."""
    mean, log_std = policy.actor(scaled(policy.obs_moments, obs, obs_clip))
    return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape) if explore else jnp.clip(mean, -1.0, 1.0)


def value(obs_clip: float, values: Values, obs: Array, action: Array) -> Metrics:
    """V(s), which does not depend on the action, in units of the reward."""
    scale = normalisation.root_mean_square(values.return_moments)
    return {"q": scale * values.critic(scaled(values.obs_moments, obs, obs_clip))[0]}


def log_probs(actor: Actor, obs: Array, action: Array) -> Array:
    """[B] log π(a|s) of normalised observations and their actions."""
    return jax.vmap(lambda o, a: normal_log_prob(a, *actor(o)))(obs, action)


def entropy(log_std: Array) -> Array:
    return jnp.sum(log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))


def prepared(
    networks: ActorCritic, replay: rb.Replay, obs_clip: float, lam: float
) -> tuple[ActorCritic, rollouts.Rollout, Array]:
    """The networks with the chunk merged into their moments, the chunk with normalised observations, and the log
    densities [T, E] of its actions.

    The densities are computed with the old moments, with which the actions were sampled. Everything is trained with the
    new moments, so the policy always acts with the moments that it was last trained with. Before the first update,
    observations are not normalised.
    """
    rollout = rollouts.read(replay)
    steps = rollout.steps

    def look(moments: Moments, obs: Array) -> Array:
        return jax.vmap(jax.vmap(partial(scaled, moments, clip=obs_clip)))(obs)

    then = look(networks.obs_moments, steps.obs)
    log_prob = jax.vmap(partial(log_probs, networks.actor))(then, steps.action)

    moments = normalisation.merged(networks.obs_moments, steps.obs.reshape(-1, steps.obs.shape[-1]))
    networks = networks._replace(obs_moments=moments)
    steps = steps._replace(obs=look(moments, steps.obs), next_obs=look(moments, steps.next_obs))
    rollout = rollout._replace(steps=steps)

    scale = normalisation.root_mean_square(networks.return_moments)
    _, returns, _ = estimates(networks.values, rollout, lam)
    moments = normalisation.merged(networks.return_moments, scale * returns.reshape(-1))
    return networks._replace(return_moments=moments), rollout, log_prob


def estimates(values: Values, rollout: rollouts.Rollout, lam: float) -> tuple[Array, Array, Array]:
    """Advantages A [T, E] in units of the reward; returns A + V and values V in units of the return scale."""
    steps, scale = rollout.steps, normalisation.root_mean_square(values.return_moments)
    value, next_value = (jax.vmap(jax.vmap(values.critic))(obs)[..., 0] for obs in (steps.obs, steps.next_obs))
    advantage = rollouts.gae(steps.reward, steps.discount, scale * value, scale * next_value, rollout.continues, lam)
    return advantage, value + advantage / scale, value


def standardised(advantage: Array) -> Array:
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)


def critic_loss(value: Array, batch: Batch, clip: float | None = None) -> Array:
    """E (V − R)²; with `clip`, the maximum of that error and the error of V clipped to ± clip around its old value."""
    error = (value - batch.returns) ** 2
    if clip is not None:
        clipped = batch.value + jnp.clip(value - batch.value, -clip, clip)
        error = jnp.maximum(error, (clipped - batch.returns) ** 2)
    return jnp.mean(error)


def value_metrics(values: Values, returns: Array, value: Array) -> Metrics:
    """The mean of V in units of the reward, and 1 − var(R − V) / var(R): 1 is a perfect critic, 0 a constant one."""
    total, scale = jnp.var(returns), normalisation.root_mean_square(values.return_moments)
    explained = jnp.where(total > 0, 1.0 - jnp.var(returns - value) / jnp.maximum(total, 1e-8), 0.0)
    return {"q_mean": scale * jnp.mean(value), "explained_variance": explained}


def remaining(updates: Array, anneal_updates: int | None) -> Array:
    """Factor on the step sizes: decays linearly from 1 to 0 over `anneal_updates`; constant 1 if that is 0 or None."""
    return jnp.maximum(1.0 - updates.astype(jnp.float32) / anneal_updates, 0.0) if anneal_updates else jnp.ones(())
