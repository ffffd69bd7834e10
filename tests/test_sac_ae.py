"""SAC with an autoencoder, and DrQ: networks, losses and updates against NumPy and numbers worked out by hand.

Images are 20×20, so that four convolutions leave 3×3 numbers per channel.
"""

import dataclasses
import itertools
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import f32, numbers
from random_keys import uses_a_key_twice

from lsac.agents import sac, sac_ae
from lsac.agents.sac_ae import agent as sac_ae_agent
from lsac.agents.sac_ae import autoencoder
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.types import EnvSpec, Pixels, Transition

KEY = jax.random.key(0)
SIDE, CHANNELS, FILTERS, CODE, VECTOR = 20, 3, 5, 6, 2
SPEC = EnvSpec(obs_shape=(VECTOR,), frame=(SIDE, SIDE, CHANNELS), action_dim=1, gamma=0.9)
RATES = {"actor_lr": 3e-4, "critic_lr": 2e-3, "autoencoder_lr": 5e-4}
CONFIG = sac_ae.Config(hidden=(), filters=FILTERS, feature_dim=CODE, batch_size=8, shift=2, **RATES)
DRQ = dataclasses.replace(CONFIG, decoder="none")


class Compiled(NamedTuple):
    init: object
    update: object


def compiled(config, spec=SPEC):
    agent = sac_ae.make(config, spec)
    return Compiled(jax.jit(agent.init), jax.jit(agent.update))


AE_AGENT, DRQ_AGENT = compiled(CONFIG), compiled(DRQ)
FLOAT32 = sac_ae.make(CONFIG, SPEC)


@pytest.fixture(scope="module")
def state():
    return AE_AGENT.init(KEY)


@pytest.fixture(scope="module")
def drq_state():
    return DRQ_AGENT.init(KEY)


def images(count, seed=0, side=SIDE, channels=CHANNELS):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def pixels(count, seed=0):
    vectors = np.random.default_rng(seed + 100).normal(size=(count, VECTOR)).astype(np.float32)
    return Pixels(jnp.asarray(images(count, seed)), jnp.asarray(vectors))


def replay_of(reward, discount, count=40, seed=0):
    """Random images, vectors and actions, all with this reward and discount, in one long episode."""
    rng, layout = np.random.default_rng(seed), rb.layout_of(SPEC)
    stored = layout.empty(count)
    views = layout.views(stored)
    views["obs"][:], views["action"][:] = rng.normal(size=(count, VECTOR)), rng.uniform(-1, 1, (count, 1))
    views["next_obs"][:] = np.roll(views["obs"], -1, axis=0)
    views["reward"][:], views["discount"][:] = reward, discount
    views[rb.FIRST][0], views[rb.FRAME][:] = True, images(count, seed)
    return rb.holding(layout, stored, count)


def affine(module, weight, bias):
    """A module whose network is one layer, with all weights and biases set."""
    layer = module.mlp.layers[0]
    set_to = (jnp.broadcast_to(f32(*weight), layer.weight.shape), jnp.broadcast_to(f32(*bias), layer.bias.shape))
    return eqx.tree_at(lambda m: (m.mlp.layers[0].weight, m.mlp.layers[0].bias), module, set_to)


def heads(critics, action_slope, constant):
    """Critics Q = action_slope · a + constant, which do not see the state."""
    weight = np.zeros(CODE + VECTOR + 1, np.float32)
    weight[-1] = action_slope
    return critics._replace(heads=affine(critics.heads, weight, [constant]))


def wide(actor):
    """An actor of mean 0 and the largest std, e², in every state."""
    return affine(actor, [0.0], [0.0, 20.0])


# the networks


def numpy_code(encoder, image):
    """Convolutions that are 0 but for their centre, Linear, LayerNorm and tanh, in float64."""
    first, *others = [np.asarray(conv.weight[1, 1], np.float64) for conv in encoder.convs.layers.convs]
    x = np.maximum(image[1::2, 1::2].astype(np.float64)[:9, :9] / 255 @ first, 0)
    for weight in others:
        x = np.maximum(x[1:-1, 1:-1] @ weight, 0)
    x = np.asarray(encoder.projection.linear.weight, np.float64) @ x.reshape(-1)
    return np.tanh((x - x.mean()) / np.sqrt(x.var() + 1e-5))


def test_encoder_is_convolutions_linear_layer_norm_and_tanh_with_the_vector_appended(state):
    obs, encoder = pixels(4), state.critics.encoder
    found = np.asarray(encoder(obs))
    assert found.shape == (4, CODE + VECTOR)
    for i in range(4):
        np.testing.assert_allclose(found[i, :CODE], numpy_code(encoder, np.asarray(obs.image[i])), atol=2e-5)
    np.testing.assert_array_equal(found[:, CODE:], obs.vector)


def test_layer_norm_has_a_gain_and_a_bias(state):
    projection = state.critics.encoder.projection
    features = f32(*range(9 * FILTERS))
    changed = eqx.tree_at(
        lambda p: (p.norm.weight, p.norm.bias), projection, (jnp.full(CODE, 2.0), jnp.full(CODE, 0.25))
    )
    plain = np.arctanh(np.asarray(projection(features), np.float64))
    np.testing.assert_allclose(plain.var(), 1.0, rtol=1e-3)
    np.testing.assert_allclose(changed(features), np.tanh(2.0 * plain + 0.25), atol=1e-5)


def test_actor_has_its_own_code_and_squashes_its_log_std(state):
    obs, actor = pixels(1), state.actor
    one = Pixels(obs.image[0], obs.vector[0])
    mean, log_std = sac_ae_agent.policy_of(state)(one)
    own = state.critics.encoder.convs, actor.projection
    seen = np.append(numpy_code(autoencoder.Encoder(*own), np.asarray(one.image)), one.vector)
    out = np.asarray(actor.mlp.layers[0].weight) @ seen
    np.testing.assert_allclose(mean, out[:1], atol=1e-4)
    np.testing.assert_allclose(log_std, -10 + 6 * (np.tanh(out[1:]) + 1), atol=1e-4)
    for raw, bound in ((-30.0, -10.0), (0.0, -4.0), (30.0, 2.0)):
        np.testing.assert_allclose(
            affine(actor, [0.0], [0.0, raw])(autoencoder.Seen(own[0](one)[0], one.vector))[1], bound
        )


def test_actions_are_those_of_sac_from_the_convolutions_of_the_critics(state):
    agent = sac_ae.make(CONFIG, SPEC)
    policy = agent.policy(state)
    one = jax.tree.map(lambda x: x[0], pixels(1))
    assert all(
        a is b for a, b in zip(*(jax.tree.leaves(x) for x in (policy.convs, state.critics.encoder.convs)), strict=True)
    )
    mean, log_std = policy(one)
    np.testing.assert_allclose(agent.act(policy, (), one, KEY, False)[0], np.tanh(mean), rtol=1e-6)
    noise = jax.random.normal(KEY, (1,))
    expected = np.tanh(np.asarray(mean) + np.exp(np.asarray(log_std)) * np.asarray(noise))
    np.testing.assert_allclose(agent.act(policy, (), one, KEY, True)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(15, 15), (16, 16), (20, 21), (21, 20), (33, 18), (64, 64), (84, 84), (85, 85)])
def test_a_decoded_image_is_as_large_as_the_image(shape):
    spec = EnvSpec(obs_shape=(0,), frame=(*shape, 2), frame_stack=3, action_dim=1, gamma=0.9)

    def reconstructed(key):
        _, critics, decoder = sac_ae_agent.networks(CONFIG, spec, key)
        codes = critics.encoder(Pixels(jnp.zeros((1, *spec.image_shape), jnp.uint8), jnp.zeros((1, 0))))
        return codes, decoder(codes)

    codes, images = jax.eval_shape(reconstructed, KEY)
    assert codes.shape == (1, CODE)
    assert (images.shape, images.dtype) == ((1, *shape, 6), jnp.float32)


@pytest.mark.parametrize("shape", [(14, 84), (84, 14), (3, 3)])
def test_an_image_that_is_too_small_is_refused_in_one_sentence(shape):
    spec = EnvSpec(obs_shape=(0,), frame=(*shape, 3), action_dim=1, gamma=0.9)
    with pytest.raises(InputError, match=rf"^images of {shape[0]} × {shape[1]} pixels are too small: .* 15 × 15$"):
        sac_ae.make(CONFIG, spec).init(KEY)


def test_decoder_spreads_every_number_over_the_image():
    """Transposed convolutions written as sums into a larger array, in NumPy; an odd and an even side."""
    shape, rng = (17, 20, 2), np.random.default_rng(0)
    decoder = autoencoder.Decoder(3, shape, 2, KEY)
    leaves, tree = jax.tree.flatten(decoder)
    decoder = jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=x.shape), jnp.float32) for x in leaves])
    code = rng.normal(size=3).astype(np.float32)
    linear = decoder.linear
    x = np.maximum(np.asarray(linear.weight) @ code + np.asarray(linear.bias), 0).reshape(2, 3, 2)
    for i, layer in enumerate(decoder.layers):
        step, kernel = (1, 1, 1, 2)[i], np.asarray(layer.weight)
        made = np.zeros(((len(x) - 1) * step + 3, (x.shape[1] - 1) * step + 3, kernel.shape[3]))
        for row, column in np.ndindex(x.shape[:2]):
            spread = np.einsum("hwio,i->hwo", kernel[::-1, ::-1], x[row, column])
            made[row * step : row * step + 3, column * step : column * step + 3] += spread
        x = made + np.asarray(layer.bias)
        x = np.maximum(x, 0) if i < 3 else x
    (found,) = np.asarray(decoder(jnp.asarray(code)[None]))
    assert x.shape == (17, 19, 2)
    np.testing.assert_allclose(found[:, :19], x, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found[:, 19], np.broadcast_to(decoder.layers[-1].bias, (17, 2)))


# the initialisation


def test_convolutions_start_delta_orthogonal(state):
    layers = [*state.critics.encoder.convs.layers.convs, *state.decoder.layers]
    assert [layer.weight.shape[2:] for layer in layers] == [(3, 5), *[(5, 5)] * 6, (5, 3)]
    for layer in layers:
        weight = np.asarray(layer.weight)
        centre = weight[1, 1].copy()
        weight = weight.copy()
        weight[1, 1] = 0.0
        assert not np.any(weight)
        product = centre @ centre.T if len(centre) <= centre.shape[1] else centre.T @ centre
        np.testing.assert_allclose(product, 2.0 * np.eye(len(product)), atol=1e-5)  # the gain of ReLU is √2
        assert not np.any(layer.bias)


def test_convolutions_of_drq_start_with_orthogonal_kernels(drq_state):
    for layer in drq_state.critics.encoder.convs.layers.convs:
        weight = np.asarray(layer.weight).reshape(-1, FILTERS)
        np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(FILTERS), atol=1e-5)
        assert np.all(layer.weight != 0.0)


def test_linear_layers_start_orthogonal_and_different_from_each_other(state):
    actor, critics = state.actor, state.critics
    one, two = (jax.tree.map(lambda x, k=k: x[k], critics.heads) for k in range(2))
    codes = [actor.projection.linear, critics.encoder.projection.linear]
    heads = [one.mlp.layers[0], two.mlp.layers[0]]
    for layer in (*codes, *heads, *actor.mlp.layers, state.decoder.linear):
        weight = np.asarray(layer.weight)
        product = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)
        assert not np.any(layer.bias)
    for first, second in (codes, heads):
        assert np.all(first.weight != second.weight)


def test_targets_start_as_the_critics_and_alpha_as_asked(state, drq_state):
    np.testing.assert_array_equal(*numbers(state.targets, state.critics))
    np.testing.assert_allclose(np.exp(state.log_alpha), 0.1, rtol=1e-6)
    assert drq_state.decoder is None
    assert drq_state.autoencoder_opt is None


# the losses


def test_td_target_bootstraps_from_the_targets_own_encoder_at_the_actors_action(state):
    other = AE_AGENT.init(jax.random.key(1))
    policy, alpha = sac_ae_agent.policy_of(state), 0.3
    obs, reward, discount = pixels(3), np.array([1.0, -2.0, 0.5]), np.array([0.9, 0.0, 0.5])
    batch = Transition(None, None, f32(*reward), f32(*discount), obs)
    found = jax.jit(sac_ae_agent.td_target)(other.targets, policy, f32(alpha)[0], batch, KEY)

    mean, log_std = (np.asarray(x, np.float64)[:, 0] for x in jax.vmap(policy)(obs))
    noise = np.asarray(jax.random.normal(KEY, (3, 1)), np.float64)[:, 0]
    action = np.tanh(mean + np.exp(log_std) * noise)
    log_prob = -0.5 * noise**2 - 0.5 * np.log(2 * np.pi) - log_std - np.log(1 - action**2)
    codes = [numpy_code(other.targets.encoder, np.asarray(image)) for image in obs.image]
    inputs = np.concatenate([codes, obs.vector, action[:, None]], axis=1)
    layer = other.targets.heads.mlp.layers[0]
    q = np.min(np.einsum("ki,bi->kb", np.asarray(layer.weight)[:, 0], inputs), axis=0)
    np.testing.assert_allclose(found, reward + discount * (q - alpha * log_prob), atol=1e-4)


def test_critic_loss_is_that_of_sac_and_trains_the_convolutions(state):
    batch = Transition(pixels(4), f32(0.1, 0.2, 0.3, 0.4)[:, None], None, None, None)
    target = f32(1.0, -1.0, 2.0, 0.0)
    (loss, q), grads = jax.jit(jax.value_and_grad(sac_ae_agent.critic_loss, has_aux=True))(state.critics, batch, target)
    assert q.shape == (2, 4)
    np.testing.assert_allclose(loss, 0.5 * np.sum(np.mean((np.asarray(q) - np.asarray(target)) ** 2, 1)), rtol=1e-5)
    assert all(np.any(layer.weight) for layer in grads.encoder.convs.layers.convs)
    assert np.any(grads.encoder.projection.linear.weight)


def test_the_actors_loss_trains_its_code_and_not_the_convolutions(state):
    obs, alpha = pixels(4), f32(0.1)[0]

    def loss(policy, look):
        seen = look(policy.convs, obs)
        return sac_ae_agent.actor_loss(policy.actor, state.critics, alpha, seen, KEY)[0]

    derivative = jax.jit(jax.grad(loss), static_argnums=1)
    grads = derivative(sac_ae_agent.policy_of(state), sac_ae_agent.for_actor)
    assert not np.any(numbers(grads.convs)[0])
    assert np.any(grads.actor.projection.linear.weight)
    assert np.any(grads.actor.mlp.layers[0].weight)
    flowing = derivative(sac_ae_agent.policy_of(state), lambda convs, obs: convs(obs))
    assert np.any(numbers(flowing.convs)[0]), "without the stop, there is a gradient"


def test_actor_loss_is_alpha_log_density_minus_the_smaller_critic_which_reads_its_own_code(state):
    obs, alpha, actor, critics = pixels(4), 0.3, wide(state.actor), state.critics
    seen = sac_ae_agent.for_actor(critics.encoder.convs, obs)
    loss, log_prob = sac_ae_agent.actor_loss(actor, critics, f32(alpha)[0], seen, KEY)
    noise = np.asarray(jax.random.normal(KEY, (4, 1)), np.float64)[:, 0]
    u = np.exp(2.0) * noise
    expected = -0.5 * noise**2 - 0.5 * np.log(2 * np.pi) - 2.0 - 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))
    np.testing.assert_allclose(log_prob, expected.mean(), rtol=1e-4)
    codes = [numpy_code(critics.encoder, np.asarray(image)) for image in obs.image]
    inputs = np.concatenate([codes, obs.vector, np.tanh(u)[:, None]], axis=1)
    q = np.min(np.asarray(critics.heads.mlp.layers[0].weight)[:, 0] @ inputs.T, axis=0)
    np.testing.assert_allclose(loss, np.mean(alpha * expected - q), atol=1e-4)


def test_an_image_is_quantised_to_five_bits_with_noise_of_one_level():
    values = np.array([0, 7, 8, 127, 128, 248, 255], np.uint8)
    levels = np.array([0, 0, 1, 15, 16, 31, 31])
    image = np.broadcast_to(values, (300, 1, 1, 7))
    noise = np.asarray(autoencoder.quantised(jnp.asarray(image), KEY))[:, 0, 0] - (levels / 32 - 0.5).astype(np.float32)
    assert noise.min() >= -1e-7
    assert noise.max() < 1 / 32
    assert abs(noise.mean() - 1 / 64) < 1e-3
    assert np.unique(noise.round(6)).size > 1800, "every number has noise of its own"


def test_autoencoder_loss_is_the_squared_error_and_two_penalties(state):
    obs, parts = pixels(4), autoencoder.Autoencoder(state.critics.encoder, state.decoder)
    loss = jax.jit(jax.value_and_grad(autoencoder.autoencoder_loss, has_aux=True))
    (plain, error), grads = loss(parts, obs, KEY, 0.0, 0.0)
    codes = np.array([numpy_code(parts.encoder, np.asarray(image)) for image in obs.image])
    decoded = np.asarray(parts.decoder(f32(*codes)))
    np.testing.assert_allclose(plain, np.mean((decoded - autoencoder.quantised(obs.image, KEY)) ** 2), rtol=1e-4)
    assert plain == error
    (of_code, error), _ = loss(parts, obs, KEY, 10.0, 0.0)
    np.testing.assert_allclose(of_code - plain, 10.0 * 0.5 * np.mean(np.sum(codes**2, axis=1)), rtol=1e-4)
    assert plain == error
    _, decayed = loss(parts, obs, KEY, 0.0, 0.5)  # what weight decay adds to the gradient, of the decoder alone
    added = numbers(decayed.decoder)[0] - numbers(grads.decoder)[0]
    np.testing.assert_allclose(added, 0.5 * numbers(state.decoder)[0], atol=1e-5)
    np.testing.assert_array_equal(*numbers(decayed.encoder, grads.encoder))


def test_reconstruction_trains_the_convolutions(state):
    parts = autoencoder.Autoencoder(state.critics.encoder, state.decoder)
    grads = jax.jit(jax.grad(lambda x: autoencoder.autoencoder_loss(x, pixels(4), KEY, 0.0, 0.0)[0]))(parts)
    assert all(np.any(layer.weight) for layer in grads.encoder.convs.layers.convs)
    assert np.any(grads.encoder.projection.linear.weight)
    assert all(np.any(layer.weight) for layer in grads.decoder.layers)


# the update


def after(agent, state, count, replay, seed=0):
    """The states before and after each of `count` updates, and the metrics of each."""
    states, metrics = [state], []
    for i in range(count):
        state, found = agent.update(states[-1], replay, jax.random.key(seed + i))
        states.append(state)
        metrics.append(found)
    return states, metrics


def moved(before, after):
    """Names of the parts of the state that have changed."""
    return {
        name
        for name, a, b in zip(sac_ae.State._fields, before, after, strict=True)
        if jax.tree.leaves(a) and np.any(np.not_equal(*numbers(a, b)))
    }


RARE = {"actor", "actor_opt", "targets", "log_alpha", "alpha_opt"}
ALWAYS = {"critics", "critic_opt", "updates"}
OF_IMAGES = {"decoder", "autoencoder_opt"}


def test_actor_alpha_and_targets_move_at_every_second_update_and_all_else_at_every_one(state, drq_state):
    replay = replay_of(reward=1.0, discount=0.9)
    for agent, start, always in ((AE_AGENT, state, ALWAYS | OF_IMAGES), (DRQ_AGENT, drq_state, ALWAYS)):
        states, _ = after(agent, start, 4, replay)
        changes = [moved(*pair) for pair in itertools.pairwise(states)]
        assert changes[0] == changes[2] == always
        assert changes[1] == changes[3] == always | RARE


def test_without_an_error_of_the_critics_the_actor_moves_and_no_encoder_does(drq_state):
    """Q = 2 everywhere and every reward is a final 2: only the entropy is left to gain."""
    critics = heads(drq_state.critics, 0.0, 2.0)
    states, metrics = after(DRQ_AGENT, drq_state._replace(critics=critics), 2, replay_of(reward=2.0, discount=0.0))
    np.testing.assert_array_equal(*numbers(states[2].critics, critics))
    assert {"actor", "actor_opt"} <= moved(states[1], states[2])
    assert np.any(states[2].actor.projection.linear.weight != drq_state.actor.projection.linear.weight)
    assert metrics[0]["critic_loss"] == 0.0
    states, _ = after(DRQ_AGENT, drq_state._replace(critics=critics), 1, replay_of(reward=3.0, discount=0.0))
    learned = numbers(states[1].critics.encoder)[0] != numbers(drq_state.critics.encoder)[0]
    assert not np.any(learned), "these critics do not look at the code"
    states, _ = after(DRQ_AGENT, drq_state, 1, replay_of(reward=3.0, discount=0.0))
    assert np.any(np.not_equal(*numbers(states[1].critics.encoder.convs, drq_state.critics.encoder.convs)))


def test_reconstruction_alone_moves_the_encoder_and_the_targets_follow_what_stood_before_it(state):
    """Without an error of the critics. The second update moves the targets before its own reconstruction."""
    critics = heads(state.critics, 0.0, 2.0)
    start = state._replace(critics=critics, targets=critics)
    states, metrics = after(AE_AGENT, start, 2, replay_of(reward=2.0, discount=0.0))
    first = states[1].critics.encoder
    change = np.abs(np.subtract(*numbers(first, critics.encoder)))
    assert np.quantile(change, 0.95) == pytest.approx(RATES["autoencoder_lr"], rel=0.01)  # Adam's first step
    expected = 0.95 * numbers(critics.encoder)[0] + 0.05 * numbers(first)[0]
    np.testing.assert_allclose(numbers(states[2].targets.encoder)[0], expected, atol=1e-7)
    assert np.any(np.not_equal(*numbers(states[2].critics.encoder, first)))
    assert all(set(m) >= {"reconstruction_loss", "actor_loss", "critic_loss", "ent_coef", "q_mean"} for m in metrics)


def test_critics_autoencoder_and_actor_have_an_adam_each(state):
    """Adam's first step is as large as its step size, and the encoder makes two of them in the same update."""
    (_, first, second), _ = after(AE_AGENT, state, 2, replay_of(reward=1.0, discount=0.0))
    sizes = {
        "heads": (first.critics.heads, state.critics.heads, RATES["critic_lr"]),
        "decoder": (first.decoder, state.decoder, RATES["autoencoder_lr"]),
        "encoder": (first.critics.encoder, state.critics.encoder, RATES["critic_lr"] + RATES["autoencoder_lr"]),
        "actor": (second.actor, first.actor, RATES["actor_lr"]),
    }
    for name, (new, old, size) in sizes.items():
        change = np.abs(np.subtract(*numbers(new, old)))
        assert np.quantile(change, 0.98) == pytest.approx(size, rel=0.01), name


def test_actor_sees_the_convolutions_after_the_step_of_the_critics(drq_state):
    """One transition over and over, of one colour, which no shift changes; an actor almost without noise and α ≈ 0."""
    layout = rb.layout_of(SPEC)
    stored = layout.empty(20)
    views = layout.views(stored)
    views["obs"][:], views["action"][:], views["reward"][:] = 0.5, 0.3, 2.0
    views[rb.FRAME][:] = (250, 60, 120)
    mean_only = jnp.concatenate([drq_state.actor.mlp.layers[0].weight[:1], jnp.zeros((1, CODE + VECTOR))])
    start = drq_state._replace(actor=affine(drq_state.actor, mean_only, [0.0, -20.0]), log_alpha=f32(-30.0)[0])
    later, metrics = DRQ_AGENT.update(start, rb.holding(layout, stored, 20), KEY)
    one = Pixels(jnp.asarray(stored[rb.FRAME][0]), jnp.full(VECTOR, 0.5))

    def loss(convs):
        action = jnp.tanh(start.actor(convs(one))[0])
        found = autoencoder.state_of(later.critics.encoder.projection, convs(one))
        return -float(jnp.min(jax.vmap(lambda head: head(found, action))(later.critics.heads)))

    wrong = loss(start.critics.encoder.convs)
    assert abs(metrics["actor_loss"] - wrong) > 1e-3
    np.testing.assert_allclose(metrics["actor_loss"], loss(later.critics.encoder.convs), atol=1e-4)


def test_target_critics_move_by_tau_and_their_encoder_by_its_own(drq_state):
    other = DRQ_AGENT.init(jax.random.key(5)).critics
    start = drq_state._replace(targets=other, updates=jnp.int32(1))
    (_, found), _ = after(DRQ_AGENT, start, 1, replay_of(reward=1.0, discount=0.9))
    for part, tau in (("heads", 0.01), ("encoder", 0.05)):
        slow, old, new = numbers(*(getattr(x, part) for x in (found.targets, other, found.critics)))
        np.testing.assert_allclose(slow, (1 - tau) * old + tau * new, atol=1e-6)


def test_alpha_follows_adam_with_a_beta1_of_a_half(drq_state):
    """The loss α (−log π − H̄) is its own derivative by log α, so two losses give two steps of Adam."""
    states, metrics = after(DRQ_AGENT, drq_state, 4, replay_of(reward=1.0, discount=0.9))
    g1, g2 = (float(metrics[i]["ent_coef_loss"]) for i in (1, 3))
    m, v = 0.5 * (0.5 * g1) + 0.5 * g2, 0.999 * (0.001 * g1**2) + 0.001 * g2**2
    second = m / (1 - 0.5**2) / np.sqrt(v / (1 - 0.999**2))
    expected = np.log(0.1) - 1e-4 * (np.sign(g1) + second)
    np.testing.assert_allclose(states[4].log_alpha, expected, atol=1e-6)
    assert abs(1e-4 * second) > 5e-5


# shifted images


def every_shift(image, pad):
    """All (2 pad + 1)² shifts of an image whose edges are repeated."""
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    side = range(2 * pad + 1)
    return {padded[i : i + SIDE, j : j + SIDE].tobytes(): (i, j) for i in side for j in side}


def test_every_copy_of_every_image_has_a_shift_of_its_own():
    obs, next_obs = pixels(6), pixels(6, seed=1)
    batch = Transition(obs, f32(*range(6))[:, None], f32(*range(6)), f32(*range(6)), next_obs)
    found = jax.jit(partial(sac_ae_agent.shifted, copies=3, shift=2))(batch, KEY)
    shifts = {"obs": [], "next_obs": []}
    for name, images in (("obs", obs.image), ("next_obs", next_obs.image)):
        allowed = [every_shift(np.asarray(image), 2) for image in images]
        for i, image in enumerate(np.asarray(getattr(found, name).image)):
            shifts[name].append(allowed[i % 6][image.tobytes()])
        np.testing.assert_array_equal(getattr(found, name).vector, np.tile(getattr(batch, name).vector, (3, 1)))
        assert len(set(shifts[name])) > 8
    assert shifts["obs"] != shifts["next_obs"]
    np.testing.assert_array_equal(found.reward, np.tile(np.arange(6), 3))
    np.testing.assert_array_equal(found.action[:, 0], np.tile(np.arange(6), 3))
    same = sac_ae_agent.shifted(batch, KEY, 1, 0)
    np.testing.assert_array_equal(same.obs.image, obs.image)


def test_targets_are_averaged_over_the_copies_of_a_transition():
    np.testing.assert_array_equal(sac_ae_agent.averaged(f32(1, 2, 3, 6), 2), [2, 4, 2, 4])
    np.testing.assert_array_equal(sac_ae_agent.averaged(f32(1, 2, 3, 6), 1), [1, 2, 3, 6])


def test_targets_of_an_update_are_averages_over_the_copies():
    """Q̄ = a at wide actions, so a target has the variance of a, divided by the number of copies; Q = 0."""
    agent = compiled(dataclasses.replace(DRQ, copies=16, batch_size=64))
    start = agent.init(KEY)
    start = start._replace(
        actor=wide(start.actor),
        critics=heads(start.critics, 0.0, 0.0),
        targets=heads(start.targets, 1.0, 0.0),
        log_alpha=f32(-30.0)[0],
    )
    _, metrics = agent.update(start, replay_of(reward=0.0, discount=1.0), KEY)
    draws = np.tanh(np.exp(2.0) * np.random.default_rng(0).normal(size=100_000))
    np.testing.assert_allclose(metrics["critic_loss"], np.var(draws) / 16, rtol=0.4)


def test_only_drq_shifts_images():
    """The whole program of an update is the same without a shift, or it is not."""
    replay = replay_of(reward=1.0, discount=0.9)
    for config, same in ((CONFIG, True), (DRQ, False)):
        agents = [sac_ae.make(dataclasses.replace(config, shift=shift), SPEC) for shift in (0, 2)]
        start = jax.eval_shape(agents[0].init, KEY)
        programs = [jax.jit(agent.update).lower(start, replay, KEY).as_text() for agent in agents]
        assert (programs[0] == programs[1]) == same


def test_the_actor_learns_from_one_copy(monkeypatch):
    seen, plain = [], sac_ae_agent.for_actor
    monkeypatch.setattr(sac_ae_agent, "for_actor", lambda convs, obs: seen.append(obs.image.shape) or plain(convs, obs))
    agent = sac_ae.make(dataclasses.replace(DRQ, copies=3), SPEC)
    jax.eval_shape(agent.update, jax.eval_shape(agent.init, KEY), replay_of(reward=1.0, discount=0.9), KEY)
    assert seen == [(8, SIDE, SIDE, CHANNELS)]


# what every agent must keep to


@pytest.mark.parametrize("config", [CONFIG, DRQ], ids=["autoencoder", "drq"])
def test_update_keeps_the_state_as_it_is_made_and_uses_no_key_twice(config):
    agent, replay = sac_ae.make(config, SPEC), replay_of(reward=1.0, discount=0.9)
    before = jax.eval_shape(agent.init, KEY)
    found, metrics = jax.eval_shape(agent.update, before, replay, KEY)
    assert jax.tree.structure(before) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(found), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
    assert all(x.shape == () for x in metrics.values())
    assert ("reconstruction_loss" in metrics) == (config.decoder == "autoencoder")
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(agent.policy(before)))
    assert not uses_a_key_twice(agent.init, KEY)
    assert not uses_a_key_twice(agent.update, before, replay, KEY)


def test_convolutions_in_bfloat16_have_float32_parameters_and_nearly_the_same_results(state):
    agent, obs = sac_ae.make(dataclasses.replace(CONFIG, compute_dtype="bfloat16"), SPEC), pixels(8)
    made = jax.eval_shape(agent.init, KEY)
    assert all(x.dtype != jnp.bfloat16 for x in jax.tree.leaves(made))
    rough = jax.tree.unflatten(jax.tree.structure(made), jax.tree.leaves(state))
    codes = [np.asarray(jax.jit(x.critics.encoder.__call__)(obs)) for x in (rough, state)]
    assert codes[0].dtype == np.float32
    assert 1e-6 < np.abs(codes[0] - codes[1]).max() < 0.1
    pairs = [autoencoder.Autoencoder(x.critics.encoder, x.decoder) for x in (rough, state)]
    loss = jax.jit(lambda pair: autoencoder.autoencoder_loss(pair, obs, KEY, 0.0, 0.0)[0])
    losses = [float(loss(pair)) for pair in pairs]
    assert losses[0] != losses[1]
    np.testing.assert_allclose(*losses, rtol=0.01)
    one = jax.tree.map(lambda x: x[0], obs)
    np.testing.assert_array_equal(*(x.policy(s).convs(one)[0] for x, s in ((agent, rough), (FLOAT32, state))))


def test_without_a_vector_the_state_is_the_code():
    spec = dataclasses.replace(SPEC, obs_shape=(0,), frame_stack=3)
    _, critics, _ = jax.eval_shape(lambda key: sac_ae_agent.networks(DRQ, spec, key), KEY)
    assert critics.heads.mlp.layers[0].weight.shape == (2, 1, CODE + 1)
    assert critics.encoder.convs.layers.convs[0].weight.shape == (3, 3, 3 * CHANNELS, FILTERS)


# learning


def one_step_episodes(count):
    """Grey frames with a square in the middle, which is bright where 0.6 is the best action, and dark for −0.6."""
    spec = EnvSpec(obs_shape=(0,), frame=(SIDE, SIDE, 1), action_dim=1, gamma=0.9)
    rng, layout = np.random.default_rng(0), rb.layout_of(spec)
    stored = layout.empty(count)
    views, bright = layout.views(stored), rng.random(count) < 0.5
    views[rb.FRAME][:] = 120
    views[rb.FRAME][:, 6:14, 6:14] = np.where(bright, 200, 40)[:, None, None, None]
    views["action"][:] = rng.uniform(-1, 1, (count, 1))
    views["reward"][:] = 1.0 - (views["action"][:, 0] - np.where(bright, 0.6, -0.6)) ** 2
    views["discount"][:], views[rb.FIRST][:] = 0.0, True
    shown = [Pixels(jnp.asarray(views[rb.FRAME][bright == which][0]), jnp.zeros(0)) for which in (True, False)]
    return spec, rb.holding(layout, stored, count), shown


@pytest.mark.parametrize("decoder", [pytest.param("autoencoder", marks=pytest.mark.slow), "none"])
def test_the_action_that_an_image_asks_for_is_learned(decoder):
    spec, replay, shown = one_step_episodes(400)
    sizes = {"hidden": (64,), "filters": 8, "feature_dim": 8, "batch_size": 16, "shift": 2}
    config = sac_ae.Config(decoder, actor_lr=3e-3, critic_lr=3e-3, autoencoder_lr=3e-3, alpha_init=0.02, **sizes)
    agent = sac_ae.make(config, spec)

    update = jax.jit(agent.update)  # a scan would take five times as long on a CPU

    def error(state):
        actions = [agent.act(agent.policy(state), (), obs, KEY, False)[0][0] for obs in shown]
        return np.abs(np.array(actions) - [0.6, -0.6]).max()

    start = jax.jit(agent.init)(jax.random.key(3))
    state, losses = start, []
    for key in jax.random.split(KEY, 250):
        state, metrics = update(state, replay, key)
        losses.append(float(metrics.get("reconstruction_loss", 0.0)))
    assert error(start) > 0.4
    assert error(state) < 0.25
    if decoder == "autoencoder":
        assert np.mean(losses[-20:]) < 0.1 * np.mean(losses[:5])


def test_alpha_is_tuned_towards_minus_the_dimension_of_actions(state):
    _, metrics = AE_AGENT.update(state, replay_of(reward=1.0, discount=0.9), KEY)
    np.testing.assert_allclose(metrics["ent_coef"], 0.1, rtol=1e-6)
    target = sac.entropy_target(None, SPEC)
    np.testing.assert_allclose(metrics["ent_coef_loss"], 0.1 * (float(metrics["entropy"]) - target), rtol=1e-5)
