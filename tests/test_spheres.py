"""Networks on spheres, and samplers that keep them there."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from lsac.nn import langevin, spheres
from lsac.nn.optimisers import adam
from lsac.nn.spheres import SphereNet, UnitLinear, on_spheres, unit

KEY = jax.random.key(0)
WIDTH, BLOCKS, INPUT, OUTPUT = 6, 2, 4, 3


@pytest.fixture(scope="module")
def network():
    return SphereNet(INPUT, WIDTH, BLOCKS, OUTPUT, KEY)


def rows_of(network):
    layers = jax.tree.leaves(network, is_leaf=lambda x: isinstance(x, UnitLinear))
    return np.concatenate([np.linalg.norm(x.weight, axis=-1).ravel() for x in layers if isinstance(x, UnitLinear)])


def in_numpy(network, x):
    """The network of the paper, step by step."""

    def normed(x):
        return x / np.linalg.norm(x)

    def gained(gain, x):
        return x * np.asarray(gain.stored, np.float64) * gain.first / gain.size

    h = normed(gained(network.embed_gain, network.embed.weight @ normed(np.append(x, 3.0))))
    for block in network.blocks:
        inner = np.maximum(gained(block.gain, block.into.weight @ h), 0.0)
        h = normed(h + gained(block.share, normed(block.out.weight @ inner) - h))
    features = gained(network.head_gain, network.head.weight @ h)
    return network.last.weight @ features + network.last.bias


def test_the_network_by_hand(network):
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: x + jnp.asarray(rng.normal(0, 0.2, x.shape), jnp.float32), network)
    x = rng.normal(0, 3, INPUT)
    np.testing.assert_allclose(moved(jnp.asarray(x, jnp.float32)), in_numpy(moved, x), rtol=1e-4, atol=1e-5)


def test_gains_start_where_they_should_and_blocks_share_the_way(network):
    assert len(network.blocks) == BLOCKS
    np.testing.assert_allclose(network.embed_gain(jnp.ones(WIDTH)), (2 / WIDTH) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(network.blocks[0].gain(jnp.ones(24)), (2 / 24) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(network.blocks[1].share(jnp.ones(WIDTH)), 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(network.blocks[1].share.stored, WIDTH**-0.5, rtol=1e-6)
    np.testing.assert_allclose(network.head_gain(jnp.ones(WIDTH)), 1.0)


def test_rows_are_unit_vectors_at_first_and_orthogonal_where_they_can_be(network):
    np.testing.assert_allclose(rows_of(network), 1.0, rtol=1e-6)
    weight = np.asarray(network.head.weight)
    np.testing.assert_allclose(weight @ weight.T, np.eye(WIDTH), atol=1e-5)


def test_the_size_of_the_weights_does_not_matter_before_the_last_layers(network):
    scaled = eqx.tree_at(lambda n: (n.embed.weight, n.blocks[0].into.weight), network, replace_fn=lambda w: 3.0 * w)
    x = jnp.arange(4.0)
    np.testing.assert_allclose(scaled(x), network(x), rtol=1e-5)


def test_the_size_of_the_input_matters(network):
    assert not np.allclose(network(jnp.ones(INPUT)), network(2.0 * jnp.ones(INPUT)), rtol=1e-3)


def test_half_precision_keeps_the_parameters_and_the_output_wide():
    wide, narrow = (SphereNet(INPUT, 32, BLOCKS, OUTPUT, KEY, dtype) for dtype in ("float32", "bfloat16"))
    x = jnp.arange(4.0)
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow)} == {jnp.dtype("float32")}
    assert narrow(x).dtype == jnp.float32
    np.testing.assert_allclose(narrow(x), wide(x), rtol=0.1, atol=0.03)
    assert not np.array_equal(narrow(x), wide(x))


@pytest.mark.parametrize("optimiser", [adam(0.1), langevin.asgld(0.1, 10.0)], ids=["adam", "asgld"])
def test_rows_stay_unit_vectors_and_other_parameters_move_as_without_spheres(network, optimiser):
    rng = np.random.default_rng(1)
    grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), network)
    extra = {"key": KEY} if isinstance(optimiser, langevin.Sampler) else {}
    plain, _ = optimiser.update(grads, optimiser.init(network), network, **extra)
    found, _ = on_spheres(optimiser).update(grads, optimiser.init(network), network, **extra)
    after = eqx.apply_updates(network, found)
    np.testing.assert_allclose(rows_of(after), 1.0, rtol=1e-5)
    assert np.abs(np.asarray(after.embed.weight - network.embed.weight)).max() > 0.05
    for name in ("last", "head_gain"):
        jax.tree.map(np.testing.assert_array_equal, getattr(found, name), getattr(plain, name))


def test_only_the_tangent_part_of_a_step_moves_a_row():
    layer = eqx.tree_at(lambda x: x.weight, UnitLinear(2, 1, KEY), jnp.array([[1.0, 0.0]]))
    along, across = (eqx.tree_at(lambda x: x.weight, layer, jnp.array([step])) for step in ([0.3, 0.0], [0.3, 0.2]))
    np.testing.assert_allclose(spheres.retracted(layer, along).weight, 0.0, atol=1e-7)
    np.testing.assert_allclose(
        layer.weight + spheres.retracted(layer, across).weight, unit(jnp.array([[1.0, 0.2]])), rtol=1e-6
    )


def test_unbounded_parameters_are_all_but_the_rows(network):
    found = sum(x.size for x in spheres.unbounded(network))
    rows = sum(
        x.size for x in jax.tree.leaves((network.embed, network.head, [(b.into, b.out) for b in network.blocks]))
    )
    assert found == sum(x.size for x in jax.tree.leaves(network)) - rows
    assert found == WIDTH + BLOCKS * (24 + WIDTH) + WIDTH + OUTPUT * (WIDTH + 1)


@pytest.mark.computing
@pytest.mark.parametrize(("size", "beta"), [(3, 5.0), (64, 40.0)])
def test_langevin_dynamics_on_a_sphere_has_the_von_mises_fisher_law(size, beta):
    """L(θ) = −μ·θ: under exp(−β L), E[μ·θ] is the ratio of Bessel functions I_{n/2}(β) / I_{n/2−1}(β)."""
    chains, steps, eta = 512, 3_000, 0.02 if size == 3 else 0.01
    sampler = on_spheres(langevin.sgld(eta, beta))
    grads = eqx.tree_at(lambda x: x.weight, UnitLinear(size, 1, KEY), -jnp.eye(1, size))

    def step(carry, key):
        layer, state = carry
        updates, state = sampler.update(grads, state, layer, key=key)
        layer = eqx.apply_updates(layer, updates)
        return (layer, state), layer.weight[0, 0]

    def chain(key):
        layer = UnitLinear(size, 1, key)
        return jax.lax.scan(step, (layer, sampler.init(layer)), jax.random.split(key, steps))[1]

    cosines = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(KEY, chains)))[:, steps // 2 :]
    expected = special.iv(size / 2, beta) / special.iv(size / 2 - 1, beta)
    error = float(cosines.mean(axis=1).std()) / chains**0.5
    assert float(cosines.mean()) == pytest.approx(expected, abs=4 * error + 0.01)
    assert error < 0.005
