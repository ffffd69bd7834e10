"""SAC from images with an autoencoder (SAC+AE): Yarats et al., AAAI 2021 (arXiv 1910.01741); DrQ (arXiv 2004.13649).

From *Improving Sample Efficiency in Model-Free Reinforcement Learning from Images*. SAC sees a code of the image. The
encoder learns from the loss of the critics and from reconstructing the image. The actor uses the same convolutions,
but its loss does not train them.

With `--decoder none`, the encoder learns from the critics alone, on randomly shifted images: DrQ, Kostrikov, Yarats,
Fergus, ICLR 2021, *Image Augmentation Is All You Need*.

Deviations, with reasons: docs/agents/sac_ae.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents import sac
from lsac.nn.augmentation import random_shift
from lsac.nn.convolutions import RELU_GAIN, Conv, ConvTranspose, ImageEncoder, encoded_size
from lsac.nn.distributions import tanh_normal_sample
from lsac.nn.networks import (
    MLP,
    Activation,
    ComputeDtype,
    Critic,
    Linear,
    compute_dtype,
    ensemble,
    min_q,
    orthogonal,
    polyak,
    select,
)
from lsac.nn.optimisers import adam, descend
from lsac.options import BatchSize, Count, CountOrZero, Decay, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Pixels, Transition, memoryless

OBSERVATIONS = "images"
LOG_STD = (-10.0, 2.0)
"""Bounds of the log std of an action before tanh."""
BITS = 5
"""The decoder is trained on images of this many bits per channel."""

Module = TypeVar("Module")
Layer = TypeVar("Layer", Linear, Conv, ConvTranspose)


@dataclass(frozen=True)
class Config:
    decoder: Literal["autoencoder", "none"] = "autoencoder"
    """autoencoder: the encoder also learns to reconstruct images; none: images are randomly shifted instead (DrQ)"""
    hidden: Layers = (1024, 1024)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "relu"
    """relu, gelu, elu, tanh or mish"""
    filters: Count = 32
    """channels of every convolution"""
    feature_dim: Count = 50
    """numbers into which an image is encoded, its code"""
    critics: Count = 2
    """number of critics, with one encoder; the target uses their minimum"""
    batch_size: BatchSize = 128
    """transitions per update"""
    actor_lr: Positive = 1e-3
    """Adam step size of the actor"""
    critic_lr: Positive = 1e-3
    """Adam step size of the critics and their encoder"""
    autoencoder_lr: Positive = 1e-3
    """Adam step size of encoder and decoder on the reconstruction, with Adam statistics of its own"""
    alpha_lr: NotNegative = 1e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    alpha_beta1: Decay = 0.5
    """β₁ of Adam for log α: decay rate of the running mean of gradients"""
    tau: PositiveShare = 0.01
    """Polyak weight of the new parameters in the target critics, whenever these are updated"""
    encoder_tau: PositiveShare = 0.05
    """the same for the encoder of the target critics"""
    delay: Count = 2
    """critic updates per update of the actor, α and the targets"""
    alpha_init: Positive = 0.1
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means −dim(A)"""
    code_penalty: NotNegative = 1e-6
    """weight of half the squared norm of the code in the autoencoder's loss"""
    decoder_penalty: NotNegative = 1e-7
    """weight of half the squared norm of the decoder's parameters in the autoencoder's loss"""
    shift: CountOrZero = 4
    """images are shifted by up to this many pixels in each direction; only with --decoder none"""
    copies: Count = 2
    """shifted copies of every transition, over which TD target and loss are averaged; only with --decoder none"""
    compute_dtype: ComputeDtype = "auto"
    """dtype of convolutions and decoder in updates: auto, float32 or bfloat16; auto is bfloat16 on a GPU; parameters
    and acting are always float32"""

    @property
    def needs_gpu(self) -> bool:
        """Whether the convolutions of an update take seconds on a CPU."""
        return self.batch_size * self.filters**2 > 2**16


# networks


class Seen(NamedTuple):
    """An observation after the convolutions, or a batch of them."""

    features: Array  # [..., F]
    vector: Array  # [..., O]


class Convolutions(eqx.Module):
    """What actor and critics share: for one observation or a batch."""

    layers: ImageEncoder
    compute_dtype: str = eqx.field(static=True)

    def __call__(self, obs: Pixels) -> Seen:
        image = obs.image.astype(jnp.float32) / 255.0
        return Seen(self.layers(image.astype(self.compute_dtype)), obs.vector)


class Projection(eqx.Module):
    """Features → code: tanh(LayerNorm(W x + b))."""

    linear: Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, features: int, size: int, key: Key):
        self.linear, self.norm = Linear(features, size, key), eqx.nn.LayerNorm(size)

    def __call__(self, features: Array) -> Array:
        return jnp.tanh(self.norm(self.linear.to_float32(features)))


def state_of(projection: Projection, seen: Seen) -> Array:
    """[code + O] the code of an image and the rest of the observation."""
    return jnp.concatenate([projection(seen.features), seen.vector])


class Encoder(eqx.Module):
    convs: Convolutions
    projection: Projection

    def __call__(self, obs: Pixels) -> Array:
        """[B, code + O], for a batch."""
        return jax.vmap(partial(state_of, self.projection))(self.convs(obs))


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


class Decoder(eqx.Module):
    """Codes → images, the encoder in reverse: three transposed convolutions with stride 1, and one with stride 2."""

    linear: Linear
    layers: tuple[ConvTranspose, ...]
    image_shape: tuple[int, ...] = eqx.field(static=True)
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, code: int, image_shape: Sequence[int], filters: int, key: Key, compute_dtype: str = "float32"):
        *sides, channels = image_shape
        extra = int(any(side % 2 == 0 for side in sides))  # stride 2 lost the last row of an even side
        inner, last = jnp.zeros((3, 3, filters, filters)), jnp.zeros((3, 3, filters, channels))
        self.linear = Linear(code, encoded_size(image_shape, filters), key)
        self.layers = (
            *(ConvTranspose(inner, jnp.zeros(filters), 1) for _ in range(3)),
            ConvTranspose(last, jnp.zeros(channels), 2, extra),
        )
        self.image_shape, self.compute_dtype = tuple(image_shape), compute_dtype

    def __call__(self, codes: Array) -> Array:
        """[B, H, W, channels] the images of codes [B, code]."""
        height, width = self.image_shape[:2]
        x = jax.nn.relu(jax.vmap(self.linear)(codes.astype(self.compute_dtype)))
        x = x.reshape(len(x), (height - 3) // 2 - 5, (width - 3) // 2 - 5, -1)
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)[:, :height, :width].astype(jnp.float32)


def drawn(layer: Layer, key: Key) -> Layer:
    """The layer with biases of 0 and an orthogonal matrix as weights. That of a convolution is the centre of its
    kernel, with gain √2, and the rest of the kernel is 0 (delta-orthogonal: Xiao et al., 2018, arXiv 1806.05393)."""
    if isinstance(layer, Linear):
        size_out, size_in = layer.weight.shape
        weight = orthogonal(key, (size_out, size_in))
    else:
        height, width, size_in, size_out = layer.weight.shape
        centre = orthogonal(key, (size_in, size_out), RELU_GAIN)
        weight = jnp.zeros_like(layer.weight).at[height // 2, width // 2].set(centre)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros_like(layer.bias)))


def initialised(module: Module, key: Key) -> Module:
    """The module with every layer `drawn`."""

    def is_layer(x: object) -> bool:
        return isinstance(x, (Linear, Conv, ConvTranspose))

    parts, structure = jax.tree.flatten(module, is_leaf=is_layer)
    keys = jax.random.split(key, len(parts))
    return jax.tree.unflatten(structure, [drawn(x, k) if is_layer(x) else x for x, k in zip(parts, keys, strict=True)])


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


def quantised(image: Array, key: Key) -> Array:
    """Images of uint8 with 5 bits per channel, made continuous by uniform noise of one level, in [−½, ½)."""
    levels = 2**BITS
    level = jnp.floor(image.astype(jnp.float32) / (256 // levels))
    return (level + jax.random.uniform(key, image.shape)) / levels - 0.5


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


class Autoencoder(NamedTuple):
    encoder: Encoder
    decoder: Decoder


def autoencoder_loss(
    autoencoder: Autoencoder, obs: Pixels, key: Key, code_penalty: float, decoder_penalty: float
) -> tuple[Array, Array]:
    """E[(image − decoded)² + λ_z ½ |z|²] + λ_θ ½ |θ|², z the code, θ the decoder. Also returns the first term.

    The gradient of the last term, λ_θ θ, passes through Adam, as PyTorch's `weight_decay` does.
    """
    encoder, decoder = autoencoder
    codes = jax.vmap(encoder.projection)(encoder.convs(obs).features)
    error = jnp.mean((decoder(codes) - quantised(obs.image, key)) ** 2)
    of_code = 0.5 * jnp.mean(jnp.sum(codes**2, axis=1))
    of_decoder = 0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(decoder)), jnp.zeros(()))
    return error + code_penalty * of_code + decoder_penalty * of_decoder, error


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
