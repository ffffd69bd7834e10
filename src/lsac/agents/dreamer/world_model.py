"""Dreamer's world model: it embeds observations, follows their states, and predicts images, rewards and discounts.

Encoder and decoder take any number of leading axes. The recurrent model is for one sequence.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.agents.dreamer.config import Config
from lsac.nn import rssm
from lsac.nn.convolutions import Conv, ConvTranspose, centred
from lsac.nn.networks import MLP, Linear
from lsac.nn.rssm import Rssm, dense
from lsac.replay import ring as rb
from lsac.types import Array, EnvSpec, Key, Metrics, Pixels

KERNEL = 4
"""Side of the kernels of the encoder, whose stride is 2."""
WIDTHS = (1, 2, 4, 8)
"""Channels of the encoder, in multiples of `depth`."""
DECODER_KERNELS = (5, 5, 6, 6)
"""Sides of the kernels of the decoder, whose stride is 2: with them, 1×1 becomes 64×64, and n×n (48 + 16n)²."""
DECODED = (5, 13, 30, 64)
"""Sides of what is made of 1×1 by the first of them, the first two, and so on: small images need fewer."""
DECODER_WIDTHS = (32, 4, 2, 1)
"""Channels before each of them, in multiples of `depth`."""
DISCOUNT_SCALE = 10.0
"""Weight of the discount's log-likelihood."""

glorot = jax.nn.initializers.glorot_uniform()


class Encoder(eqx.Module):
    convs: tuple[Conv, ...]
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, image_shape: tuple[int, int, int], depth: int, key: Key, compute_dtype: str = "float32"):
        *sides, channels = image_shape
        side, convs = min(sides), []
        for width, k in zip(WIDTHS, jax.random.split(key, len(WIDTHS)), strict=True):
            if side >= KERNEL:  # images of less than 46×46 get fewer convolutions
                weight = glorot(k, (KERNEL, KERNEL, channels, width * depth))
                convs.append(Conv(weight, jnp.zeros(width * depth), 2))
                channels, side = width * depth, (side - KERNEL) // 2 + 1
        self.convs, self.compute_dtype = tuple(convs), compute_dtype

    def __call__(self, obs: Pixels) -> Array:
        """The embeddings of observations: features of their images, and the rest as it is."""
        x = centred(obs.image).astype(self.compute_dtype)
        for conv in self.convs:
            x = jax.nn.relu(conv(x))
        return jnp.concatenate([x.reshape(*x.shape[:-3], -1).astype(jnp.float32), obs.vector], axis=-1)


class Decoder(eqx.Module):
    """The mean of an image in [−½, ½], as a function of a state. What is made too large is cut off."""

    dense: Linear
    deconvs: tuple[ConvTranspose, ...]
    image_shape: tuple[int, int, int] = eqx.field(static=True)
    compute_dtype: str = eqx.field(static=True)

    def __init__(self, size_in: int, image_shape: tuple[int, int, int], depth: int, key: Key, compute_dtype: str):
        self.image_shape, self.compute_dtype = image_shape, compute_dtype
        dense_key, *keys = jax.random.split(key, 1 + len(DECODER_KERNELS))
        layers = 1 + min(sum(side < max(image_shape[:2]) for side in DECODED), len(DECODED) - 1)
        widths = [width * depth for width in DECODER_WIDTHS[:layers]] + [image_shape[-1]]
        height, width = self.start
        self.dense = dense((size_in, height * width * widths[0]), dense_key).layers[0]
        self.deconvs = tuple(
            ConvTranspose(glorot(k, (kernel, kernel, before, after)), jnp.zeros(after), 2)
            for kernel, before, after, k in zip(DECODER_KERNELS, widths, widths[1:], keys, strict=False)
        )

    @property
    def start(self) -> tuple[int, int]:
        """Height and width before the first transposed convolution: the smallest that yield the whole image."""
        height, width = (max(1, -((48 - side) // 16)) for side in self.image_shape[:2])
        return height, width

    def __call__(self, features: Array) -> Array:
        height, width, _ = self.image_shape
        x = jax.vmap(self.dense)(features.reshape(-1, features.shape[-1])).astype(self.compute_dtype)
        x = x.reshape(*features.shape[:-1], *self.start, -1)
        for deconv in self.deconvs[:-1]:
            x = jax.nn.relu(deconv(x))
        return self.deconvs[-1](x.astype(jnp.float32))[..., :height, :width, :]


class WorldModel(eqx.Module):
    encoder: Encoder
    rssm: Rssm
    decoder: Decoder
    reward: MLP
    discount: MLP | None
    """logit of the discount, if it is predicted"""

    def __init__(self, config: Config, spec: EnvSpec, key: Key, compute_dtype: str):
        keys, shape, dtype = jax.random.split(key, 5), spec.image_shape, compute_dtype
        self.encoder = Encoder(shape, config.depth, keys[0], dtype)
        obs = jax.eval_shape(lambda: Pixels(jnp.zeros(shape, jnp.uint8), jnp.zeros(spec.obs_dim)))
        sizes = rssm.Sizes(config.deterministic_size, config.stochastic_size, config.model_units)
        self.rssm = Rssm(sizes, jax.eval_shape(self.encoder, obs).size, spec.action_dim, keys[1], dtype)
        features, units = config.deterministic_size + config.stochastic_size, config.units
        self.decoder = Decoder(features, shape, config.depth, keys[2], dtype)
        self.reward = dense((features, units, units, 1), keys[3], dtype)
        self.discount = dense((features, units, units, units, 1), keys[4], dtype) if config.predict_discount else None


class Errors(NamedTuple):
    """The terms of the model's loss, all of them negative log-likelihoods without their constants but for the KL."""

    image: Array
    reward: Array
    discount: Array
    kl: Array


def errors(model: WorldModel, windows: rb.Sequences, key: Key) -> tuple[rssm.State, Errors]:
    """The states of windows [B, T], and the errors of the model at their steps.

    The reward and the discount of a step belong to the state that it led to. At the first step of a window nothing
    is known of the step before it, so there are T − 1 of them. Where an episode ended, its last observation is unknown
    and that state is predicted.

    If discounts are learned, all these states are predicted. Otherwise only ends would be, and the heads could tell an
    end from how the state was sampled. In imagination, where all states are predicted, they would see ends everywhere.
    """
    steps, first = windows
    keys = jax.random.split(key, len(first))
    follow = jax.vmap(rssm.observe, in_axes=(None, 0, 0, 0, 0))
    seen = follow(model.rssm, model.encoder(steps.obs), steps.action, first, keys)
    image = model.decoder(seen.states.features)
    reached = seen.predicted.features
    if model.discount is None:
        reached = jnp.where(first[..., None], reached, seen.states.features)
    reached = reached[:, 1:]
    reward = 0.5 * (of_each(model.reward, reached) - steps.reward[:, :-1]) ** 2
    discount = jnp.zeros_like(reward)
    if model.discount is not None:
        discount = optax.sigmoid_binary_cross_entropy(of_each(model.discount, reached), steps.discount[:, :-1])
    return seen.states, Errors(
        image=0.5 * jnp.sum((image - centred(steps.obs.image)) ** 2, axis=(-3, -2, -1)),
        reward=reward,
        discount=discount,
        kl=seen.posterior.kl(seen.prior),
    )


def of_each(head: MLP, features: Array) -> Array:
    """[B, T] the only output of a head, for features [B, T, F]."""
    return jax.vmap(jax.vmap(head))(features)[..., 0]


def model_loss(
    model: WorldModel, config: Config, windows: rb.Sequences, key: Key
) -> tuple[Array, tuple[rssm.State, Metrics]]:
    """Eq. (10): −log p(image) − log p(reward) + max(KL(posterior ‖ prior), free nats), each of them a mean over all
    steps. Also returns the states [B, T]."""
    states, found = errors(model, windows, key)
    image, reward, discount, kl = (jnp.mean(x) for x in found)
    loss = image + reward + DISCOUNT_SCALE * discount + config.kl_scale * jnp.maximum(kl, config.free_nats)
    metrics = {"model_loss": loss, "image_loss": image, "reward_loss": reward, "kl": kl}
    if model.discount is not None:
        metrics["discount_loss"] = discount
    return loss, (states, metrics)


def open_loop(model: WorldModel, obs: Pixels, action: Array, seen: int, key: Key) -> Array:
    """[T, H, W, channels] uint8: what the model makes of T successive steps of one episode.

    The first `seen` images are reconstructions. The others are predictions from there, which follow the actions [T, A]
    and see no further observation.
    """
    observe_key, predict_key = jax.random.split(key)
    embedding = model.encoder(Pixels(obs.image[:seen], obs.vector[:seen]))
    begun = rssm.observe(model.rssm, embedding, action[:seen], jnp.zeros(seen, bool), observe_key).states
    noise = jax.random.normal(predict_key, (len(action) - seen, model.rssm.sizes.stochastic))

    def step(state: rssm.State, now: tuple[Array, Array]) -> tuple[rssm.State, rssm.State]:
        state = model.rssm.predict(state, *now)
        return state, state

    _, predicted = jax.lax.scan(step, jax.tree.map(lambda x: x[-1], begun), (action[seen - 1 : -1], noise))
    states = jax.tree.map(lambda *parts: jnp.concatenate(parts), begun, predicted)
    image = model.decoder(states.features)
    return jnp.clip(jnp.round(255.0 * (image + 0.5)), 0.0, 255.0).astype(jnp.uint8)
