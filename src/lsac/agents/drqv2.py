"""DrQ-v2, control from pixels: Yarats, Fergus, Lazaric, Pinto, ICLR 2022 (arXiv 2107.09645).

From *Mastering Visual Continuous Control: Improved Data-Augmented Reinforcement Learning*. DDPG on images that are
shifted at random by a few pixels: a deterministic actor with a falling amount of exploration noise, twin critics, and
n-step returns. A convolutional encoder serves actor and critics, and only the critics' loss trains it. Encoder and
actor have no target networks.

Deviations, with reasons: docs/agents/drqv2.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from lsac.nn.augmentation import random_shift
from lsac.nn.convolutions import ImageEncoder, centred, encoded_size
from lsac.nn.networks import MLP, ComputeDtype, Linear, compute_dtype, ensemble, orthogonal, polyak, redrawn
from lsac.nn.optimisers import adam, descend
from lsac.options import BatchSize, Count, CountOrZero, Layers, NotNegative, Positive, PositiveShare
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Pixels, Transition, memoryless

OBSERVATIONS = "images"
"""What the agent learns from."""


@dataclass(frozen=True)
class Config:
    hidden: Layers = (1024, 1024)
    """width of each hidden layer, for actor and critics"""
    feature_dim: Count = 50
    """numbers to which actor and critics each compress the encoded image"""
    filters: Count = 32
    """channels of each of the encoder's four convolutions"""
    batch_size: BatchSize = 256
    """transitions per update"""
    lr: Positive = 1e-4
    """Adam step size of encoder, actor and critics"""
    tau: PositiveShare = 0.01
    """Polyak weight of the new parameters in the target critics, at every update"""
    n_step: Count = 3
    """decisions whose rewards are summed before the TD target bootstraps"""
    noise_start: NotNegative = 1.0
    """std of the noise on actions at the first decision"""
    noise_end: NotNegative = 0.1
    """std of the noise on actions after `noise_steps` decisions"""
    noise_steps: Count = 100_000
    """decisions over which the std falls linearly, counted over all simulators of a seed"""
    noise_clip: NotNegative = 0.3
    """bound to which the noise is clipped in the losses; the noise of exploration is not"""
    shift: CountOrZero = 4
    """images are shifted by up to this many pixels in each direction; 0 turns the augmentation off"""
    compute_dtype: ComputeDtype = "auto"
    """dtype of the encoder and of the layers after it in updates: auto, float32 or bfloat16; auto is bfloat16 on a GPU;
    parameters and acting are always float32"""

    @property
    def needs_gpu(self) -> bool:
        """Whether the convolutions of an update take seconds on a CPU."""
        return self.batch_size * self.filters**2 > 2**16


class Features(NamedTuple):
    """An observation after the encoder."""

    image: Array
    """[F] the encoded image"""
    vector: Array
    """[O] the rest of the observation, as it was"""


class Trunk(eqx.Module):
    """The encoded image as `feature_dim` numbers in (−1, 1), followed by the vector of the observation."""

    linear: Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, size: int, feature_dim: int, key: Key):
        self.linear = orthogonal_mlp((size, feature_dim), key).layers[0]
        self.norm = eqx.nn.LayerNorm(feature_dim)

    def __call__(self, features: Features) -> Array:
        return jnp.concatenate([jnp.tanh(self.norm(self.linear.to_float32(features.image))), features.vector])


class Actor(eqx.Module):
    """μ(s), the mean action."""

    trunk: Trunk
    mlp: MLP

    def __call__(self, features: Features) -> Array:
        return jnp.tanh(self.mlp(self.trunk(features)))


class Critics(eqx.Module):
    """[2]: Q_1(s, a) and Q_2(s, a), which share their trunk."""

    trunk: Trunk
    mlps: MLP  # stacked [2]

    def __call__(self, features: Features, action: Array) -> Array:
        x = jnp.concatenate([self.trunk(features), action])
        return jax.vmap(lambda mlp: mlp(x)[0])(self.mlps)


class Policy(NamedTuple):
    """What acting needs."""

    encoder: ImageEncoder
    actor: Actor
    std: Array


class State(NamedTuple):
    encoder: ImageEncoder
    actor: Actor
    critics: Critics
    targets: Critics
    actor_opt: optax.OptState
    critic_opt: optax.OptState  # of encoder and critics
    decisions: Array
    """transitions observed so far"""
    std: Array
    """present std of the noise"""


def orthogonal_mlp(sizes: tuple[int, ...], key: Key) -> MLP:
    """A network with orthogonal weights and zero biases."""
    key, weight_key = jax.random.split(key)
    return redrawn(MLP(sizes, "relu", key), orthogonal, weight_key)


def augmented(obs: Pixels, key: Key, shift: int, dtype: str) -> Pixels:
    """A batch with each image shifted at random, and its numbers in [−½, ½]."""
    keys = jax.random.split(key, obs.image.shape[0])
    images = jax.vmap(partial(random_shift, pad=shift))(obs.image, keys)
    return obs._replace(image=centred(images).astype(dtype))


def encoded(encoder: ImageEncoder, obs: Pixels) -> Features:
    """The features of an observation, or of a batch, whose image is in [−½, ½]."""
    return Features(encoder(obs.image), obs.vector)


def noise_std(config: Config, decisions: Array) -> Array:
    """σ after this many decisions."""
    share = jnp.minimum(decisions.astype(jnp.float32) / config.noise_steps, 1.0)
    return config.noise_start + (config.noise_end - config.noise_start) * share


def act(policy: Policy, obs: Pixels, key: Key, explore: bool) -> Array:
    """μ(s), plus N(0, σ²) while exploring, clipped to [−1, 1]."""
    action = policy.actor(encoded(policy.encoder, obs._replace(image=centred(obs.image))))
    return jnp.clip(action + policy.std * jax.random.normal(key, action.shape), -1.0, 1.0) if explore else action


def noisy(mean: Array, std: Array, bound: float, key: Key) -> Array:
    """clip(μ + clip(N(0, σ²), ±bound), ±1), with the gradient of μ alone: the outer clip lets the gradient through, so
    that an action at the edge of the box can still be moved away from it."""
    action = mean + jnp.clip(std * jax.random.normal(key, mean.shape), -bound, bound)
    return jax.lax.stop_gradient(jnp.clip(action, -1.0, 1.0)) + (action - jax.lax.stop_gradient(action))


def td_target(targets: Critics, batch: Transition, next_features: Features, next_action: Array) -> Array:
    """y = r + discount · min_k Q̄_k(s', a'), for a batch of n-step transitions."""
    return batch.reward + batch.discount * jnp.min(jax.vmap(targets)(next_features, next_action), axis=1)


def critic_loss(
    networks: tuple[ImageEncoder, Critics], obs: Pixels, action: Array, target: Array
) -> tuple[Array, tuple[Array, Features]]:
    """(Q_k − y)², summed over critics. Also returns Q, [B, 2], and the features."""
    encoder, critics = networks
    features = encoded(encoder, obs)
    q = jax.vmap(critics)(features, action)
    return jnp.sum(jnp.mean((q - target[:, None]) ** 2, axis=0)), (q, features)


def actor_loss(actor: Actor, critics: Critics, features: Features, std: Array, bound: float, key: Key) -> Array:
    """−min_k Q_k(s, a) at the actor's noisy action a. The features are constants: the encoder gets no gradient."""
    action = noisy(jax.vmap(actor)(features), std, bound, key)
    return -jnp.mean(jnp.min(jax.vmap(critics)(features, action), axis=1))


def make(config: Config, spec: EnvSpec) -> Agent:
    optimiser, dtype = adam(config.lr), compute_dtype(config.compute_dtype)
    trunk_sizes = (encoded_size(spec.image_shape, config.filters), config.feature_dim)
    inputs = config.feature_dim + spec.obs_dim

    def init(key: Key) -> State:
        keys = jax.random.split(key, 5)
        encoder = ImageEncoder(spec.image_shape[2], keys[0], config.filters)
        actor = Actor(Trunk(*trunk_sizes, keys[1]), orthogonal_mlp((inputs, *config.hidden, spec.action_dim), keys[2]))
        sizes = (inputs + spec.action_dim, *config.hidden, 1)
        critics = Critics(Trunk(*trunk_sizes, keys[3]), ensemble(partial(orthogonal_mlp, sizes), 2, keys[4]))
        return State(
            encoder=encoder,
            actor=actor,
            critics=critics,
            targets=critics,
            actor_opt=optimiser.init(actor),
            critic_opt=optimiser.init((encoder, critics)),
            decisions=jnp.zeros((), jnp.int32),
            std=jnp.asarray(config.noise_start, jnp.float32),
        )

    def observe(state: State, transitions: Transition, first: Array) -> State:
        decisions = state.decisions + transitions.reward.shape[0]
        return state._replace(decisions=decisions, std=noise_std(config, decisions))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, shift_key, next_shift_key, target_key, actor_key = jax.random.split(key, 5)
        batch = rb.n_step(replay, rb.indices(replay, batch_key, (config.batch_size,)), config.n_step)
        obs = augmented(batch.obs, shift_key, config.shift, dtype)
        next_obs = augmented(batch.next_obs, next_shift_key, config.shift, dtype)

        next_features = encoded(state.encoder, next_obs)
        next_action = noisy(jax.vmap(state.actor)(next_features), state.std, config.noise_clip, target_key)
        target = td_target(state.targets, batch, next_features, next_action)
        # one Adam for two networks changes nothing: every parameter has moments of its own
        networks, data = (state.encoder, state.critics), (obs, batch.action, target)
        learned = descend(optimiser, critic_loss, networks, state.critic_opt, *data)
        (encoder, critics), (q, features) = learned.params, learned.aux

        args = critics, features, state.std, config.noise_clip, actor_key
        actor = descend(optimiser, actor_loss, state.actor, state.actor_opt, *args, has_aux=False)
        state = state._replace(
            encoder=encoder,
            actor=actor.params,
            critics=critics,
            targets=polyak(state.targets, critics, config.tau),
            actor_opt=actor.opt,
            critic_opt=learned.opt,
        )
        metrics = {"critic_loss": learned.loss, "actor_loss": actor.loss, "q_mean": jnp.mean(q), "std": state.std}
        return state, metrics

    return Agent(
        init=init,
        policy=lambda state: Policy(state.encoder, state.actor, state.std),
        act=memoryless(act),
        update=update,
        observe=observe,
    )
