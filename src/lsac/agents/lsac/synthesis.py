"""Synthetic transitions: a diffusion model of the replay, after Lu et al., *Synthetic Experience Replay*,
2023 (arXiv 2303.06614).

Whole transitions x = (s, a, r, s', d) are scaled to zero mean and unit standard deviation over the replay, squashed
where they lie far outside (`squash`) and modelled as one vector; the terminal flag d is neither scaled nor squashed.
`fit` trains the model on the replay (a run does it in pieces: `begin`, `advance`, `finish`), `generate` samples new
transitions. All are written for one seed.

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
from lsac.nn.networks import ComputeDtype, compute_dtype
from lsac.nn.optimisers import scale_by_adam
from lsac.options import AddedLater, AtLeast, Between, Count, Decay, NotNegative, Positive, Share
from lsac.replay import ring as rb
from lsac.types import Array, EnvSpec, Key, Metrics, Transition


@dataclass(frozen=True)
class Config:
    width: Count = 512
    """width of the residual blocks; widened to twice the size of a transition if it is less"""
    dim_t: Count = 256
    """width of the noise embedding and of the first layer; widened to the size of a transition if it is less"""
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
    match_terminals: Annotated[bool, AddedLater(False)] = False
    """whether as many generated transitions terminate as in the replay; if not, those whose flag is over ½ do"""
    model_change: bool = False
    """whether s' − s is modelled instead of s'"""
    normalize_reward: bool = True
    """whether the reward is scaled like the other dimensions"""
    squash_beyond: Annotated[NotNegative, AddedLater(0.0)] = 0.0
    """standard deviations beyond which a scaled number grows only logarithmically, see `squash`; 0 means never"""
    compute_dtype: ComputeDtype = "auto"
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
"""Layers that are widened get a multiple of this many channels."""
BLOCK = 1024
"""Rows that are summed at once."""


class Scales(NamedTuple):
    """The replay at the time of a fit: one number for each dimension of a modelled vector."""

    mean: Array
    std: Array
    low: Array
    high: Array


class State(NamedTuple):
    model: Denoiser
    ema: Denoiser
    optimiser: optax.OptState
    scales: Scales
    terminal_rate: Array  # share of the replay's transitions that terminate


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
    """The inverse of `encode`, except that `discount` is the terminal flag d (see `discounts`); clips actions to
    [−1, 1]."""
    stops = [sum(sizes(config, spec)[: i + 1]) for i in range(4)]
    s, a, r, following, d = jnp.split(vectors, stops, axis=-1)
    return Transition(
        obs=s,
        action=jnp.clip(a, -1.0, 1.0),
        reward=r[..., 0],
        discount=d[..., 0] if config.model_terminals else jnp.zeros_like(r[..., 0]),
        next_obs=s + following if config.model_change else following,
    )


def discounts(config: Config, spec: EnvSpec, flags: Array, rate: Array) -> Array:
    """The discounts of transitions with terminal flags [N]: 0 for a share `rate` of them, those with the largest flags.

    Without `match_terminals`, it is 0 where a flag is over ½; nothing makes these as many as in the replay.
    """
    ends = flags > 0.5
    if config.match_terminals:
        chosen = jnp.arange(flags.shape[0]) < jnp.round(rate * flags.shape[0]).astype(jnp.int32)
        ends = jnp.zeros(flags.shape, bool).at[jnp.argsort(-flags)].set(chosen)
    return jnp.where(ends & config.model_terminals, 0.0, spec.gamma).astype(flags.dtype)


def scales(config: Config, spec: EnvSpec, replay: rb.Replay) -> Scales:
    """Mean, std + 1e-5, smallest and largest value of each modelled dimension over the filled slots; mean and std are 0
    and 1 for dimensions that are not scaled.

    Values are taken relative to the first transition, so that a constant dimension has exactly its value as mean and a
    std of exactly 0, however large the value is.
    """
    vectors = encode(config, rb.everything(replay)[0])
    filled = rb.filled(replay)[:, None]
    count = jnp.maximum(replay.size, 1).astype(vectors.dtype)
    origin = vectors[0]
    mean = origin + _sum(jnp.where(filled, vectors - origin[None], 0.0)) / count
    std = jnp.sqrt(_sum(jnp.where(filled, vectors - mean[None], 0.0) ** 2) / count) + 1e-5
    scaled = _scaled(config, spec)
    return Scales(
        mean=jnp.where(scaled, mean, 0.0),
        std=jnp.where(scaled, std, 1.0),
        low=jnp.min(jnp.where(filled, vectors, jnp.inf), axis=0),
        high=jnp.max(jnp.where(filled, vectors, -jnp.inf), axis=0),
    )


def terminal_rate(replay: rb.Replay) -> Array:
    """The share of the filled slots whose transition terminates."""
    ends = (rb.everything(replay)[0].discount == 0.0) & rb.filled(replay)
    return jnp.sum(ends) / jnp.maximum(replay.size, 1)


def _scaled(config: Config, spec: EnvSpec) -> Array:
    """Which dimensions are scaled: all but the terminal flag and, without `normalize_reward`, the reward."""
    scaled = (True, True, config.normalize_reward, True, False)
    parts = zip(sizes(config, spec), scaled, strict=False)
    return jnp.concatenate([jnp.full(size, scaled) for size, scaled in parts])


def squash(x: Array, beyond: float) -> Array:
    """The identity up to ± `beyond`, c, and sign(x)(c + ln(1 + |x| − c)) outside: rare contact forces of 60 standard
    deviations would otherwise dominate the loss, and the sampler does not reach them."""
    return jnp.sign(x) * (jnp.minimum(jnp.abs(x), beyond) + jnp.log1p(jnp.maximum(jnp.abs(x) - beyond, 0.0)))


def expand(x: Array, beyond: float) -> Array:
    """The inverse of `squash`."""
    return jnp.sign(x) * (jnp.minimum(jnp.abs(x), beyond) + jnp.expm1(jnp.maximum(jnp.abs(x) - beyond, 0.0)))


def to_model(config: Config, spec: EnvSpec, scales: Scales, vectors: Array) -> Array:
    """Vectors [N, D] in the units of the environment → those of the model: scaled and squashed."""
    x = (vectors - scales.mean[None]) / scales.std[None]
    return jnp.where(_scaled(config, spec)[None], squash(x, config.squash_beyond), x) if config.squash_beyond else x


def from_model(config: Config, spec: EnvSpec, scales: Scales, x: Array) -> Array:
    """The inverse of `to_model`. Squashed dimensions are clipped to the range of the replay, because `expand` would
    turn a small error of the model into a large number."""
    if not config.squash_beyond:
        return x * scales.std[None] + scales.mean[None]
    scaled = _scaled(config, spec)[None]
    x = jnp.where(scaled, expand(x, config.squash_beyond), x) * scales.std[None] + scales.mean[None]
    return jnp.where(scaled, jnp.clip(x, scales.low[None], scales.high[None]), x)


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


def channels(wanted: int, needed: int) -> int:
    """The width of a layer: as wanted, or, if that is too narrow for a modelled vector, what is needed, rounded up.

    Data hardly vary in most directions of a long vector: s' is nearly a function of s and a. Noise in a direction that
    the network cannot read or write is never removed, so a narrower layer would leave such directions at variance 1.
    """
    return wanted if wanted >= needed else -(-needed // ROUNDED_TO) * ROUNDED_TO


def init(config: Config, spec: EnvSpec, key: Key) -> State:
    size = sum(sizes(config, spec))
    dim_t, width = channels(config.dim_t, size), channels(config.width, 2 * size)  # ReLU passes half of what it reads
    dtype = compute_dtype(config.compute_dtype)
    model = Denoiser(size, width, key, dim_t=dim_t, blocks=config.blocks, compute_dtype=dtype)
    scales = Scales(jnp.zeros(size), jnp.ones(size), -jnp.ones(size), jnp.ones(size))
    return State(model, model, _optimiser(config).init(model), scales, jnp.zeros(()))


class Fit(NamedTuple):
    """A fit that is under way. The leading axis of `keys` and `losses` counts updates of the average."""

    state: State
    keys: Array
    """the data of the keys: JAX's check for keys that are used twice cannot see that the loop uses each only once"""
    losses: Array


def fit(config: Config, spec: EnvSpec, state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
    """Trains on batches sampled from the replay; every fit runs the whole step-size schedule."""
    work = begin(config, spec, state, replay, key)
    work = jax.lax.fori_loop(0, PIECES, lambda piece, work: advance(config, spec, work, replay, piece), work)
    return finish(config, work)


def begin(config: Config, spec: EnvSpec, state: State, replay: rb.Replay, key: Key) -> Fit:
    init_key, steps_key = jax.random.split(key)
    if not config.warm_start:
        state = init(config, spec, init_key)
    state = state._replace(scales=scales(config, spec, replay), terminal_rate=terminal_rate(replay))
    shape = (config.train_steps // config.ema_every, config.ema_every)
    keys = jax.random.key_data(jax.random.split(steps_key, shape))
    return Fit(state, keys, jnp.zeros(shape))


def advance(config: Config, spec: EnvSpec, work: Fit, replay: rb.Replay, piece: Array, pieces: int = PIECES) -> Fit:
    """One of the `pieces` of a fit; they differ by at most one update of the average."""
    optimiser, scales = _optimiser(config), work.state.scales

    def step(carry: tuple[Denoiser, optax.OptState], inputs: tuple[Array, Key]) -> tuple[Any, Array]:
        model, optimiser_state = carry
        count, key = inputs
        batch_key, loss_key = jax.random.split(key)
        rows = encode(config, rb.sample(replay, batch_key, config.batch_size))
        batch = to_model(config, spec, scales, rows)
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


def generate(config: Config, spec: EnvSpec, state: State, count: int, key: Key, first: int | None = None) -> Array:
    """[count, width] new transitions, packed as in the replay; with `first`, only so many of them, the first."""
    layout = rb.layout_of(spec)
    schedule = diffusion.karras_schedule(config.sampler_steps, config.sigma_min, config.sigma_max)
    churn = diffusion.Churn(config.churn, config.churn_low, config.churn_high, config.churn_noise)
    denoise = jax.vmap(preconditioned(state.ema), in_axes=(0, None))
    batches = -(-count // config.sample_batch)
    shape = (-(-count // batches), state.scales.mean.shape[0])

    def batch(key: Key) -> Array:
        if config.sampler == "heun":
            x = diffusion.sample_heun(denoise, key, shape, schedule, churn)
        else:
            x = diffusion.sample_dpm2m(denoise, key, shape, schedule)
        return layout.pack(decode(config, spec, from_model(config, spec, state.scales, x)))

    wanted = count if first is None else min(first, count)
    keys = jax.random.split(key, batches)[: -(-wanted // shape[0])]
    rows = jax.lax.map(batch, keys).reshape(-1, layout.width)[:wanted]
    flag = layout.fields()["discount"].start
    return rows.at[:, flag].set(discounts(config, spec, rows[:, flag], state.terminal_rate))
