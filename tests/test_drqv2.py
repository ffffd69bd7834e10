"""DrQ-v2 against numbers worked out by hand, and against a whole update in NumPy.

Where numbers are worked out by hand, the trunk of a network is one constant, because a normalised single number is 0,
and all layers after it are one linear layer: Q(s, a) = w_t t + w_s s + w_a a + b with the constant t and the vector s
of the observation, and the actor is tanh(m_s s + m_0).
"""

import dataclasses
import time
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import f32, numbers
from test_convolutions import looped

from lsac.agents import drqv2
from lsac.envs.dm_control import TASKS
from lsac.nn.optimisers import adam
from lsac.presets import drqv2 as drqv2_presets
from lsac.presets import presets
from lsac.replay import ring as rb
from lsac.runs.experiment import check
from lsac.types import EnvSpec, Pixels, Transition

KEY = jax.random.key(0)
SIDE, FILTERS, GAMMA, LR, TAU = 15, 2, 0.5, 0.01, 0.25
ONE = EnvSpec(obs_shape=(1,), frame=(SIDE, SIDE, 1), action_dim=1, gamma=GAMMA)
"""a number beside the image, and one action"""
LINEAR = drqv2.Config(hidden=(), feature_dim=1, filters=FILTERS, batch_size=16, lr=LR, tau=TAU, n_step=1)
QUIET = dataclasses.replace(LINEAR, noise_start=0.0, noise_end=0.0, shift=0)


@pytest.fixture(scope="module")
def noisy_update():
    return jax.jit(drqv2.make(dataclasses.replace(LINEAR, noise_start=0.2, noise_end=0.2), ONE).update)


@pytest.fixture(scope="module")
def quiet_update():
    return jax.jit(drqv2.make(QUIET, ONE).update)


LIKE = jax.eval_shape(drqv2.make(LINEAR, ONE).init, KEY)
ENCODER = jax.jit(drqv2.make(LINEAR, ONE).init)(KEY).encoder
SIZE = 1 * FILTERS
"""features of an image"""


def trunk_of(constant=0.0):
    """A trunk that gives tanh(constant), whatever the image."""
    trunk = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), LIKE.actor.trunk)
    return eqx.tree_at(lambda t: (t.linear.weight, t.norm.bias), trunk, (jnp.ones((1, SIZE)), f32(constant)))


def with_layer(mlp, weight, bias):
    return eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[0].bias), mlp, (f32(*weight), f32(*bias)))


def actor_of(m_s, m_0):
    return drqv2.Actor(trunk_of(), with_layer(LIKE.actor.mlp, [[0.0, m_s]], [m_0]))


def critics_of(*rows, constant=0.0):
    """Each critic as (w_t, w_s, w_a, b)."""
    layers = with_layer(LIKE.critics.mlps, [[row[:-1]] for row in rows], [[row[-1]] for row in rows])
    return drqv2.Critics(trunk_of(constant), layers)


def state_of(actor, critics, targets=None, std=0.0):
    return drqv2.State(
        encoder=ENCODER,
        actor=actor,
        critics=critics,
        targets=critics if targets is None else targets,
        actor_opt=adam(LR).init(actor),
        critic_opt=adam(LR).init((ENCODER, critics)),
        decisions=jnp.int32(0),
        std=jnp.float32(std),
    )


def features_of(*s):
    return drqv2.Features(jnp.ones((len(s), SIZE)), f32(*s)[:, None])


def replay_of(spec, frames, first, **columns):
    """A replay with one row per frame; scalars stand for all rows."""
    layout, count = rb.layout_of(spec), len(frames)
    stored = layout.empty(count)
    views = layout.views(stored) | {rb.FRAME: stored[rb.FRAME], rb.FIRST: stored[rb.FIRST]}
    for name, values in (columns | {rb.FRAME: frames, rb.FIRST: first}).items():
        values = np.asarray(values)
        views[name][...] = values.reshape(values.shape + (1,) * (views[name].ndim - values.ndim))
    return rb.holding(layout, stored, count)


def repeated(reward, discount, frame=0, rows=40, obs=1.0, next_obs=1.0):
    """One transition many times, by the action 0.5, each an episode of its own."""
    frames = np.broadcast_to(np.asarray(frame, np.uint8), (rows, SIDE, SIDE, 1))
    return replay_of(ONE, frames, True, obs=obs, action=0.5, reward=reward, discount=discount, next_obs=next_obs)


# noise


def test_noise_of_the_losses_has_its_std_and_is_clipped():
    noise = 0.2 * np.asarray(jax.random.normal(KEY, (20_000, 1)), np.float64)
    drawn = np.asarray(drqv2.noisy(jnp.zeros((20_000, 1)), jnp.float32(0.2), 0.3, KEY))
    np.testing.assert_allclose(drawn, np.clip(noise, -0.3, 0.3), atol=1e-6)
    assert np.abs(drawn).max() == np.float32(0.3)
    assert abs(drawn.std() - 0.176) < 0.005  # a normal's std is 12 % less with all beyond 1.5 of them moved there


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_noisy_actions_stay_in_the_box(sign):
    drawn = np.asarray(drqv2.noisy(jnp.full((1000, 1), sign * 0.9), jnp.float32(0.5), 0.3, KEY))
    assert np.abs(drawn).max() == 1.0
    assert 0.3 < np.mean(drawn == sign) < 0.6
    np.testing.assert_allclose((sign * drawn).min(), 0.6, atol=1e-6)


def test_every_row_and_every_dimension_has_its_own_noise():
    assert np.unique(drqv2.noisy(jnp.zeros((50, 3)), jnp.float32(0.05), 10.0, KEY)).size == 150


def test_the_gradient_passes_the_clip_of_actions_unchanged():
    mean, weight = jnp.full((1000, 1), 0.95), jnp.arange(1000.0)[:, None]

    def total(mean, draw):
        return jnp.sum(weight * draw(mean, jnp.float32(0.5), 0.3, KEY))

    def plain(mean, std, bound, key):
        return jnp.clip(mean + jnp.clip(std * jax.random.normal(key, mean.shape), -bound, bound), -1.0, 1.0)

    np.testing.assert_array_equal(jax.grad(partial(total, draw=drqv2.noisy))(mean), weight)
    value, control = jax.value_and_grad(partial(total, draw=plain))(mean)
    np.testing.assert_allclose(total(mean, drqv2.noisy), value, rtol=1e-6)
    assert 300 < np.sum(np.asarray(control) == 0) < 600, "a plain clip would stop these"


# the target


def test_td_target_is_reward_plus_discounted_minimum_for_every_transition_by_itself():
    # Q1 = s + a, Q2 = −s at the next states 1, −2, 3 with the action 0.5: min(1.5, −1), min(−1.5, 2), min(3.5, −3)
    batch = Transition(None, None, f32(1.0, -1.0, 2.0), f32(0.9, 0.5, 0.0), None)
    critics = critics_of((0, 1, 1, 0), (0, -1, 0, 0))
    target = drqv2.td_target(critics, batch, features_of(1.0, -2.0, 3.0), jnp.full((3, 1), 0.5))
    np.testing.assert_allclose(target, [1 - 0.9, -1 - 0.5 * 1.5, 2.0], rtol=1e-6)


def test_bootstrap_comes_from_the_target_critics_at_the_online_actors_action(quiet_update):
    # y = 1 + 0.5 · min(5 tanh(0.7) + 2 tanh(3) + 3, …) with the target's trunk; the critics already say so
    y = 1 + 0.5 * (5 * np.tanh(0.7) + 2 * np.tanh(3.0) + 3)
    targets = critics_of((5, 0, 2, 3), (5, 0, 2, 4), constant=0.7)
    state = state_of(actor_of(3.0, 0.0), critics_of((0, 0, 0, y), (0, 0, 0, y)), targets)
    _, metrics = quiet_update(state, repeated(1.0, 0.5, obs=-1.0), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-9)
    np.testing.assert_allclose(metrics["q_mean"], y, rtol=1e-6)


def test_update_draws_clipped_noise_of_the_present_std_for_the_target(noisy_update):
    # Q̄ = a at the action 0: the targets are the noise, half of the loss is its variance
    zero, slow = critics_of((0, 0, 0, 0), (0, 0, 0, 0)), critics_of((0, 0, 1, 0), (0, 0, 1, 0))
    for std, expected in ((0.1, 0.01), (10.0, 0.09)):
        state = state_of(actor_of(0.0, 0.0), zero, slow, std)
        keys = [jax.random.key(i) for i in range(50)]
        loss = [float(noisy_update(state, repeated(0.0, 1.0), key)[1]["critic_loss"]) / 2 for key in keys]
        assert 0.8 * expected < np.mean(loss) < 1.2 * expected
        assert np.max(loss) <= 0.09 + 1e-6


RETURNS = {1: [6, 6, 6, 1], 2: [4, 4, 1.5, 1], 3: [3, 1.75, 1.5, 1], 5: [1.875, 1.75, 1.5, 1]}
"""Episodes of four steps with reward 1 and discount ½, and Q̄ = 10: the targets by the number of steps. With three, the
first of the four is 1 + ½ + ¼ + 10/8."""


@pytest.mark.parametrize("steps", RETURNS)
def test_targets_of_n_steps(steps):
    update = jax.jit(drqv2.make(dataclasses.replace(QUIET, n_step=steps), ONE).update)
    state = state_of(actor_of(0, 0), critics_of((0, 1, 0, 0), (0, 1, 0, 0)), critics_of((0, 0, 0, 10), (0, 0, 0, 10)))
    frames = np.zeros((40, SIDE, SIDE, 1), np.uint8)
    columns = {"action": 0.5, "reward": 1.0, "discount": np.tile([0.5, 0.5, 0.5, 0.0], 10), "next_obs": 9.0}
    for other, targets in RETURNS.items():  # Q(s, a) = s says exactly this; then, and only then, the loss is 0
        replay = replay_of(ONE, frames, np.arange(40) % 4 == 0, obs=np.tile(targets, 10), **columns)
        _, metrics = update(state, replay, KEY)
        assert (float(metrics["critic_loss"]) < 1e-9) == (other == steps)


# the losses


def test_critic_loss_is_the_squared_error_averaged_over_the_batch_and_summed_over_critics():
    # Q1 = 2 s = 2, 4; Q2 = −a = 0, −1; y = 1, 1: (1 + 9)/2 + (1 + 4)/2 = 7.5, and dL/db_k = 2 mean(Q_k − y)
    networks = ENCODER, critics_of((0, 2, 0, 0), (0, 0, -1, 0))
    obs = Pixels(jnp.zeros((2, SIDE, SIDE, 1)), f32([1], [2]))
    graded = jax.jit(jax.value_and_grad(drqv2.critic_loss, has_aux=True))
    (loss, (q, features)), (_, grads) = graded(networks, obs, f32([0], [1]), f32(1, 1))
    np.testing.assert_allclose(q, [[2, 0], [4, -1]], rtol=1e-6)
    np.testing.assert_allclose(loss, 7.5, rtol=1e-6)
    np.testing.assert_allclose(grads.mlps.layers[0].bias, [[4], [-3]], rtol=1e-6)
    assert features.image.shape == (2, SIZE)


def test_actor_loss_is_minus_the_lower_critic_and_its_gradient_passes_the_edge():
    # a = clip(tanh(s) ± noise), Q1 = 3 a + s, Q2 = 2 − a: the lower one is Q1 where 4 a + s < 2
    s, std = np.array([0.5, -1.0, 3.0, 0.1], np.float32), 0.2
    noise = np.clip(std * np.asarray(jax.random.normal(KEY, (4, 1)), np.float64)[:, 0], -0.3, 0.3)
    mean = np.tanh(s.astype(np.float64))
    action = np.clip(mean + noise, -1.0, 1.0)
    first = 4 * action + s < 2
    assert 0 < first.sum() < 4
    critics = critics_of((0, 1, 3, 0), (0, 0, -1, 2))
    args = critics, features_of(*s), jnp.float32(std), 0.3, KEY
    loss, grads = jax.value_and_grad(drqv2.actor_loss)(actor_of(1.0, 0.0), *args)
    np.testing.assert_allclose(loss, -np.mean(np.where(first, 3 * action + s, 2 - action)), rtol=1e-5)
    slopes = np.where(first, 3.0, -1.0) * (1 - mean**2)
    np.testing.assert_allclose(grads.mlp.layers[0].bias[0], -np.mean(slopes), rtol=1e-4)


def test_update_draws_noise_of_the_present_std_for_the_actor(noisy_update):
    # Q = a, whose mean over the batch of 16 has the std 0.1/4; noise clipped to 0.3 never moves the mean by more
    critics = critics_of((0, 0, 1, 0.0), (0, 0, 1, 0.0))
    state = state_of(actor_of(0.0, 0.0), critics, std=0.1)
    found = [float(noisy_update(state, repeated(0.5, 0.0), jax.random.key(i))[1]["actor_loss"]) for i in range(100)]
    assert 0.7 * 0.025 < np.std(found) < 1.3 * 0.025
    state = state._replace(std=jnp.float32(100.0))
    found = [float(noisy_update(state, repeated(0.5, 0.0), jax.random.key(i))[1]["actor_loss"]) for i in range(30)]
    assert 0.7 * 0.075 < np.std(found) < 1.3 * 0.075


# a whole update, in NumPy


FULL = EnvSpec(obs_shape=(2,), frame=(16, 17, 1), frame_stack=2, action_dim=2, gamma=GAMMA)
SMALL = drqv2.Config(hidden=(5, 4), feature_dim=3, filters=3, batch_size=32, lr=1e-8, noise_start=0.0, noise_end=0.0)
SMALL = dataclasses.replace(SMALL, shift=0, n_step=2, compute_dtype="float32")


def random_replay(spec, discount=GAMMA, rows=64, length=7):
    """Episodes of noise, cut off at this length."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, spec.obs_dim))
    return replay_of(
        spec,
        rng.integers(0, 256, (rows, *spec.frame)),
        np.arange(rows) % length == 0,
        **{"obs": obs[:-1], "next_obs": obs[1:], "discount": discount},
        **{"action": rng.uniform(-1, 1, (rows, spec.action_dim)), "reward": rng.normal(size=rows)},
    )


def in_numpy(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def numpy_features(encoder, image):
    made = image / 255 - 0.5
    for i, conv in enumerate(encoder.convs):
        made = np.maximum(looped(made, conv.weight, conv.bias, 1 if i else 2), 0)
    return made.reshape(-1)


def numpy_trunk(trunk, features, vector):
    h = trunk.linear.weight @ features + trunk.linear.bias
    h = (h - h.mean()) / np.sqrt(h.var() + 1e-5) * trunk.norm.weight + trunk.norm.bias
    return np.concatenate([np.tanh(h), vector])


def numpy_mlp(mlp, x):
    for i, layer in enumerate(mlp.layers):
        x = layer.weight @ (np.maximum(x, 0) if i else x) + layer.bias
    return x


def numpy_actions(encoder, actor, image, vector):
    return np.tanh(numpy_mlp(actor.mlp, numpy_trunk(actor.trunk, numpy_features(encoder, image), vector)))


def numpy_q(encoder, critics, image, vector, action):
    x = np.concatenate([numpy_trunk(critics.trunk, numpy_features(encoder, image), vector), action])
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], critics.mlps) for k in range(2))
    return np.concatenate([numpy_mlp(first, x), numpy_mlp(second, x)])


def perturbed(tree, seed):
    """The tree with all parameters moved, so that no bias is 0 and no gain is 1."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


@pytest.fixture(scope="module")
def random_state():
    """A state whose networks are all different, and targets of their own."""
    state = jax.jit(drqv2.make(SMALL, FULL).init)(KEY)
    encoder, actor, critics, targets = (
        perturbed(getattr(state, name), i) for i, name in enumerate(("encoder", "actor", "critics", "targets"))
    )
    return state._replace(encoder=encoder, actor=actor, critics=critics, targets=targets)


def test_losses_of_an_update_are_those_of_numpy(random_state):
    replay = random_replay(FULL)
    _, metrics = jax.jit(drqv2.make(SMALL, FULL).update)(random_state, replay, KEY)
    index = rb.indices(replay, jax.random.split(KEY, 5)[0], (32,))
    batch, (encoder, actor, critics, targets) = in_numpy(rb.n_step(replay, index, 2)), in_numpy(random_state[:4])
    errors, values, gains = [], [], []
    for i in range(32):
        image, vector, action = batch.obs.image[i], batch.obs.vector[i], batch.action[i]
        following = batch.next_obs.image[i], batch.next_obs.vector[i]
        next_q = numpy_q(encoder, targets, *following, numpy_actions(encoder, actor, *following))
        q = numpy_q(encoder, critics, image, vector, action)
        errors.append(np.sum((q - batch.reward[i] - batch.discount[i] * next_q.min()) ** 2))
        values.append(q.mean())
        gains.append(numpy_q(encoder, critics, image, vector, numpy_actions(encoder, actor, image, vector)).min())
    np.testing.assert_allclose(metrics["critic_loss"], np.mean(errors), rtol=1e-4)
    np.testing.assert_allclose(metrics["q_mean"], np.mean(values), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["actor_loss"], -np.mean(gains), rtol=1e-4, atol=1e-6)


def test_actions_are_those_of_numpy_from_bytes(random_state):
    agent, rng = drqv2.make(SMALL, FULL), np.random.default_rng(1)
    policy = agent.policy(random_state)._replace(std=jnp.float32(0.4))
    obs = Pixels(jnp.asarray(rng.integers(0, 256, (16, 17, 2)), jnp.uint8), f32(*rng.normal(size=2)))
    encoder, actor = in_numpy(random_state[:2])
    mean = numpy_actions(encoder, actor, np.asarray(obs.image, np.float64), np.asarray(obs.vector))
    np.testing.assert_allclose(agent.act(policy, (), obs, KEY, False)[0], mean, rtol=1e-4)
    noise = 0.4 * np.asarray(jax.random.normal(KEY, (2,)))
    np.testing.assert_allclose(agent.act(policy, (), obs, KEY, True)[0], np.clip(mean + noise, -1, 1), rtol=1e-4)


@pytest.fixture(scope="module")
def fast():
    """The same agent with large steps."""
    return jax.jit(drqv2.make(dataclasses.replace(SMALL, lr=0.05, tau=TAU), FULL).update)


def test_only_the_critics_loss_trains_the_encoder(random_state, fast):
    replay = random_replay(FULL, discount=0.0)  # or the target would depend on the actor
    one, _ = fast(random_state, replay, KEY)
    other, _ = fast(random_state._replace(actor=perturbed(random_state.actor, 7)), replay, KEY)
    before, after, again = numbers(random_state.encoder, one.encoder, other.encoder)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_array_equal(after, again)
    assert np.any(numbers(one.actor)[0] != numbers(other.actor)[0])


def test_the_actor_sees_the_features_of_the_loss_and_the_critics_that_it_left(random_state, fast):
    """The features are computed once, with the encoder before its step; the critics are those after theirs."""
    replay = random_replay(FULL)
    after, _ = fast(random_state, replay, KEY)
    index = rb.indices(replay, jax.random.split(KEY, 5)[0], (32,))
    obs = drqv2.augmented(rb.n_step(replay, index, 2).obs, KEY, 0, "float32")

    @jax.jit
    def moments(encoder, critics):
        features = jax.vmap(drqv2.encoded, in_axes=(None, 0))(encoder, obs)
        grads = jax.grad(drqv2.actor_loss)(random_state.actor, critics, features, jnp.float32(0), 0.3, KEY)
        return jax.tree.map(lambda leaf: 0.1 * leaf, grads)  # Adam's first moment after one step

    found = numbers(after.actor_opt[0].mu)[0]
    np.testing.assert_allclose(found, numbers(moments(random_state.encoder, after.critics))[0], rtol=1e-3, atol=1e-6)
    for wrong in ((after.encoder, after.critics), (random_state.encoder, random_state.critics)):
        assert np.abs(found - numbers(moments(*wrong))[0]).max() > 1e-3


def test_targets_take_the_share_tau_at_every_update_the_trunk_included(random_state, fast):
    state, replay = random_state, random_replay(FULL)
    for i in range(2):
        before, (state, _) = state, fast(state, replay, jax.random.key(i))
        old, new, slow = numbers(before.targets, state.critics, state.targets)
        np.testing.assert_allclose(slow, 0.75 * old + 0.25 * new, rtol=1e-4, atol=1e-6)
        for name in ("encoder", "actor", "critics", "targets"):
            assert np.any(numbers(getattr(state, name))[0] != numbers(getattr(before, name))[0]), name
    trunk, moved = numbers(random_state.targets.trunk, state.targets.trunk)
    assert np.abs(trunk - moved).max() > 0.01


def test_every_network_takes_steps_of_the_same_size(random_state, fast):
    # Adam's first step is lr in every coordinate with a gradient
    after, _ = fast(random_state, random_replay(FULL), KEY)
    for name in ("encoder", "actor", "critics"):
        before, now = numbers(getattr(random_state, name), getattr(after, name))
        np.testing.assert_allclose(np.abs(now - before).max(), 0.05, rtol=1e-3)


# augmentation


def test_images_are_shifted_each_by_itself_and_centred():
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 2))
    obs = Pixels(jnp.asarray(np.tile(image, (30, 1, 1, 1)), jnp.uint8), jnp.arange(30.0)[:, None])
    made = drqv2.augmented(obs, KEY, 1, "float32")
    padded = np.pad(image / 255 - 0.5, ((1, 1), (1, 1), (0, 0)), mode="edge")
    parts = [padded[i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3)]
    which = [[bool(np.allclose(one, part, atol=1e-6)) for part in parts] for one in np.asarray(made.image)]
    assert np.sum(which, axis=1).tolist() == [1] * 30
    assert len(set(np.argmax(which, axis=1))) > 5
    np.testing.assert_array_equal(made.vector, obs.vector)
    still = drqv2.augmented(obs, KEY, 0, "bfloat16").image
    assert still.dtype == jnp.bfloat16
    np.testing.assert_allclose(still.astype(jnp.float32), obs.image / 255 - 0.5, atol=2e-3)


def one_image(discount):
    """A replay of one random image, before and after every step."""
    frames = np.tile(np.random.default_rng(2).integers(0, 256, FULL.frame), (40, 1, 1, 1))
    columns = {"obs": 0.5, "action": 0.1, "reward": 0.0, "discount": discount, "next_obs": 0.5}
    return replay_of(FULL, frames, True, **columns)


@pytest.fixture(scope="module", params=[0, 4])
def shifting(request):
    """Whether images are shifted, and a function of state and replay: the losses of updates with eight keys."""
    update = jax.jit(drqv2.make(dataclasses.replace(SMALL, shift=request.param, n_step=1), FULL).update)

    def losses(state, replay):
        return np.array([float(update(state, replay, jax.random.key(i))[1]["critic_loss"]) for i in range(8)])

    return request.param > 0, losses


def test_the_image_before_a_step_is_shifted(random_state, shifting):
    shifts, losses = shifting
    found = losses(random_state, one_image(discount=0.0))  # the target is the reward
    assert (found.std() > 1e-3 * found.mean()) == shifts


def test_the_image_after_a_step_is_shifted(random_state, shifting):
    shifts, losses = shifting
    zero = random_state._replace(critics=jax.tree.map(jnp.zeros_like, random_state.critics))
    found = losses(zero, one_image(discount=1.0))  # Q = 0, whatever the image before the step
    assert (found.std() > 1e-3 * found.mean()) == shifts


def test_the_images_before_and_after_a_step_are_shifted_differently(random_state, shifting):
    """Two equal critics that ignore the action, and are their own targets: the loss is 0 if the images are the same."""
    shifts, losses = shifting
    first = random_state.critics.mlps.layers[0].weight.at[..., -2:].set(0.0)
    critics = eqx.tree_at(lambda c: c.mlps.layers[0].weight, random_state.critics, first)
    critics = critics.__class__(critics.trunk, jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 2), critics.mlps))
    found = losses(random_state._replace(critics=critics, targets=critics), one_image(discount=1.0))
    assert np.all((found > 1e-4) == shifts)


# the schedule of the noise


@pytest.fixture(scope="module")
def scheduled():
    config = dataclasses.replace(LINEAR, noise_start=1.0, noise_end=0.1, noise_steps=90)
    agent = drqv2.make(config, ONE)
    return agent, state_of(actor_of(0.3, 0.2), critics_of((0, 1, 1, 0), (0, 0, 1, 1)), std=1.0)


def observed(agent, state, count):
    flat = Transition(*(jnp.zeros((count, *shape)) for shape in ((1,), (1,), (), (), (1,))))
    return agent.observe(state, flat, jnp.zeros(count, bool))


def test_noise_falls_linearly_with_the_observed_decisions_and_then_stays(scheduled):
    agent, state = scheduled
    found = []
    for count in (0, 10, 20, 15, 40, 1, 1000, 10**6):  # 0, 10, 30, 45, 85, 86, …
        state = observed(agent, state, count)
        found.append(float(state.std))
    np.testing.assert_allclose(found, [1.0, 0.9, 0.7, 0.55, 0.15, 0.14, 0.1, 0.1], rtol=1e-5)
    assert state.std.dtype == jnp.float32
    assert float(agent.policy(state).std) == float(state.std)


def test_noise_starts_at_its_first_value_and_an_update_leaves_it(scheduled):
    agent, state = scheduled
    assert float(jax.jit(agent.init)(KEY).std) == 1.0
    state = observed(agent, state, 45)
    after, metrics = jax.jit(agent.update)(state, repeated(1.0, 0.5), KEY)
    assert float(after.std) == float(metrics["std"]) == float(state.std)
    assert int(after.decisions) == 45


def test_exploration_adds_unclipped_noise_of_the_present_std_and_stays_in_the_box(scheduled):
    agent, state = scheduled
    keys, obs = jax.random.split(KEY, 4000), Pixels(jnp.zeros((SIDE, SIDE, 1), jnp.uint8), f32(0.0))

    def actions(mean, std, explore):
        policy = agent.policy(state._replace(actor=actor_of(0.0, np.arctanh(mean)), std=jnp.float32(std)))
        return np.asarray(jax.vmap(lambda key: agent.act(policy, (), obs, key, explore)[0])(keys))[:, 0]

    drawn = actions(0.1, 0.2, True)
    assert abs(drawn.mean() - 0.1) < 0.02
    assert abs(drawn.std() - 0.2) < 0.01
    assert np.abs(drawn - 0.1).max() > 0.6  # three stds, twice the clip of the losses
    assert np.abs(actions(0.1, 1.0, True)).max() == 1.0
    np.testing.assert_allclose(actions(0.1, 1.0, False), 0.1, rtol=1e-5)


# the networks


def test_sizes_of_the_published_networks():
    spec = EnvSpec(obs_shape=(0,), frame=(84, 84, 3), frame_stack=3, action_dim=6, gamma=0.99)
    state = jax.eval_shape(drqv2.make(drqv2.Config(), spec).init, KEY)

    def shapes(*modules):
        return [leaf.shape for leaf in jax.tree.leaves(modules)]

    trunk = [(50, 39_200), (50,), (50,), (50,)]  # layer, then gain and bias of the normalisation
    assert shapes(state.actor.trunk) == shapes(state.critics.trunk) == shapes(state.targets.trunk) == trunk
    assert [layer.weight.shape for layer in state.actor.mlp.layers] == [(1024, 50), (1024, 1024), (6, 1024)]
    assert [layer.weight.shape for layer in state.critics.mlps.layers] == [(2, 1024, 56), (2, 1024, 1024), (2, 1, 1024)]
    assert [conv.weight.shape for conv in state.encoder.convs] == [(3, 3, 9, 32), *[(3, 3, 32, 32)] * 3]


def test_weights_start_orthogonal_and_biases_at_zero():
    state = jax.jit(drqv2.make(SMALL, FULL).init)(KEY)
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], state.critics.mlps) for k in range(2))
    layers = [*state.actor.mlp.layers, *first.layers, *second.layers, state.actor.trunk.linear]
    for layer in [*layers, state.critics.trunk.linear]:
        weight = np.asarray(layer.weight)
        gram = weight @ weight.T if len(weight) < weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)
        assert not np.any(layer.bias)
    assert np.any(first.layers[0].weight != second.layers[0].weight), "the twins start apart"
    assert np.any(state.actor.trunk.linear.weight != state.critics.trunk.linear.weight)
    for norm in (state.actor.trunk.norm, state.critics.trunk.norm):
        np.testing.assert_array_equal(norm.weight, np.ones(3))
        np.testing.assert_array_equal(norm.bias, np.zeros(3))
    np.testing.assert_array_equal(*numbers(state.critics, state.targets))


def test_bfloat16_changes_little_and_parameters_stay_float32(random_state):
    replay = random_replay(FULL)
    (_, exact), (after, rough) = (
        jax.jit(drqv2.make(dataclasses.replace(SMALL, compute_dtype=dtype), FULL).update)(random_state, replay, KEY)
        for dtype in ("float32", "bfloat16")
    )
    assert [leaf.dtype for leaf in jax.tree.leaves(after)] == [leaf.dtype for leaf in jax.tree.leaves(random_state)]
    for name in ("critic_loss", "q_mean", "actor_loss"):
        assert float(exact[name]) != float(rough[name]), "rounding is visible"
        np.testing.assert_allclose(rough[name], exact[name], rtol=0.05, atol=0.02)


# learning


@pytest.mark.slow
def test_it_learns_to_read_the_action_from_the_brightness_of_an_image():
    """Episodes of one step with reward 1 − (a − a*)², where the brightness of the frame tells a*."""
    spec = EnvSpec(obs_shape=(0,), frame=(20, 20, 1), action_dim=1, gamma=0.99)
    config = drqv2.Config(hidden=(64, 64), feature_dim=16, filters=4, batch_size=64, lr=1e-3, noise_start=0.1)
    agent, rng = drqv2.make(config, spec), np.random.default_rng(0)

    def shown(best):
        return np.round(127.5 + 127.5 * best)[:, None, None, None] * np.ones((1, 20, 20, 1))

    best, action = rng.uniform(-0.9, 0.9, 1024), rng.uniform(-1, 1, 1024)
    replay = replay_of(spec, shown(best), True, action=action, reward=1 - (action - best) ** 2, discount=0.0)
    asked = np.linspace(-0.9, 0.9, 64)
    obs = Pixels(jnp.asarray(shown(asked), jnp.uint8), jnp.zeros((64, 0)))
    act = jax.vmap(lambda policy, obs: agent.act(policy, (), obs, KEY, False)[0], in_axes=(None, 0))

    def error(state):
        return float(np.mean((np.asarray(act(agent.policy(state), obs))[:, 0] - asked) ** 2))

    state, update = jax.jit(agent.init)(KEY), jax.jit(agent.update)
    assert error(state) > 0.15
    begun = time.monotonic()
    for i in range(400):
        state, _ = update(state, replay, jax.random.key(i))
    assert error(state) < 0.02, f"after {time.monotonic() - begun:.0f} s"


# presets


@pytest.mark.parametrize("name", presets("drqv2"))
def test_a_preset_is_allowed_and_makes_whole_updates(name):
    experiment = presets("drqv2")[name]("X")
    check(experiment)
    assert experiment.chunk * experiment.utd == experiment.updates_per_chunk
    assert experiment.planned_updates() > 0


def test_the_official_preset_makes_an_update_every_second_decision():
    experiment = presets("drqv2")["official"]("X")
    assert experiment == presets("drqv2")["default"]("X")
    assert (experiment.pixels, experiment.frame_stack, experiment.action_repeat) == (84, 3, 2)
    # 1.1 M frames are 550 000 decisions, of which the first 2000 are random; updates start with a whole chunk of 32
    assert experiment.planned_updates() == (550_016 - 2_016) // 2


def test_official_settings_follow_the_difficulty_of_the_task():
    easy = presets("drqv2")["official"]("dm_control/cartpole-balance_sparse-v0")
    assert (easy.steps, easy.replay_capacity, easy.agent) == (1_100_000, 1_000_000, drqv2.Config())
    found = {
        name: presets("drqv2")["official"](f"dm_control/{name}-v0")
        for name in ("cheetah-run", "walker-walk", "walker-run", "quadruped-run", "humanoid-walk")
    }
    changed = {
        "cheetah-run": (3_100_000, 1_000_000, {"noise_steps": 500_000}),
        "walker-walk": (1_100_000, 1_000_000, {"n_step": 1, "batch_size": 512}),
        "walker-run": (3_100_000, 1_000_000, {"noise_steps": 500_000, "n_step": 1, "batch_size": 512}),
        "quadruped-run": (3_100_000, 100_000, {"noise_steps": 500_000}),
        "humanoid-walk": (30_100_000, 1_000_000, {"noise_steps": 2_000_000, "lr": 8e-5, "feature_dim": 100}),
    }
    for name, (steps, replay, options) in changed.items():
        agent = dataclasses.replace(easy.agent, **options)
        wanted = dataclasses.replace(easy, env=found[name].env, steps=steps, replay_capacity=replay, agent=agent)
        assert found[name] == wanted


def test_the_groups_of_tasks_name_tasks_that_exist():
    tasks = {f"{domain}-{task}" for domain, names in TASKS.items() for task in names}
    assert {*drqv2_presets.MEDIUM, *drqv2_presets.HARD} <= tasks
