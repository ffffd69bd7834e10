"""LSAC from images: an encoder turns images into features, and the agent of vectors learns from these.

An update encodes a pool of transitions, whose images are shifted at random (Yarats et al., *Mastering Visual Continuous
Control*, 2021, arXiv 2107.09645). For the agent of vectors the pool is a replay of constant features, from which every
chain draws its own batch. The encoder follows the gradient of the mean over chains and critics of their losses on the
pool. It is shared by all chains and trained by Adam, without noise. Reasons: docs/agents/lsac.md.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents.lsac import agent
from lsac.agents.lsac import chains as ch
from lsac.agents.lsac.config import Config, EncoderOptions
from lsac.agents.lsac.state import State as Inner
from lsac.agents.lsac.state import actor_reading, embedded, target_reading
from lsac.nn.augmentation import random_shift
from lsac.nn.convolutions import ImageEncoder, centred, encoded_size
from lsac.nn.networks import Linear, compute_dtype
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Pixels, Refresh, Transition


class Encoder(eqx.Module):
    """An image and a vector → features of the image in [−1, 1], and the vector as it is."""

    convs: ImageEncoder
    projection: Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, options: EncoderOptions, spec: EnvSpec, key: Key):
        conv_key, projection_key = jax.random.split(key)
        size = encoded_size(spec.image_shape, options.filters)
        self.convs = ImageEncoder(spec.image_shape[2], conv_key, options.filters)
        self.projection = Linear(size, options.feature_dim, projection_key)
        self.norm = eqx.nn.LayerNorm(options.feature_dim)

    def __call__(self, obs: Pixels) -> Array:
        """[F + O] of one observation."""
        return self.projected(self.convs(centred(obs.image)), obs.vector)

    def projected(self, convolved: Array, vector: Array) -> Array:
        return jnp.concatenate([jnp.tanh(self.norm(self.projection.to_float32(convolved))), vector])


class State(NamedTuple):
    encoder: Encoder
    encoder_opt: optax.OptState
    inner: Inner  # of the agent of vectors


class Policy(NamedTuple):
    encoder: Encoder
    inner: Any


def spec_of_features(config: Config, spec: EnvSpec) -> EnvSpec:
    """What the agent of vectors sees of an environment with images."""
    return dataclasses.replace(spec, obs_shape=(config.encoder.feature_dim + spec.obs_dim,), frame=None, frame_stack=1)


def drawn(config: Config, replay: rb.Replay, key: Key, count: int) -> Transition:
    """Random transitions with the environment's own rewards, each image shifted on its own."""
    draw_key, *shift_keys = jax.random.split(key, 3)
    batch = rb.take(rb.raw(replay), rb.indices(replay, draw_key, (count,)))

    def shifted(obs: Pixels, key: Key) -> Pixels:
        move = jax.vmap(lambda image, k: random_shift(image, k, config.encoder.shift))
        return obs._replace(image=move(obs.image, jax.random.split(key, count)))

    obs, next_obs = (shifted(*pair) for pair in zip((batch.obs, batch.next_obs), shift_keys, strict=True))
    return batch._replace(obs=obs, next_obs=next_obs)


def encoded(config: Config, encoder: Encoder, obs: Pixels) -> Array:
    """[B, F + O] what the agent of vectors sees of a batch."""
    images = centred(obs.image).astype(compute_dtype(config.encoder.compute_dtype))
    return jax.vmap(encoder.projected)(encoder.convs(images), obs.vector)


def replay_of(layout: rb.Layout, rows: Array) -> rb.Replay:
    """A replay of packed transitions [N, width], none of which continues another."""
    return rb.holding(layout, {rb.PACKED: rows, rb.FIRST: jnp.ones(len(rows), bool)}, len(rows))


def slope(config: Config, inner: Inner, batch: Transition, key: Key) -> Array:
    """[B, F + O] the gradient, with respect to `batch.obs`, of the mean over chains and critics of their losses."""
    bootstrap = ch.Bootstrap(inner.target_actor, jnp.exp(inner.log_alpha), target_reading(config, inner))
    reading = actor_reading(config, inner)

    def loss(obs: Array) -> Array:
        seen = embedded(inner, batch._replace(obs=obs))
        return ch.mean_loss(config, inner.chains, bootstrap, seen, key, reading)

    return jax.grad(loss)(batch.obs)


def update_of(config: Config, spec: EnvSpec) -> Callable[[State, rb.Replay, Key], tuple[State, Metrics]]:
    inner_spec, optimiser = spec_of_features(config, spec), adam(config.encoder.lr)
    inner_update, layout = agent.update_of(config, inner_spec), rb.layout_of(inner_spec)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        pool_key, inner_key, loss_key = jax.random.split(key, 3)
        images = drawn(config, replay, pool_key, config.encoder.batch_size)
        features, to_encoder = jax.vjp(lambda encoder: encoded(config, encoder, images.obs), state.encoder)
        batch = images._replace(obs=features, next_obs=encoded(config, state.encoder, images.next_obs))

        pool = dataclasses.replace(replay_of(layout, layout.pack(batch)), reward_scale=replay.reward_scale)
        inner, metrics = inner_update(state.inner, pool, inner_key, replay.size)

        # the gradient at the critics before their step, like their own
        (grads,) = to_encoder(slope(config, state.inner, rb.seen(pool, batch), loss_key))
        updates, opt = optimiser.update(grads, state.encoder_opt, state.encoder)
        metrics |= {
            "encoder_grad_norm": optax.tree.norm(grads),
            "feature_std": jnp.mean(jnp.std(features[:, : config.encoder.feature_dim], axis=0)),
        }
        return State(optax.apply_updates(state.encoder, updates), opt, inner), metrics

    return update


class Fit(NamedTuple):
    """A fit of the generator that is under way, and the transitions of features that it is fitted to."""

    inner: Any
    features: rb.Replay


def features_of(config: Config, spec: EnvSpec, encoder: Encoder, replay: rb.Replay, key: Key) -> rb.Replay:
    """A replay of features: random transitions, encoded in pieces of the size of a pool to limit the memory."""
    layout = rb.layout_of(spec_of_features(config, spec))
    count = min(config.encoder.feature_rows, replay.capacity)
    piece = min(config.encoder.batch_size, count)

    def rows(key: Key) -> Array:
        images = drawn(config, replay, key, piece)
        obs, next_obs = (encoded(config, encoder, x) for x in (images.obs, images.next_obs))
        return layout.pack(images._replace(obs=obs, next_obs=next_obs))

    found = jax.lax.map(rows, jax.random.split(key, -(-count // piece))).reshape(-1, layout.width)
    return dataclasses.replace(replay_of(layout, found[:count]), size=jnp.minimum(count, replay.size))


def _refresh(config: Config, spec: EnvSpec, refresh: Refresh) -> Refresh:
    def begin(state: State, replay: rb.Replay, key: Key) -> Fit:
        feature_key, fit_key = jax.random.split(key)
        features = features_of(config, spec, state.encoder, replay, feature_key)
        return Fit(refresh.begin(state.inner, features, fit_key), features)

    def advance(work: Fit, replay: rb.Replay, piece: Array) -> Fit:
        return work._replace(inner=refresh.advance(work.inner, work.features, piece))

    def finish(state: State, work: Fit) -> tuple[State, Metrics, Transition]:
        inner, metrics, sample = refresh.finish(state.inner, work.inner)
        return state._replace(inner=inner), metrics, sample

    def generate(state: State, key: Key) -> tuple[State, Transition]:
        inner, sample = refresh.generate(state.inner, key)
        return state._replace(inner=inner), sample

    return refresh._replace(
        begin=begin,
        advance=advance,
        finish=finish,
        generate=generate,
        compact=lambda state: state._replace(inner=refresh.compact(state.inner)),
        judge=None,  # no simulator can be set to the state of features
    )


def make(config: Config, spec: EnvSpec) -> Agent:
    inner = agent.make(config, spec_of_features(config, spec))

    def init(key: Key) -> State:
        encoder_key, inner_key = jax.random.split(key)
        encoder = Encoder(config.encoder, spec, encoder_key)
        return State(encoder, adam(config.encoder.lr).init(encoder), inner.init(inner_key))

    def act(policy: Policy, memory: Any, obs: Any, key: Key, explore: bool) -> tuple[Array, Any]:
        return inner.act(policy.inner, memory, policy.encoder(obs), key, explore)

    def observe(state: State, transitions: Transition, first: Array) -> State:
        return state._replace(inner=inner.observe(state.inner, transitions, first))

    diagnostics = inner.diagnostics
    return inner._replace(
        init=init,
        policy=lambda state: Policy(state.encoder, inner.policy(state.inner)),
        act=act,
        update=update_of(config, spec),
        observe=observe,
        diagnostics=(lambda state: diagnostics(state.inner)) if diagnostics else None,
        values=None,  # its diagnostics are for vectors
        refresh=_refresh(config, spec, inner.refresh) if inner.refresh else None,
    )
