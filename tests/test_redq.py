"""REDQ against numbers worked out by hand, on constant or linear critics: Q(s, a) = w_a a + b. What SAC does the
same way is tested there."""

import itertools

import jax
import jax.numpy as jnp
import linear
import numpy as np
import optax
import pytest
from linear import actor_of
from replays import random_replay, rows_in, spec_of, with_rows

from lsac.agents import redq, sac
from lsac.errors import InputError
from lsac.presets import preset
from lsac.runs.experiment import Experiment, check

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
LR, TAU, STEPS = 0.01, 0.25, 7
CONFIG = redq.Config(
    hidden=(), batch_size=8, critics=4, critic_updates=STEPS, actor_lr=LR, critic_lr=LR, alpha_lr=LR, tau=TAU
)
AGENT = redq.make(CONFIG, SPEC)
update = jax.jit(AGENT.update)
SUBSETS = list(itertools.combinations(range(4), 2))


def critics_of(biases, slopes=None):
    """Stacked critics Q_i = slope_i a + bias_i."""
    slopes = slopes or [0.0] * len(biases)
    return linear.critics_of(*((0.0, slope, bias) for slope, bias in zip(slopes, biases, strict=True)))


def state_of(critics, targets=None, log_alpha=-30.0):
    adam, actor, log_alpha = optax.adam(LR), actor_of(0.0, 0.0, -1.0), jnp.float32(log_alpha)
    opts = (adam.init(actor), adam.init(critics), adam.init(log_alpha))
    return sac.State(actor, critics, critics if targets is None else targets, log_alpha, *opts)


def biases(critics):
    return np.asarray(critics.mlp.layers[0].bias)[:, 0]


# the pieces


def test_every_subset_without_repetition_is_drawn_and_all_alike():
    keys = jax.random.split(KEY, 3_000)
    members = jax.jit(jax.vmap(lambda key: redq.subset(critics_of([0, 1, 2, 3]), 2, key).mlp.layers[0].bias[:, 0]))(
        keys
    )
    sets, counts = np.unique(np.sort(members, axis=1), axis=0, return_counts=True)
    np.testing.assert_array_equal(sets, SUBSETS)
    np.testing.assert_allclose(counts / 3_000, 1 / 6, atol=0.03)  # 4 standard errors


def test_subset_keeps_a_critic_whole():
    critics = critics_of([0, 1, 2, 3], slopes=[0.0, 10.0, 20.0, 30.0])
    layer = redq.subset(critics, 3, KEY).mlp.layers[0]
    assert layer.weight.shape == (3, 1, 2)
    np.testing.assert_array_equal(layer.weight[:, 0, 1], 10 * layer.bias[:, 0])


def test_actor_loss_uses_the_mean_of_all_critics():
    # the mean of a, 2a, −6a is −a; the actor's action is tanh(0.5) but for a tiny std, and α is 0
    critics = critics_of([1, 2, 3], slopes=[1.0, 2.0, -6.0])
    (loss, _), grads = jax.jit(jax.value_and_grad(redq.actor_loss, has_aux=True))(
        actor_of(0.0, 0.5, -20.0), critics, jnp.float32(0), jnp.zeros((2, 1)), KEY
    )
    np.testing.assert_allclose(loss, -(2 - np.tanh(0.5)), rtol=1e-5)
    np.testing.assert_allclose(grads.mlp.layers[0].bias[0], 1 - np.tanh(0.5) ** 2, rtol=1e-5)


def test_value_is_the_mean_and_spread_of_all_critics():
    value = redq.value(critics_of([1, 2, 6]), jnp.zeros(1), jnp.zeros(1))
    np.testing.assert_allclose([value["q"], value["q_spread"]], [3, np.std([1, 2, 6])], rtol=1e-6)


def test_weights_start_glorot_uniform_and_biases_at_zero():
    state = jax.jit(redq.make(redq.Config(hidden=(64, 64), critics=3), SPEC).init)(KEY)
    layers = [layer for network in (state.actor, state.critics) for layer in network.mlp.layers]
    for layer in layers:
        bound = np.sqrt(6 / sum(layer.weight.shape[-2:]))
        assert 0.9 * bound < np.abs(layer.weight).max() <= bound
        assert not layer.bias.any()
    assert len(np.unique(state.critics.mlp.layers[0].weight)) == 3 * 2 * 64  # no critic is another's copy


# the update


def test_target_is_the_minimum_of_a_subset_that_varies_and_all_critics_share_it():
    # the loss is 4 · ½ y² with the same y = 1 + ½ min for all: 6 if 10 is drawn (3 of 6 subsets), 11 (2) or 21 (1)
    agent = redq.make(redq.Config(hidden=(), batch_size=8, critics=4, critic_updates=1, critic_lr=LR), SPEC)
    state = state_of(critics_of([0, 0, 0, 0]), targets=critics_of([10, 20, 40, 80]))
    many = jax.jit(jax.vmap(lambda key: agent.update(state, random_replay(1.0, 0.5), key)[1]["critic_loss"]))
    losses = np.asarray(many(jax.random.split(KEY, 300)))
    targets, counts = np.unique(np.round(np.sqrt(losses / 2), 3), return_counts=True)
    np.testing.assert_allclose(targets, [6, 11, 21], rtol=1e-4)
    np.testing.assert_allclose(counts / 300, [1 / 2, 1 / 3, 1 / 6], atol=0.12)


def test_subset_varies_within_one_update():
    # critics that hardly move: the mean loss over the steps is a mean of 2 y², y ∈ {6, 11, 21}, not one of these
    config = redq.Config(hidden=(), batch_size=8, critics=4, critic_updates=STEPS, critic_lr=1e-12, tau=1e-12)
    before = state_of(critics_of([0, 0, 0, 0]), targets=critics_of([10, 20, 40, 80]))
    _, metrics = jax.jit(redq.make(config, SPEC).update)(before, random_replay(1.0, 0.5), KEY)
    assert 2 * 6**2 + 1 < metrics["critic_loss"] < 2 * 21**2 - 1
    assert np.abs(metrics["critic_loss"] - 2 * 11**2) > 1


def test_critics_step_and_targets_follow_as_often_as_asked_and_the_actor_once():
    before = state_of(critics_of([1, 2, 3, 4]), targets=critics_of([0, 0, 0, 0]))
    after, _ = update(before, random_replay(reward=50.0, discount=0.0), KEY)
    assert [int(opt[0].count) for opt in (after.critic_opt, after.actor_opt, after.alpha_opt)] == [STEPS, 1, 1]
    # far from its target, Adam moves a bias by its step size every time
    steps = np.array([1.0, 2.0, 3.0, 4.0]) + LR * np.arange(1, STEPS + 1)[:, None]
    np.testing.assert_allclose(biases(after.critics), steps[-1], rtol=1e-4)
    slow = np.zeros(4)
    for critics in steps:
        slow += TAU * (critics - slow)
    np.testing.assert_allclose(biases(after.targets), slow, rtol=1e-4)
    assert AGENT.gradient_steps == STEPS


def test_actor_climbs_the_mean_where_the_minimum_falls():
    # the mean rises with a (slope 10), but at every action in reach the smallest critic falls with it
    before = state_of(critics_of([5, 5, 5, -95], slopes=[20.0, 20.0, 20.0, -20.0]))
    after, _ = update(before, random_replay(reward=5.0, discount=0.0), KEY)
    np.testing.assert_allclose(after.actor.mlp.layers[0].bias[0], LR, rtol=1e-3)


def test_every_critic_step_has_its_own_batch():
    # rewards 0 … 15 in batches of one: two steps lose ½ r² and ½ r'² on average, of which r = r' is 1 case in 16
    config = redq.Config(hidden=(), batch_size=1, critics=1, subset=1, critic_updates=2, critic_lr=1e-12)
    agent, state, replay = redq.make(config, SPEC), state_of(critics_of([0])), random_replay(0.0, 0.0)
    rows = rows_in(replay).copy()
    rows[:, 2] = np.arange(16)
    replay = with_rows(replay, rows)
    losses = jax.jit(jax.vmap(lambda key: agent.update(state, replay, key)[1]["critic_loss"]))
    twice = np.round(4 * np.asarray(losses(jax.random.split(KEY, 200))))
    assert np.isin(twice, 2 * np.arange(16) ** 2).mean() < 0.3


# the presets


@pytest.mark.parametrize(
    ("env", "entropy"),
    [
        *(("Hopper-v2", -1.0), ("HalfCheetah-v5", -3.0), ("Walker2d-v4", -3.0), ("Ant-v4", -4.0)),
        *(("Humanoid-v4", -2.0), ("HumanoidStandup-v4", None), ("Pendulum-v1", None)),
    ],
)
def test_official_target_entropy_of_a_task(env, entropy):
    assert preset("redq", "official", env).agent.target_entropy == entropy


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"subset": 11}, "--subset 11: must be at most --critics 10"),
        ({"subset": 0}, "--subset 0: must be at least 1"),
        ({"critic_updates": 0}, "--critic-updates 0: must be at least 1"),
    ],
)
def test_sizes_that_cannot_work_are_refused(option, message):
    with pytest.raises(InputError, match=message):
        check(Experiment(redq.Config(**option), "Pendulum-v1"))
