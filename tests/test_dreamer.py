"""Dreamer against numbers worked out by hand, and a world whose brightness follows the actions."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lsac.agents import dreamer
from lsac.agents.dreamer import agent as behaviour
from lsac.agents.dreamer import world_model
from lsac.agents.dreamer.world_model import Decoder, Encoder, Errors
from lsac.nn import rssm
from lsac.nn.networks import MLP
from lsac.presets import presets
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, check
from lsac.types import EnvSpec, Pixels, Transition

KEY = jax.random.key(0)
GAMMA = 0.9
SIDE, ACTIONS, STEPS = 20, 2, 6
SPEC = EnvSpec(obs_shape=(1,), frame=(SIDE, SIDE, 1), action_dim=ACTIONS, gamma=GAMMA)
CONFIG = dreamer.Config(
    deterministic_size=6,
    stochastic_size=3,
    model_units=8,
    depth=2,
    units=8,
    batch_size=3,
    batch_length=STEPS,
    horizon=4,
)
AGENT = dreamer.make(CONFIG, SPEC)
STATE = jax.jit(AGENT.init)(KEY)
MODEL = STATE.model
FEATURES = CONFIG.deterministic_size + CONFIG.stochastic_size
POLICY = AGENT.policy(STATE)
act = jax.jit(AGENT.act, static_argnums=4)
errors_of_windows = jax.jit(world_model.errors)
observe = jax.jit(rssm.observe)
shown = jax.jit(dreamer.open_loop, static_argnums=3)
encoded, decoded = (jax.jit(kind.__call__) for kind in (Encoder, Decoder))


def f32(*values):
    return jnp.asarray(np.array(values, np.float32))


def constant(size_in, *outputs):
    """A network of one layer whose outputs do not depend on its input."""
    return linear(np.zeros((len(outputs), size_in)), outputs)


def linear(weight, bias):
    rows, columns = np.shape(weight)
    shape = jax.eval_shape(lambda: MLP((columns, rows), "elu", KEY))
    return eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[0].bias), shape, (f32(*weight), f32(*bias)))


def with_heads(model, **heads):
    for name, head in heads.items():
        model = eqx.tree_at(lambda m, name=name: getattr(m, name), model, head, is_leaf=lambda x: x is None)
    return model


def errors(model, data, key):
    """The states and errors of one window."""
    found = errors_of_windows(model, jax.tree.map(lambda x: x[None], data), key)
    return jax.tree.map(lambda x: x[0], found)


READER = with_heads(MODEL, reward=linear(np.eye(1, FEATURES, 4), [0.0]), discount=linear(np.eye(1, FEATURES, 1), [0.0]))
"""A model whose reward is one of the features, and the logit of its discount another."""


def seen(count, seed=0):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (count, SIDE, SIDE, 1)).astype(np.uint8)
    return Pixels(jnp.asarray(image), f32(*rng.normal(size=(count, 1))))


def window(*firsts, seed=0):
    """One window [T], with episodes that start at the first step and at `firsts`."""
    rng = np.random.default_rng(seed)
    first = np.isin(np.arange(STEPS), [0, *firsts])
    discount = np.where(np.isin(np.arange(STEPS) + 1, firsts), 0.0, GAMMA)
    action, reward = f32(*rng.uniform(-1, 1, (STEPS, ACTIONS))), f32(*rng.normal(size=STEPS))
    return rb.Sequences(Transition(seen(STEPS, seed), action, reward, f32(*discount), None), jnp.asarray(first))


# options


def test_presets_are_the_authors_and_pass_the_checks():
    for name, preset in presets("dreamer").items():
        experiment = preset("X")
        check(experiment)
        images = (24, 1, 1) if name == "quickstart" else (64, 1, 2)
        assert (experiment.pixels, experiment.frame_stack, experiment.action_repeat) == images, name
    official = presets("dreamer")["official"]("X")
    assert (official.chunk_steps, official.updates_per_chunk, official.learning_starts) == (1000, 100, 5000)
    assert official.agent == dreamer.Config()
    assert official.agent.needs_gpu
    assert not presets("dreamer")["quickstart"]("X").agent.needs_gpu


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_starts": 799}, r"^--learning-starts 799: must be at least 800, "),
        ({"replay_capacity": 399}, r"^--replay-capacity 399: must be at least 400, "),
        ({"frame_stack": 3}, r"^--replay-capacity 400: must be at least 408, "),
    ],
)
def test_a_window_of_every_simulator_must_be_filled_before_the_first_update(changes, message):
    sizes = {"num_envs": 4, "action_repeat": 2, "learning_starts": 800, "replay_capacity": 400, "pixels": 64}
    agent = dreamer.Config(batch_length=100)
    check(Experiment(agent, "X", **sizes))
    with pytest.raises(ValueError, match=message):
        check(Experiment(agent, "X", **sizes | changes))


# encoder and decoder


@pytest.mark.parametrize(
    ("side", "size"),
    # 64 → 31 → 14 → 6 → 2;  84 → 41 → 19 → 8 → 3;  46 → 22 → 10 → 4 → 1;  45 → 21 → 9 → 3, where no kernel fits
    [(64, 2 * 2 * 8), (84, 3 * 3 * 8), (46, 8), (45, 3 * 3 * 4)],
)
def test_encoder_halves_the_image_as_often_as_a_kernel_fits(side, size):
    obs = Pixels(jnp.zeros((side, side, 3), jnp.uint8), jnp.zeros(5))
    assert jax.eval_shape(lambda: Encoder((side, side, 3), 2, KEY)(obs)).shape == (2 * size + 5,)


def test_encoder_sees_the_centred_image_and_hands_the_vector_on():
    # without biases, a ReLU network of k x is k times that of x; 51 and 204 are ±0.3, 0 and 255 are ±½
    bright = np.random.default_rng(0).random((SIDE, SIDE, 1)) < 0.5
    image = jnp.asarray(np.where(bright, [[[[255]]], [[[204]]]], [[[[0]]], [[[51]]]]), jnp.uint8)
    full, part = encoded(MODEL.encoder, Pixels(image, f32([7], [8])))
    assert np.mean(full[:-1] > 0.01) > 0.2
    np.testing.assert_allclose(part[:-1], 0.6 * full[:-1], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal([full[-1], part[-1]], [7, 8])


@pytest.mark.parametrize(
    ("shape", "start"),
    # 1 → 5 → 13 → 30 → 64, and every further row adds 16
    [((64, 64, 3), (1, 1)), ((65, 80, 1), (2, 2)), ((84, 20, 9), (3, 1)), ((81, 64, 1), (3, 1))],
)
def test_decoder_makes_images_of_any_size(shape, start):
    decoder = jax.eval_shape(lambda: Decoder(FEATURES, shape, 2, KEY, "float32"))
    assert decoder.start == start
    assert decoder.dense.bias.shape == (64 * start[0] * start[1],)
    kernels = [(5, 5, 64, 8), (5, 5, 8, 4), (6, 6, 4, 2), (6, 6, 2, shape[2])]
    assert [layer.weight.shape for layer in decoder.deconvs] == kernels
    assert jax.eval_shape(Decoder.__call__, decoder, jnp.zeros((2, 4, FEATURES))).shape == (2, 4, *shape)


# the loss of the world model


def test_errors_compare_every_state_with_its_image_and_with_the_reward_before_it():
    data = window(3)
    states, found = errors(READER, data, KEY)
    embedding = encoded(MODEL.encoder, data.steps.obs)
    expected = observe(MODEL.rssm, embedding, data.steps.action, data.first, jax.random.split(KEY, 1)[0])
    np.testing.assert_allclose(states.features, expected.states.features, rtol=1e-4, atol=1e-5)
    image = np.asarray(decoded(MODEL.decoder, expected.states.features))
    truth = np.asarray(data.steps.obs.image) / 255 - 0.5
    np.testing.assert_allclose(found.image, 0.5 * ((image - truth) ** 2).reshape(STEPS, -1).sum(1), rtol=1e-4)
    predicted, reward = np.asarray(expected.predicted.features)[1:, 4], np.asarray(data.steps.reward)[:-1]
    np.testing.assert_allclose(found.reward, 0.5 * (predicted - reward) ** 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.kl, expected.posterior.kl(expected.prior), rtol=1e-3, atol=1e-5)


def test_without_discounts_only_the_reward_of_an_episodes_last_step_is_compared_with_a_prediction():
    data = window(3)
    _, found = errors(with_heads(READER, discount=None), data, KEY)
    embedding = encoded(MODEL.encoder, data.steps.obs)
    expected = observe(MODEL.rssm, embedding, data.steps.action, data.first, jax.random.split(KEY, 1)[0])
    read = np.where(data.first, expected.predicted.features[:, 4], expected.states.features[:, 4])[1:]
    reward = np.asarray(data.steps.reward)[:-1]
    np.testing.assert_allclose(found.reward, 0.5 * (read - reward) ** 2, rtol=1e-4, atol=1e-6)


def test_discount_is_compared_in_the_state_that_a_step_led_to():
    # a logit of log 3 is the probability ¾, and the cross entropy of d is −d log ¾ − (1 − d) log ¼
    _, found = errors(with_heads(READER, discount=constant(FEATURES, np.log(3))), window(3), KEY)
    discount = np.array([GAMMA, GAMMA, 0, GAMMA, GAMMA])
    np.testing.assert_allclose(found.discount, -discount * np.log(0.75) - (1 - discount) * np.log(0.25), rtol=1e-5)


def test_the_end_of_an_episode_is_judged_without_the_next_one():
    data, other = window(3), seen(STEPS, seed=5)
    obs = jax.tree.map(lambda a, b: jnp.concatenate([a[:3], b[3:]]), data.steps.obs, other)
    one, two = (errors(READER, data._replace(steps=data.steps._replace(obs=x)), KEY)[1] for x in (data.steps.obs, obs))
    for before, after in ((one.discount, two.discount), (one.reward, two.reward)):
        np.testing.assert_array_equal(before[:3], after[:3])  # the third is of the step that ended the first episode
        assert np.all(np.abs(before[3:] - after[3:]) > 1e-4)


def loss_of(kl, monkeypatch, config=CONFIG, **given):
    """The loss where the errors of two windows of two steps are these."""
    kl = f32(*kl)
    found = {"image": jnp.zeros((2, 2)), "reward": jnp.zeros((2, 1)), "discount": jnp.zeros((2, 1))} | given

    def stub(model, window, key):
        return (), Errors(**window.steps, kl=model * window.first)

    with monkeypatch.context() as patch:
        patch.setattr(world_model, "errors", stub)
        model = _Scale(jnp.ones(()))
        data = rb.Sequences(found, kl)
        loss = jax.value_and_grad(lambda scale: world_model.model_loss(_Scale(scale), config, data, KEY)[0])
        return loss(model.scale)


class _Scale(eqx.Module):
    """Stands for a model whose KL divergence it multiplies."""

    scale: jax.Array
    discount: None = None

    def __mul__(self, kl):
        return self.scale * kl


def test_free_nats_count_for_the_mean_over_batch_and_time(monkeypatch):
    # the mean of 1, 9, 2, 2 is 3.5; clipped one by one it would be 4.5
    loss, slope = loss_of([[1, 9], [2, 2]], monkeypatch)
    np.testing.assert_allclose([loss, slope], [3.5, 3.5], rtol=1e-6)
    # the mean of 0, 8, 0, 2 is 2.5; one by one it would be 4.25
    loss, slope = loss_of([[0, 8], [0, 2]], monkeypatch)
    np.testing.assert_allclose([loss, slope], [3.0, 0.0], rtol=1e-6)


def test_the_loss_is_the_weighted_sum_of_the_mean_errors(monkeypatch):
    # 10 + 2 + 10 · 0.5 + 3 · 4
    given = {"image": f32([5, 15], [10, 10]), "reward": f32([1], [3]), "discount": f32([0.25], [0.75])}
    loss, _ = loss_of([[4, 4], [4, 4]], monkeypatch, dataclasses.replace(CONFIG, kl_scale=3.0), **given)
    np.testing.assert_allclose(loss, 29.0, rtol=1e-6)


# actions


def test_the_gaussian_before_tanh_has_a_bounded_mean_and_starts_with_the_std_five():
    # 5 tanh(10/5), 5 tanh(−0.2); softplus(0 + log(e⁵ − 1)) = 5, softplus(−5 + log(e⁵ − 1)) = log(2 − e⁻⁵)
    chosen = behaviour.before_tanh(constant(FEATURES, 10.0, -1.0, 0.0, -5.0), jnp.zeros(FEATURES))
    np.testing.assert_allclose(chosen.mean, [5 * np.tanh(2), 5 * np.tanh(-0.2)], rtol=1e-5)
    np.testing.assert_allclose(chosen.std, [5 + 1e-4, np.log(2 - np.exp(-5)) + 1e-4], rtol=1e-5)


def with_outputs(network, *outputs):
    """The network with constant outputs."""
    silent = jax.tree.map(jnp.zeros_like, network)
    return eqx.tree_at(lambda m: m.layers[-1].bias, silent, f32(*outputs))


def acting(mean, raw_std, noise=0.3):
    agent = dreamer.make(dataclasses.replace(CONFIG, exploration_noise=noise), SPEC)
    policy = agent.policy(STATE)._replace(actor=with_outputs(STATE.actor, mean, mean, raw_std, raw_std))
    obs, keys = jax.tree.map(lambda x: x[0], seen(1)), jax.random.split(KEY, 2000)
    return np.asarray(jax.jit(jax.vmap(lambda key: agent.act(policy, agent.memory(), obs, key, True)[0]))(keys))


def test_exploration_samples_the_policy_adds_noise_and_stays_in_the_box():
    # a raw std of −25 is a std of 10⁻⁴: all that is left is the noise around tanh(½)
    drawn = acting(0.5, -25.0)
    np.testing.assert_allclose(drawn.mean(0), np.tanh(0.5), atol=0.03)
    unclipped = stats.norm.cdf((1 - np.tanh(0.5)) / 0.3)
    np.testing.assert_allclose(np.mean(drawn < 1, axis=0), unclipped, atol=0.03)
    assert drawn.max() == 1.0
    # without noise, the samples of a std of softplus(−4.5 + log(e⁵ − 1)) are left
    std = np.log1p(np.exp(-4.5) * np.expm1(5)) + 1e-4
    quiet = acting(0.5, -4.5, noise=0.0)
    np.testing.assert_allclose(np.arctanh(quiet).std(0), std, rtol=0.06)
    np.testing.assert_allclose(np.arctanh(quiet).mean(0), 5 * np.tanh(0.1), atol=0.05)
    np.testing.assert_allclose(np.corrcoef(quiet.T)[0, 1], 0.0, atol=0.06)


def test_without_exploration_means_take_the_place_of_samples():
    obs, before = jax.tree.map(lambda x: x[0], seen(1)), AGENT.memory()
    action, after = act(POLICY, before, obs, KEY, False)
    again, _ = act(POLICY, before, obs, jax.random.key(1), False)
    np.testing.assert_array_equal(action, again)
    state = MODEL.rssm.observe(before.state, before.action, MODEL.encoder(obs), jnp.zeros(CONFIG.stochastic_size))
    np.testing.assert_allclose(after.state.features, state.features, rtol=1e-4, atol=1e-6)
    chosen = behaviour.before_tanh(STATE.actor, state.features)
    np.testing.assert_allclose(action, np.tanh(chosen.mean), rtol=1e-3, atol=1e-5)


def test_the_memory_holds_the_state_and_the_action_that_was_taken():
    memory, obs = AGENT.memory(), seen(3)
    assert not any(np.any(x) for x in jax.tree.leaves(memory))
    for t in range(3):
        key, now = jax.random.key(t), jax.tree.map(lambda x, t=t: x[t], obs)
        noise = jax.random.normal(jax.random.split(key, 3)[0], (CONFIG.stochastic_size,))
        expected = MODEL.rssm.observe(memory.state, memory.action, MODEL.encoder(now), noise)
        action, memory = act(POLICY, memory, now, key, True)
        np.testing.assert_array_equal(action, memory.action)
        np.testing.assert_allclose(memory.state.features, expected.features, rtol=1e-4, atol=1e-5)


def test_acting_is_in_float32_also_where_learning_is_not():
    narrow = dreamer.make(dataclasses.replace(CONFIG, compute_dtype="bfloat16"), SPEC)
    obs, memory = jax.tree.map(lambda x: x[0], seen(1)), narrow.memory()
    policy = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(narrow.init, KEY)), jax.tree.leaves(STATE))
    one = jax.jit(narrow.act, static_argnums=4)(narrow.policy(policy), memory, obs, KEY, True)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(act(POLICY, memory, obs, KEY, True)), strict=True):
        np.testing.assert_array_equal(a, b)
    after, metrics = jax.eval_shape(narrow.update, policy, brightness(40), KEY)
    assert {x.dtype for x in jax.tree.leaves((after[:3], metrics))} == {jnp.dtype("float32")}


# returns


def test_lambda_returns_worked_out_by_hand():
    reward, value, discount = f32(1, 2, 3, 4), f32(10, 20, 30, 40), f32(0.5, 0.5, 0.9, 0.1)
    # backwards: 3 + 0.9 (½ 40 + ½ 40), 2 + 0.5 (½ 30 + ½ 39), 1 + 0.5 (½ 20 + ½ 19.25)
    np.testing.assert_allclose(behaviour.lambda_returns(reward, value, discount, 0.5), [10.8125, 19.25, 39], rtol=1e-6)
    # λ = 0: one reward and the next value; λ = 1: all rewards but the last, and the last value
    np.testing.assert_allclose(behaviour.lambda_returns(reward, value, discount, 0.0), [11, 17, 39], rtol=1e-6)
    np.testing.assert_allclose(behaviour.lambda_returns(reward, value, discount, 1.0), [11.75, 21.5, 39], rtol=1e-6)


def start_state(seed=0):
    rng = np.random.default_rng(seed)
    return rssm.State(
        f32(*rng.uniform(-1, 1, CONFIG.deterministic_size)), f32(*rng.normal(size=CONFIG.stochastic_size))
    )


def test_imagined_states_follow_the_actors_actions_one_by_one():
    features = behaviour.imagine(MODEL, STATE.actor, start_state(), 4, KEY)
    state_key, action_key = jax.random.split(KEY)
    noise, action_noise = jax.random.normal(state_key, (4, 3)), jax.random.normal(action_key, (4, ACTIONS))
    state = start_state()
    for t in range(4):
        chosen = behaviour.before_tanh(STATE.actor, state.features)
        action = np.tanh(np.asarray(chosen.mean) + np.asarray(chosen.std) * np.asarray(action_noise[t]))
        state = MODEL.rssm.predict(state, jnp.asarray(action), noise[t])
        np.testing.assert_allclose(features[t], state.features, rtol=1e-3, atol=1e-5)


def test_gradients_flow_through_the_dynamics_but_not_through_what_the_actor_reads():
    actor, start, bias = STATE.actor, start_state(), MODEL.rssm.gru.from_input.bias
    state_key, action_key = jax.random.split(KEY)
    noise, action_noise = jax.random.normal(state_key, (2, 3)), jax.random.normal(action_key, (2, ACTIONS))

    def with_bias(bias):
        return eqx.tree_at(lambda m: m.rssm.gru.from_input.bias, MODEL, bias)

    def second(actor, bias):
        """The state after two steps. The bias enters it by the first state, which the actor reads, too."""
        return jnp.sum(behaviour.imagine(with_bias(bias), actor, start, 2, KEY)[1])

    def given(bias, actions):
        """The same for actions that are constants."""
        state = start
        for t in range(2):
            state = with_bias(bias).rssm.predict(state, actions[t], noise[t])
        return jnp.sum(state.features)

    read = [start.features, behaviour.imagine(MODEL, actor, start, 2, KEY)[0]]
    actions = jnp.stack(
        [jnp.tanh(behaviour.before_tanh(actor, x).sample(n)) for x, n in zip(read, action_noise, strict=True)]
    )
    of_actor, of_bias = jax.jit(jax.grad(second, (0, 1)))(actor, bias)
    np.testing.assert_allclose(of_bias, jax.jit(jax.grad(given))(bias, actions), rtol=1e-3, atol=1e-5)
    assert np.any(of_bias)
    assert all(np.any(x) for x in jax.tree.leaves(of_actor))


def starts(count=5):
    return jax.vmap(lambda key: jax.tree.map(lambda x: x + jax.random.normal(key, x.shape), start_state()))(
        jax.random.split(KEY, count)
    )


def test_actor_and_critic_losses_worked_out_by_hand():
    # r = 1, v = 3, γ = ½, λ = ½, H = 4: R₂ = 1 + ½ 3, R₁ = 1 + ½ (½ 3 + ½ R₂), R₀ = 1 + ½ (½ 3 + ½ R₁)
    returns = np.array([2.34375, 2.375, 2.5])
    weights = np.array([1, 0.5, 0.25])
    config = dataclasses.replace(CONFIG, lam=0.5)
    model = with_heads(MODEL, reward=constant(FEATURES, 1.0))
    critic = constant(FEATURES, 3.0)
    loss, found = behaviour.actor_loss(STATE.actor, model, critic, config, 0.5, starts(), KEY)
    assert found.features.shape == (5, 4, FEATURES)
    np.testing.assert_allclose(found.returns, np.tile(returns, (5, 1)), rtol=1e-6)
    np.testing.assert_allclose(found.weights, np.tile(weights, (5, 1)), rtol=1e-6)
    np.testing.assert_allclose(loss, -np.mean(weights * returns), rtol=1e-6)
    loss, value = behaviour.critic_loss(critic, found)
    assert value.shape == (5, 3)
    np.testing.assert_allclose(loss, 0.5 * np.mean(weights * (3 - returns) ** 2), rtol=1e-6)


def test_predicted_discounts_take_the_place_of_gamma():
    # a logit of log 3 is ¾: R₂ = 1 + ¾ 3, R₁ = 1 + ¾ R₂, R₀ = 1 + ¾ R₁ with λ = 1
    model = with_heads(MODEL, reward=constant(FEATURES, 1.0), discount=constant(FEATURES, np.log(3)))
    config = dataclasses.replace(CONFIG, lam=1.0)
    found = behaviour.actor_loss(STATE.actor, model, constant(FEATURES, 3.0), config, 0.5, starts(), KEY)[1]
    np.testing.assert_allclose(found.returns[0], [1 + 0.75 * (1 + 0.75 * 3.25), 1 + 0.75 * 3.25, 3.25], rtol=1e-5)
    np.testing.assert_allclose(found.weights[0], [1, 0.75, 0.5625], rtol=1e-5)


def test_the_critic_learns_the_values_of_the_states_it_is_given():
    """At one state each, it must not be shown the state after."""
    features = jnp.eye(4, FEATURES)[None]
    critic = linear([np.arange(FEATURES)], [0.0])
    found = behaviour.Imagined(features, f32([0, 1, 2]), f32([1, 1, 1]))
    loss, value = behaviour.critic_loss(critic, found)
    np.testing.assert_array_equal(value, [[0, 1, 2]])
    assert loss == 0


# the whole


def brightness(count):
    """A world in which the next frame is as bright as the first action says, and the reward is its brightness. Every
    episode has ten steps."""
    layout = rb.layout_of(SPEC)
    stored = layout.empty(count)
    views = layout.views(stored)
    views["action"][:] = np.random.default_rng(0).uniform(-1, 1, (count, ACTIONS))
    views["reward"][:] = light = (views["action"][:, 0] + 1) / 2
    views["discount"][:], views[rb.FIRST][:] = GAMMA, np.arange(count) % 10 == 0
    views[rb.FRAME][:] = (255 * np.where(views[rb.FIRST], 0.0, np.roll(light, 1)))[:, None, None, None]
    return rb.holding(layout, stored, count)


@pytest.mark.slow
def test_learns_what_actions_do_and_to_prefer_those_that_pay():
    rates = dict.fromkeys(("model_lr", "actor_lr", "critic_lr"), 5e-3)
    agent = dreamer.make(dataclasses.replace(CONFIG, depth=1, batch_size=4, free_nats=0.1, **rates), SPEC)
    state, update, replay, lines = jax.jit(agent.init)(KEY), jax.jit(agent.update), brightness(400), []
    for i in range(100):
        state, metrics = update(state, replay, jax.random.key(i))
        lines.append({name: float(x) for name, x in metrics.items()})
    early, late = ({name: np.mean([x[name] for x in part]) for name in lines[0]} for part in (lines[:5], lines[-20:]))
    # a constant prediction leaves half the variance of a uniform number, 1/24
    assert late["reward_loss"] < 0.25 / 24
    assert late["image_loss"] < 0.3 * early["image_loss"]
    # always 1 is worth 1 + γ + γ² + … = 10, random actions half of it
    assert early["q_mean"] < 1
    assert 7 < late["q_mean"] < 10.5
    dark = Pixels(jnp.zeros((SIDE, SIDE, 1), jnp.uint8), jnp.zeros(1))
    action, _ = jax.jit(agent.act, static_argnums=4)(agent.policy(state), agent.memory(), dark, KEY, False)
    assert action[0] > 0.9
    assert "discount_loss" not in metrics


# pictures


VIVID = eqx.tree_at(lambda m: m.decoder.deconvs[-1].weight, MODEL, 50 * MODEL.decoder.deconvs[-1].weight)
"""A model that makes different images of different states."""


def as_bytes(image):
    return np.clip(np.round(255 * (np.asarray(image) + 0.5)), 0, 255)


def test_reconstructions_and_predictions_start_from_what_was_observed():
    obs, action = seen(STEPS), window().steps.action
    found = shown(VIVID, obs, action, 3, KEY)
    assert found.shape == (STEPS, SIDE, SIDE, 1)
    observe_key, predict_key = jax.random.split(KEY)
    embedding = encoded(VIVID.encoder, obs)[:3]
    states = observe(VIVID.rssm, embedding, action[:3], jnp.zeros(3, bool), observe_key).states
    following = VIVID.rssm.predict(
        jax.tree.map(lambda x: x[2], states), action[2], jax.random.normal(predict_key, (3, CONFIG.stochastic_size))[0]
    )
    np.testing.assert_allclose(found[:3], as_bytes(decoded(VIVID.decoder, states.features)), atol=1)
    np.testing.assert_allclose(found[3], as_bytes(decoded(VIVID.decoder, following.features[None])[0]), atol=1)
    assert np.ptp(np.asarray(found)) > 20


def test_predicted_images_follow_the_actions_and_no_later_observation():
    obs, action = seen(STEPS), window().steps.action
    found = shown(VIVID, obs, action, 3, KEY)
    later = jax.tree.map(lambda a, b: jnp.concatenate([a[:3], b[3:]]), obs, seen(STEPS, seed=7))
    np.testing.assert_array_equal(shown(VIVID, later, action, 3, KEY), found)
    for t in (2, 3):
        other = shown(VIVID, obs, action.at[t].set(-action[t]), 3, KEY)
        changed = np.any(np.asarray(other) != np.asarray(found), axis=(1, 2, 3))
        np.testing.assert_array_equal(changed, np.arange(STEPS) > t)


def test_images_of_a_model_are_rounded_and_clipped_to_eight_bits():
    # ½ + ½ is 255, ½ + 0.1 is 153, −0.7 + ½ and 0.7 + ½ lie outside
    obs, action = seen(2), jnp.zeros((2, ACTIONS))
    for bias, number in ((0.5, 255), (0.1, 153), (-0.7, 0), (0.7, 255), (0.1015, 153), (0.1025, 154)):
        decoder = jax.tree.map(jnp.zeros_like, MODEL.decoder)
        decoder = eqx.tree_at(lambda d: d.deconvs[-1].bias, decoder, f32(bias))
        model = eqx.tree_at(lambda m: m.decoder, MODEL, decoder)
        found = shown(model, obs, action, 1, KEY)
        assert found.dtype == jnp.uint8
        np.testing.assert_array_equal(found, np.full((2, SIDE, SIDE, 1), number))
