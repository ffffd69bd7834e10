"""Langevin samplers: gradient steps with noise, whose stationary distribution is p(θ) ∝ exp(−β L(θ)).

`sgld` has that distribution as η → 0, and `underdamped` is closer to it at a finite η; the adaptive drift of `asgld`
and any clipping give it up for speed. Each sampler is an Optax transformation for **one member**; chains, critics and
seeds are vmapped outside:

    updates, state = sampler.update(grads, state, params, key=key, inverse_temperature=beta)

- The key is a required argument: a key captured at construction would give all vmapped members the same noise.
- β may be passed at each call, so that a ladder of temperatures is one vmap; by default it is the constructor's.
- The noise scales with √η, so the step size cannot be a later element of an `optax.chain`; gradient clipping may be an
  earlier one.

Weights are float32. At η = 1e-3, β = 1e8 the noise is 4.5e-6, a thousand times the rounding error of a weight near
0.06, so it adds up over updates. A product on a GPU may round weights to fewer bits (TF32: steps of 3e-5 near 0.06), so
the noise of one update is mostly not visible in the output of a network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lsac.nn.optimisers import scale_by_adam
from lsac.types import Array, Key

Rate: TypeAlias = float | Callable[[Array], Array]  # η, or a schedule of it
Sampler: TypeAlias = optax.GradientTransformationExtraArgs

CLIPS = ("grad_norm", "plain_norm", "sum_elementwise", "sum_norm", "none")
_zeros = optax.tree.zeros_like


class SamplerState(NamedTuple):
    step: Array
    memory: Any  # state of the method: (m, v), the momentum p, or nothing


def asgld(
    learning_rate: Rate,
    inverse_temperature: float,
    *,
    drift: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    clip: str = "grad_norm",
    clip_at: float = 0.7,
) -> Sampler:
    """Adaptive SGLD (LSAC): θ ← θ − η (g + a ζ) + √(2η/β) ξ with ζ = m / √(v + ε) and ξ ~ N(0, I).

    The moments have no bias correction: ζ starts at (1 − b1) / √(1 − b2) = 3.2 times sign(g). `drift` is a. `clip`
    names what is clipped to `clip_at`: the norm of g before the moments (`grad_norm`), the norm of the plain term g but
    not of what the moments see (`plain_norm`), every entry of g + a ζ (`sum_elementwise`), the norm of g + a ζ
    (`sum_norm`), or nothing (`none`).

    ζ does not depend on the scale of g where v is far above ε, and shrinks with it where v is below ε. A clip before
    the moments makes g small, so `grad_norm` moves the weights with v < ε more slowly.
    """
    if clip not in CLIPS:
        raise ValueError(f"unknown clip {clip!r}: one of {', '.join(CLIPS)}")

    def move(grads: Any, moments: tuple, key: Key, eta: Any, beta: Any) -> tuple[Any, tuple]:
        g = _to_norm(grads, clip_at) if clip == "grad_norm" else grads
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments[0], g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, moments[1], g)
        plain = _to_norm(g, clip_at) if clip == "plain_norm" else g
        total = jax.tree.map(lambda g, m, v: g + drift * m / jnp.sqrt(v + eps), plain, m, v)
        if clip == "sum_elementwise":
            total = optax.tree.clip(total, -clip_at, clip_at)
        elif clip == "sum_norm":
            total = _to_norm(total, clip_at)
        return _langevin_step(total, key, eta, beta), (m, v)

    return _sampler(learning_rate, inverse_temperature, lambda params: (_zeros(params), _zeros(params)), move)


def sgld(learning_rate: Rate, inverse_temperature: float) -> Sampler:
    """Plain SGLD: θ ← θ − η g + √(2η/β) ξ. Its variance on L = λθ²/2 is 2 / (βλ(2 − ηλ))."""

    def move(grads: Any, nothing: tuple, key: Key, eta: Any, beta: Any) -> tuple[Any, tuple]:
        return _langevin_step(grads, key, eta, beta), nothing

    return _sampler(learning_rate, inverse_temperature, lambda params: (), move)


def underdamped(learning_rate: Rate, inverse_temperature: float, *, momentum: float = 0.9) -> Sampler:
    """Kinetic Langevin with friction γ: dθ = p dt, dp = −∇L dt − γp dt + √(2γ/β) dW.

    BAOAB (Leimkuhler & Matthews, 2013): kick, half a drift, the exact Ornstein–Uhlenbeck step of p, half a
    drift. The half kicks at the end of one step and the start of the next use the same gradient and are combined. Its
    variance on L = λθ²/2 is exactly 1 / (βλ) for every stable step size, ηλ < 2 (1 + c)/(1 − c).

    `momentum` is c = exp(−γh). The time step h follows from η = h²/2 · (1 + c)/(1 − c): a constant gradient
    then moves θ by ηg per step, as in `sgld`, for every c.
    """

    def move(grads: Any, p: Any, key: Key, eta: Any, beta: Any) -> tuple[Any, Any]:
        h = jnp.sqrt(2 * eta * (1 - momentum) / (1 + momentum))
        thermal = jnp.sqrt((1 - momentum**2) / beta)
        kicked = jax.tree.map(lambda p, g: p - h * g, p, grads)
        mixed = jax.tree.map(lambda p, xi: momentum * p + thermal * xi, kicked, gaussian_noise(key, grads))
        return jax.tree.map(lambda p, q: h / 2 * (p + q), kicked, mixed), mixed

    return _sampler(learning_rate, inverse_temperature, _zeros, move)


def adam(learning_rate: Rate, inverse_temperature: float = np.inf, **options: float) -> Sampler:
    """Bias-corrected Adam without noise, with the interface of a sampler: key and β are not used."""
    moments = scale_by_adam(**options)

    def move(grads: Any, memory: Any, key: Key, eta: Any, beta: Any) -> tuple[Any, Any]:
        ratio, memory = moments.update(grads, memory)
        return jax.tree.map(lambda r: -eta * r, ratio), memory

    return _sampler(learning_rate, inverse_temperature, moments.init, move)


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "asgld": asgld,
    "sgld": sgld,
    "underdamped": underdamped,
    "adam": adam,
}


def annealed(eta: float, eta_end: float, hold: int, total: int) -> Callable[[Array], Array]:
    """Schedule of η: constant for `hold` steps, then linear to `eta_end` at step `total`."""
    return optax.linear_schedule(eta, eta_end, max(total - hold, 1), transition_begin=hold)


def _sampler(learning_rate: Rate, inverse_temperature: float, memory: Callable, move: Callable) -> Sampler:
    """The Optax transformation of `move`: grads, memory, key, η, β → updates, memory."""
    default = inverse_temperature

    def init(params: Any) -> SamplerState:
        return SamplerState(jnp.zeros((), jnp.int32), memory(params))

    def update(
        grads: Any, state: SamplerState, params: Any = None, *, key: Key, inverse_temperature: Any = None
    ) -> tuple[Any, SamplerState]:
        eta = learning_rate(state.step) if callable(learning_rate) else learning_rate
        beta = default if inverse_temperature is None else inverse_temperature
        updates, carried = move(grads, state.memory, key, eta, beta)
        return updates, SamplerState(state.step + 1, carried)

    return Sampler(init, update)


def _langevin_step(direction: Any, key: Key, eta: Any, beta: Any) -> Any:
    """−η d + √(2η/β) ξ"""
    scale = jnp.sqrt(2 * eta / beta)
    return jax.tree.map(lambda d, xi: scale * xi - eta * d, direction, gaussian_noise(key, direction))


def _to_norm(tree: Any, limit: float) -> Any:
    scale = jnp.minimum(1.0, limit / optax.tree.norm(tree))
    return jax.tree.map(lambda x: scale * x, tree)


def gaussian_noise(key: Key, tree: Any) -> Any:
    """A standard normal number for every entry of `tree`: a hash of the key and the entry's position in the tree.

    On a CPU `jax.random.normal` costs several times the optimiser's own arithmetic. Here each entry depends only on
    the key and its own position, so XLA fuses the noise into each leaf's update and never stores it.
    """
    # Threefry is applied to the key only: related keys, such as k and fold_in(k, 1), give unrelated words.
    inner, outer = jax.random.bits(key, (2,), jnp.uint32)
    leaves, structure = jax.tree.flatten(tree)
    noise, start = [], 0
    for leaf in leaves:
        place = jax.lax.iota(jnp.uint32, leaf.size).reshape(leaf.shape) + np.uint32(start)
        noise.append(_normal(_mix(_mix(place ^ inner) ^ outer)))
        start += leaf.size
    return jax.tree.unflatten(structure, noise)


def _mix(x: Array) -> Array:
    """lowbias32, a bijection of 32-bit words: each input bit flips each output bit with a probability close to ½."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0xD35A2D97)
    return x ^ (x >> np.uint32(15))


# x / y as a polynomial in −log(1 − y²), where x is the normal quantile of (1 + y) / 2: a minimax fit over the
# range |x| ≤ 5.42 that 24 bits can represent. |error| < 2e-4 in x, and the variance is 1 to within 1e-5.
QUANTILE = (1.25417, 0.32399, 2.18823e-2, -6.48602e-3, 7.06233e-4, -4.13299e-5, 1.27246e-6, -1.61574e-8)


def _normal(bits: Array) -> Array:
    """Inverse normal CDF without branches, at y uniform over the odd multiples of 2⁻²⁴ in (−1, 1)."""
    signed = jax.lax.bitcast_convert_type(bits, jnp.int32) >> 8
    y = (signed.astype(jnp.float32) + 0.5) * 2.0**-23
    w = -jnp.log((1 - y) * (1 + y))
    ratio = jnp.full_like(w, QUANTILE[-1])
    for coefficient in QUANTILE[-2::-1]:
        ratio = ratio * w + coefficient
    return y * ratio


def ladder(n: int, beta_max: float, ratio: float) -> Array:
    """[C] inverse temperatures: `beta_max` first (the coldest), each `ratio` > 1 times the next."""
    return beta_max * ratio ** -jnp.arange(n, dtype=jnp.float32)


def swap_probability(energy: Array, inverse_temperature: Array) -> Array:
    """[C − 1] acceptance probabilities min(1, exp((βᵢ − βⱼ)(Lᵢ − Lⱼ))) for the neighbours i and j = i + 1."""
    return jnp.exp(jnp.minimum(0.0, jnp.diff(inverse_temperature) * jnp.diff(energy)))


def swap(key: Key, energy: Array, inverse_temperature: Array, step: Array | int) -> Array:
    """Replica exchange: [C] the index of the chain that each temperature has next.

    Proposes the pairs (0, 1), (2, 3), … at an even `step` and (1, 2), (3, 4), … at an odd one; no swap is accepted
    where an energy is NaN. `energy` is L on the *same* data for all chains. `permute` weights and moments, but leave a
    momentum with its temperature.
    """
    n = energy.shape[0]
    accept = jax.random.uniform(key, (n - 1,)) < swap_probability(energy, inverse_temperature)
    accept = (accept & (jnp.arange(n - 1) % 2 == step % 2)).astype(jnp.int32)
    return jnp.arange(n) + jnp.pad(accept, (0, 1)) - jnp.pad(accept, (1, 0))


def permute(tree: Any, index: Array) -> Any:
    """Reorders the chains of `tree`, which are stacked along its first axis, by `index`."""
    return jax.tree.map(lambda x: x[index], tree)
