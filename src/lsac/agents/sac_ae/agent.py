"""Actor and critics, which see codes of images, their losses, and the agent.

Deviations, with reasons: docs/agents/sac_ae.md.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents import sac
from lsac.agents.sac_ae.autoencoder import (
    Autoencoder,
    Convolutions,
    Decoder,
    Encoder,
    Projection,
    Seen,
    autoencoder_loss,
    initialised,
    state_of,
)
from lsac.agents.sac_ae.config import Config
from lsac.nn.augmentation import random_shift
from lsac.nn.convolutions import ImageEncoder, encoded_size
from lsac.nn.distributions import tanh_normal_sample
from lsac.nn.networks import MLP, Critic, compute_dtype, ensemble, min_q, polyak, select
from lsac.nn.optimisers import adam, descend
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Pixels, Transition, memoryless

LOG_STD = (-10.0, 2.0)
"""Bounds of the log std of an action before tanh."""


# actor and critics


class Critics(NamedTuple):
    encoder: Encoder
    heads: Critic  # stacked [K]


class Actor(eqx.Module):
    """Seen → mean and log std of a Gaussian; tanh squashes the log std into its bounds."""

    projection: Projection
    mlp: MLP

    def __call__(self, seen: Seen) -> tuple[Array, Array]:
        mean, raw = jnp.split(self.mlp(state_of(self.projection, seen)), 2)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1.0)


class Policy(eqx.Module):
    """The actor on the convolutions of the critics."""

    convs: Convolutions
    actor: Actor

    def __call__(self, obs: Pixels) -> tuple[Array, Array]:
        return self.actor(self.convs(obs))


# batches


def shifted(batch: Transition, key: Key, copies: int, shift: int) -> Transition:
    """[copies · B] the batch `copies` times, each image with a random shift of its own."""

    def moved(obs: Pixels, key: Key) -> Pixels:
        keys = jax.random.split(key, obs.image.shape[0])
        return obs._replace(image=jax.vmap(partial(random_shift, pad=shift))(obs.image, keys))

    repeated: Transition = jax.tree.map(lambda x: jnp.concatenate([x] * copies), batch)
    obs_key, next_key = jax.random.split(key)
    return repeated._replace(obs=moved(repeated.obs, obs_key), next_obs=moved(repeated.next_obs, next_key))


def averaged(target: Array, copies: int) -> Array:
    """[copies · B] the mean over the copies of every transition."""
    return jnp.tile(jnp.mean(target.reshape(copies, -1), axis=0), copies)


# losses


def td_target(targets: Critics, policy: Policy, alpha: Array, batch: Transition, key: Key) -> Array:
    """y = r + discount · (min_k Q̄_k(s', a') − α log π(a'|s')), a' ~ π: SAC's, with the encoder of the targets in Q̄."""
    action, log_prob = tanh_normal_sample(*jax.vmap(policy.actor)(policy.convs(batch.next_obs)), key)
    value = min_q(targets.heads, targets.encoder(batch.next_obs), action) - alpha * log_prob
    return batch.reward + batch.discount * value


def critic_loss(critics: Critics, batch: Transition, target: Array) -> tuple[Array, Array]:
    """½ (Q − y)², summed over critics; also trains the encoder. Also returns Q, [K, B]."""
    return sac.critic_loss(critics.heads, batch._replace(obs=critics.encoder(batch.obs)), target)


def actor_loss(actor: Actor, critics: Critics, alpha: Array, seen: Seen, key: Key) -> tuple[Array, Array]:
    """α log π(a|s) − min_k Q_k(s, a), a ~ π, from the features `for_actor`. Also returns the mean log density."""
    action, log_prob = tanh_normal_sample(*jax.vmap(actor)(seen), key)
    states = jax.vmap(partial(state_of, critics.encoder.projection))(seen)
    return jnp.mean(alpha * log_prob - min_q(critics.heads, states, action)), jnp.mean(log_prob)


def for_actor(convs: Convolutions, obs: Pixels) -> Any:
    """A batch as the actor sees it: without a gradient for the convolutions, which its loss would spoil."""
    return jax.lax.stop_gradient(convs(obs))


# the agent


class State(NamedTuple):
    actor: Actor
    critics: Critics
    targets: Critics
    decoder: Decoder | None
    log_alpha: Array
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    autoencoder_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array


def policy_of(state: State) -> Policy:
    return Policy(state.critics.encoder.convs, state.actor)


def acting(state: State) -> Policy:
    """The policy in float32, also where updates compute with less."""
    return Policy(replace(state.critics.encoder.convs, compute_dtype="float32"), state.actor)


class Optimisers(NamedTuple):
    of_sac: sac.Optimisers
    autoencoder: optax.GradientTransformation


def followed(targets: Critics, critics: Critics, tau: float, encoder_tau: float) -> Critics:
    """The targets after they moved towards the critics: the encoder by `encoder_tau`, all else by `tau`."""
    return Critics(polyak(targets.encoder, critics.encoder, encoder_tau), polyak(targets.heads, critics.heads, tau))


def networks(config: Config, spec: EnvSpec, key: Key) -> tuple[Actor, Critics, Decoder | None]:
    """Freshly initialised. DrQ keeps the convolutions of `ImageEncoder`, which are orthogonal with the whole kernel."""
    shape, features = spec.image_shape, encoded_size(spec.image_shape, config.filters)
    dtype, size = compute_dtype(config.compute_dtype), config.feature_dim + spec.obs_dim
    made, weights = jax.random.split(key)
    keys, draws = jax.random.split(made, 6), jax.random.split(weights, 4)

    def head(key: Key) -> Critic:
        made, weights = jax.random.split(key)
        return initialised(Critic(size, spec.action_dim, config.hidden, config.activation, made), weights)

    convs = Convolutions(ImageEncoder(shape[2], keys[0], config.filters), dtype)
    projection = initialised(Projection(features, config.feature_dim, keys[1]), draws[0])
    mlp = MLP((size, *config.hidden, 2 * spec.action_dim), config.activation, keys[2])
    actor = initialised(Actor(Projection(features, config.feature_dim, keys[3]), mlp), draws[1])
    heads = ensemble(head, config.critics, keys[4])
    if config.decoder == "none":
        return actor, Critics(Encoder(convs, projection), heads), None
    decoder = Decoder(config.feature_dim, shape, config.filters, keys[5], dtype)
    critics = Critics(Encoder(initialised(convs, draws[2]), projection), heads)
    return actor, critics, initialised(decoder, draws[3])


def first_state(config: Config, spec: EnvSpec, optimisers: Optimisers, key: Key) -> State:
    actor, critics, decoder = networks(config, spec, key)
    log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
    autoencoder = None if decoder is None else Autoencoder(critics.encoder, decoder)
    return State(
        actor=actor,
        critics=critics,
        targets=critics,
        decoder=decoder,
        log_alpha=log_alpha,
        actor_opt=optimisers.of_sac.actor.init(actor),
        critic_opt=optimisers.of_sac.critics.init(critics),
        autoencoder_opt=autoencoder and optimisers.autoencoder.init(autoencoder),
        alpha_opt=optimisers.of_sac.alpha.init(log_alpha),
        updates=jnp.zeros((), jnp.int32),
    )


def reconstructed(
    optimiser: optax.GradientTransformation, state: State, obs: Pixels, key: Key, config: Config
) -> tuple[State, Metrics]:
    """One gradient step of encoder and decoder towards the images, if there is a decoder."""
    if state.decoder is None:
        return state, {}
    before, penalties = Autoencoder(state.critics.encoder, state.decoder), (config.code_penalty, config.decoder_penalty)
    step = descend(optimiser, autoencoder_loss, before, state.autoencoder_opt, obs, key, *penalties)
    critics = state.critics._replace(encoder=step.params.encoder)
    state = state._replace(critics=critics, decoder=step.params.decoder, autoencoder_opt=step.opt)
    return state, {"reconstruction_loss": step.aux}


def make(config: Config, spec: EnvSpec) -> Agent:
    of_alpha = adam(config.alpha_lr, b1=config.alpha_beta1)
    of_sac = sac.Optimisers(adam(config.actor_lr), adam(config.critic_lr), of_alpha)
    optimisers = Optimisers(of_sac, adam(config.autoencoder_lr))
    target_entropy = sac.entropy_target(config.target_entropy, spec)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, shift_key, target_key, action_key, noise_key = jax.random.split(key, 5)
        batch, copies = rb.sample(replay, batch_key, config.batch_size), 1
        if config.decoder == "none":
            batch, copies = shifted(batch, shift_key, config.copies, config.shift), config.copies

        target = td_target(state.targets, policy_of(state), jnp.exp(state.log_alpha), batch, target_key)
        target = averaged(target, copies)
        critics = descend(of_sac.critics, critic_loss, state.critics, state.critic_opt, batch, target)
        state = state._replace(critics=critics.params, critic_opt=critics.opt, updates=state.updates + 1)

        obs: Pixels = jax.tree.map(lambda x: x[: config.batch_size], batch.obs)  # the first copy
        seen, losses = for_actor(state.critics.encoder.convs, obs), sac.PolicyLosses(actor_loss, sac.alpha_loss)
        after, metrics = sac.improve_policy(of_sac, state, losses, seen, target_entropy, action_key)
        after = after._replace(targets=followed(state.targets, state.critics, config.tau, config.encoder_tau))
        state = select(state.updates % config.delay == 0, after, state)

        state, of_images = reconstructed(optimisers.autoencoder, state, obs, noise_key, config)
        return state, metrics | of_images | {"critic_loss": critics.loss, "q_mean": jnp.mean(critics.aux)}

    return Agent(
        init=lambda key: first_state(config, spec, optimisers, key),
        policy=acting,
        act=memoryless(sac.act),
        update=update,
    )
