"""The recurrent state-space model against NumPy, and what it forgets where an episode starts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.nn import rssm
from lsac.nn.rssm import Gru, Normal, Rssm, Sizes, State

KEY = jax.random.key(0)
EMBEDDING, ACTIONS, STEPS = 5, 2, 7
MODEL = Rssm(Sizes(deterministic=4, stochastic=3, units=6), EMBEDDING, ACTIONS, KEY)
observe = jax.jit(rssm.observe)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elu(x):
    return np.where(x > 0, x, np.expm1(x))


def gru_reference(gru, state, x):
    """Gate by gate, in float64."""
    of_input, of_state = (np.asarray(layer.weight, np.float64) for layer in (gru.from_input, gru.from_state))
    b_input, b_state = (np.asarray(layer.bias, np.float64) for layer in (gru.from_input, gru.from_state))
    n = len(state)
    gate = [slice(0, n), slice(n, 2 * n), slice(2 * n, 3 * n)]
    inputs = [of_input[g] @ x + b_input[g] for g in gate]
    recurrent = [of_state[g] @ state + b_state[g] for g in gate]
    update, reset = sigmoid(inputs[0] + recurrent[0]), sigmoid(inputs[1] + recurrent[1])
    return update * state + (1 - update) * np.tanh(inputs[2] + reset * recurrent[2])


def advance_reference(model, state, action):
    layer = model.joined.layers[0]
    x = elu(np.asarray(layer.weight) @ np.concatenate([state.stochastic, action]) + np.asarray(layer.bias))
    return gru_reference(model.gru, np.asarray(state.deterministic), x)


def mlp_reference(mlp, x):
    for layer in mlp.layers[:-1]:
        x = elu(np.asarray(layer.weight) @ x + np.asarray(layer.bias))
    return np.asarray(mlp.layers[-1].weight) @ x + np.asarray(mlp.layers[-1].bias)


def with_random_biases(tree):
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(1)
    return jax.tree.unflatten(
        structure, [x + jnp.asarray(rng.normal(size=x.shape), x.dtype) if x.ndim == 1 else x for x in leaves]
    )


def sequence(seed=0):
    """Embeddings [T, E] and actions [T, A]."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(STEPS, n)), jnp.float32) for n in (EMBEDDING, ACTIONS))


def starts(*where):
    return jnp.zeros(STEPS, bool).at[jnp.array(where, int)].set(True)


def rows(tree, which):
    return [np.asarray(x)[which] for x in jax.tree.leaves(tree)]


# one step


def test_gru_equals_an_independent_reference_gate_by_gate():
    gru = with_random_biases(Gru(3, 4, KEY))
    rng = np.random.default_rng(0)
    state, x = rng.normal(size=4), rng.normal(size=3)
    found = jax.jit(Gru.__call__)(gru, jnp.asarray(state, jnp.float32), jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, gru_reference(gru, state, x), rtol=1e-5, atol=1e-6)


def test_a_gru_whose_update_gate_is_open_keeps_its_state():
    gru = Gru(3, 2, KEY)
    open_gate = eqx.tree_at(lambda g: g.from_input.bias, gru, jnp.array([50.0, 50.0, 0.0, 0.0, 0.0, 0.0]))
    state = jnp.array([0.3, -0.9])
    np.testing.assert_allclose(open_gate(state, jnp.ones(3)), state, rtol=1e-6)


def test_initial_weights_are_glorot_uniform_and_the_recurrent_ones_orthogonal():
    gru = Gru(50, 100, KEY)
    weight = np.asarray(gru.from_input.weight)
    assert weight.shape == (300, 50)
    bound = np.sqrt(6 / (50 + 300))
    assert 0.99 * bound < np.abs(weight).max() <= bound
    recurrent = np.asarray(gru.from_state.weight)
    np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(100), atol=1e-5)
    assert not np.any(gru.from_input.bias)
    assert not np.any(gru.from_state.bias)


def test_kl_of_two_gaussians_worked_out_by_hand():
    # KL(N(1, 2²) ‖ N(0, 1)) = −log 2 + (4 + 1)/2 − 1/2 and KL(N(0, 1) ‖ N(3, ½²)) = log ½ + (1 + 9)·2 − ½
    first = Normal(jnp.array([1.0, 0.0]), jnp.array([2.0, 1.0]))
    second = Normal(jnp.array([0.0, 3.0]), jnp.array([1.0, 0.5]))
    np.testing.assert_allclose(first.kl(second), (2 - np.log(2)) + (19.5 - np.log(2)), rtol=1e-6)
    np.testing.assert_allclose(first.kl(first), 0.0, atol=1e-6)


def test_the_next_state_equals_an_independent_reference():
    model = with_random_biases(MODEL)
    rng = np.random.default_rng(2)
    state = State(*(jnp.asarray(rng.normal(size=n), jnp.float32) for n in (4, 3)))
    action, embedding, noise = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in (2, 5, 3))
    deterministic = advance_reference(model, state, action)
    for found, outputs in (
        (model.predict(state, action, noise), mlp_reference(model.of_prior, deterministic)),
        (
            model.observe(state, action, embedding, noise),
            mlp_reference(model.of_posterior, np.concatenate([deterministic, embedding])),
        ),
    ):
        std = np.log1p(np.exp(outputs[3:])) + 0.1
        np.testing.assert_allclose(found.deterministic, deterministic, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.stochastic, outputs[:3] + std * np.asarray(noise), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.features, np.concatenate([found.stochastic, found.deterministic]))


def test_no_std_is_less_than_a_tenth():
    silent = eqx.tree_at(lambda m: m.of_prior.layers[-1].bias, MODEL, jnp.full(6, -100.0))
    np.testing.assert_allclose(silent.prior(jnp.zeros(4)).std, 0.1, rtol=1e-6)


def test_states_are_float32_also_where_layers_compute_in_bfloat16():
    narrow = Rssm(MODEL.sizes, EMBEDDING, ACTIONS, KEY, "bfloat16")
    embedding, action = sequence()
    exact, found = observe(MODEL, embedding, action, starts(0), KEY), observe(narrow, embedding, action, starts(0), KEY)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(found.states.deterministic, exact.states.deterministic, atol=0.05)
    assert np.any(np.asarray(found.states.deterministic) != np.asarray(exact.states.deterministic))


# sequences


def test_a_sequence_is_its_steps_each_with_the_action_before():
    embedding, action = sequence()
    found = observe(MODEL, embedding, action, starts(), KEY)
    noise = jax.random.normal(KEY, (2, STEPS, 3))[0]
    state, before = MODEL.initial(), jnp.zeros(ACTIONS)
    for t in range(STEPS):
        deterministic = MODEL.advance(state, before)
        prior, posterior = MODEL.prior(deterministic), MODEL.posterior(deterministic, embedding[t])
        state = MODEL.observe(state, before, embedding[t], noise[t])
        before = action[t]
        for one, many in ((state, found.states), (prior, found.prior), (posterior, found.posterior)):
            for a, b in zip(jax.tree.leaves(one), rows(many, t), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flagged", [True, False])
def test_nothing_of_an_episode_reaches_the_next_one(flagged):
    first = starts(3) if flagged else starts()
    embedding, action = sequence()
    other, other_action = sequence(seed=9)
    one = observe(MODEL, embedding, action, first, KEY)
    mixed = jnp.concatenate([other[:3], embedding[3:]]), jnp.concatenate([other_action[:3], action[3:]])
    two = observe(MODEL, *mixed, first, KEY)
    later = slice(3, None)
    same = all(np.array_equal(a, b) for a, b in zip(rows(one[:3], later), rows(two[:3], later), strict=True))
    assert same == flagged


def test_no_gradient_flows_from_an_episode_into_the_one_before():
    embedding, action = sequence()

    def later(embedding, action):
        return jnp.sum(observe(MODEL, embedding, action, starts(3), KEY).states.features[3:])

    of_embedding, of_action = jax.jit(jax.grad(later, (0, 1)))(embedding, action)
    assert not np.any(of_embedding[:3])
    assert not np.any(of_action[:3])
    assert np.all(np.any(of_embedding[3:], axis=1))
    assert np.all(np.any(of_action[3:-1], axis=1))


def test_every_episode_starts_like_a_sequence():
    embedding, action = sequence()
    found = observe(MODEL, embedding, action, starts(3), KEY)
    begin = advance_reference(MODEL, State(np.zeros(4), np.zeros(3)), np.zeros(ACTIONS))
    for t in (0, 3):
        np.testing.assert_allclose(found.states.deterministic[t], begin, rtol=1e-4, atol=1e-6)
    assert np.abs(found.states.deterministic[4] - begin).max() > 1e-3


def test_every_state_is_also_predicted_from_the_one_before_even_at_the_end_of_an_episode():
    embedding, action = sequence()
    found = observe(MODEL, embedding, action, starts(3), KEY)
    noise = jax.random.normal(KEY, (2, STEPS, 3))[1]
    for t in range(
        1, STEPS
    ):  # the episode that starts at 3 does not follow from the state at 2, but the prediction does
        before = jax.tree.map(lambda x, t=t: x[t - 1], found.states)
        expected = MODEL.predict(before, action[t - 1], noise[t])
        for a, b in zip(expected, rows(found.predicted, t), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
