"""Networks against NumPy and against hand-worked numbers."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import critics_of, f32

from lsac.nn.networks import (
    ACTIVATIONS,
    MLP,
    Critic,
    Linear,
    compute_dtype,
    ensemble,
    gaussian_actor,
    gaussian_critic,
    in_float32,
    min_q,
    orthogonal,
    polyak,
    q_values,
    redrawn,
    select,
)

NUMPY_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "gelu": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


def filled(make):
    """A module of the shapes that `make` gives, with normal weights from NumPy: nothing to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(make, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)


def with_weights(module, weight, bias):
    """The module with its first layer set."""
    layer = (np.array(weight, np.float32), np.array(bias, np.float32))
    return eqx.tree_at(lambda m: (m.mlp.layers[0].weight, m.mlp.layers[0].bias), module, layer)


def numpy_mlp(mlp, x):
    """The forward pass in float64, from the weights alone."""
    activate = NUMPY_ACTIVATIONS[mlp.activation]
    *inner, last = [(layer.weight.astype(np.float64), layer.bias.astype(np.float64)) for layer in mlp.layers]
    for weight, bias in inner:
        x = activate(x @ weight.T + bias)
    return x @ last[0].T + last[1]


def test_linear_is_weight_times_x_plus_bias():
    layer = eqx.tree_at(
        lambda m: (m.weight, m.bias),
        filled(lambda key: Linear(2, 3, key)),
        (np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], np.float32), np.array([0.5, -0.5, 0.0], np.float32)),
    )
    np.testing.assert_array_equal(layer(np.array([1.0, -1.0], np.float32)), [-2.5, -3.5, -3.0])


def test_linear_weights_and_bias_fill_plus_minus_one_over_root_fan_in():
    layer = jax.device_get(Linear(16, 500, jax.random.key(0)))
    for values in (layer.weight, layer.bias):
        magnitude = np.abs(values)
        assert 0.24 < magnitude.max() <= 0.25
        assert abs(magnitude.mean() - 0.125) < 0.02
        assert abs(values.mean()) < 0.03
    assert np.isin(layer.bias, layer.weight).mean() < 0.05


def test_gradient_of_a_weight_over_a_batch_is_not_transposed():
    layer, x = filled(lambda key: Linear(3, 2, key)), jnp.ones((5, 3))
    program = str(jax.make_jaxpr(jax.grad(lambda m: jnp.sum(jax.vmap(m)(x) ** 2)))(layer))
    assert program.count("dot_general") == 2
    assert "transpose" not in program


def test_mish_and_its_slope_are_right_far_out():
    x = np.array([-200.0, -30.0, -1.0, 0.0, 1.0, 19.0, 21.0, 200.0], np.float32)
    values, slopes = jax.vmap(jax.value_and_grad(ACTIVATIONS["mish"]))(x)
    y = x.astype(np.float64)
    softplus, sigmoid = np.logaddexp(0.0, y), 1.0 / (1.0 + np.exp(-y))
    np.testing.assert_allclose(values, y * np.tanh(softplus), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(slopes, np.tanh(softplus) + y * sigmoid / np.cosh(softplus) ** 2, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("activation", NUMPY_ACTIVATIONS)
def test_mlp_equals_numpy(activation):
    mlp = filled(lambda key: MLP((3, 5, 4, 2), activation, key))
    x = np.array([[0.3, -1.2, 2.0], [-3.0, 0.1, 0.7]], np.float32)
    np.testing.assert_allclose(jax.jit(jax.vmap(mlp))(x), numpy_mlp(mlp, x), rtol=1e-5, atol=1e-6)


def test_the_last_layer_of_an_mlp_is_linear():
    mlp = filled(lambda key: MLP((2, 1), "relu", key))
    f = jax.jit(lambda x: mlp(x) - mlp(jnp.zeros(2)))
    x = np.array([100.0, -200.0], np.float32)
    np.testing.assert_allclose(f(x), -f(-x), rtol=1e-5)


@pytest.mark.parametrize(("backend", "dtype"), [("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")])
def test_the_dtype_follows_the_back_end_unless_it_is_given(backend, dtype, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert [compute_dtype(option) for option in ("auto", "float32", "bfloat16")] == [dtype, "float32", "bfloat16"]


def test_an_mlp_in_bfloat16_rounds_its_hidden_layers_only():
    make = functools.partial(MLP, (3, 64, 64, 2), "gelu", jax.random.key(0))
    exact, rounded = make(), make(compute_dtype="bfloat16")
    x = jax.random.normal(jax.random.key(1), (200, 3))
    expected, found = (jax.jit(jax.vmap(mlp))(x) for mlp in (exact, rounded))
    assert found.dtype == jnp.float32
    error = np.abs(found - expected).max() / np.std(expected)
    assert 1e-4 < error < 2e-2
    # an input or an output in bfloat16 would not change by a difference of 2⁻¹² of its size
    steps = np.linspace(1.0, 1.0 + 2.0**-8, 16, dtype=np.float32)
    inputs = jnp.stack([jnp.asarray([a, 0.5, 0.5]) for a in steps])
    assert len(np.unique(jax.jit(jax.vmap(rounded))(inputs)[:, 0])) > 8


def test_parameters_and_gradients_of_an_mlp_in_bfloat16_are_float32():
    mlp = MLP((3, 8, 8, 1), "gelu", jax.random.key(0), "bfloat16")
    grads = jax.jit(jax.grad(lambda mlp: jnp.sum(jax.vmap(mlp)(jnp.ones((4, 3))))))(mlp)
    assert {x.dtype for x in jax.tree.leaves((mlp, grads))} == {jnp.dtype("float32")}
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grads))


def test_the_slope_of_gelu_is_computed_from_its_argument_and_nothing_else_is_stored():
    slope, x = jax.grad(ACTIVATIONS["gelu"]), np.linspace(-4.0, 4.0, 33, dtype=np.float32)
    inner = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
    rise = np.sqrt(2.0 / np.pi) * (1.0 + 3 * 0.044715 * x**2)
    expected = 0.5 * (1.0 + np.tanh(inner)) + 0.5 * x * (1.0 - np.tanh(inner) ** 2) * rise
    np.testing.assert_allclose(jax.vmap(slope)(x), expected, rtol=1e-5, atol=1e-6)
    _, backward = jax.vjp(ACTIVATIONS["gelu"], jnp.asarray(x))
    stored = [leaf for leaf in jax.tree.leaves(backward) if leaf.size == x.size]
    assert len(stored) == 1
    np.testing.assert_array_equal(stored[0], x)


def test_a_network_acts_in_float32_with_the_same_parameters():
    rounded = gaussian_actor(3, 2, (64, 64), "gelu", jax.random.key(0), (-20.0, 2.0))
    rounded = eqx.tree_at(lambda a: a.mlp, rounded, MLP((3, 64, 64, 4), "gelu", jax.random.key(0), "bfloat16"))
    exact = in_float32(rounded)
    assert (rounded.mlp.compute_dtype, exact.mlp.compute_dtype) == ("bfloat16", "float32")
    assert all(a is b for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(exact), strict=True))
    plain = MLP((3, 64, 64, 4), "gelu", jax.random.key(0))
    np.testing.assert_array_equal(exact.mlp(jnp.ones(3)), plain(jnp.ones(3)))


def test_layers_and_ensemble_members_are_drawn_independently():
    stack = ensemble(lambda key: MLP((3, 3, 3), "relu", key), 4, jax.random.key(0))
    leaves = jax.tree.leaves(stack)
    assert all(isinstance(leaf, jax.Array) and leaf.shape[0] == 4 for leaf in leaves)
    everything = np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])
    assert np.unique(everything).size == everything.size == 4 * 24


def test_ensemble_member_is_what_its_key_makes():
    stack = ensemble(lambda k: Linear(3, 2, k), 3, jax.random.key(0))
    keys = jax.random.split(jax.random.key(0), 3)
    for i in range(3):
        np.testing.assert_allclose(stack.weight[i], Linear(3, 2, keys[i]).weight, rtol=1e-6)


def test_critic_reads_observation_then_action_and_gives_a_scalar():
    critic = with_weights(filled(lambda key: Critic(2, 1, (), "relu", key)), [[1.0, 10.0, 100.0]], [0.5])
    q = critic(np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32))
    assert q.shape == ()
    assert q == 321.5


def test_gaussian_critic_gives_the_mean_and_a_positive_std():
    critic = with_weights(filled(lambda key: gaussian_critic(1, 1, (), "relu", key)), [[1, 10], [0, 0]], [0.5, -3.0])
    mean, std = critic(np.array([1.0], np.float32), np.array([2.0], np.float32))
    assert mean == 21.5
    np.testing.assert_allclose(std, np.log1p(np.exp(-3.0)), rtol=1e-6)


def test_actor_gives_mean_and_clipped_log_std():
    actor = filled(lambda key: gaussian_actor(1, 2, (), "relu", key, (-20.0, 2.0)))
    actor = with_weights(actor, np.zeros((4, 1)), [7.0, -50.0, 5.0, -30.0])
    mean, log_std = actor(np.zeros(1, np.float32))
    np.testing.assert_array_equal(mean, [7.0, -50.0])
    np.testing.assert_array_equal(log_std, [2.0, -20.0])


def test_q_values_equal_a_loop_over_critics_and_batch():
    critics = filled(lambda key: ensemble(lambda k: Critic(3, 2, (6,), "relu", k), 2, key))
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    got = np.asarray(jax.jit(q_values)(critics, obs, action))
    assert got.shape == (2, 4)
    for k in range(2):
        member = jax.tree.map(lambda leaf, k=k: leaf[k], critics)
        for b in range(4):
            expected = numpy_mlp(member.mlp, np.concatenate([obs[b], action[b]]))[0]
            np.testing.assert_allclose(got[k, b], expected, rtol=1e-5, atol=1e-6)


def test_min_q_is_the_smaller_critic_of_every_pair_by_itself():
    # Q_1 = s, Q_2 = −a at (1, 2), (−3, 2), (4, −5)
    obs, action = f32(1, -3, 4)[:, None], f32(2, 2, -5)[:, None]
    np.testing.assert_array_equal(min_q(critics_of((1, 0, 0), (0, -1, 0)), obs, action), [-2, -3, 4])


def test_redrawn_networks_have_zero_biases_and_weights_drawn_for_inputs_and_outputs():
    seen = []

    def draw(key, shape):
        seen.append(shape)
        return jnp.full(shape, len(seen), jnp.float32).at[0].set(0.0)

    mlp = redrawn(filled(lambda key: MLP((3, 5, 2), "relu", key)), draw, jax.random.key(0), last_scale=0.5)
    assert seen == [(3, 5), (5, 2)], "initialisers take [in, out]"
    for layer, value in zip(mlp.layers, (1.0, 1.0), strict=True):
        expected = np.full(layer.weight.shape, value)
        expected[:, 0] = 0.0
        np.testing.assert_array_equal(layer.weight, expected)
        assert not np.any(layer.bias)


@pytest.mark.parametrize(("now", "winner"), [(True, [1.0, 2.0]), (False, [3.0, 2.0])])
def test_select_takes_the_new_where_it_is_due(now, winner):
    same = f32(2.0)
    chosen = select(jnp.asarray(now), (f32(1.0), same), (f32(3.0), same))
    np.testing.assert_array_equal(np.concatenate(chosen), winner)
    assert chosen[1] is same


def test_polyak_by_hand():
    old = {"a": jnp.array([0.0, 10.0]), "b": jnp.array(-4.0)}
    new = {"a": jnp.array([8.0, 10.0]), "b": jnp.array(4.0)}
    mixed = polyak(old, new, 0.25)
    np.testing.assert_array_equal(mixed["a"], [2.0, 10.0])
    np.testing.assert_array_equal(mixed["b"], -2.0)


@pytest.mark.parametrize(("tau", "winner"), [(0.0, [1.0, 2.0]), (1.0, [-3.0, 8.0])])
def test_tau_is_the_weight_of_the_new_parameters(tau, winner):
    np.testing.assert_array_equal(polyak(jnp.array([1.0, 2.0]), jnp.array([-3.0, 8.0]), tau), winner)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_orthogonal_matrices_are_those_of_jax(shape):
    key = jax.random.key(7)
    expected = jax.nn.initializers.orthogonal(2.0)(key, shape)
    np.testing.assert_allclose(orthogonal(key, shape, 2.0), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 300), (64, 256)])
def test_orthogonal_matrices_are_orthogonal_at_any_size(shape):
    found = np.asarray(orthogonal(jax.random.key(0), shape), np.float64)
    np.testing.assert_allclose(found @ found.T, np.eye(shape[0]), atol=2e-6)
