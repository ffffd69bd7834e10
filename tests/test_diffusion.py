"""Diffusion on vectors: by hand, against exact denoisers, and by training on a known mixture."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from random_keys import uses_a_key_twice
from scipy.stats import norm

from lsac.nn import diffusion as edm

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles 3 × faster

# Two correlated modes of unequal weight.
WEIGHTS = np.array([0.3, 0.7])
MEANS = np.array([[-1.2, -0.8], [0.5, 0.4]])
COVARIANCES = np.array([[[0.15, 0.10], [0.10, 0.20]], [[0.25, -0.20], [-0.20, 0.40]]])

MEAN = WEIGHTS @ MEANS
COVARIANCE = np.einsum("k,kij->ij", WEIGHTS, COVARIANCES) + (MEANS - MEAN).T @ (WEIGHTS[:, None] * (MEANS - MEAN))
CUT = -0.55
"""The modes are told apart by x + y < CUT."""
SHARE = float(WEIGHTS @ norm.cdf((CUT - MEANS.sum(1)) / np.sqrt(COVARIANCES.sum((1, 2)))))


def f32(x):
    return jnp.asarray(x, jnp.float32)


def mixture_denoise(x, sigma):
    """E[clean | x] under the mixture, for one point."""
    variances, axes = (f32(a) for a in np.linalg.eigh(COVARIANCES))
    noisy = variances + sigma**2
    z = jnp.einsum("kji,kj->ki", axes, x[None] - f32(MEANS))
    log_odds = jnp.log(f32(WEIGHTS)) - 0.5 * jnp.sum(z**2 / noisy + jnp.log(noisy), axis=1)
    estimates = f32(MEANS) + jnp.einsum("kij,kj->ki", axes, z * variances / noisy)
    return jax.nn.softmax(log_odds) @ estimates


def mixture_sample(key, count):
    mode_key, noise_key = jax.random.split(key)
    mode = jax.random.bernoulli(mode_key, WEIGHTS[1], (count,)).astype(jnp.int32)
    noise = jax.random.normal(noise_key, (count, 2))
    return f32(MEANS)[mode] + jnp.einsum("nij,nj->ni", f32(np.linalg.cholesky(COVARIANCES))[mode], noise)


def mixture_gap(samples):
    """Largest error among mean, covariance and the weight of the left mode."""
    samples = np.asarray(samples, np.float64)
    share = np.mean(samples.sum(1) < CUT)
    gaps = samples.mean(0) - MEAN, np.cov(samples.T) - COVARIANCE, share - SHARE
    return max(np.max(np.abs(gap)) for gap in gaps)


def batched(denoise):
    return jax.vmap(denoise, in_axes=(0, None))


def euler(denoise, key, shape, schedule):
    """A first-order sampler, for comparison."""

    def step(x, sigmas):
        sigma, lower = sigmas
        return x + (lower - sigma) * (x - denoise(x, sigma)) / sigma, None

    start = schedule[0] * jax.random.normal(key, shape)
    return jax.lax.scan(step, start, (schedule[:-1], schedule[1:]))[0]


def loss(model, batch):
    return edm.edm_loss(edm.preconditioned(model), batch, jax.random.key(7))


def network(size=3, width=16, dtype="float32"):
    """A network with arbitrary weights: cheaper than to compile its initialisation."""
    make = functools.partial(edm.Denoiser, size, width, dim_t=width, blocks=2, compute_dtype=dtype)
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: f32(rng.normal(0.0, width**-0.5, leaf.shape)), jax.eval_shape(make, jax.random.key(0))
    )


def keep(x, sigma):
    """A denoiser that removes nothing: a sampler ends where it began."""
    return x


def test_preconditioning_by_hand():
    c = edm.preconditioning(f32(0.75))
    np.testing.assert_allclose(c, (0.64, 0.6, 0.8, 0.25 * np.log(0.75)), rtol=1e-6)
    c = edm.preconditioning(f32(3.0), sigma_data=4.0)
    np.testing.assert_allclose(c, (16 / 25, 12 / 5, 1 / 5, 0.25 * np.log(3.0)), rtol=1e-6)


def test_preconditioned_puts_the_four_together():
    denoise = edm.preconditioned(lambda x, c: x + c)
    x = f32([2.0, -1.0])
    expected = 0.64 * x + 0.6 * (0.8 * x + 0.25 * np.log(0.75))
    np.testing.assert_allclose(denoise(x, f32(0.75)), expected, rtol=1e-6)


def test_preconditioning_keeps_input_and_target_at_unit_variance():
    clean_key, noise_key = jax.random.split(jax.random.key(3))
    clean, noise = jax.random.normal(clean_key, (40_000,)), jax.random.normal(noise_key, (40_000,))
    for sigma in (0.01, 0.3, 2.0, 50.0):
        c = edm.preconditioning(f32(sigma))
        x = clean + sigma * noise
        assert jnp.std(c.into * x) == pytest.approx(1.0, abs=0.02)
        assert jnp.std((clean - c.skip * x) / c.out) == pytest.approx(1.0, abs=0.02)


def test_schedule_runs_from_high_to_low_to_zero():
    schedule = np.asarray(edm.karras_schedule(128))
    assert schedule.shape == (129,)
    np.testing.assert_allclose(schedule[[0, 127]], (80.0, 0.002), rtol=1e-4)
    assert schedule[128] == 0.0
    assert np.all(np.diff(schedule) < 0)
    middle = ((80 ** (1 / 7) + 0.002 ** (1 / 7)) / 2) ** 7
    assert edm.karras_schedule(3)[1] == pytest.approx(middle, rel=1e-4)
    with pytest.raises(ValueError, match="at least 2"):
        edm.karras_schedule(1)


def test_error_of_a_known_denoiser():
    clean, noise = f32([1.0, 3.0]), f32([1.0, -1.0])
    error = edm.denoising_error(lambda x, sigma: x, clean, f32(0.75), noise)
    assert error == pytest.approx((0.75**2 + 1) / 0.75**2 * 0.75**2)  # the weight times the noise left in
    assert edm.denoising_error(lambda x, sigma: clean, clean, f32(0.75), noise) == 0.0


def test_error_of_a_denoiser_that_is_not_even_and_of_data_with_another_spread():
    # x = 1 + 2 · 0.5 = 2 and 3 − 2 · 1 = 1, of which the denoiser makes 4 and 1: errors 3 and −2
    clean, noise = f32([1.0, 3.0]), f32([0.5, -1.0])
    error = edm.denoising_error(lambda x, sigma: x**2, clean, f32(2.0), noise, 3.0)
    assert error == pytest.approx((4 + 9) / 36 * (9 + 4) / 2)


def test_loss_draws_levels_and_noise_with_keys_of_their_own():
    def loss(batch, key):
        return edm.edm_loss(lambda x, sigma: x, batch, key)

    assert not uses_a_key_twice(loss, jnp.zeros((4, 2)), jax.random.key(0))


def test_loss_draws_its_noise_as_published():
    """Denoisers for which the loss on clean zeros is E[noise²], E[(ln σ + 1.2)²] and E[ln²σ]."""
    zeros = jnp.zeros((50_000, 1))

    def weigh(sigma):
        return sigma / jnp.sqrt(1.0 + sigma**2)

    cases = (
        (lambda x, sigma: weigh(sigma) * x / sigma, 1.0),
        (lambda x, sigma: weigh(sigma) * (jnp.log(sigma) + 1.2)[None], 1.44),
        (lambda x, sigma: weigh(sigma) * jnp.log(sigma)[None], 1.44 + 1.44),
    )
    for denoise, expected in cases:
        loss = jit(lambda key, denoise=denoise: edm.edm_loss(denoise, zeros, key))(jax.random.key(0))
        assert loss == pytest.approx(expected, rel=0.03)


def test_network_against_numpy():
    net = network()
    x, c = np.array([0.3, -1.0, 2.0], np.float32), np.float32(-0.4)

    def apply(layer, h):
        return np.asarray(layer.weight) @ h + np.asarray(layer.bias)

    angle = 2 * np.pi * np.asarray(net.frequencies) * c
    time = apply(net.embed[0], np.concatenate([[c], np.sin(angle), np.cos(angle)]))
    h = apply(net.enter, x) + apply(net.embed[1], time / (1 + np.exp(-time)))
    h = apply(net.widen, h)
    for block in net.blocks:
        h = h + apply(block, np.maximum(h, 0))
    expected = apply(net.leave, np.maximum(h, 0))
    np.testing.assert_allclose(net(f32(x), f32(c)), expected, rtol=1e-5, atol=1e-6)


def test_layers_of_the_network():
    make = functools.partial(edm.Denoiser, 3, 7, blocks=2, frequencies=4)
    for dim_t, options in ((5, {"dim_t": 5}), (256, {})):
        net = jax.eval_shape(functools.partial(make, **options), jax.random.key(0))
        layers = (*net.embed, net.enter, net.widen, *net.blocks, net.leave)
        sizes = [(9, dim_t), (dim_t, dim_t), (3, dim_t), (dim_t, 7), (7, 7), (7, 7), (7, 3)]
        assert [layer.weight.shape[::-1] for layer in layers] == sizes


def test_network_size_and_types():
    net = jax.eval_shape(lambda key: edm.Denoiser(36, 1024, key, dim_t=256), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(net)) == pytest.approx(6.7e6, rel=0.01)
    assert net.frequencies.shape == (8,)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(net)} == {"float32"}


def test_bfloat16_is_close():
    x = jax.random.normal(jax.random.key(1), (100, 3))
    exact, rough = (jit(batched(network(dtype=dtype)))(x, f32(0.1)) for dtype in ("float32", "bfloat16"))
    assert rough.dtype == jnp.float32
    assert 1e-5 < jnp.std(rough - exact) / jnp.std(exact) < 0.03


def test_gradients_are_float32_and_leave_the_frequencies_alone():
    batch = jax.random.normal(jax.random.key(1), (100, 3))
    grads = jit(jax.grad(loss))(network(dtype="bfloat16"), batch)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {"float32"}
    assert jnp.all(grads.frequencies == 0.0)
    assert all(np.any(layer.weight != 0.0) for layer in (*grads.embed, grads.enter, grads.leave))


@pytest.mark.parametrize(
    ("sampler", "order"),
    [(edm.sample_heun, 2), (edm.sample_dpm2m, 2), (euler, 1)],
    ids=("heun", "dpm2m", "euler"),
)
def test_order_on_a_gaussian(sampler, order):
    """The flow of N(0, ½²) is known; twice the steps divide the error by 2^order."""

    def exact(x, sigma):
        return 0.25 / (0.25 + sigma**2) * x

    def error(steps):
        schedule, key = edm.karras_schedule(steps), jax.random.key(0)
        start, end = (sampler(denoise, key, (500,), schedule) for denoise in (keep, exact))
        return jnp.max(jnp.abs(end - 0.5 * start / np.sqrt(0.25 + 80.0**2)))

    coarse, fine = jit(lambda: (error(32), error(64)))()
    assert np.log2(coarse / fine) == pytest.approx(order, abs=0.3)
    assert (fine < 0.01) == (order == 2)


def test_a_zero_network_samples_a_gaussian():
    """c_skip alone is the exact denoiser of N(0, σ_data²)."""

    @jit
    def spread(sigma_data):
        denoise = edm.preconditioned(lambda x, c: jnp.zeros_like(x), sigma_data)
        return jnp.std(edm.sample_heun(denoise, jax.random.key(0), (20_000,), edm.karras_schedule(64)))

    assert spread(1.0) == pytest.approx(1.0, rel=0.03)
    assert spread(0.6) == pytest.approx(0.6, rel=0.03)


@pytest.mark.parametrize("sampler", [edm.sample_heun, edm.sample_dpm2m])
def test_samplers_end_on_the_last_estimate(sampler):
    x = sampler(lambda x, sigma: jnp.full_like(x, 3.0), jax.random.key(0), (5,), edm.karras_schedule(4))
    np.testing.assert_array_equal(x, 3.0)


def test_dpm2m_against_numpy_on_uneven_levels():
    """The published update, with h the step in −ln σ and r = (last h)/h, for a denoiser that ignores x."""
    sigmas = np.array([30.0, 3.0, 2.5, 0.2])
    estimates = np.sin(sigmas)
    x = 30.0 * float(jax.random.normal(jax.random.key(0), ()))
    lengths = np.log(sigmas[:-1] / sigmas[1:])
    for i, h in enumerate(lengths):
        back = 0.5 * h / lengths[i - 1] if i else 0.0  # 1/(2r)
        ahead = (1 + back) * estimates[i] - back * estimates[i - 1]
        x = sigmas[i + 1] / sigmas[i] * x - np.expm1(-h) * ahead
    seen = []  # the last x that is denoised is the one before the step to 0

    def denoise(x, sigma):
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return jnp.sin(sigma)

    edm.sample_dpm2m(denoise, jax.random.key(0), (), f32([*sigmas, 0.0]))
    jax.effects_barrier()
    assert seen[-1] == pytest.approx(x, rel=1e-5)


def wrong_skip(x, sigma):
    wrong = edm.preconditioning(sigma, 1.2).skip - edm.preconditioning(sigma).skip
    return mixture_denoise(x, sigma) + wrong * x


def churned_heun(denoise, key, shape, schedule):
    return edm.sample_heun(denoise, key, shape, schedule, edm.Churn())


def quiet_heun(denoise, key, shape, schedule):
    return edm.sample_heun(denoise, key, shape, schedule, edm.Churn(noise=0.8))


@pytest.mark.parametrize(
    ("sampler", "steps", "denoise", "good"),
    [
        (edm.sample_heun, 32, mixture_denoise, True),
        (edm.sample_dpm2m, 32, mixture_denoise, True),
        (churned_heun, 48, mixture_denoise, True),
        (quiet_heun, 48, mixture_denoise, False),
        (euler, 16, mixture_denoise, False),
        (edm.sample_dpm2m, 32, wrong_skip, False),
    ],
    ids=("heun", "dpm2m", "churn", "churn with too little noise", "euler", "wrong c_skip"),
)
def test_samplers_with_the_exact_denoiser_of_a_mixture(sampler, steps, denoise, good):
    schedule = edm.karras_schedule(steps, sigma_max=10.0)
    sample = jit(lambda key: sampler(batched(denoise), key, (10_000, 2), schedule))
    gap = mixture_gap(sample(jax.random.key(0)))
    assert gap < 0.06 if good else gap > 0.1


@pytest.mark.parametrize(("amount", "gain"), [(1.6, 0.2), (80.0, np.sqrt(2) - 1)], ids=["shared out", "at most"])
def test_churn_draws_fresh_noise_only_where_asked(amount, gain):
    schedule, key = edm.karras_schedule(8), jax.random.key(0)
    churn = edm.Churn(amount=amount, low=0.05, high=50.0, noise=1.0)
    start, end = (edm.sample_heun(keep, key, (50_000,), schedule, c) for c in (edm.NO_CHURN, churn))
    inside = schedule[(schedule >= 0.05) & (schedule <= 50.0)]
    added = jnp.sum(((1 + gain) ** 2 - 1.0) * inside**2)  # 1.6/8 is 0.2 at each of these levels
    assert jnp.var(end - start) == pytest.approx(float(added), rel=0.03)


def test_published_churn():
    assert edm.Churn() == (80.0, 0.05, 50.0, 1.003)


@pytest.mark.parametrize("churn", [edm.NO_CHURN, edm.Churn(1.2, 0.5, 5.0, 1.1)], ids=["quiet", "churned"])
def test_heun_against_numpy_on_uneven_levels(churn):
    """EDM, algorithm 2, step by step; noise is added at the levels 3 and 2.5 only."""
    sigmas, shape = np.array([30.0, 3.0, 2.5, 0.2]), (5,)

    def denoise(x, sigma):
        return 0.3 * x + jnp.sin(3 * sigma)

    start_key, churn_key = jax.random.split(jax.random.key(0))
    x = 30.0 * np.asarray(jax.random.normal(start_key, shape), np.float64)
    for i, key in enumerate(jax.random.split(churn_key, 4)):
        gain = churn.amount / 4 if 0.5 <= sigmas[i] <= 5.0 else 0.0
        sigma, lower = sigmas[i] * (1 + gain), [*sigmas, 0.0][i + 1]
        x = x + churn.noise * np.sqrt(sigma**2 - sigmas[i] ** 2) * np.asarray(jax.random.normal(key, shape))
        slope = (x - (0.3 * x + np.sin(3 * sigma))) / sigma
        euler = x + (lower - sigma) * slope
        after = (euler - (0.3 * euler + np.sin(3 * lower))) / lower if lower else slope
        x = x + (lower - sigma) * (slope + after) / 2
    np.testing.assert_allclose(
        edm.sample_heun(denoise, jax.random.key(0), shape, f32([*sigmas, 0.0]), churn), x, rtol=1e-4
    )


def train(key, steps):
    data_key, loop_key = jax.random.split(key)
    model = network(2, 64)
    data = mixture_sample(data_key, 50_000)
    adam = optax.adam(optax.cosine_decay_schedule(2e-3, steps))

    def step(carry, key):
        model, state = carry
        batch_key, loss_key = jax.random.split(key)
        batch = data[jax.random.randint(batch_key, (256,), 0, data.shape[0])]
        grads = jax.grad(lambda m: edm.edm_loss(edm.preconditioned(m), batch, loss_key))(model)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes floats and integers
            updates, state = adam.update(grads, state)
        return (optax.apply_updates(model, updates), state), None

    trained = jax.lax.scan(step, (model, adam.init(model)), jax.random.split(loop_key, steps))[0][0]
    return model, trained


def test_training_recovers_a_mixture():
    """Measured over three keys: 0.016 to 0.037 trained, 0.44 untrained."""

    @jit
    def sample(model):
        schedule = edm.karras_schedule(32, sigma_max=10.0)
        return edm.sample_dpm2m(batched(edm.preconditioned(model)), jax.random.key(9), (10_000, 2), schedule)

    untrained, trained = jit(train, static_argnums=1)(jax.random.key(0), 600)
    assert mixture_gap(sample(trained)) < 0.08
    assert mixture_gap(sample(untrained)) > 0.3


# the discrete form


def test_schedule_of_three_betas_by_hand():
    schedule = edm.ddpm(np.array([0.1, 0.2, 0.5]))
    np.testing.assert_allclose(schedule.alphas, [0.9, 0.8, 0.5], rtol=1e-6)
    np.testing.assert_allclose(schedule.alpha_bars, [0.9, 0.72, 0.36], rtol=1e-6)
    assert {field.dtype.name for field in schedule} == {"float32"}
    x = edm.noised(schedule, f32([1.0, -0.5]), jnp.int32(2), f32([2.0, 1.0]))
    np.testing.assert_allclose(x, [0.6 + 0.8 * 2, -0.3 + 0.8], rtol=1e-6)  # √0.36 = 0.6, √0.64 = 0.8


def test_vp_betas_by_hand():
    # two steps from a rate of 0.1 to 10: −ln α = 0.1/2 + 9.9/8 · (1, 3)
    np.testing.assert_allclose(edm.vp_betas(2, 0.1, 10.0), 1 - np.exp([-1.2875, -3.7625]), rtol=1e-6)
    for steps in (5, 100):
        assert edm.ddpm(edm.vp_betas(steps)).alpha_bars[-1] == pytest.approx(np.exp(-5.05), rel=1e-5)


def test_cosine_betas_by_hand():
    betas = edm.cosine_betas(2)
    half, first = np.cos(0.508 / 1.008 * np.pi / 2) ** 2, np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(betas, [1 - half / first, 0.999], rtol=1e-6)
    assert edm.ddpm(edm.cosine_betas(100)).alpha_bars[49] == pytest.approx(half, abs=2e-4)


@pytest.mark.parametrize("clip_clean", [True, False])
def test_exact_noise_of_a_gaussian_samples_it(clip_clean):
    """For clean ~ N(m, s²), E[noise | x_t] = √(1 − ᾱ)(x_t − √ᾱ m)/(ᾱ s² + 1 − ᾱ)."""
    schedule, mean, std = edm.ddpm(edm.cosine_betas(200) if clip_clean else edm.vp_betas(200)), 0.3, 0.2

    def exact(x, t):
        bar = schedule.alpha_bars[t]
        return jnp.sqrt(1.0 - bar) * (x - jnp.sqrt(bar) * mean) / (bar * std**2 + 1.0 - bar)

    @jit
    def sample(key):
        start_key, key = jax.random.split(key)
        start = jax.random.normal(start_key, (20_000,))
        return edm.sample_ddpm(exact, schedule, start, key, temperature=1.0, clip_clean=clip_clean)

    x = sample(jax.random.key(0))
    assert jnp.mean(x) == pytest.approx(mean, abs=0.01)
    assert jnp.std(x) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("clip_clean", [True, False])
@pytest.mark.parametrize(
    "estimates", [(0.5, 0.4), (-1.5, 0.4), (0.5, -3.0)], ids=["free", "last clipped", "first clipped"]
)
def test_two_reverse_steps_by_hand(estimates, clip_clean):
    """Noise estimates for t = 0 and 1 that are constant, and no fresh noise: √α = 0.9, 0.8 and ᾱ = 0.81, 0.5184."""
    schedule, start, seen = edm.ddpm(np.array([0.19, 0.36])), 0.5, []
    if clip_clean:
        clean = np.clip((start - np.sqrt(0.4816) * estimates[1]) / 0.72, -1, 1)
        middle = (0.9 * 0.36 * clean + 0.8 * 0.19 * start) / 0.4816
        end = np.clip((middle - np.sqrt(0.19) * estimates[0]) / 0.9, -1, 1)
    else:
        middle = np.clip((start - 0.36 / np.sqrt(0.4816) * estimates[1]) / 0.8, -1, 1)
        end = np.clip((middle - 0.19 / np.sqrt(0.19) * estimates[0]) / 0.9, -1, 1)

    def estimate(x, t):
        jax.debug.callback(lambda x, t: seen.append((float(x), int(t))), x, t, ordered=True)
        return f32(estimates)[t]

    for seed in (0, 1):
        key = jax.random.key(seed)
        x = edm.sample_ddpm(estimate, schedule, f32(start), key, temperature=0.0, clip_clean=clip_clean)
        assert x == pytest.approx(end, rel=1e-5)
    jax.effects_barrier()
    np.testing.assert_allclose(seen, 2 * [(start, 1), (middle, 0)], rtol=1e-5)


def test_a_step_adds_noise_but_the_last_adds_none():
    """Without an estimate, the only spread is that of the first step: √β_1 z, or √β̃_1 z; the last divides by √α_0."""
    schedule, start = edm.ddpm(np.array([0.19, 0.36])), jnp.zeros(20_000)
    for clip_clean, variance in ((False, 0.36), (True, 0.36 * 0.19 / 0.4816)):
        sample = edm.sample_ddpm(
            lambda x, t: jnp.zeros_like(x), schedule, start, jax.random.key(0), temperature=0.1, clip_clean=clip_clean
        )
        assert jnp.std(sample) == pytest.approx(0.1 * np.sqrt(variance) / 0.9, rel=0.03)
