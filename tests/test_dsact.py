"""DSAC-T against numbers worked out by hand, on linear networks of one state and one action.

A critic is Q(s, a) = w_s s + w_a a + b with a constant σ, an actor has mean = m_0 and a constant log std.
"""

import dataclasses

import jax
import jax.numpy as jnp
import linear
import numpy as np
import pytest
from linear import f32, numbers, return_gradients
from linear import return_critics_of as critics_of
from replays import repeated, spec_of

from lsac.agents import dsact
from lsac.errors import InputError
from lsac.nn.distributions import gaussian_return_loss, huber_return_loss
from lsac.nn.networks import NARROW_LOG_STD, sample_actions
from lsac.nn.optimisers import adam
from lsac.runs.experiment import Experiment, check
from lsac.types import Transition

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
LR, TAU = 0.01, 0.25
LOSSES = {"published": gaussian_return_loss, "released": huber_return_loss}

CONFIG = dsact.Config(hidden=(), batch_size=8, actor_lr=LR, critic_lr=LR, alpha_lr=LR, tau=TAU)
update = jax.jit(dsact.make(CONFIG, SPEC).update)
gradients = {
    name: jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4, 5)), static_argnums=6) for name, loss in LOSSES.items()
}
critic_loss = jax.jit(jax.grad(dsact.critic_loss, has_aux=True), static_argnums=5)
actor_loss = jax.jit(dsact.actor_loss)


def actor_of(m_0, log_std):
    return linear.actor_of(0.0, m_0, log_std, NARROW_LOG_STD)


def state_of(actor, critics, target_actor=None, targets=None, log_alpha=-30.0, updates=0):
    """An entropy weight of e⁻³⁰ is none."""
    return dsact.State(
        actor=actor,
        target_actor=actor if target_actor is None else target_actor,
        critics=critics,
        targets=critics if targets is None else targets,
        std_mean=f32(0.5, 2.0),
        var_mean=f32(3.0, 4.0),
        log_alpha=jnp.float32(log_alpha),
        actor_opt=adam(LR).init(actor),
        critic_opt=adam(LR).init(critics),
        alpha_opt=adam(LR).init(jnp.float32(log_alpha)),
        updates=jnp.int32(updates),
    )


# the losses of the critics


def numpy_gradients(name, q, std, y_q, y_z, bound, scale, eps):
    """By Q and by σ, from the formulas of the paper and of the spec, in float64."""
    if name == "published":
        return return_gradients(q, std, y_q, y_z, bound, scale, eps)
    y_z = np.clip(y_z, q - bound, q + bound)
    error = np.abs(y_z - q)
    huber = np.where(error <= 50, error**2 / 2, 50 * (error - 25))
    ratio = np.clip(scale / (std**2 + eps), 0.1, 10)
    return ratio * np.clip(q - y_q, -50, 50) / len(q), ratio * (std**2 - huber) / (std + eps) / len(q)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_mean_and_std_are_those_of_the_formulas(name):
    # ratios 4/(σ² + 0.1) below, within and beyond [0.1, 10]; errors within and beyond Huber's 50 and the bound of 60
    values = np.array(
        [
            [1.0, 1.0, 3.0, 2.0],
            [0.0, 2.0, -1.0, 1.0],
            [-5.0, 9.0, 4.0, 20.0],
            [2.0, 0.2, 1.0, 2.5],
            [3.0, 3.0, 90.0, 58.0],
            [7.0, 3.0, -90.0, -400.0],
        ]
    )
    mean, std, y_q, y_z = values.T
    arrays = [f32(*column) for column in values.T]
    by_mean, by_std, *others = gradients[name](*arrays, jnp.float32(60.0), jnp.float32(4.0), 0.1)
    expected = numpy_gradients(name, mean, std, y_q, y_z, 60.0, 4.0, 0.1)
    np.testing.assert_allclose(by_mean, expected[0], rtol=1e-5)
    np.testing.assert_allclose(by_std, expected[1], rtol=1e-5)
    assert all(np.all(np.asarray(g) == 0.0) for g in others)


def test_released_gradient_by_hand():
    # Q = 1, σ = 2, ω = 8.2: ρ = 8.2/4.1 = 2; y_Q = 4: by Q, 2 · (1 − 4) = −6
    # y_Z = 9 held at Q + 4: H = 8; by σ, 2 · (4 − 8)/2.1
    by_mean, by_std, *_ = gradients["released"](f32(1), f32(2), f32(4), f32(9), jnp.float32(4), jnp.float32(8.2), 0.1)
    np.testing.assert_allclose([by_mean[0], by_std[0]], [-6.0, -8.0 / 2.1], rtol=1e-5)


@pytest.mark.parametrize(("name", "inside", "outside"), [("published", 1.9, 2.1), ("released", 2.7, 2.9)])
def test_std_grows_where_the_target_lies_outside_and_shrinks_inside(name, inside, outside):
    # σ = 2; the published loss turns at |y_Z − Q| = σ, the released one, by its halved square, at √2 σ = 2.83
    y_z = f32(1 + inside, 1 - inside, 1 + outside, 1 - outside)
    ones = jnp.ones(4)
    _, by_std, *_ = gradients[name](ones, 2 * ones, ones, y_z, jnp.float32(9), jnp.float32(4), 0.1)
    assert list(np.sign(-np.asarray(by_std))) == [-1, -1, 1, 1]


@pytest.mark.parametrize("name", LOSSES)
def test_mean_goes_towards_its_target_and_does_not_heed_the_drawn_one(name):
    ones = jnp.ones(2)
    by_mean, *_ = gradients[name](ones, ones, f32(3, -1), f32(-50, 50), jnp.float32(9), jnp.float32(4), 0.1)
    assert list(np.sign(-np.asarray(by_mean))) == [1, -1]


@pytest.mark.parametrize("name", LOSSES)
def test_every_critic_has_its_own_bound_and_scale(name):
    # σ = 1 and 3 with running means 0.5 and 2 of σ, 3 and 4 of σ²; a quarter of the way to the batch's at update 5
    config = dataclasses.replace(CONFIG, loss=name)
    batch = Transition(f32([1], [2]), f32([0], [0]), f32(0, 0), f32(0, 0), f32([0], [0]))
    state = state_of(actor_of(0.0, 0.0), critics_of((2, 0, 0, 1.0), (0, 0, -1, 3.0)), updates=5)
    y_q, y_z = np.array([3.0, 1.0]), np.array([40.0, -2.5])
    grads, (std_mean, var_mean, mean, std) = critic_loss(state.critics, batch, f32(*y_q), f32(*y_z), state, config)
    np.testing.assert_allclose(std_mean, [0.5 + 0.25 * 0.5, 2 + 0.25 * 1], rtol=1e-5)
    np.testing.assert_allclose(var_mean, [3 + 0.25 * -2, 4 + 0.25 * 5], rtol=1e-5)
    np.testing.assert_allclose(mean, [[2, 4], [-1, -1]], rtol=1e-6)
    np.testing.assert_allclose(std, [[1, 1], [3, 3]], rtol=1e-5)
    for k, (q, sigma) in enumerate([(np.array([2.0, 4.0]), 1.0), (np.array([-1.0, -1.0]), 3.0)]):
        m, v = float(std_mean[k]), float(var_mean[k])
        scale = v + 0.1 if name == "published" else m**2
        by_mean, by_std = numpy_gradients(name, q, np.full(2, sigma), y_q, y_z, 3 * m, scale, 0.1)
        slope = 1 - np.exp(-sigma)  # of softplus where it is σ
        expected = [by_mean.sum(), by_std.sum() * slope]
        np.testing.assert_allclose(grads.mlp.layers[0].bias[k], expected, rtol=1e-4)


# the update


def test_running_means_start_at_the_first_batch():
    state = state_of(actor_of(0.0, -1.0), critics_of((0, 0, 1, 0.7), (0, 0, 5, 1.5)))
    replay = repeated(reward=3.0, discount=0.0)
    first, _ = update(state, replay, KEY)
    np.testing.assert_allclose(first.std_mean, [0.7, 1.5], rtol=1e-5)
    np.testing.assert_allclose(first.var_mean, [0.49, 2.25], rtol=1e-5)
    second, _ = update(first, replay, KEY)
    std = np.asarray(dsact.returns(first.critics, f32([1.0]), f32([0.5]))[1])[:, 0]
    assert np.all(np.abs(std - [0.7, 1.5]) > 1e-3), "σ must have moved for this test to tell"
    np.testing.assert_allclose(second.std_mean, 0.75 * np.array([0.7, 1.5]) + 0.25 * std, rtol=1e-6)
    np.testing.assert_allclose(second.var_mean, 0.75 * np.array([0.49, 2.25]) + 0.25 * std**2, rtol=1e-6)


def test_critics_move_towards_the_target_and_their_stds_towards_its_distance():
    # Adam's first step is the sign of the gradient; y = 3 lies 0.1 from the first critic with σ = 1, so that its σ
    # shrinks, and 8 from the second with σ = 3, which grows: the bound of 9 does not hold it
    before = state_of(actor_of(0.0, -1.0), critics_of((0, 0, 2.9, 1.0), (0, 0, 11, 3.0)))
    after, _ = update(before, repeated(reward=3.0, discount=0.0), KEY)
    bias = np.asarray(after.critics.mlp.layers[0].bias - before.critics.mlp.layers[0].bias)
    np.testing.assert_allclose(bias, [[LR, -LR], [-LR, LR]], rtol=1e-3)


def test_next_action_is_the_target_actors_and_its_value_the_target_critics():
    # hardly any noise: y = 1 + 0.5 · min(2 tanh(1) + 3, 2 tanh(1) + 4), which the critics say already
    y = 1 + 0.5 * (2 * np.tanh(1.0) + 3)
    slow = {"target_actor": actor_of(1.0, -20.0), "targets": critics_of((0, 2, 4, 1), (0, 2, 3, 1))}
    state = state_of(actor_of(-1.0, -20.0), critics_of((0, 0, y, 1), (0, 0, y, 1)), **slow)
    _, metrics = update(state, repeated(reward=1.0, discount=0.5), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-8)


def test_actor_loss_is_alpha_log_density_minus_the_smaller_mean():
    obs, actor = f32(0.5, -1.0, 2.0)[:, None], actor_of(0.2, -0.5)
    action, log_prob = (np.asarray(x) for x in sample_actions(actor, obs, KEY))
    s, a = np.asarray(obs)[:, 0], action[:, 0]
    loss, mean_log_prob = actor_loss(actor, critics_of((1, 2, 0, 1), (-1, 1, 0, 5)), jnp.float32(0.3), obs, KEY)
    np.testing.assert_allclose(loss, np.mean(0.3 * log_prob - np.minimum(s + 2 * a, -s + a)), rtol=1e-5)
    np.testing.assert_allclose(mean_log_prob, np.mean(log_prob), rtol=1e-5)
    assert len(set(np.argmin([s + 2 * a, -s + a], axis=0))) == 2, "the sample must exercise both critics"


def test_alpha_loss_moves_log_alpha_by_the_entropy_gap_whatever_alpha_is():
    # −log α (0.5 − 1) = 0.5 log α, whose derivative is 0.5
    for log_alpha in (-3.0, 2.0):
        at = jnp.float32(log_alpha), jnp.float32(0.5)
        loss, (by_log_alpha, by_log_prob) = jax.value_and_grad(dsact.alpha_loss, argnums=(0, 1))(*at, -1.0)
        np.testing.assert_allclose([loss, by_log_alpha, by_log_prob], [0.5 * log_alpha, 0.5, 0.0], rtol=1e-6)


@pytest.mark.parametrize(("log_std", "direction"), [(-5.0, 1.0), (-0.5, -1.0)], ids=["below", "above"])
def test_alpha_rises_when_entropy_is_below_its_target_and_falls_when_above(log_std, direction):
    before = state_of(actor_of(0.0, log_std), critics_of((0, 0, 2, 1), (0, 0, 2, 1)))
    after, metrics = update(before, repeated(reward=2.0, discount=0.0), KEY)
    assert np.sign(-1.0 - metrics["entropy"]) == direction
    np.testing.assert_allclose(after.log_alpha - before.log_alpha, direction * LR, rtol=1e-3)


def test_alpha_starts_at_e_and_the_std_of_actions_stays_below_its_limit():
    state = jax.jit(dsact.make(CONFIG, SPEC).init)(KEY)
    np.testing.assert_allclose(state.log_alpha, 1.0, rtol=1e-6)
    assert (state.actor.log_std_min, state.actor.log_std_max) == (-20.0, 0.5)


# the delay


def test_critics_and_running_means_move_at_every_update_and_all_else_at_every_second():
    state = state_of(actor_of(0.3, -1.0), critics_of((1, 2, 3, 1), (-1, 1, 2, 2)), log_alpha=0.0)
    replay, moved = repeated(reward=1.0, discount=0.9), []
    for i in range(4):
        after, _ = update(state, replay, jax.random.key(i))
        pairs = zip(numbers(*after), numbers(*state), strict=True)
        moved.append(dict(zip(dsact.State._fields, [bool(np.any(a != b)) for a, b in pairs], strict=True)))
        state = after
    always = dict.fromkeys(("critics", "critic_opt", "std_mean", "var_mean", "updates"), True)
    assert moved[0] == moved[2] == dict.fromkeys(dsact.State._fields, True)
    assert moved[1] == moved[3] == dict.fromkeys(dsact.State._fields, False) | always


def test_a_delay_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"^--delay 0: must be at least 1$"):
        check(Experiment(dsact.Config(delay=0), "X"))


def test_target_networks_take_the_share_tau_of_what_just_moved():
    slow = {"target_actor": actor_of(-1.0, 2.0), "targets": critics_of((0, 0, -3, 1), (0, 0, 9, 2))}
    before = state_of(actor_of(0.3, -1.0), critics_of((0, 1, 1, 1), (0, 0, 5, 2)), **slow)
    after, _ = update(before, repeated(reward=3.0, discount=0.0), KEY)
    for slow_name, name in (("target_actor", "actor"), ("targets", "critics")):
        old, new, slow = numbers(getattr(before, slow_name), getattr(after, name), getattr(after, slow_name))
        np.testing.assert_allclose(slow, 0.75 * old + 0.25 * new, rtol=1e-5)


# values


def test_value_is_the_smaller_mean_beside_the_mean_std():
    said = dsact.value(critics_of((0, 2, 1, 1.0), (0, 0, 1, 3.0)), f32(0.0), f32(-0.5))
    np.testing.assert_allclose([said["q"], said["return_std"]], [0.0, 2.0], atol=1e-6)
