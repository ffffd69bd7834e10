"""Two networks as one: what is stacked comes apart again, and learns as the two would on their own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import numbers

from lsac.nn import fused
from lsac.nn.networks import MLP
from lsac.nn.optimisers import adam

KEY = jax.random.key(0)
FIRST, SECOND = 1e-2, 3e-3  # step sizes


def parts_of(outputs=3, hidden=(8, 6)):
    """Two networks of five inputs, and two numbers that belong to neither."""
    keys = jax.random.split(KEY, 3)
    first, second = (MLP((5, *hidden, n), "tanh", key) for n, key in ((outputs, keys[0]), (1, keys[1])))
    return first, second, jax.random.normal(keys[2], (2,))


def loss_of(mean, value, rest, scale):
    """Something that every number of all parts has to do with, and parts only with themselves."""
    return jnp.mean(mean**2) + jnp.mean((value - scale) ** 2) + jnp.sum(jnp.sin(scale * rest))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("hidden", [(), (8, 6)])
def test_to_pair_and_to_unpair_is_to_do_nothing(outputs, hidden):
    parts = parts_of(outputs, hidden)
    again = fused.unpair(fused.pair(*parts))
    assert jax.tree.structure(again) == jax.tree.structure(parts)
    for new, old in zip(jax.tree.leaves(again), jax.tree.leaves(parts), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_vector_restores_the_pair_it_was_made_of():
    pair = fused.pair(*parts_of())
    vector, restore = fused.flat(pair)
    assert vector.shape == (sum(leaf.size for leaf in jax.tree.leaves(pair)),)
    for new, old in zip(jax.tree.leaves(restore(vector)), jax.tree.leaves(pair), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_are_those_of_the_two_networks(outputs):
    first, second, rest = parts_of(outputs)
    x = jax.random.normal(jax.random.key(1), (7, 5))
    mean, value, same = fused.outputs(fused.pair(first, second, rest), x)
    assert (mean.shape, value.shape) == ((7, outputs), (7,))
    np.testing.assert_allclose(mean, jax.vmap(first)(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, jax.vmap(second)(x)[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(same, rest)


def test_every_rate_stands_where_it_belongs():
    pair = fused.pair(*parts_of())
    _, restore = fused.flat(pair)
    rates = fused.flat_rates(pair, jnp.float32(2.0), jnp.float32(-3.0))
    first, second, rest = numbers(*fused.unpair(restore(rates)))
    assert (set(first), set(second), set(rest)) == ({2.0}, {-3.0}, {2.0})
    assert rates.shape == fused.flat(pair)[0].shape


@pytest.mark.parametrize("max_norm", [0.0, 0.1], ids=["free", "limited"])
def test_steps_on_the_vector_are_separate_steps_of_adam(max_norm):
    """Each part by its own Adam with its own step size; a limit on the gradient is one for all of them together."""
    parts = parts_of()
    x = jax.random.normal(jax.random.key(1), (7, 5))
    vector, restore = fused.flat(fused.pair(*parts))
    rates = fused.flat_rates(restore(vector), jnp.float32(FIRST), jnp.float32(SECOND))
    optimiser = adam(1.0, max_norm=max_norm)
    opt = optimiser.init(vector)
    clip = optax.clip_by_global_norm(max_norm) if max_norm else optax.identity()
    separate = [adam(rate) for rate in (FIRST, SECOND, FIRST)]
    opts = [one.init(part) for one, part in zip(separate, parts, strict=True)]
    together = jax.jit(jax.grad(lambda vector, scale: loss_of(*fused.outputs(restore(vector), x), scale)))
    apart = jax.jit(
        jax.grad(lambda p, scale: loss_of(jax.vmap(p[0])(x), jax.vmap(p[1])(x)[:, 0], p[2], scale)),
    )
    for scale in (1.0, -2.0, 0.5):
        direction, opt = optimiser.update(together(vector, scale), opt)
        vector = vector + rates * direction
        grads = apart(parts, scale)
        assert optax.tree.norm(grads) > 0.2, "a limit that no gradient reaches would show nothing"
        grads, _ = clip.update(grads, clip.init(parts))
        steps = [one.update(g, o) for one, g, o in zip(separate, grads, opts, strict=True)]
        opts = [o for _, o in steps]
        parts = tuple(optax.apply_updates(part, step) for part, (step, _) in zip(parts, steps, strict=True))
    found = fused.unpair(restore(vector))
    for new, old in zip(numbers(*found), numbers(*parts), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)
    for new, start in zip(numbers(*found), numbers(*parts_of()), strict=True):
        assert np.all(new != start), "every number of every part has moved"
    wider = restore(vector).mlps.layers[-1]
    assert not np.any(wider.weight[1, 1:]), "what only widens stays nothing"
    assert not np.any(wider.bias[1, 1:])
