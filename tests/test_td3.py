"""TD3 against numbers worked out by hand, on linear networks of one state and one action.

A critic is Q(s, a) = w_s s + w_a a + b, an actor is tanh(m_s s + m_0).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import critics_of, f32, numbers
from replays import repeated, spec_of

from lsac.agents import td3
from lsac.errors import InputError
from lsac.nn.networks import MLP
from lsac.nn.optimisers import adam
from lsac.runs.experiment import Experiment, check
from lsac.types import Transition

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
LR, TAU = 0.01, 0.25

CONFIG = td3.Config(hidden=(), batch_size=8, actor_lr=LR, critic_lr=LR, tau=TAU)
update = jax.jit(td3.make(CONFIG, SPEC).update)
quiet = jax.jit(td3.make(dataclasses.replace(CONFIG, delay=1, target_noise=0.0), SPEC).update)
critic_loss = jax.jit(jax.value_and_grad(td3.critic_loss, has_aux=True))
actor_loss = jax.jit(jax.value_and_grad(td3.actor_loss))
td_target = jax.jit(td3.td_target)
smoothed = jax.jit(td3.smoothed, static_argnums=(3, 4))


def actor_of(m_s, m_0):
    shape = jax.eval_shape(lambda key: MLP((1, 1), "relu", key), KEY)
    return eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[0].bias), shape, (f32([m_s]), f32(m_0)))


def state_of(actor, critics, target_actor=None, targets=None, updates=0):
    return td3.State(
        actor=actor,
        target_actor=actor if target_actor is None else target_actor,
        critics=critics,
        targets=critics if targets is None else targets,
        actor_opt=adam(LR).init(actor),
        critic_opt=adam(LR).init(critics),
        updates=jnp.int32(updates),
    )


# the target


def test_noise_on_target_actions_has_its_std_and_is_clipped():
    # around tanh(0) = 0, where the outer clip at ±1 is far away
    action = np.asarray(smoothed(actor_of(0.0, 0.0), jnp.zeros((20_000, 1)), KEY, 0.2, 0.5))[:, 0]
    assert np.abs(action).max() == np.float32(0.5)
    noise = 0.2 * np.asarray(jax.random.normal(KEY, (20_000, 1)))[:, 0]
    np.testing.assert_allclose(action, np.clip(noise, -0.5, 0.5), atol=1e-6)
    assert abs(action.std() - 0.197) < 0.005  # a normal's std is 1.2 % less once cut at 2.5 of them


def test_every_row_and_every_dimension_of_a_target_action_has_its_own_noise():
    actor = MLP((1, 3), "relu", KEY)
    action = smoothed(actor, jnp.ones((50, 1)), KEY, 0.2, 10.0)
    noise = np.asarray(action - td3.greedy(actor, f32(1.0))[None])
    assert np.unique(noise.round(5)).size > 120  # of 150; the rest end at ±1


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_target_actions_stay_in_the_box(sign):
    # tanh(2) = 0.964: noise of 0.5 would leave the box about half the time
    action = np.asarray(smoothed(actor_of(0.0, sign * 2.0), jnp.zeros((1000, 1)), KEY, 0.2, 0.5))[:, 0]
    assert np.abs(action).max() == 1.0
    assert 0.3 < np.mean(action == sign) < 0.6
    assert np.all(sign * action >= 0.964 - 0.5 - 1e-3)


def test_td_target_is_reward_plus_discounted_minimum_for_every_transition_by_itself():
    # Q1 = s + a, Q2 = −s at the next states 1, −2, 3 with the action 0.5: min(1.5, −1), min(−1.5, 2), min(3.5, −3)
    column = f32(1.0, -2.0, 3.0)[:, None]
    batch = Transition(7 * column, 9 * column, f32(1.0, -1.0, 2.0), f32(0.9, 0.5, 0.0), column)
    target = td_target(critics_of((1, 1, 0), (-1, 0, 0)), batch, jnp.full((3, 1), 0.5))
    np.testing.assert_allclose(target, [1 - 0.9, -1 - 0.5 * 1.5, 2.0], rtol=1e-6)


def test_bootstrap_comes_from_the_target_critics_at_the_target_actors_action():
    # without noise: y = 1 + 0.5 · (2 tanh(1) + 3); the critics already say so, and only then is the loss 0
    y = 1 + 0.5 * (2 * np.tanh(1.0) + 3)
    slow = {"target_actor": actor_of(1.0, 0.0), "targets": critics_of((0, 2, 3), (0, 2, 4))}
    state = state_of(actor_of(-1.0, 0.0), critics_of((0, 0, y), (0, 0, y)), **slow)
    _, metrics = quiet(state, repeated(reward=1.0, discount=0.5), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-10)


def test_update_draws_noise_for_the_target():
    # Q̄ = a at the action 0: the targets are the noise, half of the loss is its variance
    state = state_of(actor_of(0.0, 0.0), critics_of((0, 0, 0), (0, 0, 0)), targets=critics_of((0, 1, 0), (0, 1, 0)))
    loss = [float(update(state, repeated(0.0, 1.0), jax.random.key(i))[1]["critic_loss"]) for i in range(50)]
    assert 0.5 * 0.04 < np.mean(loss) / 2 < 1.5 * 0.04
    assert np.max(loss) / 2 <= 0.25


# the losses


def test_critic_loss_is_the_squared_error_averaged_over_the_batch_and_summed_over_critics():
    # Q1 = 2, 4; Q2 = 0, −1; y = 1, 1: (1 + 9)/2 + (1 + 4)/2 = 7.5, and dL/db_k = 2 mean(Q_k − y)
    batch = Transition(f32([1], [2]), f32([0], [1]), f32(0, 0), f32(0, 0), f32([0], [0]))
    (loss, q), grads = critic_loss(critics_of((2, 0, 0), (0, -1, 0)), batch, f32(1, 1))
    np.testing.assert_array_equal(q, [[2, 4], [0, -1]])
    np.testing.assert_allclose(loss, 7.5, rtol=1e-6)
    np.testing.assert_allclose(grads.mlp.layers[0].bias, [[4], [-3]], rtol=1e-6)


def test_actor_loss_is_minus_the_critic_at_the_actors_action():
    # a = tanh(s), Q = 3 a + s: dL/dm_0 = −3 mean(1 − a²)
    obs = np.array([0.5, -1.0, 2.0], np.float32)
    first = jax.tree.map(lambda leaf: leaf[0], critics_of((1, 3, 0)))
    loss, grads = actor_loss(actor_of(1.0, 0.0), first, jnp.asarray(obs)[:, None])
    np.testing.assert_allclose(loss, -np.mean(3 * np.tanh(obs) + obs), rtol=1e-5)
    np.testing.assert_allclose(grads.layers[0].bias[0], -3 * np.mean(1 - np.tanh(obs) ** 2), rtol=1e-5)


@pytest.mark.parametrize("slopes", [(5.0, -50.0), (-5.0, 50.0)])
def test_actor_follows_the_first_critic_whatever_the_second_says(slopes):
    # and whichever is the smaller; Adam's first step is LR towards what the first prefers
    critics = critics_of((0, slopes[0], 0), (0, slopes[1], 0))
    before = state_of(actor_of(0.0, 0.0), critics, updates=1)
    after, _ = update(before, repeated(reward=0.0, discount=0.0), KEY)
    np.testing.assert_allclose(after.actor.layers[0].bias[0], np.sign(slopes[0]) * LR, rtol=1e-3)


# the delay


def test_critics_move_at_every_update_and_all_else_at_every_second():
    state = state_of(actor_of(0.3, 0.1), critics_of((1, 2, 3), (-1, 1, 2)))
    replay, moved = repeated(reward=1.0, discount=0.9), []
    for i in range(4):
        after, _ = update(state, replay, jax.random.key(i))
        pairs = zip(numbers(*after), numbers(*state), strict=True)
        moved.append(dict(zip(td3.State._fields, [bool(np.any(a != b)) for a, b in pairs], strict=True)))
        state = after
    rare = dict.fromkeys(("actor", "target_actor", "targets", "actor_opt"), False)
    always = dict.fromkeys(("critics", "critic_opt", "updates"), True)
    assert moved[0] == moved[2] == always | rare
    assert moved[1] == moved[3] == dict.fromkeys(td3.State._fields, True)


def test_a_delay_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"^--delay 0: must be at least 1$"):
        check(Experiment(td3.Config(delay=0), "X"))


def test_target_networks_take_the_share_tau_of_what_just_moved():
    slow = {"target_actor": actor_of(-1.0, 2.0), "targets": critics_of((0, 0, -3), (0, 0, 9))}
    before = state_of(actor_of(0.3, 0.1), critics_of((0, 1, 1), (0, 0, 5)), updates=1, **slow)
    after, _ = update(before, repeated(reward=3.0, discount=0.0), KEY)
    for slow_name, name in (("target_actor", "actor"), ("targets", "critics")):
        old, new, slow = numbers(getattr(before, slow_name), getattr(after, name), getattr(after, slow_name))
        np.testing.assert_allclose(slow, 0.75 * old + 0.25 * new, rtol=1e-5)


def test_with_a_delay_of_one_everything_moves_at_every_update():
    before = state_of(actor_of(0.3, 0.1), critics_of((1, 2, 3), (-1, 1, 2)))
    after, _ = quiet(before, repeated(reward=1.0, discount=0.9), KEY)
    assert all(np.any(a != b) for a, b in zip(numbers(*after), numbers(*before), strict=True))


# acting


def test_exploration_adds_noise_of_the_chosen_std_and_stays_in_the_box():
    agent = td3.make(td3.Config(exploration_noise=0.3), SPEC)
    keys = jax.random.split(KEY, 4000)

    def actions(actor, explore):
        return np.asarray(jax.vmap(lambda key: agent.act(actor, (), f32(1.0), key, explore)[0])(keys))[:, 0]

    drawn = actions(actor_of(0.1, 0.1), True)
    assert abs(drawn.mean() - np.tanh(0.2)) < 0.02
    assert abs(drawn.std() - 0.3) < 0.02
    assert np.abs(actions(actor_of(0.0, 2.0), True)).max() == 1.0
    np.testing.assert_allclose(actions(actor_of(0.1, 0.1), False), np.tanh(0.2), rtol=1e-6)
