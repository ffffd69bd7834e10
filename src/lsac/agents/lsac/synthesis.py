"""Synthetic transitions: a diffusion model of the replay, after Lu et al., *Synthetic Experience Replay*,
2023 (arXiv 2303.06614).

Whole transitions x = (s, a, r, s', d) are scaled to zero mean and unit deviation over the filled part of the
replay and modelled as one vector; the terminal flag d keeps its values 0 and 1. `fit` trains the model on the
replay, `generate` draws new rows of the replay's own layout. Both are written for one seed.

Deviations: the decay of the average is ramped up (see `ema_decay`), because with the published constant a
short fit would end on an average that is mostly initial weights. The defaults (warm start, `dpm2m`, bfloat16,
fewer steps, a lower σ_max) are cheaper than what was published; `PAPER` has the published budget.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.errors import InputError
from lsac.nn import diffusion
from lsac.nn.diffusion import Denoiser, edm_loss, preconditioned
from lsac.replay.ring import Layout, Replay
from lsac.types import Array, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    width: int = 512
    """width of the residual blocks"""
    dim_t: int = 256
    """width of the noise embedding and of the first layer"""
    blocks: int = 6
    """number of residual blocks"""
    train_steps: int = 4_000
    """gradient steps in one fit; a multiple of ema_every"""
    batch_size: int = 1_024
    """transitions per gradient step"""
    lr: float = 1e-3
    """Adam step size at the start of a fit; a cosine takes it to 0 at the end"""
    betas: tuple[float, float] = (0.9, 0.99)
    """Adam decay rates"""
    grad_clip: float = 1.0
    """largest global norm of a gradient"""
    ema: float = 0.995
    """decay of the averaged parameters, which are the ones sampled from"""
    ema_every: int = 10
    """gradient steps per step of the average"""
    warm_start: bool = True
    """whether a fit continues from the last one or starts from new weights"""
    model_terminals: bool = True
    """whether terminations are modelled; if not, no generated transition ends"""
    model_change: bool = False
    """whether s' − s takes the place of s' in the modelled vector"""
    normalize_reward: bool = True
    """whether the reward is scaled like the other dimensions"""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """of the wide layers; parameters are float32 in both"""
    sampler: Literal["dpm2m", "heun"] = "dpm2m"
    """dpm2m (deterministic, one evaluation per step) or heun (stochastic, two)"""
    sampler_steps: int = 16
    """noise levels that the sampler visits before 0"""
    sigma_min: float = 0.002
    """lowest noise level of the sampler above 0"""
    sigma_max: float = 10.0
    """noise level that the sampler starts from, in units of the data's deviation"""
    churn: float = 80.0
    """heun: amount of fresh noise, spread over the steps; 0 makes it deterministic"""
    churn_low: float = 0.05
    """heun: lowest noise level that gets fresh noise"""
    churn_high: float = 50.0
    """heun: highest noise level that gets fresh noise"""
    churn_noise: float = 1.003
    """heun: factor on the fresh noise"""
    sample_batch: int = 100_000
    """rows generated at once"""

    def __post_init__(self) -> None:
        if self.train_steps % self.ema_every or self.train_steps <= 0:
            raise InputError(f"train_steps is {self.train_steps}, should be a multiple of {self.ema_every}")


PAPER = Config(
    width=1024,
    train_steps=100_000,
    batch_size=256,
    lr=3e-4,
    warm_start=False,
    compute_dtype="float32",
    sampler="heun",
    sampler_steps=128,
    sigma_max=80.0,
)


class State(NamedTuple):
    model: Denoiser
    ema: Denoiser
    optimiser: optax.OptState
    mean: Array  # of the modelled vector
    std: Array


def encode(config: Config, layout: Layout, rows: Array) -> Array:
    """[…, width] rows → modelled vectors s | a | r | s' | d."""
    parts = {name: rows[..., where] for name, where in layout.fields().items()}
    following = parts["next_obs"] - parts["obs"] if config.model_change else parts["next_obs"]
    vector = [parts["obs"], parts["action"], parts["reward"], following]
    if config.model_terminals:
        vector.append((parts["discount"] == 0.0).astype(rows.dtype))
    return jnp.concatenate(vector, axis=-1)


def decode(config: Config, layout: Layout, vectors: Array, gamma: Array | float) -> Array:
    """The reverse of `encode`, with actions clipped to their box and terminals decided at one half."""
    sizes = (layout.obs_dim, layout.action_dim, 1, layout.obs_dim)
    stops = [sum(sizes[: i + 1]) for i in range(4)]
    s, a, r, following, d = jnp.split(vectors, stops, axis=-1)
    ends = d[..., 0] > 0.5 if config.model_terminals else jnp.zeros(r.shape[:-1], bool)
    return layout.pack(
        Transition(
            obs=s,
            action=jnp.clip(a, -1.0, 1.0),
            reward=r[..., 0],
            discount=jnp.where(ends, 0.0, gamma).astype(vectors.dtype),
            next_obs=s + following if config.model_change else following,
        )
    )


def normaliser(config: Config, replay: Replay) -> tuple[Array, Array]:
    """Mean and std + 1e-5 of each modelled dimension over the filled rows; 0 and 1 for those left alone.

    Everything is measured from the first row: a dimension that never changes then has a mean that is exactly
    its value and no deviation at all, however large the value is.
    """
    vectors = encode(config, replay.layout, replay.rows)
    filled = (jnp.arange(vectors.shape[0]) < replay.size)[:, None]
    count = jnp.maximum(replay.size, 1).astype(vectors.dtype)
    origin = vectors[0]
    mean = origin + jnp.sum(jnp.where(filled, vectors - origin[None], 0.0), axis=0) / count
    std = jnp.sqrt(jnp.sum(jnp.where(filled, vectors - mean[None], 0.0) ** 2, axis=0) / count) + 1e-5

    dimension = jnp.arange(mean.shape[0])
    alone = jnp.zeros(mean.shape, bool)
    if config.model_terminals:
        alone = alone | (dimension == replay.layout.width - 1)
    if not config.normalize_reward:
        alone = alone | (dimension == replay.layout.obs_dim + replay.layout.action_dim)
    return jnp.where(alone, 0.0, mean), jnp.where(alone, 1.0, std)


def _optimiser(config: Config) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.grad_clip), optax.scale_by_adam(*config.betas))


def learning_rate(config: Config, step: Array) -> Array:
    """Half a cosine from `lr` to 0 over one fit."""
    return config.lr * 0.5 * (1.0 + jnp.cos(jnp.pi * step.astype(jnp.float32) / config.train_steps))


def ema_decay(config: Config, updates: Array) -> Array:
    """(1 + n)/(10 + n) until it reaches `ema`: the average spans the last tenth of a fit, or less."""
    n = updates.astype(jnp.float32)
    return jnp.minimum(config.ema, (1.0 + n) / (10.0 + n))


def init(config: Config, layout: Layout, key: Key) -> State:
    size = layout.width if config.model_terminals else layout.width - 1
    sizes = {"dim_t": config.dim_t, "blocks": config.blocks}
    model = Denoiser(size, config.width, key, **sizes, compute_dtype=config.compute_dtype)
    return State(model, model, _optimiser(config).init(model), jnp.zeros(size), jnp.ones(size))


def fit(config: Config, state: State, replay: Replay, key: Key) -> tuple[State, Metrics]:
    """Trains on batches drawn from the filled part of the replay; every fit runs the whole cosine."""
    init_key, steps_key = jax.random.split(key)
    if not config.warm_start:
        state = init(config, replay.layout, init_key)
    mean, std = normaliser(config, replay)
    optimiser = _optimiser(config)

    def step(carry: tuple[Denoiser, optax.OptState], inputs: tuple[Array, Key]) -> tuple[Any, Array]:
        model, optimiser_state = carry
        count, key = inputs
        batch_key, loss_key = jax.random.split(key)
        rows = replay.rows[jax.random.randint(batch_key, (config.batch_size,), 0, replay.size)]
        batch = (encode(config, replay.layout, rows) - mean[None]) / std[None]
        loss, grads = jax.value_and_grad(lambda m: edm_loss(preconditioned(m), batch, loss_key))(model)
        with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to integer powers
            updates, optimiser_state = optimiser.update(grads, optimiser_state)
        rate = learning_rate(config, count)
        return (jax.tree.map(lambda p, u: p - rate * u, model, updates), optimiser_state), loss

    def averaged(carry: tuple[Denoiser, Denoiser, optax.OptState], inputs: tuple[Array, Key]) -> tuple[Any, Array]:
        model, ema, optimiser_state = carry
        counts, keys = inputs
        (model, optimiser_state), losses = jax.lax.scan(step, (model, optimiser_state), (counts, keys))
        decay = ema_decay(config, counts[0] // config.ema_every)
        return (model, optax.incremental_update(model, ema, 1.0 - decay), optimiser_state), losses

    shape = (config.train_steps // config.ema_every, config.ema_every)
    counts = jnp.arange(config.train_steps).reshape(shape)
    (model, ema, optimiser_state), losses = jax.lax.scan(
        averaged, (state.model, state.ema, state.optimiser), (counts, jax.random.split(steps_key, shape))
    )
    last_tenth = losses.reshape(-1)[-max(1, config.train_steps // 10) :]
    return State(model, ema, optimiser_state, mean, std), {"diffusion_loss": jnp.mean(last_tenth)}


def generate(config: Config, layout: Layout, state: State, count: int, key: Key, gamma: Array | float) -> Array:
    """[count, width] rows like those of the replay; `gamma` is the discount of those that do not end."""
    schedule = diffusion.karras_schedule(config.sampler_steps, config.sigma_min, config.sigma_max)
    churn = diffusion.Churn(config.churn, config.churn_low, config.churn_high, config.churn_noise)
    denoise = jax.vmap(preconditioned(state.ema), in_axes=(0, None))
    batches = -(-count // config.sample_batch)
    shape = (-(-count // batches), state.mean.shape[0])

    def batch(key: Key) -> Array:
        if config.sampler == "heun":
            x = diffusion.sample_heun(denoise, key, shape, schedule, churn)
        else:
            x = diffusion.sample_dpm2m(denoise, key, shape, schedule)
        return decode(config, layout, x * state.std[None] + state.mean[None], gamma)

    rows = jax.lax.map(batch, jax.random.split(key, batches))
    return rows.reshape(-1, layout.width)[:count]
