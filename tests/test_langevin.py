"""Samplers against hand-worked numbers and exact theory, with fixed keys.

A statistical check counts the standard errors between estimate and truth: at most `TOLERANCE` for what must
hold. Beside it stands a control, something wrong that the same check must put at twice that or more.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from lsac.nn import langevin

TOLERANCE = 4.5
CURVATURE = np.array([0.5, 1.0, 2.0], np.float32)  # λ of three independent quadratics λθ²/2 in one vector


def key(seed):
    return jax.random.key(seed)


@functools.partial(jax.jit, static_argnums=1)
def _noise_of(k, n):
    return langevin.gaussian_noise(k, jnp.zeros(n))


def noise_of(k, n):
    return np.asarray(_noise_of(k, n), np.float64)


def correlation_score(x, y):
    """Standard errors from zero of the correlation of x and y, and of that of their squares."""
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    plain = np.mean(x * y)
    squares = np.mean((x**2 - 1) * (y**2 - 1)) / 2
    return np.sqrt(x.size) * max(abs(plain), abs(squares))


def normal_scores(x):
    """Standard errors from N(0, 1) of four moments, and √n times the Kolmogorov–Smirnov distance."""
    root = np.sqrt(x.size)
    cdf = special.ndtr(np.sort(x))
    rank = np.arange(x.size + 1) / x.size
    return {
        "mean": root * abs(x.mean()),
        "variance": root * abs(np.mean(x**2) - 1) / np.sqrt(2),
        "skew": root * abs(np.mean(x**3)) / np.sqrt(15),
        "kurtosis": root * abs(np.mean(x**4) - 3) / np.sqrt(96),
        "KS": root * max(np.max(rank[1:] - cdf), np.max(cdf - rank[:-1])),
    }


# noise

DRAWS = 400_000


def test_quantile_function_against_scipy():
    words = np.concatenate(
        [np.arange(0, 2**24, 101), np.arange(2**23 - 500, 2**23 + 500), np.arange(2**24 - 500, 2**24)]
    )
    x = jax.jit(langevin._normal)(jnp.asarray(words << 8, jnp.uint32))
    y = (((words + 2**23) % 2**24 - 2**23) + 0.5) / 2**23  # two's complement, as the function reads it
    # small tails are mirrored: 1 − tiny has no digits left
    exact = -np.sign(y) * special.ndtri((1 - np.abs(y)) / 2)
    np.testing.assert_allclose(x, exact, atol=2e-4)
    assert 5.4 < np.max(np.abs(x)) < 5.5


def worst_avalanche(mix):
    """The largest |P(output bit j flips when input bit i does) − 1/2| over all i and j."""
    words = np.random.default_rng(3).integers(0, 2**32, 2**13, dtype=np.uint32)
    bits = np.arange(32, dtype=np.uint32)
    flipped = mix(words)[:, None] ^ mix(words[:, None] ^ (np.uint32(1) << bits)[None, :])
    return max(np.max(np.abs(np.mean((flipped >> j) & np.uint32(1), axis=0) - 0.5)) for j in bits)


def lowbias32(x):
    """The hash by its published constants, in whole numbers of Python."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, 1)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x


def test_hash_is_lowbias32():
    words = [0, 1, 2, 77, 2**31, 2**32 - 1, 123_456_789]
    assert [int(x) for x in langevin._mix(jnp.array(words, jnp.uint32))] == [lowbias32(x) for x in words]


def test_noise_is_a_hash_of_the_key_and_the_position_in_the_tree():
    inner, outer = (int(x) for x in jax.random.bits(key(5), (2,), jnp.uint32))
    words = [lowbias32(lowbias32(place ^ inner) ^ outer) >> 8 for place in range(11)]
    y = (((np.array(words) + 2**23) % 2**24 - 2**23) + 0.5) / 2**23
    noise = langevin.gaussian_noise(key(5), [jnp.zeros(2), jnp.zeros((2, 3)), jnp.zeros(3)])
    found = np.concatenate([np.ravel(x) for x in noise])
    np.testing.assert_allclose(found, special.ndtri((1 + y) / 2), atol=2e-4)


def test_hash_avalanches():
    assert worst_avalanche(langevin._mix) < TOLERANCE * 0.5 / np.sqrt(2**13)
    assert worst_avalanche(lambda x: (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)) > 0.4


def test_noise_is_standard_normal():
    scores = normal_scores(noise_of(key(0), DRAWS))
    assert scores.pop("KS") < 2.3  # 2 exp(−2 · 2.3²) = 5e-5
    assert max(scores.values()) < TOLERANCE, scores


@pytest.mark.parametrize(
    ("score", "distort"),
    [
        ("mean", lambda x: x + 0.02),
        ("variance", lambda x: 1.02 * x),
        ("skew", lambda x: x + 0.02 * (x**2 - 1)),
        ("kurtosis", lambda x: np.clip(x, -2.5, 2.5)),
        ("KS", lambda x: np.round(x, 1)),
    ],
)
def test_noise_check_sees_a_wrong_law(score, distort):
    assert normal_scores(distort(noise_of(key(0), DRAWS)))[score] > (5 if score == "KS" else 2 * TOLERANCE)


def test_noise_is_uncorrelated():
    x = noise_of(key(1), DRAWS)
    scores = {lag: correlation_score(x[lag:], x[:-lag]) for lag in (1, 2, 3, 4, 8, 64, 256, 257, 4096, 65536)}
    scores["fold_in"] = correlation_score(x, noise_of(jax.random.fold_in(key(1), 1), DRAWS))
    scores["next seed"] = correlation_score(x, noise_of(key(2), DRAWS))
    assert max(scores.values()) < TOLERANCE, scores
    smoothed = x[1:] + 0.02 * x[:-1]
    assert correlation_score(smoothed[1:], smoothed[:-1]) > 2 * TOLERANCE
    sharing_magnitude = x * np.sign(noise_of(key(2), DRAWS))
    assert correlation_score(x, sharing_magnitude) > 2 * TOLERANCE


def test_leaves_and_members_have_their_own_noise():
    tree = {"a": jnp.zeros((100, 200)), "b": jnp.zeros(20_000), "c": jnp.zeros(())}
    members = jax.jit(jax.vmap(lambda k: langevin.gaussian_noise(k, tree)))(jax.random.split(key(3), 3))
    assert jax.tree.map(jnp.shape, members) == {"a": (3, 100, 200), "b": (3, 20_000), "c": (3,)}
    streams = np.concatenate([np.reshape(members["a"], (3, -1)), members["b"]]).astype(np.float64)
    for i in range(6):
        for j in range(i):
            assert correlation_score(streams[i], streams[j]) < TOLERANCE
    flat = noise_of(jax.random.split(key(3), 3)[1], 40_001)  # one stream per member, cut into leaves
    np.testing.assert_allclose(np.concatenate([streams[1], streams[4]]), flat[:-1], rtol=1e-5, atol=1e-6)


def test_noise_under_scan_and_vmap_is_that_of_a_loop():
    keys = jax.random.split(key(4), 3)
    draw = jax.jit(lambda k: langevin.gaussian_noise(k, jnp.zeros((5, 7))))
    looped = np.stack([draw(k) for k in keys])
    scanned = jax.jit(lambda ks: jax.lax.scan(lambda c, k: (c, draw(k)), 0, ks)[1])(keys)
    np.testing.assert_allclose(scanned, looped, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(draw))(keys), looped, rtol=1e-5, atol=1e-6)
    assert not np.allclose(looped[0], looped[1], atol=0.1)


def test_small_noise_survives_float32():
    """η = 1e-3, β = 1e8: a step of 4.5e-6 on weights of 0.06 changes them all, with the right variance."""

    def moved(beta):
        theta = np.full(20_000, 0.06, np.float32)
        ((after, _),) = run(langevin.sgld(1e-3, beta), theta, [np.zeros_like(theta)])
        return np.asarray(after, np.float64) - theta

    def score(change):
        return abs(np.mean(change**2) / (2 * 1e-3 / 1e8) - 1) * np.sqrt(change.size / 2)

    change = moved(1e8)
    assert np.mean(change != 0) > 0.999
    assert score(change) < TOLERANCE
    assert score(moved(1.15e8)) > 2 * TOLERANCE
    assert np.mean(moved(1e16) != 0) < 0.3  # what rounding does to noise of 4.5e-10


# samplers: exact values


def run(sampler, params, gradients, beta=None):
    """Parameters and states after each of `gradients`."""

    @jax.jit
    def step(params, state, g, k):
        updates, state = sampler.update(g, state, params, key=k, inverse_temperature=beta)
        return optax.apply_updates(params, updates), state

    state, path = sampler.init(params), []
    for t, g in enumerate(gradients):
        params, state = step(params, state, g, key(t))
        path.append((params, state))
    return path


@pytest.mark.parametrize("name", langevin.SAMPLERS)
def test_key_is_required(name):
    sampler = langevin.SAMPLERS[name](1e-3, 1e8)
    params = {"w": jnp.ones(3)}
    with pytest.raises(TypeError, match="key"):
        sampler.update(params, sampler.init(params), params)


@pytest.mark.parametrize("name", ["asgld", "sgld", "underdamped"])
def test_key_and_temperature_of_the_call_decide(name):
    zero = jnp.zeros(50)

    @jax.jit
    def step(k, beta=None):
        sampler = langevin.SAMPLERS[name](1e-2, 4.0)
        return sampler.update(zero, sampler.init(zero), key=k, inverse_temperature=beta)[0]

    noise = step(key(0))
    np.testing.assert_array_equal(noise, step(key(0)))
    assert not np.allclose(noise, step(key(1)), rtol=0.1)
    np.testing.assert_allclose(step(key(0), 4.0), noise, rtol=1e-6)
    np.testing.assert_allclose(step(key(0), 100.0), noise / 5, rtol=1e-5)  # ∝ 1/√β
    np.testing.assert_array_equal(step(key(0), jnp.inf), zero)


def asgld_by_hand(theta, gradients, eta=0.01, a=2.0, b1=0.9, b2=0.999, eps=1e-3):
    m = v = np.zeros_like(theta)
    for g in gradients:
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        theta = theta - eta * (g + a * m / np.sqrt(v + eps))
    return theta, m, v


def test_asgld_against_a_loop():
    gradients = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    theta = np.array([0.3, -0.2, 1.0, 0.0], np.float32)
    sampler = langevin.asgld(0.01, jnp.inf, drift=2.0, eps=1e-3, clip="none")
    for n, (params, state) in enumerate(run(sampler, jnp.asarray(theta), gradients), start=1):
        expected, m, v = asgld_by_hand(theta, gradients[:n])
        np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.memory[0], m, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(state.memory[1], v, rtol=1e-5, atol=1e-7)
        assert state.step == n


def test_asgld_noise_is_root_two_eta_over_beta():
    params, g = jnp.zeros(6), jnp.linspace(-1.0, 1.0, 6)
    quiet, noisy = (run(langevin.asgld(0.02, beta), params, [g])[0][0] for beta in (jnp.inf, 50.0))
    xi = noise_of(key(0), 6)
    np.testing.assert_allclose(noisy - quiet, 0.028284271 * xi, rtol=1e-4, atol=1e-7)


def test_asgld_without_drift_is_sgld():
    gradients = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    params = jnp.ones(4)
    (adaptive, _), (plain, _), (drifting, _) = (
        run(sampler, params, gradients)[-1]
        for sampler in (
            langevin.asgld(0.1, 10.0, drift=0.0, clip="none"),
            langevin.sgld(0.1, 10.0),
            langevin.asgld(0.1, 10.0, drift=1.0, clip="none"),
        )
    )
    np.testing.assert_allclose(adaptive, plain, rtol=1e-6)
    assert not np.allclose(drifting, plain, atol=0.1)


@pytest.mark.parametrize(
    ("clip", "direction"),
    [  # g = (3, −4), |g| = 5; ζ = ±0.1/√0.001 = ±3.1622777 at the first step whatever the size of g
        ("none", (6.1622777, -7.1622777)),
        ("grad_norm", (3.5822777, -3.7222777)),  # 0.14 g = (0.42, −0.56), then ζ
        ("plain_norm", (3.5822777, -3.7222777)),  # the same, because ζ does not depend on the size of g
        ("sum_elementwise", (0.7, -0.7)),
        ("sum_norm", (0.4565434, -0.5306302)),  # 0.7 / 9.4483812 of the first row
    ],
)
def test_clip(clip, direction):
    sampler = langevin.asgld(1.0, jnp.inf, eps=0.0, clip=clip)
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}  # the norm is that of all leaves together
    ((moved, state),) = run(sampler, params, [{"a": jnp.array([3.0]), "b": jnp.array([-4.0])}])
    np.testing.assert_allclose([moved["a"][0], moved["b"][0]], np.negative(direction), rtol=1e-6)
    scale = 0.14 if clip == "grad_norm" else 1.0
    np.testing.assert_allclose(state.memory[0]["a"], [0.3 * scale], rtol=1e-6)


def test_a_clip_before_the_moments_slows_weights_below_the_floor_and_one_after_them_does_not():
    # g = (300, 0.003): clipped to 0.7 the second entry is 7e-6, far below √ε = 1e-3; unclipped it is not
    def ratio(clip):
        sampler = langevin.asgld(1.0, jnp.inf, eps=1e-6, clip=clip)
        ((moved, _),) = run(sampler, jnp.zeros(2), [jnp.array([300.0, 0.003])])
        return float(moved[1]) / float(moved[0])

    plain = 0.7 * 1e-5  # of the term g itself
    by_hand = [(plain + 0.1 * g2 / np.sqrt(1e-3 * g2**2 + 1e-6)) / (0.7 + 3.1622777) for g2 in (7e-6, 0.003)]
    np.testing.assert_allclose([ratio("grad_norm"), ratio("plain_norm")], by_hand, rtol=1e-3)
    assert by_hand[1] > 50 * by_hand[0]


def test_defaults_of_the_samplers():
    # g = 1e-3: ζ = 1e-4 / √(1e-9 + 1e-8), and half of h² is η (1 − 0.9)/(1 + 0.9)
    g = jnp.array([1e-3])
    ((moved, _),) = run(langevin.asgld(1.0, jnp.inf), jnp.zeros(1), [g])
    np.testing.assert_allclose(moved, [-1e-3 - 1e-4 / np.sqrt(1.1e-8)], rtol=1e-4)
    ((moved, state),) = run(langevin.underdamped(1.0, jnp.inf), jnp.zeros(1), [g])
    h = np.sqrt(2 * 0.1 / 1.9)
    np.testing.assert_allclose([moved[0], state.memory[0]], [-(h**2) / 2 * 1.9e-3, -0.9e-3 * h], rtol=1e-4)


def test_clip_leaves_small_and_zero_gradients_alone():
    g = jnp.array([0.3, 0.4])
    ((moved, _),) = run(langevin.asgld(1.0, jnp.inf, drift=0.0), jnp.zeros(2), [g])
    np.testing.assert_allclose(moved, -g, rtol=1e-6)
    ((moved, _),) = run(langevin.asgld(1.0, jnp.inf), jnp.zeros(2), [jnp.zeros(2)])
    np.testing.assert_array_equal(moved, [0.0, 0.0])
    with pytest.raises(ValueError, match="unknown clip"):
        langevin.asgld(1.0, 1.0, clip="norm")


def test_adam_is_bias_corrected_and_quiet():
    params, g = jnp.zeros(3), jnp.array([0.5, -2.0, 10.0])
    path = run(langevin.adam(0.01, 1.0), params, [g, g])
    np.testing.assert_allclose(path[0][0], [-0.01, 0.01, -0.01], rtol=1e-4)
    np.testing.assert_allclose(path[1][0], [-0.02, 0.02, -0.02], rtol=1e-4)


def test_underdamped_by_hand():
    """c = 0.6, η = 2: h² = 2 · 2 · 0.4/1.6 = 1. From rest: kick −g, decay to −0.6 g, drift (1 + 0.6)/2 g."""
    path = run(langevin.underdamped(2.0, jnp.inf, momentum=0.6), jnp.zeros(1), [jnp.ones(1)] * 60)
    np.testing.assert_allclose(path[0][0], [-0.8], rtol=1e-6)
    np.testing.assert_allclose(path[0][1].memory, [-0.6], rtol=1e-6)
    np.testing.assert_allclose(path[1][0], [-0.8 - 1.28], rtol=1e-6)  # kick to −1.6, decay to −0.96
    np.testing.assert_allclose(path[-1][0] - path[-2][0], [-2.0], rtol=1e-4)  # ηg per step in the end
    ((moved, state),) = run(langevin.underdamped(2.0, 4.0, momentum=0.6), jnp.zeros(5), [jnp.zeros(5)])
    xi = noise_of(key(0), 5)
    np.testing.assert_allclose(state.memory, 0.4 * xi, rtol=1e-5)  # √((1 − 0.36)/4)
    np.testing.assert_allclose(moved, 0.2 * xi, rtol=1e-5)


def test_annealed_schedule():
    eta = langevin.annealed(1e-3, 1e-4, 100_000, 1_000_000)
    steps = jnp.array([0, 99_999, 100_000, 550_000, 1_000_000, 2_000_000])
    np.testing.assert_allclose(jax.vmap(eta)(steps), [1e-3, 1e-3, 1e-3, 5.5e-4, 1e-4, 1e-4], rtol=1e-5)
    within_hold = langevin.annealed(1e-3, 1e-4, 100_000, 50_000)
    np.testing.assert_allclose(within_hold(jnp.int32(50_000)), 1e-3, rtol=1e-6)
    at_once = langevin.annealed(1e-3, 1e-4, 5, 5)
    np.testing.assert_allclose([at_once(jnp.int32(5)), at_once(jnp.int32(6))], [1e-3, 1e-4], rtol=1e-6)


@pytest.mark.parametrize("name", langevin.SAMPLERS)
def test_samplers_follow_a_schedule(name):
    """Held for two steps and then zero: the weights stop, noise and all."""
    sampler = langevin.SAMPLERS[name](langevin.annealed(0.1, 0.0, 2, 3), 10.0)
    path = [np.asarray(params) for params, _ in run(sampler, jnp.ones(4), [jnp.ones(4)] * 5)]
    assert np.all(path[2] != path[1])
    np.testing.assert_array_equal(path[3], path[2])
    np.testing.assert_array_equal(path[4], path[3])


def test_sampler_chains_after_a_clip():
    sampler = optax.chain(optax.clip_by_global_norm(1.0), langevin.sgld(0.5, jnp.inf))
    ((moved, _),) = run(sampler, jnp.zeros(2), [jnp.array([3.0, 4.0])])
    np.testing.assert_allclose(moved, [-0.3, -0.4], rtol=1e-6)


# samplers: stationary laws

CHAINS = 4096
BETAS = np.array([0.5, 4.0, 1e4], np.float32)


@functools.partial(jax.jit, static_argnums=(0, 2))
def sampled(sampler, betas, steps):
    """[temperature, chain, λ] after `steps` from θ = 0."""

    def one(theta, state, k, beta):
        updates, state = sampler.update(CURVATURE * theta, state, theta, key=k, inverse_temperature=beta)
        return optax.apply_updates(theta, updates), state

    def step(carry, k):
        keys = jax.random.split(k, (betas.size, CHAINS))
        return jax.vmap(jax.vmap(one, in_axes=(0, 0, 0, None)))(*carry, keys, betas), None

    theta = jnp.zeros((betas.size, CHAINS, CURVATURE.size))
    start = theta, jax.vmap(jax.vmap(sampler.init))(theta)
    return jax.lax.scan(step, start, jax.random.split(key(6), steps))[0][0]


def variance_score(theta, expected):
    """[temperature, λ] standard errors between the variance over chains and `expected`."""
    return np.abs(np.mean(np.square(theta, dtype=np.float64), axis=1) / expected - 1) * np.sqrt(CHAINS / 2)


def continuous(betas):
    return 1 / (betas[:, None].astype(np.float64) * CURVATURE)


@pytest.mark.parametrize(("eta", "steps"), [(0.1, 120), (0.6, 40)])
def test_sgld_stationary_variance(eta, steps):
    expected = continuous(BETAS) * 2 / (2 - eta * CURVATURE)
    sampler = langevin.sgld(eta, 1.0)
    theta = sampled(sampler, BETAS, steps)
    assert np.max(variance_score(theta, expected)) < TOLERANCE
    without_two = sampled(sampler, 2 * BETAS, steps)
    assert np.min(variance_score(without_two, expected)) > 2 * TOLERANCE
    if eta * CURVATURE[-1] > 1:  # at a coarse step the continuous-time law is visibly wrong
        assert np.min(variance_score(theta, continuous(BETAS))[:, 1:]) > 2 * TOLERANCE


@pytest.mark.parametrize(("momentum", "eta", "steps"), [(0.0, 0.6, 60), (0.8, 0.6, 120)])
def test_underdamped_stationary_variance(momentum, eta, steps):
    sampler = langevin.underdamped(eta, 1.0, momentum=momentum)
    assert np.max(variance_score(sampled(sampler, BETAS, steps), continuous(BETAS))) < TOLERANCE
    assert np.min(variance_score(sampled(sampler, 1.5 * BETAS, steps), continuous(BETAS))) > 2 * TOLERANCE


def test_asgld_samples_the_quadratic_too_when_the_drift_is_off():
    sampler = langevin.asgld(0.3, 1.0, drift=0.0, clip="none")
    expected = continuous(BETAS) * 2 / (2 - 0.3 * CURVATURE)
    assert np.max(variance_score(sampled(sampler, BETAS, 60), expected)) < TOLERANCE


def test_chains_and_seeds_are_uncorrelated():
    sampler = langevin.asgld(0.05, 1.0)

    def chain(k):
        def step(carry, t):
            theta, state = carry
            updates, state = sampler.update(theta, state, theta, key=jax.random.fold_in(k, t))
            return (optax.apply_updates(theta, updates), state), None

        theta = jnp.zeros(4000)
        return jax.lax.scan(step, (theta, sampler.init(theta)), jnp.arange(5))[0][0]

    chains = jax.jit(jax.vmap(jax.vmap(chain)))

    def pair_scores(keys):
        flat = np.asarray(chains(keys), np.float64).reshape(6, -1)
        return [correlation_score(flat[i], flat[j]) for i in range(6) for j in range(i)]

    keys = jax.random.split(key(7), (2, 3))  # seeds × chains
    assert max(pair_scores(keys)) < TOLERANCE
    captured = jnp.broadcast_to(keys[0, 0], keys.shape)  # what a key held by the sampler would amount to
    assert min(pair_scores(captured)) > 2 * TOLERANCE


# replica exchange


def test_ladder_and_permute():
    np.testing.assert_allclose(langevin.ladder(4, 8.0, 2.0), [8.0, 4.0, 2.0, 1.0])
    tree = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(3)}
    moved = langevin.permute(tree, jnp.array([1, 0, 2]))
    np.testing.assert_array_equal(moved["w"], [[2.0, 3.0], [0.0, 1.0], [4.0, 5.0]])
    np.testing.assert_array_equal(moved["b"], [1, 0, 2])


def test_swap_probability_by_hand():
    betas = jnp.array([4.0, 2.0, 1.0])
    # (4 − 2)(0.3 − 1.0) = −1.4; (2 − 1)(1.0 − 0.5) > 0, the colder chain has the higher energy
    np.testing.assert_allclose(
        langevin.swap_probability(jnp.array([0.3, 1.0, 0.5]), betas), [0.24659696, 1.0], rtol=1e-5
    )
    stuck = jax.jit(langevin.swap)(key(0), jnp.array([jnp.nan, 1.0, 0.0]), betas, 0)
    np.testing.assert_array_equal(stuck, [0, 1, 2])


def test_swap_probability_balances():
    """π(x) P(x → x′) = π(x′) P(x′ → x) with π = exp(−β₀L₀ − β₁L₁); not so with the sign turned."""
    rng = np.random.default_rng(2)
    betas = np.array([3.0, 1.2], np.float32)
    energies = rng.uniform(0, 2, (50, 2)).astype(np.float32)
    probability = jax.vmap(langevin.swap_probability, in_axes=(0, None))

    def imbalance(forth, back):
        return np.max(np.abs(-energies @ betas + np.log(forth) - (-energies[:, ::-1] @ betas + np.log(back))))

    forth, back = probability(energies, betas)[:, 0], probability(energies[:, ::-1], betas)[:, 0]
    assert imbalance(forth, back) < 1e-5
    assert imbalance(back, forth) > 1


def test_swap_pairs_and_frequencies():
    betas = jnp.array([3.0, 2.0, 1.0, 0.5])
    energy = jnp.array([0.0, 0.5, 0.9, 2.0])  # probabilities e^−0.5, e^−0.4, e^−0.55
    draw = jax.jit(jax.vmap(langevin.swap, in_axes=(0, None, None, None)))
    keys = jax.random.split(key(9), 20_000)
    even, odd = np.asarray(draw(keys, energy, betas, 0)), np.asarray(draw(keys, energy, betas, 1))
    assert np.all(np.sort(even) == np.arange(4))
    assert {tuple(row) for row in even} == {(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)}
    assert {tuple(row) for row in odd} == {(0, 1, 2, 3), (0, 2, 1, 3)}
    np.testing.assert_array_equal(draw(keys, energy, betas, 6), even)
    np.testing.assert_array_equal(draw(keys, energy, betas, 7), odd)

    def score(happened, p):
        return abs(np.mean(happened) - p) / np.sqrt(p * (1 - p) / len(keys))

    first, second = even[:, 0] == 1, even[:, 2] == 3
    assert score(first, np.exp(-0.5)) < TOLERANCE
    assert score(second, np.exp(-0.55)) < TOLERANCE
    assert score(odd[:, 1] == 2, np.exp(-0.4)) < TOLERANCE
    assert score(first & second, np.exp(-1.05)) < TOLERANCE  # pairs decide independently
    assert score(first, np.exp(-0.4)) > 2 * TOLERANCE


REPLICAS, RUNGS, COLD = 64, 5, 16.0


def double_well(theta, tilt):
    return (theta**2 - 1) ** 2 + tilt * theta


@jax.jit
def left_share(tilt, ratio, trust):
    """[replica] share of the time that the coldest rung spends at θ < 0, every chain having begun at +1.

    The swaps see `trust` times the energies.
    """
    sampler = langevin.sgld(0.02, COLD)
    betas = langevin.ladder(RUNGS, COLD, ratio)
    energy = functools.partial(double_well, tilt=tilt)

    def one(theta, k, beta):
        grad, state = jax.grad(energy)(theta), sampler.init(theta)
        return theta + sampler.update(grad, state, key=k, inverse_temperature=beta)[0]

    def tempered(theta, k, t):
        k, swap_key = jax.random.split(k)
        theta = jax.vmap(one)(theta, jax.random.split(k, RUNGS), betas)
        return langevin.permute(theta, langevin.swap(swap_key, trust * jax.vmap(energy)(theta), betas, t))

    def step(theta, t):
        keys = jax.random.split(jax.random.fold_in(key(10), t), REPLICAS)
        theta = jax.vmap(tempered, in_axes=(0, 0, None))(theta, keys, t)
        return theta, theta[:, 0] < 0

    _, left = jax.lax.scan(step, jnp.ones((REPLICAS, RUNGS)), jnp.arange(2500))
    return jnp.mean(left[500:].astype(jnp.float32), axis=0)


def exact_left_share(tilt):
    grid = np.linspace(-3, 3, 20_001)
    weight = np.exp(-COLD * double_well(grid, tilt))
    return weight[grid < 0].sum() / weight.sum()


def share_score(share, expected):
    return abs(np.mean(share) - expected) / (np.std(share) / np.sqrt(REPLICAS))


def test_replica_exchange_crosses_where_cold_chains_do_not():
    all_cold, tempered = left_share(0.0, 1.0, 1.0), left_share(0.0, 2.0, 1.0)
    assert np.all(np.asarray(all_cold) == 0)
    assert np.all(np.asarray(tempered) > 0)
    assert share_score(tempered, 0.5) < TOLERANCE
    assert abs(np.mean(tempered) - 0.5) < 0.1


def test_replica_exchange_weighs_the_modes():
    expected = exact_left_share(0.05)
    assert share_score(left_share(0.05, 2.0, 1.0), expected) < TOLERANCE
    swapping_always = left_share(0.05, 2.0, 0.0)
    assert share_score(swapping_always, expected) > 2 * TOLERANCE
