"""Networks with batch normalisation: statistics of the batch in training, running ones elsewhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lsac.nn.batch_norm import AXIS, BatchNorm, BatchNormNet, InTraining, with_new_statistics, without_statistics

KEY = jax.random.key(0)
BATCH = np.random.default_rng(0).normal(3.0, 2.0, (16, 4)).astype(np.float32)


def some_layer():
    layer = BatchNorm(4)
    values = (jnp.arange(1.0, 5.0), jnp.ones(4), jnp.full(4, 0.5), jnp.full(4, 4.0))
    return eqx.tree_at(lambda x: (x.gain, x.bias, x.mean, x.variance), layer, values)


def in_training(function, batch):
    return jax.vmap(function, axis_name=AXIS)(jnp.asarray(batch))


def test_a_layer_normalises_by_the_batch_in_training_and_by_its_running_statistics_elsewhere():
    layer = some_layer()
    trained = in_training(lambda x: layer(x, True), BATCH)
    expected = (BATCH - BATCH.mean(0)) / np.sqrt(BATCH.var(0) + 1e-5) * np.arange(1.0, 5.0) + 1.0
    np.testing.assert_allclose(trained, expected, rtol=1e-4, atol=1e-5)
    used = in_training(lambda x: layer(x, False), BATCH)
    np.testing.assert_allclose(used, (BATCH - 0.5) / np.sqrt(4.0 + 1e-5) * np.arange(1.0, 5.0) + 1.0, rtol=1e-4)


def test_the_gradient_flows_through_the_statistics_of_the_batch():
    """The sum over the batch of a normalised feature is constant, so its gradient by the inputs is 0."""
    layer = some_layer()
    by_input = jax.grad(lambda batch: jnp.sum(in_training(lambda x: layer(x, True), batch)))(jnp.asarray(BATCH))
    np.testing.assert_allclose(by_input, 0.0, atol=1e-5)
    weights = jnp.arange(64.0).reshape(16, 4)

    def loss(batch):
        return jnp.sum(weights * in_training(lambda x: layer(x, True), batch))

    def plain(batch):
        normal = (batch - batch.mean(0)[None]) / jnp.sqrt(batch.var(0) + 1e-5)[None]
        return jnp.sum(weights * (normal * layer.gain[None] + layer.bias[None]))

    mine, wanted = (jax.grad(f)(jnp.asarray(BATCH)) for f in (loss, plain))
    np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=1e-4)


def test_running_statistics_move_a_hundredth_of_the_way_to_those_of_the_batch_whatever_the_loss():
    layer = some_layer()
    for scale in (0.0, 100.0):
        grads = jax.grad(lambda x, s=scale: s * jnp.sum(in_training(lambda row: x(row, True) ** 2, BATCH)))(layer)
        np.testing.assert_allclose(grads.mean, 0.5 - BATCH.mean(0), rtol=1e-4)
        np.testing.assert_allclose(grads.variance, 4.0 - BATCH.var(0), rtol=1e-4)
    cleaned = without_statistics(grads)
    np.testing.assert_array_equal(cleaned.mean, 0.0)
    np.testing.assert_array_equal(cleaned.gain, grads.gain)
    updates = with_new_statistics(jax.tree.map(jnp.ones_like, layer), grads)
    np.testing.assert_allclose(layer.mean + updates.mean, 0.99 * 0.5 + 0.01 * BATCH.mean(0), rtol=1e-5)
    np.testing.assert_array_equal(updates.gain, 1.0)


def by_hand(network, statistics):
    """Outputs of a network with one block for the batch, with mean and variance of every layer's inputs."""

    def normal(layer, x):
        mean, variance = statistics(layer, x)
        return (x - mean) / np.sqrt(variance + 1e-5) * np.asarray(layer.gain) + np.asarray(layer.bias)

    (block,) = network.blocks
    h = normal(network.input_norm, BATCH.astype(np.float64)) @ np.asarray(network.embed.weight).T
    inner = np.maximum(normal(block.into_norm, h @ np.asarray(block.into.weight).T), 0.0)
    h = h + np.maximum(normal(block.out_norm, inner @ np.asarray(block.out.weight).T), 0.0)
    h = h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-5)
    return h @ np.asarray(network.last.weight).T + np.asarray(network.last.bias)


def test_the_network_by_hand():
    network = BatchNormNet(4, 6, 1, 3, KEY)
    rng = np.random.default_rng(1)
    network = jax.tree.map(lambda x: x + jnp.asarray(rng.uniform(0.0, 0.2, x.shape), jnp.float32), network)

    expected = by_hand(network, lambda layer, x: (x.mean(0), x.var(0)))
    np.testing.assert_allclose(in_training(InTraining(network), BATCH), expected, rtol=1e-3, atol=1e-4)


def test_outside_training_the_network_uses_its_running_statistics():
    network = BatchNormNet(4, 6, 1, 3, KEY)
    rng = np.random.default_rng(2)
    network = jax.tree.map(lambda x: x + jnp.asarray(rng.uniform(0.0, 0.5, x.shape), jnp.float32), network)
    wanted = by_hand(network, lambda layer, x: (np.asarray(layer.mean), np.asarray(layer.variance)))
    np.testing.assert_allclose(jax.vmap(network)(jnp.asarray(BATCH)), wanted, rtol=1e-3, atol=1e-4)
