"""Running moments against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.nn import normalisation as normalize
from lsac.nn.normalisation import Moments

merged = jax.jit(normalize.merged)


def f32(values):
    return jnp.asarray(np.array(values, np.float32))


def test_two_merged_batches_by_hand():
    # 1, 3 and then 2, 4, 4, 6: mean 20/6; Σ (x − mean)² / 6 = 82/6 − (20/6)²
    first = merged(normalize.empty((1,)), f32([[1], [3]]))
    np.testing.assert_allclose([first.mean[0], first.variance[0], first.samples], [2, 1, 2], rtol=1e-6)
    both = merged(first, f32([[2], [4], [4], [6]]))
    np.testing.assert_allclose(
        [both.mean[0], both.variance[0], both.samples], [20 / 6, 82 / 6 - (20 / 6) ** 2, 6], rtol=1e-6
    )


def test_nothing_yet_leaves_numbers_as_they_are_and_does_not_count_afterwards():
    x = f32([3.0, -2.0])
    np.testing.assert_allclose(normalize.normalised(normalize.empty((2,)), x, 10.0), x, rtol=1e-6)
    only = merged(normalize.empty((2,)), f32([[5, 7], [5, 9]]))
    np.testing.assert_allclose(only.mean, [5, 8], rtol=1e-6)
    np.testing.assert_allclose(only.variance, [0, 1], atol=1e-6)


def test_ten_million_samples_far_from_zero_are_as_good_as_in_float64():
    """Columns of std 1, 1 and 100 around 0, 50 and 1000, in batches whose own means differ."""
    std, start, batches = np.array([1.0, 1.0, 100.0]), np.array([0.0, 50.0, 1000.0]), 5_000
    noise = np.random.default_rng(0).normal(size=(2_000, 3))
    noise = (noise - noise.mean(0)) / noise.std(0)  # so that the truth is known without keeping all samples
    drift = np.random.default_rng(1).normal(size=batches) + np.linspace(0.0, 1.0, batches)
    batch, steps = f32(noise * std + start), f32(drift[:, None] * std)

    @jax.jit
    def run(steps):
        return jax.lax.scan(lambda m, step: (merged(m, batch + step[None]), None), normalize.empty((3,)), steps)[0]

    moments = run(steps)
    assert moments.samples == 1e7
    np.testing.assert_allclose((moments.mean - (start + drift.mean() * std)) / std, 0.0, atol=1e-3)
    np.testing.assert_allclose(moments.variance / std**2, 1.0 + drift.var(), rtol=1e-3)


MANY, CHUNK = 2_000_000, 32


@pytest.fixture(scope="module")
def far_out():
    """Two million samples with mean 1e4 and std 1, and their true std."""
    samples = (1e4 + np.random.default_rng(2).normal(size=(MANY, 1))).astype(np.float32)
    return samples, float(np.std(samples.astype(np.float64)))


def naive(sums, batch):
    """Sums of all samples and of their squares, in float32."""
    total, squares, count = sums
    return total + jnp.sum(batch, axis=0), squares + jnp.sum(batch**2, axis=0), count + batch.shape[0]


@jax.jit
def spreads(samples):
    """The std of samples that come in chunks: by running moments, and by naive sums."""
    chunks = samples.reshape(-1, CHUNK, 1)
    start = normalize.empty((1,)), (jnp.zeros(1), jnp.zeros(1), jnp.zeros(()))

    def step(carry, batch):
        moments, sums = carry
        return (merged(moments, batch), naive(sums, batch)), None

    (moments, (total, squares, count)), _ = jax.lax.scan(step, start, chunks)
    return moments, jnp.sqrt(squares / count - (total / count) ** 2)


def test_two_million_samples_around_ten_thousand_in_chunks_of_32(far_out):
    """Where sums of squares in float32 have no digit left, running moments are right to a hundredth."""
    samples, true = far_out
    moments, by_sums = spreads(samples)
    assert moments.samples == MANY
    np.testing.assert_allclose(np.sqrt(moments.variance), true, rtol=0.01)
    np.testing.assert_allclose(moments.mean, np.mean(samples, axis=0, dtype=np.float64), atol=0.05)
    assert not abs(by_sums[0] / true - 1) < 0.01, "the check sees what naive sums do"  # they may not be a number


def test_moments_follow_samples_that_drift_late(far_out):
    """The second million is 3 larger, so the mean has to move by 1.5 in steps of 1e-4, here on a number of 1e3."""
    drift = np.where(np.arange(MANY) < MANY // 2, 0.0, 3.0).astype(np.float32)[:, None]
    samples = far_out[0] - np.float32(9e3) + drift
    moments, _ = spreads(samples)
    np.testing.assert_allclose(moments.mean, np.mean(samples, axis=0, dtype=np.float64), atol=0.1)
    np.testing.assert_allclose(np.sqrt(moments.variance), np.std(samples, axis=0, dtype=np.float64), rtol=0.01)


def test_normalised_values_are_standardised_and_clipped():
    moments = Moments(f32([1.0, -2.0, 0.0]), f32([4.0, 0.25, 1.0]), f32(9.0))
    np.testing.assert_allclose(normalize.normalised(moments, f32([5, -1, 99]), 3.0), [2, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(normalize.normalised(moments, f32([-99, 0, 0]), 3.0), [-3, 3, 0], rtol=1e-6)


def test_what_never_varied_is_zero():
    moments = merged(normalize.empty((2,)), jnp.broadcast_to(f32([0.0, 0.3])[None], (1000, 2)))
    np.testing.assert_allclose(normalize.normalised(moments, f32([0.0, 0.3]), 10.0), 0.0, atol=1e-2)


def test_root_mean_square_sees_the_mean_and_the_spread():
    assert normalize.root_mean_square(normalize.empty(())) == 1.0
    np.testing.assert_allclose(normalize.root_mean_square(Moments(f32(-3.0), f32(16.0), f32(5.0))), 5.0, rtol=1e-6)
    np.testing.assert_allclose(normalize.root_mean_square(Moments(f32(10.0), f32(0.0), f32(5.0))), 10.0, rtol=1e-6)
