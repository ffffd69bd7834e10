"""TRPO: conjugate gradients, the Fisher matrix, the line search and the trust region, against dense linear algebra."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from linear import f32
from replays import replay_of, spec_of
from scipy import integrate, stats

from lsac.agents import on_policy, trpo
from lsac.agents.on_policy import Actor, Batch
from lsac.nn.distributions import normal_kl
from lsac.nn.networks import MLP
from lsac.replay import ring as rb
from lsac.replay import rollouts

SPEC = spec_of(3, 2)
KEY = jax.random.key(0)
improved = jax.jit(trpo.improved, static_argnums=2)
CONFIG = trpo.Config(hidden=(5,), epochs=2, minibatches=2, mean_scale=1.0)


def random_actor(key, spec=SPEC, hidden=(5,)):
    keys = jax.random.split(key)
    mlp = MLP((spec.obs_dim, *hidden, spec.action_dim), "tanh", keys[0])
    return Actor(mlp, 0.5 * jax.random.normal(keys[1], (spec.action_dim,)))


def random_batch(key, actor, size=64, scale=1.0):
    """Actions drawn from the actor, with advantages that say nothing in particular."""
    keys = jax.random.split(key, 3)
    obs = jax.random.normal(keys[0], (size, SPEC.obs_dim))
    mean, log_std = jax.vmap(actor)(obs)
    action = mean + jnp.exp(log_std) * jax.random.normal(keys[1], mean.shape)
    advantage = scale * jax.random.normal(keys[2], (size,))
    zero = jnp.zeros(size)
    return Batch(obs, action, on_policy.log_probs(actor, obs, action), advantage, zero, zero)


# the divergence


def test_kl_of_gaussians_is_the_integral_it_stands_for():
    p, q = [(0.3, 0.8), (-1.0, 1.5)], [(-0.2, 1.1), (-0.5, 0.9)]  # (mean, std) of two independent coordinates

    def one(a, b):
        integrand = lambda x: stats.norm.pdf(x, *a) * (stats.norm.logpdf(x, *a) - stats.norm.logpdf(x, *b))  # noqa: E731
        return integrate.quad(integrand, -15, 15)[0]

    arguments = [f32(*(pair[i] for pair in dist)) for dist in (p, q) for i in (0, 1)]
    arguments[1], arguments[3] = jnp.log(arguments[1]), jnp.log(arguments[3])
    np.testing.assert_allclose(normal_kl(*arguments), sum(map(one, p, q)), rtol=1e-5)
    assert normal_kl(*arguments[:2], *arguments[:2]) == 0.0


# the direction


def test_conjugate_gradients_solve_a_random_system():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(12, 12))
    matrix, b = f32(*(a @ a.T / 12 + np.eye(12))), f32(*rng.normal(size=12))
    solve = jax.jit(lambda b, steps: trpo.conjugate_gradients(lambda v: matrix @ v, b, steps), static_argnums=1)
    exact = np.linalg.solve(np.asarray(matrix, np.float64), b)
    np.testing.assert_allclose(solve(b, 12), exact, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(solve(b, 100), exact, rtol=1e-3, atol=1e-4)  # stands still once it is there
    assert np.abs(solve(b, 2) - exact).max() > 0.01
    assert not np.any(solve(jnp.zeros(12), 10))


def test_fisher_matrix_of_a_linear_gaussian_by_hand():
    # mean = w s + b, std σ: F = [[E s², E s], [E s, 1]] / σ² for w and b, and 2 for log σ
    actor = random_actor(KEY, spec_of(1, 1), ())
    obs, variance = f32([0.5], [-1.0], [2.0]), float(jnp.exp(2 * actor.log_std[0]))
    theta, restore = ravel_pytree(actor)
    kl = lambda x: trpo.mean_kl(actor, restore(x), obs)  # noqa: E731
    columns = [trpo.fisher_product(kl, theta, v, 0.0) for v in jnp.eye(3)]
    expected = np.zeros((3, 3))
    expected[:2, :2] = np.array([[5.25 / 3, 0.5], [0.5, 1.0]]) / variance
    expected[2, 2] = 2.0
    np.testing.assert_allclose(np.array(columns), expected, rtol=1e-4, atol=1e-5)
    damped = trpo.fisher_product(kl, theta, f32(1, 0, 0), 0.1)
    np.testing.assert_allclose(damped, expected[0] + [0.1, 0, 0], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def problem():
    """A small network, its dense damped Fisher matrix, and the gradient of a surrogate."""
    actor = random_actor(jax.random.key(1))
    batch = random_batch(jax.random.key(2), actor)
    theta, restore = ravel_pytree(actor)
    kl = lambda x: trpo.mean_kl(actor, restore(x), batch.obs)  # noqa: E731
    gradient = jax.grad(lambda x: trpo.surrogate(restore(x), batch))(theta)
    dense = np.asarray(jax.jit(jax.hessian(kl))(theta), np.float64) + 0.1 * np.eye(theta.size)
    return kl, theta, np.asarray(gradient), dense


def test_products_are_those_of_the_dense_fisher_matrix(problem):
    kl, theta, gradient, dense = problem
    np.testing.assert_allclose(trpo.fisher_product(kl, theta, gradient, 0.1), dense @ gradient, rtol=1e-3, atol=1e-4)
    assert np.linalg.eigvalsh(dense).min() > 0.09


def test_conjugate_gradients_solve_the_networks_fisher_system(problem):
    kl, theta, gradient, dense = problem
    product = functools.partial(trpo.fisher_product, kl, theta, damping=0.1)
    exact = np.linalg.solve(dense, gradient)
    few, many = (jax.jit(lambda g, n=n: trpo.conjugate_gradients(product, g, n))(gradient) for n in (10, 40))
    np.testing.assert_allclose(many, exact, rtol=1e-2, atol=1e-4)
    assert np.linalg.norm(dense @ few - gradient) < 0.1 * np.linalg.norm(gradient)


def test_full_step_reaches_the_border_of_the_trust_region(problem):
    kl, theta, gradient, dense = problem
    product = functools.partial(trpo.fisher_product, kl, theta, damping=0.1)
    step = np.asarray(trpo.full_step(product, gradient, 0.02, 40), np.float64)
    np.testing.assert_allclose(0.5 * step @ dense @ step, 0.02, rtol=1e-3)
    direction = np.linalg.solve(dense, gradient)
    cosine = step @ direction / np.linalg.norm(step) / np.linalg.norm(direction)
    assert cosine > 0.999
    assert not np.any(trpo.full_step(product, jnp.zeros_like(theta), 0.02, 10))


# the line search


LENGTHS = 0.5 ** jnp.arange(10, dtype=jnp.float32)


def search(gain, kl, promised=1.0, lengths=LENGTHS):
    step = trpo.line_search(lambda x: (gain(x), kl(x)), lengths, jnp.float32(promised), 0.1, 0.01)
    return tuple(float(x) for x in step)


def test_the_longest_good_step_is_taken():
    assert search(lambda x: x, lambda x: 0.01 * x) == pytest.approx((1.0, 1.0, 0.01))
    # within the trust region from ¼ on
    assert search(lambda x: x, lambda x: 0.04 * x) == pytest.approx((0.25, 0.25, 0.01))


def test_a_direction_that_does_not_gain_is_refused():
    assert search(lambda x: -x, lambda x: 0.0 * x) == (0.0, 0.0, 0.0)
    assert search(lambda x: 0.0 * x, lambda x: 0.0 * x) == (0.0, 0.0, 0.0)
    assert search(lambda x: -x, lambda x: 0.0 * x, promised=-100.0) == (0.0, 0.0, 0.0)


def test_a_tenth_of_the_promised_gain_is_wanted():
    assert search(lambda x: 0.09 * x, lambda x: 0.0 * x)[0] == 0.0
    assert search(lambda x: 0.11 * x, lambda x: 0.0 * x)[0] == 1.0
    # gains x (1 − 2 x): nothing at ½, half of what was promised at ¼
    assert search(lambda x: x * (1.0 - 2.0 * x), lambda x: 0.0 * x)[0] == 0.25


def test_no_more_steps_are_tried_than_were_asked_for():
    good_from = lambda border: lambda x: jnp.where(x <= border, 0.0, 1.0)  # noqa: E731
    assert search(lambda x: x, good_from(0.5**9))[0] == 0.5**9
    assert search(lambda x: x, good_from(0.5**10))[0] == 0.0
    tried = []
    trpo.line_search(
        lambda x: (jax.debug.callback(lambda y: tried.append(float(y)), x), (x, x))[1],
        LENGTHS,
        jnp.float32(1),
        0.1,
        2.0,
    )
    jax.effects_barrier()
    assert sorted(tried, reverse=True) == LENGTHS.tolist()  # all, although the first one is good


# the trust region


def test_no_step_leaves_the_trust_region_or_loses():
    """64 random problems in one program, with advantages and regions of all sizes."""

    def solve(key, max_kl):
        keys = jax.random.split(key, 3)
        actor = random_actor(keys[0])
        batch = random_batch(keys[1], actor, scale=10.0 ** jax.random.uniform(keys[2], minval=-3.0, maxval=3.0))
        new, step = trpo.improved(actor, batch, dataclasses.replace(CONFIG, max_kl=max_kl))
        gain = trpo.surrogate(new, batch) - trpo.surrogate(actor, batch)
        moved = jnp.max(jnp.abs(ravel_pytree(new)[0] - ravel_pytree(actor)[0]))
        return step, trpo.mean_kl(actor, new, batch.obs), gain, moved

    for max_kl in (0.01, 1.0):
        step, kl, gain, moved = jax.jit(jax.vmap(lambda key: solve(key, max_kl)))(jax.random.split(KEY, 64))  # noqa: B023
        assert np.all(kl <= max_kl * (1 + 1e-4))
        np.testing.assert_allclose(kl, step.kl, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(gain, step.gain, rtol=1e-3, atol=1e-5)
        taken = np.asarray(step.length) > 0
        assert np.all(gain[taken] > 0)
        assert np.all((np.asarray(moved) > 0) == taken)
        assert taken.mean() > 0.9
        assert np.median(kl) > 0.3 * max_kl, "steps use the room they have"


def test_where_nothing_is_to_be_gained_the_policy_stays():
    actor = random_actor(KEY)
    batch = random_batch(KEY, actor)._replace(advantage=jnp.zeros(64))
    new, step = improved(actor, batch, CONFIG)
    np.testing.assert_array_equal(ravel_pytree(new)[0], ravel_pytree(actor)[0])
    assert step.length == 0.0


def test_surrogate_weighs_standardised_advantages_by_the_ratio():
    actor, batch = random_actor(KEY), random_batch(KEY, random_actor(KEY), size=2)
    batch = batch._replace(advantage=f32(3.0, 7.0), log_prob=batch.log_prob - jnp.log(f32(2.0, 0.5)))
    np.testing.assert_allclose(trpo.surrogate(actor, batch), 0.5 * (2.0 * -1.0 + 0.5 * 1.0), rtol=1e-4)


# the update


def random_replay(seed, time=8, simulators=2):
    """Steps that have nothing to do with each other: each is an episode."""
    rng = np.random.default_rng(seed)
    layout = rb.layout_of(SPEC)
    rows = rng.normal(size=(time * simulators, layout.width))
    rows[:, layout.fields()["discount"]] = 0.9
    return replay_of(layout, rows, stride=simulators, first=np.ones(len(rows)))


@functools.cache
def compiled(config):
    return jax.jit(trpo.make(config, SPEC).update)


@pytest.fixture(scope="module")
def start():
    return trpo.make(CONFIG, SPEC).init(KEY)


def test_update_takes_the_step_and_fits_the_critic_to_the_returns(start):
    replay = random_replay(0)
    after, metrics = compiled(CONFIG)(start, replay, KEY)
    networks, rollout, log_prob = on_policy.prepared(start.networks, replay, CONFIG.obs_clip, CONFIG.lam)
    estimates = on_policy.estimates(networks.values, rollout, CONFIG.lam)
    batch = Batch(rollout.steps.obs, rollout.steps.action, log_prob, *estimates)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    expected, _ = improved(start.networks.actor, batch, CONFIG)
    np.testing.assert_allclose(ravel_pytree(after.networks.actor)[0], ravel_pytree(expected)[0], rtol=1e-3, atol=1e-5)
    assert 0 < metrics["kl"] <= CONFIG.max_kl
    assert metrics["actor_loss"] < 0
    state = start
    for i in range(10):  # the same chunk again: values approach its returns
        state, last = compiled(CONFIG)(
            state._replace(networks=state.networks._replace(actor=start.networks.actor)), replay, jax.random.key(i)
        )
    assert last["critic_loss"] < metrics["critic_loss"]
    obs = np.asarray(rollouts.read(replay).steps.obs).reshape(-1, 3)
    np.testing.assert_allclose(after.networks.obs_moments.mean, obs.mean(0), rtol=1e-4, atol=1e-5)


def test_the_critics_step_size_falls_and_its_steps_are_counted(start):
    config = dataclasses.replace(CONFIG, epochs=1, minibatches=1, anneal_updates=4)
    for updates, left in ((0, 1.0), (3, 0.25), (4, 0.0)):
        after, _ = compiled(config)(start._replace(updates=jnp.int32(updates)), random_replay(1), KEY)
        change = ravel_pytree(after.networks.critic)[0] - ravel_pytree(start.networks.critic)[0]
        np.testing.assert_allclose(np.abs(change).max(), left * config.critic_lr, rtol=1e-3, atol=1e-9)
        assert (after.updates, optax.tree.get(after.critic_opt, "count")) == (updates + 1, 1)
    assert trpo.make(trpo.Config(epochs=3, minibatches=4), SPEC).gradient_steps == 12
