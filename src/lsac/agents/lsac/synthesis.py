"""Synthetic transitions: a diffusion model of the replay, after Lu et al., *Synthetic Experience Replay*,
2023 (arXiv 2303.06614).

Whole transitions x = (s, a, r, s', d) are scaled to zero mean and unit standard deviation over the replay and modelled
as one vector; the terminal flag d is not scaled. `fit` trains the model on the replay (a run does it in pieces:
`begin`, `advance`, `finish`), `generate` samples new transitions. All are written for one seed.

Deviations: the decay of the parameter average is ramped up (see `ema_decay`), because with the published constant the
average after a short fit would consist mostly of initial weights. The defaults (warm start, `dpm2m`, bfloat16 on a
GPU, fewer steps, a lower σ_max) are cheaper than the published settings; `PAPER` has the published budget. Layers are
never narrower than a transition, also with `PAPER`: the published first layer has 256 channels, but a transition of
Humanoid has 771 numbers (see `channels`).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.errors import InputError
from lsac.nn import diffusion
from lsac.nn.diffusion import Denoiser, edm_loss, preconditioned
from lsac.nn.optimisers import scale_by_adam
from lsac.options import AtLeast, Between, Count, Decay, NotNegative, Positive, Share
from lsac.replay import ring as rb
from lsac.types import Array, EnvSpec, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    width: Count = 512
    """width of the residual blocks, at least; they are widened to the size of a transition, see `channels`"""
    dim_t: Count = 256
    """width of the noise embedding and of the first layer, at least; widened in the same way"""
    blocks: Annotated[int, Between(1, 1_000)] = 6
    """number of residual blocks"""
    train_steps: Count = 4_000
    """gradient steps per fit; a multiple of ema_every"""
    batch_size: Count = 1_024
    """transitions per gradient step"""
    lr: Positive = 1e-3
    """initial Adam step size of a fit, which decays to 0 along a cosine"""
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """Adam decay rates β₁ and β₂"""
    grad_clip: Positive = 1.0
    """global norm to which gradients are clipped"""
    ema: Share = 0.995
    """decay of the exponential moving average of the parameters, which generates the data"""
    ema_every: Count = 10
    """gradient steps per update of the average"""
    warm_start: bool = True
    """whether a fit continues from the previous one; if not, it starts from new weights"""
    model_terminals: bool = True
    """whether terminations are modelled; if not, no generated transition terminates"""
    model_change: bool = False
    """whether s' − s is modelled instead of s'"""
    normalize_reward: bool = True
    """whether the reward is scaled like the other dimensions"""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of the wide layers: auto is bfloat16 on a GPU and float32 on a CPU; parameters are always float32"""
    sampler: Literal["dpm2m", "heun"] = "dpm2m"
    """dpm2m (deterministic, one evaluation per step) or heun (stochastic, two)"""
    sampler_steps: Annotated[int, AtLeast(2)] = 16
    """number of noise levels of the sampler, without 0"""
    sigma_min: Positive = 0.002
    """lowest nonzero noise level of the sampler"""
    sigma_max: Positive = 10.0
    """noise level at which the sampler starts, in units of the data's standard deviation"""
    churn: NotNegative = 80.0
    """heun: amount of added noise, spread over the steps; 0 makes it deterministic"""
    churn_low: NotNegative = 0.05
    """heun: lowest noise level at which noise is added"""
    churn_high: NotNegative = 50.0
    """heun: highest noise level at which noise is added"""
    churn_noise: NotNegative = 1.003
    """heun: factor on the added noise"""
    sample_batch: Count = 100_000
    """transitions generated at once"""

    def check(self) -> None:
        if self.train_steps % self.ema_every:
            raise InputError(
                f"--generator.train-steps {self.train_steps}: "
                f"must be a multiple of --generator.ema-every {self.ema_every}"
            )
        if self.sigma_min >= self.sigma_max:
            raise InputError(
                f"--generator.sigma-min {self.sigma_min}: must be less than --generator.sigma-max {self.sigma_max}"
            )


PIECES = 16
"""Parts of a fit, between which its progress is reported and a stop is noticed."""

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


ROUNDED_TO = 256
"""Layers that are widened to the size of a transition get a multiple of this many channels."""
BLOCK = 1024
"""Rows that are summed at once."""


class State(NamedTuple):
    model: Denoiser
    ema: Denoiser
    optimiser: optax.OptState
    mean: Array  # of the modelled vector
    std: Array


def sizes(config: Config, spec: EnvSpec) -> tuple[int, ...]:
    """Sizes of the parts of a modelled vector: s, a, r, s' and, with `model_terminals`, d."""
    return (spec.obs_dim, spec.action_dim, 1, spec.obs_dim, *([1] if config.model_terminals else []))


def encode(config: Config, transition: Transition) -> Array:
    """Transitions [...] → modelled vectors s | a | r | s' | d."""
    obs, next_obs = transition.obs, transition.next_obs
    vector = [obs, transition.action, transition.reward[..., None], next_obs - obs if config.model_change else next_obs]
    if config.model_terminals:
        vector.append((transition.discount == 0.0).astype(obs.dtype)[..., None])
    return jnp.concatenate(vector, axis=-1)


def decode(config: Config, spec: EnvSpec, vectors: Array) -> Transition:
    """The inverse of `encode`; clips actions to [−1, 1] and thresholds the terminal flag at ½."""
    stops = [sum(sizes(config, spec)[: i + 1]) for i in range(4)]
    s, a, r, following, d = jnp.split(vectors, stops, axis=-1)
    ends = d[..., 0] > 0.5 if config.model_terminals else jnp.zeros(r.shape[:-1], bool)
    return Transition(
        obs=s,
        action=jnp.clip(a, -1.0, 1.0),
        reward=r[..., 0],
        discount=jnp.where(ends, 0.0, spec.gamma).astype(vectors.dtype),
        next_obs=s + following if config.model_change else following,
    )


def scales(config: Config, spec: EnvSpec, replay: rb.Replay) -> tuple[Array, Array]:
    """Mean and std + 1e-5 of each modelled dimension over the filled slots; 0 and 1 for dimensions that are not scaled.

    Values are taken relative to the first transition, so that a constant dimension has exactly its value as mean and a
    std of exactly 0, however large the value is.
    """
    vectors = encode(config, rb.everything(replay)[0])
    filled = rb.filled(replay)[:, None]
    count = jnp.maximum(replay.size, 1).astype(vectors.dtype)
    origin = vectors[0]
    mean = origin + _sum(jnp.where(filled, vectors - origin[None], 0.0)) / count
    std = jnp.sqrt(_sum(jnp.where(filled, vectors - mean[None], 0.0) ** 2) / count) + 1e-5

    dimension = jnp.arange(mean.shape[0])
    alone = jnp.zeros(mean.shape, bool)
    if config.model_terminals:
        alone = alone | (dimension == mean.shape[0] - 1)
    if not config.normalize_reward:
        alone = alone | (dimension == spec.obs_dim + spec.action_dim)
    return jnp.where(alone, 0.0, mean), jnp.where(alone, 1.0, std)


def _sum(rows: Array) -> Array:
    """The sum of rows [N, D] in blocks, one after the other: zeros at the end do not change a bit of it, so that a run
    gives the same numbers with a larger replay that is filled equally far."""
    blocks = jnp.pad(rows, ((0, -rows.shape[0] % BLOCK), (0, 0))).reshape(-1, BLOCK, rows.shape[1])
    zero = jnp.zeros(rows.shape[1], rows.dtype)
    return jax.lax.scan(lambda total, block: (total + jnp.sum(block, axis=0), None), zero, blocks)[0]


def _optimiser(config: Config) -> optax.GradientTransformation:
    b1, b2 = config.betas
    return scale_by_adam(max_norm=config.grad_clip, b1=b1, b2=b2)


def learning_rate(config: Config, step: Array) -> Array:
    """The step size: half a cosine from `lr` to 0 over one fit."""
    return config.lr * 0.5 * (1.0 + jnp.cos(jnp.pi * step.astype(jnp.float32) / config.train_steps))


def ema_decay(config: Config, updates: Array) -> Array:
    """(1 + n)/(10 + n) until it reaches `ema`, so that the average spans at most the last tenth of a fit."""
    n = updates.astype(jnp.float32)
    return jnp.minimum(config.ema, (1.0 + n) / (10.0 + n))


def compute_dtype(config: Config) -> str:
    """The dtype of the wide layers on this machine: bfloat16 is fast on accelerators and slow on CPUs."""
    if config.compute_dtype != "auto":
        return config.compute_dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def channels(wanted: int, size: int) -> int:
    """The width of a layer: as wanted, or, if a modelled vector has more numbers than that, their number rounded up.

    Data hardly vary in most directions of a long vector: s' is nearly a function of s and a. Noise in a direction that
    the network cannot read or write is never removed, so a narrower layer would leave such directions at variance 1.
    """
    return wanted if wanted >= size else -(-size // ROUNDED_TO) * ROUNDED_TO


def init(config: Config, spec: EnvSpec, key: Key) -> State:
    size = sum(sizes(config, spec))
    width, dim_t = channels(config.width, size), channels(config.dim_t, size)
    model = Denoiser(size, width, key, dim_t=dim_t, blocks=config.blocks, compute_dtype=compute_dtype(config))
    return State(model, model, _optimiser(config).init(model), jnp.zeros(size), jnp.ones(size))


class Fit(NamedTuple):
    """A fit that is under way. The leading axis of `keys` and `losses` counts updates of the average."""

    state: State
    keys: Array
    """the data of the keys: JAX's check for keys that are used twice cannot see that the loop uses each only once"""
    losses: Array


def fit(config: Config, spec: EnvSpec, state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
    """Trains on batches sampled from the replay; every fit runs the whole step-size schedule."""
    work = begin(config, spec, state, replay, key)
    work = jax.lax.fori_loop(0, PIECES, lambda piece, work: advance(config, work, replay, piece), work)
    return finish(config, work)


def begin(config: Config, spec: EnvSpec, state: State, replay: rb.Replay, key: Key) -> Fit:
    init_key, steps_key = jax.random.split(key)
    if not config.warm_start:
        state = init(config, spec, init_key)
    mean, std = scales(config, spec, replay)
    shape = (config.train_steps // config.ema_every, config.ema_every)
    return Fit(
        state._replace(mean=mean, std=std), jax.random.key_data(jax.random.split(steps_key, shape)), jnp.zeros(shape)
    )


def advance(config: Config, work: Fit, replay: rb.Replay, piece: Array, pieces: int = PIECES) -> Fit:
    """One of the `pieces` of a fit; they differ by at most one update of the average."""
    optimiser, mean, std = _optimiser(config), work.state.mean, work.state.std

    def step(carry: tuple[Denoiser, optax.OptState], inputs: tuple[Array, Key]) -> tuple[Any, Array]:
        model, optimiser_state = carry
        count, key = inputs
        batch_key, loss_key = jax.random.split(key)
        batch = (encode(config, rb.sample(replay, batch_key, config.batch_size)) - mean[None]) / std[None]
        loss, grads = jax.value_and_grad(lambda m: edm_loss(preconditioned(m), batch, loss_key))(model)
        updates, optimiser_state = optimiser.update(grads, optimiser_state)
        rate = learning_rate(config, count)
        return (jax.tree.map(lambda p, u: p - rate * u, model, updates), optimiser_state), loss

    def averaged(i: Array, work: Fit) -> Fit:
        state, counts = work.state, i * config.ema_every + jnp.arange(config.ema_every)
        carry = state.model, state.optimiser
        keys = jax.random.wrap_key_data(work.keys[i])
        (model, optimiser_state), losses = jax.lax.scan(step, carry, (counts, keys))
        ema = optax.incremental_update(model, state.ema, 1.0 - ema_decay(config, i))
        state = state._replace(model=model, ema=ema, optimiser=optimiser_state)
        return work._replace(state=state, losses=work.losses.at[i].set(losses))

    total = work.losses.shape[0]
    return jax.lax.fori_loop(total * piece // pieces, total * (piece + 1) // pieces, averaged, work)


def finish(config: Config, work: Fit) -> tuple[State, Metrics]:
    last_tenth = work.losses.reshape(-1)[-max(1, config.train_steps // 10) :]
    return work.state, {"diffusion_loss": jnp.mean(last_tenth)}


def generate(config: Config, spec: EnvSpec, state: State, count: int, key: Key) -> Array:
    """[count, width] new transitions, packed as in the replay."""
    layout = rb.layout_of(spec)
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
        return layout.pack(decode(config, spec, x * state.std[None] + state.mean[None]))

    rows = jax.lax.map(batch, jax.random.split(key, batches))
    return rows.reshape(-1, layout.width)[:count]
