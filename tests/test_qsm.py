"""Q-score matching against numbers worked out by hand and an actor trained on a known Q."""

import equinox as eqx
import jax
import jax.numpy as jnp
import linear
import numpy as np
import optax
import pytest
from linear import f32
from replays import random_replay, spec_of
from scipy.stats import norm

from lsac.agents import qsm
from lsac.nn.diffusion import ddpm, vp_betas
from lsac.types import Transition

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
SCHEDULE = ddpm(vp_betas(5))
SCALE = 3.0


class Quadratic(eqx.Module):
    """Q(s, a) = −curvature (a − s/2)²."""

    curvature: jax.Array

    def __call__(self, obs, action):
        return -self.curvature * jnp.sum((action - obs / 2) ** 2)


class Formula(eqx.Module):
    """An actor whose ε is written down: a function of s, a_t and t, times a weight that can be trained."""

    weight: jax.Array
    formula: object = eqx.field(static=True)

    def __call__(self, obs, action, t):
        return self.weight * self.formula(obs, action, t)


def actor_of(formula):
    return Formula(jnp.float32(1.0), formula)


def batch_of(count, action):
    obs = jnp.linspace(-1.0, 1.0, count)[:, None]
    zeros = jnp.zeros(count)
    return Transition(obs, jnp.full((count, 1), action), zeros, zeros, obs)


CRITICS = Quadratic(f32(0.5, 1.5))  # on average −(a − s/2)², so that ∇Q = −2 (a − s/2)
loss_of = jax.jit(qsm.actor_loss, static_argnums=3)


# the actor


def test_slope_is_that_of_the_critics_mean_for_every_state_by_itself():
    slopes = qsm.q_slopes(CRITICS, f32(0.0, 1.0)[:, None], f32(0.25, 0.0)[:, None])
    np.testing.assert_allclose(slopes[:, 0], [-0.5, 1.0], rtol=1e-6)


def test_loss_vanishes_where_the_actor_is_minus_the_scaled_slope_at_the_noisy_action():
    exact = actor_of(lambda s, a, t: SCALE * 2 * (a - s / 2))
    loss, size = loss_of(exact, CRITICS, SCHEDULE, SCALE, batch_of(4_000, 0.5), KEY)
    np.testing.assert_allclose(loss, 0.0, atol=1e-9)
    assert size > 0.5
    off = actor_of(lambda s, a, t: SCALE * 2 * (a - s / 2) - 0.5)
    np.testing.assert_allclose(loss_of(off, CRITICS, SCHEDULE, SCALE, batch_of(4_000, 0.5), KEY)[0], 0.25, rtol=1e-5)


@pytest.mark.parametrize("t", [None, 0, 4])
def test_actions_of_the_replay_are_noised_to_a_uniform_time(t):
    """An ε that is too large by a_t (only at one t) leaves the loss E a_t² = ᾱ a² + 1 − ᾱ, of 0.8² here."""
    wrong = actor_of(
        lambda s, a, now: SCALE * 2 * (a - s / 2) + (a if t is None else jnp.where(now == t, a, jnp.zeros_like(a)))
    )
    loss, _ = loss_of(wrong, CRITICS, SCHEDULE, SCALE, batch_of(40_000, 0.8), KEY)
    squares = 0.64 * SCHEDULE.alpha_bars + 1 - SCHEDULE.alpha_bars
    expected = jnp.mean(squares) if t is None else squares[t] / 5
    np.testing.assert_allclose(loss, expected, rtol=0.04)


def random_actor():
    """A small actor with arbitrary weights."""
    shape, draw = jax.eval_shape(lambda key: qsm.ScoreActor(1, 1, (4,), key), KEY), np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape, scale=0.2), jnp.float32), shape)


def test_gradient_reaches_the_whole_actor_and_not_the_critics():
    by_actor, by_critics = jax.jit(jax.grad(lambda both: loss_of(*both, SCHEDULE, SCALE, batch_of(8, 0.5), KEY)[0]))(
        (random_actor(), CRITICS)
    )
    assert all(np.all(leaf != 0.0) for leaf in jax.tree.leaves(by_actor))
    np.testing.assert_array_equal(by_critics.curvature, 0.0)


def test_network_against_numpy():
    actor = random_actor()

    def apply(mlp, x):
        for layer in mlp.layers[:-1]:
            x = np.asarray(layer.weight) @ x + np.asarray(layer.bias)
            x = x * np.tanh(np.log1p(np.exp(x)))
        return np.asarray(mlp.layers[-1].weight) @ x + np.asarray(mlp.layers[-1].bias)

    angles = 2 * np.pi * 3 * np.asarray(actor.frequencies)
    time = apply(actor.time, np.concatenate([np.cos(angles), np.sin(angles)]))
    assert (angles.shape, time.shape) == ((32,), (128,))
    expected = apply(actor.mlp, np.concatenate([[0.3, -0.7], time]))
    np.testing.assert_allclose(actor(f32(-0.7), f32(0.3), jnp.int32(3)), expected, rtol=1e-4)


def test_trained_actor_has_the_score_of_q_and_leads_to_its_maximum():
    """On −(a − s/2)², with replayed actions all over the place."""
    adam = optax.adam(optax.cosine_decay_schedule(5e-3, 150))

    def step(carry, key):
        actor, opt = carry
        action_key, obs_key, loss_key = jax.random.split(key, 3)
        batch = batch_of(64, 0.0)._replace(
            action=jax.random.uniform(action_key, (64, 1), minval=-1.0, maxval=1.0),
            obs=jax.random.uniform(obs_key, (64, 1), minval=-1.0, maxval=1.0),
        )
        grads = jax.grad(lambda a: qsm.actor_loss(a, CRITICS, SCHEDULE, 1.0, batch, loss_key)[0])(actor)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes floats and integers
            updates, opt = adam.update(grads, opt)
        return (optax.apply_updates(actor, updates), opt), None

    @jax.jit
    def train(key):
        init_key, loop_key = jax.random.split(key)
        actor = qsm.ScoreActor(1, 1, (32, 32), init_key)
        return jax.lax.scan(step, (actor, adam.init(actor)), jax.random.split(loop_key, 150))[0][0]

    actor = train(KEY)
    s, a, t = (x.reshape(-1) for x in jnp.meshgrid(f32(-0.8, 0.0, 0.8), f32(-0.9, 0.0, 0.9), jnp.arange(5)))
    score = -jax.vmap(actor)(s[:, None], a[:, None], t)[:, 0]
    np.testing.assert_allclose(score, -2 * (a - s / 2), atol=0.15)
    # the last of five steps stretches what the others found by 1/√α_0
    for obs in (-0.8, 0.0, 0.8):
        action = qsm.act(actor, SCHEDULE, f32(obs), KEY, False, 0.1)
        np.testing.assert_allclose(action, [obs / 2 / np.sqrt(SCHEDULE.alphas[0])], atol=0.03)


# actions


def test_a_draw_stays_in_the_box_after_its_noise():
    def uphill(x, t):
        return jnp.full_like(x, -100.0)

    drawn = [np.asarray(qsm.drawn(uphill, SCHEDULE, (20_000,), KEY, noise)) for noise in (0.0, 0.1)]
    np.testing.assert_array_equal(drawn[0], 1.0)
    assert drawn[1].max() == 1.0
    assert np.mean(drawn[1] < 1.0) == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(np.sqrt(np.mean((drawn[1][drawn[1] < 1.0] - 1.0) ** 2)), 0.1, rtol=0.05)


def test_a_draw_begins_with_normal_noise_and_adds_more():
    # one step from the start at ε = 0 is x/√α; a second adds √β z before that, and clips
    def still(x, t):
        return jnp.zeros_like(x)

    one = qsm.drawn(still, ddpm(np.array([0.36])), (40_000,), KEY, 0.0)
    np.testing.assert_allclose(np.mean(np.abs(one) < 1.0), 2 * norm.cdf(0.8) - 1, atol=0.01)  # |z| < 0.8
    two = qsm.drawn(still, ddpm(np.array([0.36, 0.19])), (40_000,), KEY, 0.0)
    expected = 2 * norm.cdf(0.8 / np.sqrt(1 / 0.81 + 0.19)) - 1  # |z/0.9 + √0.19 z'| < 0.8
    np.testing.assert_allclose(np.mean(np.abs(two) < 1.0), expected, atol=0.01)


def test_deterministic_action_is_the_noiseless_path_from_zero():
    x = 0.0
    for t in reversed(range(5)):
        beta, alpha, alpha_bar = (float(field[t]) for field in SCHEDULE)
        x = (x - beta / np.sqrt(1 - alpha_bar) * 0.03) / np.sqrt(alpha)
    actor = constant_actor(0.03)
    assert -1.0 < x < -0.5
    for seed in (0, 1):
        np.testing.assert_allclose(qsm.act(actor, SCHEDULE, f32(0.0), jax.random.key(seed), False, 0.1), [x], rtol=1e-4)


# the update


LR = 0.01
CONFIG = qsm.Config(hidden=(), batch_size=8, actor_lr=LR, critic_lr=LR, tau=0.25, score_scale=2.0, actor_decay=2)
AGENT = qsm.make(CONFIG, SPEC)
update = jax.jit(AGENT.update)


def constant_actor(eps):
    actor = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape), jax.eval_shape(lambda key: qsm.ScoreActor(1, 1, (), key), KEY)
    )
    return eqx.tree_at(lambda a: a.mlp.layers[-1].bias, actor, f32(eps))


def critics_of(*pairs):
    """Two critics w a + b, each given as (w, b)."""
    return linear.critics_of(*((0.0, w, b) for w, b in pairs))


def state_of(actor, critics, targets):
    opts = (optax.adam(optax.constant_schedule(LR)).init(actor), optax.adam(LR).init(critics))
    return qsm.State(actor, critics, targets, *opts)


def last_bias(network):
    return np.asarray(network.mlp.layers[-1].bias)


def test_bootstrap_is_the_smaller_target():
    # y = 1 + ½ min(4, 6) = 3, which both critics say already
    state = state_of(constant_actor(0.0), critics_of((0, 3), (0, 3)), critics_of((0, 4), (0, 6)))
    after, metrics = update(state, random_replay(1.0, 0.5), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-9)
    np.testing.assert_allclose(last_bias(after.targets)[:, 0], [4 - 0.25, 6 - 0.75], rtol=1e-6)


def test_bootstrap_is_at_an_action_of_the_policy_with_noise():
    # a policy that says 1 with noise of 0.1: Q̄ = 10 a is 10 minus ten times half of E|noise|
    agent = qsm.make(qsm.Config(hidden=(), batch_size=4_096), SPEC)
    state = state_of(constant_actor(-100.0), critics_of((0, 0), (0, 0)), critics_of((10, 0), (10, 0)))
    _, metrics = jax.jit(agent.update)(state, random_replay(0.0, 1.0), KEY)
    noise = np.minimum(0.0, np.random.default_rng(0).normal(size=100_000))
    np.testing.assert_allclose(metrics["critic_loss"], 2 * np.mean((10 + noise) ** 2), rtol=0.01)


def test_actor_moves_towards_the_scaled_slope_of_the_online_critics_and_stops_when_its_step_size_is_spent():
    # slopes 1 and 3 of the critics, whose targets say −100: ε moves towards −2 · 2
    critics = critics_of((1, 0), (3, 0))
    state = state_of(constant_actor(0.0), critics, critics_of((-100, 0), (-100, 0)))
    steps, losses = [state], []
    for seed in range(4):
        after, metrics = update(steps[-1]._replace(critics=critics), random_replay(0.0, 0.0), jax.random.key(seed))
        steps.append(after)
        losses.append(metrics["actor_loss"])
    assert losses[0] == pytest.approx((2 * 2) ** 2, rel=0.05)
    assert metrics["q_slope"] == pytest.approx(2.0, rel=0.05)
    moved = -np.diff([last_bias(step.actor)[0] for step in steps])
    np.testing.assert_allclose(moved, [LR, LR / 2, 0, 0], rtol=1e-2, atol=1e-9)  # ½ (1 + cos πt/2)


def test_networks_start_glorot_uniform_and_the_actor_knowing_nothing():
    state = jax.jit(qsm.make(qsm.Config(hidden=(64, 64)), SPEC).init)(KEY)
    layers = [*state.actor.time.layers, *state.actor.mlp.layers, *state.critics.mlp.layers]
    for layer in layers:
        bound = np.sqrt(6 / sum(layer.weight.shape[-2:]))
        bound *= 0.01 if layer is state.actor.mlp.layers[-1] else 1.0
        assert 0.9 * bound < np.abs(layer.weight).max() <= bound
        assert not layer.bias.any()
    assert np.unique(state.critics.mlp.layers[0].weight).size == 2 * 2 * 64  # no critic is the other's copy
