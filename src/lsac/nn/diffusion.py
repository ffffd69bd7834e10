"""Diffusion on vectors: Karras et al., *Elucidating the Design Space of Diffusion-Based Generative Models*,
2022 (arXiv 2206.00364), called EDM below.

A denoiser D(x; σ) estimates the mean of the clean data given x = clean + σ·noise. It is the only thing that is learned.
A sampler integrates dx/dσ = (x − D(x; σ))/σ from pure noise at σ_max down to σ = 0.

Data are expected to have about unit standard deviation (σ_data = 1). The losses call `denoise(x, sigma)` with one
vector; the samplers call it with an array of the `shape` that is sampled.

The last part is the older discrete form (`Ddpm`), which diffusion policies use.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lsac.nn.networks import Linear, ensemble
from lsac.types import Array, Key

Denoise: TypeAlias = Callable[[Array, Array], Array]
"""x + σ·noise, σ → estimate of x"""


class Denoiser(eqx.Module):
    """The raw network F(x, c): a residual MLP, conditioned on the noise level c by an embedding in its first layer.

    The frequencies of the noise embedding are random and not trained. Parameters are float32; `compute_dtype` is the
    dtype of the wide layers. Input and output stay in float32, because near σ_min the noise to be removed is smaller
    than the rounding error of bfloat16.
    """

    frequencies: Array
    embed: tuple[Linear, Linear]
    enter: Linear
    widen: Linear
    blocks: tuple[Linear, ...]
    leave: Linear
    compute_dtype: str = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        width: int,
        key: Key,
        *,
        dim_t: int = 256,
        blocks: int = 6,
        frequencies: int = 8,
        compute_dtype: str = "float32",
    ):
        frequency_key, block_key, *keys = jax.random.split(key, 7)
        self.frequencies = jax.random.normal(frequency_key, (frequencies,))
        self.embed = (Linear(2 * frequencies + 1, dim_t, keys[0]), Linear(dim_t, dim_t, keys[1]))
        self.enter = Linear(size, dim_t, keys[2])
        self.widen = Linear(dim_t, width, keys[3])
        self.leave = Linear(width, size, keys[4])
        stacked = ensemble(lambda k: Linear(width, width, k), blocks, block_key)
        self.blocks = tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(blocks))
        self.compute_dtype = compute_dtype

    def __call__(self, x: Array, c: Array) -> Array:
        dtype = jnp.dtype(self.compute_dtype)
        angle = 2.0 * jnp.pi * c * jax.lax.stop_gradient(self.frequencies)
        time = self.embed[0](jnp.concatenate([c[None], jnp.sin(angle), jnp.cos(angle)]))
        h = self.enter(x) + self.embed[1](jax.nn.silu(time))
        h = self.widen(h.astype(dtype))
        for block in self.blocks:
            h = h + block(jax.nn.relu(h))
        return self.leave.to_float32(jax.nn.relu(h))


class Preconditioning(NamedTuple):
    skip: Array
    out: Array
    into: Array
    noise: Array


def preconditioning(sigma: Array, sigma_data: float = 1.0) -> Preconditioning:
    """The four functions of σ that keep the network's input and target at unit variance: EDM, table 1."""
    total = sigma**2 + sigma_data**2
    return Preconditioning(
        skip=sigma_data**2 / total,
        out=sigma * sigma_data / jnp.sqrt(total),
        into=1.0 / jnp.sqrt(total),
        noise=0.25 * jnp.log(sigma),
    )


def preconditioned(network: Callable[[Array, Array], Array], sigma_data: float = 1.0) -> Denoise:
    """D(x; σ) = c_skip x + c_out F(c_in x, c_noise): EDM, eq. (7)."""

    def denoise(x: Array, sigma: Array) -> Array:
        c = preconditioning(sigma, sigma_data)
        return c.skip * x + c.out * network(c.into * x, c.noise)

    return denoise


def denoising_error(denoise: Denoise, clean: Array, sigma: Array, noise: Array, sigma_data: float = 1.0) -> Array:
    """Mean over dimensions of (D(x + σ·noise; σ) − x)², weighted so that every σ has the same loss initially."""
    weight = (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2
    return weight * jnp.mean((denoise(clean + sigma * noise, sigma) - clean) ** 2)


def edm_loss(
    denoise: Denoise,
    batch: Array,
    key: Key,
    *,
    log_mean: float = -1.2,
    log_std: float = 1.2,
    sigma_data: float = 1.0,
) -> Array:
    """Batch mean of `denoising_error` with ln σ ~ N(log_mean, log_std²), one σ per row of `batch` [B, d]."""
    sigma_key, noise_key = jax.random.split(key)
    sigma = jnp.exp(log_mean + log_std * jax.random.normal(sigma_key, batch.shape[:1]))
    noise = jax.random.normal(noise_key, batch.shape)
    errors = jax.vmap(lambda x, s, n: denoising_error(denoise, x, s, n, sigma_data))(batch, sigma, noise)
    return jnp.mean(errors)


def karras_schedule(steps: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> Array:
    """[steps + 1] noise levels from σ_max to σ_min, evenly spaced in σ^(1/ρ), and then 0: EDM, eq. (5)."""
    if steps < 2:
        raise ValueError(f"a schedule needs at least 2 steps, not {steps}")
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    sigma = jnp.linspace(high, low, steps) ** rho
    return jnp.append(sigma, jnp.zeros((), sigma.dtype))


class Churn(NamedTuple):
    """The noise that stochastic Heun adds: `amount`, spread over the steps, where σ is in [low, high]."""

    amount: float = 80.0
    low: float = 0.05
    high: float = 50.0
    noise: float = 1.003


NO_CHURN = Churn(amount=0.0)


def sample_heun(denoise: Denoise, key: Key, shape: tuple[int, ...], schedule: Array, churn: Churn = NO_CHURN) -> Array:
    """EDM, algorithm 2: each step adds noise and then takes one second-order step down; two evaluations per step.

    The last step, to σ = 0, is first order and returns the denoiser's estimate. Without churn the sampler is
    deterministic given its initial noise (algorithm 1).
    """
    start_key, churn_key = jax.random.split(key)
    sigmas = schedule[:-1]
    most = min(churn.amount / sigmas.shape[0], 2**0.5 - 1)
    gains = jnp.where((sigmas >= churn.low) & (sigmas <= churn.high), most, 0.0)
    keys = jax.random.split(churn_key, sigmas.shape[0])

    def raised(x: Array, sigma: Array, gain: Array, key: Key) -> tuple[Array, Array]:
        if not churn.amount:
            return x, sigma
        spread = churn.noise * sigma * jnp.sqrt(gain * (2.0 + gain))  # √(raised σ² − σ²)
        return x + spread * jax.random.normal(key, shape), sigma * (1.0 + gain)

    def step(x: Array, inputs: tuple[Array, Array, Array, Key]) -> tuple[Array, None]:
        sigma, lower, gain, key = inputs
        x, sigma = raised(x, sigma, gain, key)
        slope = (x - denoise(x, sigma)) / sigma
        euler = x + (lower - sigma) * slope
        slope_after = (euler - denoise(euler, lower)) / lower
        return x + (lower - sigma) * 0.5 * (slope + slope_after), None

    x = sigmas[0] * jax.random.normal(start_key, shape)
    x, _ = jax.lax.scan(step, x, (sigmas[:-1], sigmas[1:], gains[:-1], keys[:-1]))
    return denoise(*raised(x, sigmas[-1], gains[-1], keys[-1]))


def sample_dpm2m(denoise: Denoise, key: Key, shape: tuple[int, ...], schedule: Array) -> Array:
    """DPM-Solver++(2M), Lu et al. 2022 (arXiv 2211.01095): second order with one evaluation per step.

    In log σ the equation is linear except for D, which is extrapolated from its last two values. The first step has
    no earlier value and the last one ends at σ = 0; both are first order. Only the initial noise is random.
    """
    sigmas = schedule[:-1]
    lengths = -jnp.diff(jnp.log(sigmas))
    zero = jnp.zeros(1, sigmas.dtype)
    lean = jnp.concatenate([zero, 0.5 * lengths[1:] / lengths[:-1], zero])

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array, Array]) -> tuple:
        x, previous = carry
        sigma, lower, lean = inputs
        clean = denoise(x, sigma)
        ahead = clean + lean * (clean - previous)
        return (ahead + lower / sigma * (x - ahead), clean), None

    start = sigmas[0] * jax.random.normal(key, shape)
    (x, _), _ = jax.lax.scan(step, (start, jnp.zeros_like(start)), (sigmas, schedule[1:], lean))
    return x


PredictNoise: TypeAlias = Callable[[Array, Array], Array]
"""x_t, t → estimate of the noise in x_t"""


class Ddpm(NamedTuple):
    """The discrete diffusion of Ho et al. 2020 (arXiv 2006.11239), x_t = √ᾱ_t x + √(1 − ᾱ_t)·noise; all fields [T].

    Here t counts from 0, the smallest noise level, to T − 1. Diffusion policies use it with few steps.
    """

    betas: Array
    alphas: Array  # 1 − β
    alpha_bars: Array  # ᾱ, the running product of 1 − β


def ddpm(betas: np.ndarray) -> Ddpm:
    """The schedule with these β, computed in float64 because 1 − β_0 is close to 1."""
    fields = betas, 1.0 - betas, np.cumprod(1.0 - betas)
    return Ddpm(*(jnp.asarray(field, jnp.float32) for field in fields))


def vp_betas(steps: int, beta_min: float = 0.1, beta_max: float = 10.0) -> np.ndarray:
    """[T]: the variance-preserving process of Song et al. 2021, whose rate grows linearly from β_min to β_max over unit
    time, divided into T equal steps. The last ᾱ is exp(−(β_min + β_max)/2) for every T."""
    t = np.arange(1, steps + 1)
    return -np.expm1(-beta_min / steps - 0.5 * (beta_max - beta_min) * (2 * t - 1) / steps**2)


def cosine_betas(steps: int) -> np.ndarray:
    """[T]: √ᾱ follows a cosine from 1 to 0: Nichol and Dhariwal 2021 (arXiv 2102.09672), eq. (17), β ≤ 0.999."""
    time = np.linspace(0.0, 1.0, steps + 1)
    alpha_bars = np.cos((time + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1.0 - alpha_bars[1:] / alpha_bars[:-1], 0.999)


def noised(schedule: Ddpm, clean: Array, t: Array, noise: Array) -> Array:
    """x_t = √ᾱ_t x + √(1 − ᾱ_t)·noise for one t; the noise is what `predict_noise(x_t, t)` is trained to return."""
    alpha_bar = schedule.alpha_bars[t]
    return jnp.sqrt(alpha_bar) * clean + jnp.sqrt(1.0 - alpha_bar) * noise


def sample_ddpm(
    predict_noise: PredictNoise, schedule: Ddpm, start: Array, key: Key, *, temperature: float, clip_clean: bool
) -> Array:
    """Denoises `start`, standard normal noise of any shape, to a sample in [−1, 1], through t = T − 1, …, 0.

    x ← (x − β_t/√(1 − ᾱ_t) ε)/√α_t + temperature·√β_t·z, with z = 0 at t = 0, and x clipped to [−1, 1] at every step.
    With `clip_clean`, the estimate x̂ = (x − √(1 − ᾱ_t) ε)/√ᾱ_t is clipped to [−1, 1] instead, and the step samples
    from q(x_{t−1} | x_t, x̂), whose variance is β̃_t = β_t (1 − ᾱ_{t−1})/(1 − ᾱ_t): eqs. (11) and (7) of Ho et al.
    With temperature 0 the result is a deterministic function of `start`.
    """
    betas, alphas, bars = schedule
    earlier = jnp.concatenate([jnp.ones_like(bars[:1]), bars[:-1]])
    weights: tuple[Array, ...]
    if clip_clean:
        to_clean = 1.0 / jnp.sqrt(bars), jnp.sqrt((1.0 - bars) / bars)
        to_mean = jnp.sqrt(earlier) * betas / (1.0 - bars), jnp.sqrt(alphas) * (1.0 - earlier) / (1.0 - bars)
        weights, std = (*to_clean, *to_mean), jnp.sqrt(betas * (1.0 - earlier) / (1.0 - bars))
    else:
        weights = 1.0 / jnp.sqrt(alphas), betas / jnp.sqrt((1.0 - bars) * alphas)
        std = jnp.sqrt(betas).at[0].set(0.0)
    # There are many short steps: everything except the predicted noise is computed before the first one.
    times, shape = jnp.arange(len(betas), dtype=jnp.int32), (len(betas), *start.shape)
    z = jax.vmap(jnp.multiply)(temperature * std, jax.random.normal(key, shape)) if temperature else jnp.zeros(shape)

    def step(x: Array, inputs: tuple[Array, tuple[Array, ...], Array]) -> tuple[Array, None]:
        t, weights, z = inputs
        noise = predict_noise(x, t)
        if clip_clean:
            clean = jnp.clip(weights[0] * x - weights[1] * noise, -1.0, 1.0)
            return weights[2] * clean + weights[3] * x + z, None
        return jnp.clip(weights[0] * x - weights[1] * noise + z, -1.0, 1.0), None

    x, _ = jax.lax.scan(step, start, (times, weights, z), reverse=True)
    return jnp.clip(x, -1.0, 1.0)  # x̂ is in the box, but rounding may leave it
