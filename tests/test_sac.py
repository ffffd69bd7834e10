"""Soft Actor-Critic against numbers worked out by hand, on linear networks of one state and one action.

A critic is Q(s, a) = w_s s + w_a a + b, an actor has mean = m_s s + m_0 and a constant log std.
"""

import dataclasses

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import actor_of, coefficients, critics_of, f32, numpy_actions
from replays import random_replay, repeated, spec_of

from lsac.agents import sac
from lsac.envs.gymnasium import Spaces
from lsac.types import Transition

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)

td_target = jax.jit(sac.td_target)
critic_loss = jax.jit(jax.value_and_grad(sac.critic_loss, has_aux=True))
actor_loss = jax.jit(jax.value_and_grad(sac.actor_loss, has_aux=True))


def batch_of(obs, action, reward, discount, next_obs):
    return Transition(f32(*obs)[:, None], f32(*action)[:, None], f32(*reward), f32(*discount), f32(*next_obs)[:, None])


# the losses


def test_td_target_without_entropy_is_reward_plus_discounted_smaller_target():
    # constant critics 2 and 3; then 5 and 3: the minimum is 2, then 3, whichever critic has it
    batch = batch_of([0, 0, 0], [0, 0, 0], [1, 1, -1], [0.9, 0, 0.5], [0, 0, 0])
    actor = actor_of(0.0, 0.0, 0.0)
    first = td_target(critics_of((0, 0, 2), (0, 0, 3)), actor, f32(0)[0], batch, KEY)
    second = td_target(critics_of((0, 0, 5), (0, 0, 3)), actor, f32(0)[0], batch, KEY)
    np.testing.assert_allclose(first, [1 + 0.9 * 2, 1, -1 + 0.5 * 2], rtol=1e-6)
    np.testing.assert_allclose(second, [1 + 0.9 * 3, 1, -1 + 0.5 * 3], rtol=1e-6)


def test_td_target_takes_the_minimum_for_every_transition_by_itself():
    # Q1 = s, Q2 = −s at the next states 1, −2, 3
    batch = batch_of([7, 7, 7], [0, 0, 0], [0, 0, 0], [1, 1, 1], [1, -2, 3])
    target = td_target(critics_of((1, 0, 0), (-1, 0, 0)), actor_of(0.0, 0.0, 0.0), f32(0)[0], batch, KEY)
    np.testing.assert_allclose(target, [-1, -2, -3], rtol=1e-6)


def test_td_target_evaluates_the_policys_action_and_subtracts_alpha_log_density():
    next_obs, reward, discount, alpha = [0.5, -1.0, 2.0], [1.0, -2.0, 0.3], [0.99, 0.0, 0.5], 0.7
    batch = batch_of([9, 9, 9], [9, 9, 9], reward, discount, next_obs)
    target = td_target(critics_of((1, 2, 0.5), (-1, 3, 0.1)), actor_of(0.4, -0.2, -0.5), f32(alpha)[0], batch, KEY)
    a, log_prob = numpy_actions(0.4, -0.2, -0.5, next_obs, KEY)
    s = np.array(next_obs)
    value = np.minimum(s + 2 * a + 0.5, -s + 3 * a + 0.1) - alpha * log_prob
    np.testing.assert_allclose(target, np.array(reward) + np.array(discount) * value, rtol=1e-5)


def test_critic_loss_is_half_the_squared_error_averaged_over_the_batch_and_summed_over_critics():
    # Q1 = 2, 4; Q2 = 0, −1; y = 1, 1: ½ ((1 + 9)/2 + (1 + 4)/2) = 3.75
    batch = batch_of([1, 2], [0, 1], [0, 0], [0, 0], [0, 0])
    (loss, q), _ = critic_loss(critics_of((2, 0, 0), (0, -1, 0)), batch, f32(1, 1))
    np.testing.assert_array_equal(q, [[2, 4], [0, -1]])
    np.testing.assert_allclose(loss, 3.75, rtol=1e-6)


def test_gradient_of_a_critic_is_its_mean_error_and_knows_no_other_critic():
    # dL/db_k = mean(Q_k − y): ((2 − 1) + (4 − 1)) / 2 = 2 and ((0 − 1) + (−1 − 1)) / 2 = −1.5
    batch = batch_of([1, 2], [0, 1], [0, 0], [0, 0], [0, 0])
    _, grads = critic_loss(critics_of((2, 0, 0), (0, -1, 0)), batch, f32(1, 1))
    np.testing.assert_allclose(grads.mlp.layers[0].bias, [[2], [-1.5]], rtol=1e-6)


def test_actor_loss_is_alpha_log_density_minus_the_smaller_critic():
    obs, alpha = [0.5, -1.0, 2.0], 0.3
    a, log_prob = numpy_actions(0.4, -0.2, -0.5, obs, KEY)
    q = np.minimum(np.array(obs) + 2 * a, -np.array(obs) + a)
    (loss, mean_log_prob), _ = actor_loss(
        actor_of(0.4, -0.2, -0.5), critics_of((1, 2, 0), (-1, 1, 0)), f32(alpha)[0], f32(*obs)[:, None], KEY
    )
    np.testing.assert_allclose(loss, np.mean(alpha * log_prob - q), rtol=1e-5)
    np.testing.assert_allclose(mean_log_prob, np.mean(log_prob), rtol=1e-5)


def test_actor_climbs_the_critic():
    # without entropy and with Q = 3 a, dL/dm_0 = −3 mean(1 − a²)
    obs = [0.5, -1.0, 2.0]
    a, _ = numpy_actions(0.4, -0.2, -0.5, obs, KEY)
    _, grads = actor_loss(
        actor_of(0.4, -0.2, -0.5), critics_of((0, 3, 0), (0, 3, 1)), f32(0)[0], f32(*obs)[:, None], KEY
    )
    np.testing.assert_allclose(grads.mlp.layers[0].bias[0], -3 * np.mean(1 - a**2), rtol=1e-5)


def test_alpha_loss_is_alpha_times_entropy_above_target_and_moves_alpha_alone():
    # α = 2, log π = 0.5, H̄ = −1: 2 (−0.5 + 1) = 1, which is also its derivative by log α
    at = f32(np.log(2.0))[0], f32(0.5)[0]
    loss, (by_log_alpha, by_log_prob) = jax.value_and_grad(sac.alpha_loss, argnums=(0, 1))(*at, -1.0)
    np.testing.assert_allclose([loss, by_log_alpha], [1.0, 1.0], rtol=1e-6)
    assert by_log_prob == 0.0


def test_deterministic_action_is_the_squashed_mean():
    action = sac.act(actor_of(0.5, 0.1, 0.0), f32(2.0), KEY, False)
    np.testing.assert_allclose(action, [np.tanh(1.1)], rtol=1e-6)


# the update


LR = 0.01
CONFIG = sac.Config(hidden=(), batch_size=8, actor_lr=LR, critic_lr=LR, alpha_lr=LR, tau=0.25, alpha_init=0.5)
AGENT = sac.make(CONFIG, SPEC)
update = jax.jit(AGENT.update)


def state_of(actor, critics, targets=None):
    adam = optax.adam(LR)
    log_alpha = jnp.log(f32(0.5))[0]
    opts = (adam.init(actor), adam.init(critics), adam.init(log_alpha))
    return sac.State(actor, critics, critics if targets is None else targets, log_alpha, *opts)


def actor_bias(actor):
    return np.asarray(actor.mlp.layers[0].bias)


def test_state_starts_with_targets_equal_to_critics_and_alpha_as_asked():
    state = AGENT.init(KEY)
    np.testing.assert_array_equal(coefficients(state.targets), coefficients(state.critics))
    assert np.unique(coefficients(state.critics)).size == 6
    np.testing.assert_allclose(np.exp(state.log_alpha), 0.5, rtol=1e-6)


def test_critics_without_error_stay_although_the_actor_moves():
    # Q = 2 everywhere and every reward is a final 2: nothing to learn for the critics, entropy to gain for the actor
    before = state_of(actor_of(0.0, 0.3, -1.0), critics_of((0, 0, 2), (0, 0, 2)))
    after, metrics = update(before, random_replay(reward=2.0, discount=0.0), KEY)
    np.testing.assert_array_equal(coefficients(after.critics), coefficients(before.critics))
    assert np.all(actor_bias(after.actor) != actor_bias(before.actor))
    assert metrics["critic_loss"] == 0.0


def test_actor_moves_towards_what_the_critics_prefer():
    replay = random_replay(reward=2.0, discount=0.0)
    for slope, direction in ((50.0, 1.0), (-50.0, -1.0)):
        before = state_of(actor_of(0.0, 0.0, -1.0), critics_of((0, slope, 0), (0, slope, 0)))
        after, _ = update(before, replay, KEY)
        np.testing.assert_allclose(actor_bias(after.actor)[0], direction * LR, rtol=1e-3)


def test_actor_sees_the_critics_after_their_step():
    # the slope of both critics goes from −LR/2 to +LR/2 in this very update, because the action 0.5 deserves more
    before = state_of(actor_of(0.0, 0.0, -1.0), critics_of((0, -LR / 2, 0), (0, -LR / 2, 0)))
    after, _ = update(before._replace(log_alpha=f32(-30.0)[0]), repeated(reward=9.0, discount=0.0), KEY)
    np.testing.assert_allclose(coefficients(after.critics)[:, 1], [LR / 2, LR / 2], rtol=1e-3)
    np.testing.assert_allclose(actor_bias(after.actor)[0], LR, rtol=1e-3)


def test_actor_is_weighed_by_alpha_before_its_step():
    before = state_of(actor_of(0.0, 0.0, -5.0), critics_of((0, 0, 2), (0, 0, 2)))
    after, metrics = update(before, random_replay(reward=2.0, discount=0.0), KEY)
    assert abs(after.log_alpha - before.log_alpha) > 0.9 * LR, "α must have moved for this test to tell"
    np.testing.assert_allclose(metrics["actor_loss"], -0.5 * metrics["entropy"] - 2.0, rtol=1e-5)


def test_critics_move_towards_the_target():
    # Adam's first step is the sign of the gradient: one bias starts too low, the other too high
    before = state_of(actor_of(0.0, 0.0, -1.0), critics_of((0, 0, 1), (0, 0, 5)))
    after, _ = update(before, random_replay(reward=3.0, discount=0.0), KEY)
    np.testing.assert_allclose(coefficients(after.critics)[:, 2], [1 + LR, 5 - LR], rtol=1e-5)


def test_bootstrap_comes_from_the_targets_and_not_from_the_critics():
    # r + 0.5 · 4 = 3 with the targets' 4 and a tiny share of entropy; with the critics' own 3 it would be 2.5
    state = state_of(actor_of(0.0, 0.0, -1.0), critics_of((0, 0, 3), (0, 0, 3)), critics_of((0, 0, 4), (0, 0, 4)))
    state = state._replace(log_alpha=f32(-30.0)[0])
    _, metrics = update(state, random_replay(reward=1.0, discount=0.5), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-8)


def test_targets_take_the_share_tau_of_the_new_critics():
    before = state_of(actor_of(0.0, 0.0, -1.0), critics_of((0, 0, 1), (0, 0, 5)), critics_of((0, 0, -3), (0, 0, 9)))
    after, _ = update(before, random_replay(reward=3.0, discount=0.0), KEY)
    expected = 0.75 * coefficients(before.targets) + 0.25 * coefficients(after.critics)
    np.testing.assert_allclose(coefficients(after.targets), expected, rtol=1e-5)


@pytest.mark.parametrize(("log_std", "direction"), [(-5.0, 1.0), (-0.5, -1.0)], ids=["below", "above"])
def test_alpha_rises_when_entropy_is_below_its_target_and_falls_when_above(log_std, direction):
    # a narrow Gaussian has the entropy 1.42 + log std, so −3.6 and about 0.7; the target is −dim(A) = −1
    before = state_of(actor_of(0.0, 0.0, log_std), critics_of((0, 0, 2), (0, 0, 2)))
    after, metrics = update(before, random_replay(reward=2.0, discount=0.0), KEY)
    assert np.sign(-1.0 - metrics["entropy"]) == direction
    np.testing.assert_allclose(after.log_alpha - before.log_alpha, direction * LR, rtol=1e-3)
    np.testing.assert_allclose(metrics["ent_coef"], 0.5, rtol=1e-6)


def test_target_entropy_can_be_chosen():
    agent = sac.make(sac.Config(hidden=(), batch_size=8, target_entropy=-10.0), SPEC)
    before = state_of(actor_of(0.0, 0.0, -5.0), critics_of((0, 0, 2), (0, 0, 2)))
    after, _ = jax.jit(agent.update)(before, random_replay(reward=2.0, discount=0.0), KEY)
    assert after.log_alpha < before.log_alpha


@pytest.mark.parametrize(("given", "expected"), [(None, -2.0), (-3.5, -3.5)])
def test_a_target_entropy_for_the_range_of_the_environment_is_converted(given, expected):
    """Actions uniform over a box have the entropy of its log volume: log 4 in [−1, 1]², log 3.2 in ±0.4 by ±2."""
    env = gym.make("Pendulum-v1")
    env.action_space = gym.spaces.Box(np.float32([-0.4, 1.0, 3.0]), np.float32([0.4, 5.0, 3.0]))
    spec = dataclasses.replace(Spaces(env).spec(0.9), action_dim=2)  # the third cannot vary, so it has no entropy
    assert sac.entropy_target(given, spec) == expected
    converted = sac.entropy_target(given, spec, "env")
    assert converted - expected == pytest.approx(np.log(4.0) - np.log(0.8 * 4.0), abs=1e-6)
