"""Densities against SciPy, a numerical integral and the change of variables in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lsac.nn.distributions import gaussian_return_loss, normal_log_prob, tanh_log_det, tanh_normal_sample

SHAPES = [(0.0, 0.0), (0.8, -0.7), (-1.5, 0.3)]
"""Mean and log std of some one-dimensional Gaussians."""

log_prob_of = jax.jit(normal_log_prob)
log_det_of = jax.jit(tanh_log_det)


@jax.jit
def draws(mean, log_std, seed):
    """Actions [20000, 1] and log densities [20000]."""
    full = jnp.full((20_000, 1), mean), jnp.full((20_000, 1), log_std)
    return tanh_normal_sample(*full, jax.random.key(seed))


def f32(*values):
    return np.array(values, np.float32)


def test_normal_log_prob_equals_scipy_summed_over_the_last_axis():
    x = f32([0.0, 1.0], [-2.0, 3.0], [0.5, 0.5])
    mean = f32([0.5, -1.0], [0.0, 2.5], [0.5, 0.5])
    log_std = f32([-1.0, 0.5], [0.3, -2.0], [1.0, -1.0])
    expected = stats.norm.logpdf(x, mean, np.exp(log_std.astype(np.float64))).sum(-1)
    np.testing.assert_allclose(log_prob_of(x, mean, log_std), expected, rtol=1e-5)


def test_tanh_log_det_equals_the_log_of_the_derivative_summed_over_the_last_axis():
    u = np.linspace(-4.0, 4.0, 18).reshape(9, 2)
    expected = np.log(1.0 - np.tanh(u) ** 2).sum(-1)
    np.testing.assert_allclose(log_det_of(u.astype(np.float32)), expected, rtol=1e-4)


@pytest.mark.parametrize("u", [-20.0, 20.0])
def test_tanh_log_det_keeps_its_digits_and_its_gradient_where_tanh_is_flat(u):
    # log(1 − tanh²u) = log 4 − 2|u| − 2 log(1 + e^(−2|u|)), whose derivative is −2 tanh u
    value, slope = jax.jit(jax.value_and_grad(tanh_log_det))(f32(u))
    np.testing.assert_allclose(value, np.log(4.0) - 40.0, rtol=1e-6)
    np.testing.assert_allclose(slope, -2.0 * np.sign([u]), rtol=1e-6)


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_tanh_normal_density_integrates_to_one(mean, log_std):
    u = np.linspace(-9.0, 9.0, 20_001)
    column = u.astype(np.float32)[:, None]
    full = np.full_like(column, mean), np.full_like(column, log_std)
    density = np.exp(np.asarray(log_prob_of(column, *full) - log_det_of(column), np.float64))
    assert abs(np.trapezoid(density, np.tanh(u)) - 1.0) < 1e-3


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_log_density_of_a_sample_is_that_of_the_change_of_variables(mean, log_std):
    a, log_prob = (np.asarray(x, np.float64) for x in draws(mean, log_std, 0))
    a = a[:, 0]
    inner = np.abs(a) < 0.99  # beyond, a float32 action no longer tells its u
    assert inner.mean() > 0.7
    expected = stats.norm.logpdf(np.arctanh(a[inner]), mean, np.exp(log_std)) - np.log(1.0 - a[inner] ** 2)
    np.testing.assert_allclose(log_prob[inner], expected, rtol=1e-4, atol=1e-3)


def test_log_density_of_an_action_sums_over_its_dimensions():
    mean, log_std = f32(0.2, -0.4), f32(-1.0, -0.5)
    action, log_prob = jax.jit(tanh_normal_sample)(mean, log_std, jax.random.key(3))
    u = np.arctanh(np.asarray(action, np.float64))
    expected = stats.norm.logpdf(u, mean, np.exp(log_std)) - np.log(1.0 - np.tanh(u) ** 2)
    assert log_prob.shape == ()
    np.testing.assert_allclose(log_prob, expected.sum(), rtol=1e-4)


def test_samples_follow_the_tanh_of_this_gaussian_and_of_no_neighbour():
    mean, log_std = 0.3, -0.5
    action = np.asarray(draws(mean, log_std, 1)[0], np.float64)[:, 0]
    u, std = np.arctanh(action), np.exp(log_std)
    assert np.abs(action).max() < 1.0
    assert stats.kstest(u, stats.norm(mean, std).cdf).pvalue > 1e-3
    assert stats.kstest(u, stats.norm(mean + 0.05, std).cdf).pvalue < 1e-5
    assert stats.kstest(u, stats.norm(mean, 1.1 * std).cdf).pvalue < 1e-5


def test_every_element_of_a_batch_gets_its_own_noise():
    zeros = np.zeros((50, 3), np.float32)
    action, _ = jax.jit(tanh_normal_sample)(zeros, zeros, jax.random.key(2))
    assert np.unique(action).size == 150


def test_a_sample_moves_with_mean_and_log_std():
    # a = tanh(μ + σ ε): da/dμ = 1 − a², da/d log σ = (1 − a²) (u − μ)
    def action_of(mean, log_std):
        return tanh_normal_sample(mean, log_std, jax.random.key(4))[0]

    at = f32(0.4), f32(-0.3)
    a = np.asarray(action_of(*at), np.float64)
    by_mean, by_log_std = jax.jit(jax.jacobian(action_of, argnums=(0, 1)))(*at)
    np.testing.assert_allclose(by_mean[0], 1.0 - a**2, rtol=1e-4)
    np.testing.assert_allclose(by_log_std[0], (1.0 - a**2) * (np.arctanh(a) - 0.4), rtol=1e-4)


@pytest.mark.parametrize("mean", [-20.0, 20.0])
def test_log_density_and_its_gradient_are_right_far_out_in_the_tails(mean):
    # with u = μ + σ ε, log π = −ε²/2 − log σ − log √2π − log(1 − tanh²u): only the last term knows μ
    def log_prob_at(m):
        return tanh_normal_sample(m, jnp.zeros(1), jax.random.key(5))[1]

    log_prob, slope = jax.jit(jax.value_and_grad(log_prob_at))(f32(mean))
    noise = float(jax.random.normal(jax.random.key(5), (1,))[0])
    expected = stats.norm.logpdf(noise) - (np.log(4.0) - 2.0 * abs(mean + noise))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, 2.0 * np.sign([mean]), rtol=1e-5)


def test_gradient_of_the_gaussian_return_loss_by_hand():
    # Q = 1, 0; σ = 1, 2; y_Q = 3, −1; y_Z = 9 (held at Q + 4 = 5), 1; ω = 2, ε = 0.5; the batch has two
    mean, std, y_q, y_z = f32(1.0, 0.0), f32(1.0, 2.0), f32(3.0, -1.0), f32(9.0, 1.0)
    bound, scale = jnp.float32(4.0), jnp.float32(2.0)
    by_mean, by_std, *others = jax.jit(jax.grad(gaussian_return_loss, argnums=(0, 1, 2, 3, 4, 5)), static_argnums=6)(
        mean, std, y_q, y_z, bound, scale, 0.5
    )
    np.testing.assert_allclose(by_mean, [-2 * 2 / 1.5 / 2, -2 * -1 / 4.5 / 2], rtol=1e-6)
    np.testing.assert_allclose(by_std, [-2 * (16 - 1) / 1.5 / 2, -2 * (1 - 4) / 8.5 / 2], rtol=1e-6)
    assert all(np.all(np.asarray(g) == 0.0) for g in others)
