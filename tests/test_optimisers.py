"""Adam as all agents use it, and one step of descent, by hand and against Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import f32

from lsac.nn.optimisers import adam, descend, scale_by_adam

LR = 0.1


def first_step(optimiser, gradient):
    return optimiser.update(gradient, optimiser.init(jax.tree.map(jnp.zeros_like, gradient)))[0]


@pytest.mark.parametrize(
    ("max_norm", "clipped"), [(0.0, (3.0, 4.0)), (10.0, (3.0, 4.0)), (5.0, (3.0, 4.0)), (1.0, (0.6, 0.8))]
)
def test_gradients_longer_than_the_limit_are_cut_to_it_and_others_left_alone(max_norm, clipped):
    # the first step of Adam is −lr g/(|g| + ε): an ε of 1 shows how long the gradient was
    expected = -LR * np.array([g / (g + 1) for g in clipped])
    np.testing.assert_allclose(first_step(adam(LR, max_norm=max_norm, eps=1.0), f32(3, 4)), expected, rtol=1e-5)
    direction = first_step(scale_by_adam(max_norm=max_norm, eps=1.0), f32(3, 4))
    np.testing.assert_allclose(direction, -expected / LR, rtol=1e-5)


def test_the_limit_is_on_the_norm_of_all_arrays_together():
    step = first_step(adam(LR, max_norm=1.0, eps=1.0), {"a": f32(3), "b": f32(0, -4)})
    np.testing.assert_allclose(step["a"], [-LR * 0.6 / 1.6], rtol=1e-5)
    np.testing.assert_allclose(step["b"], [0.0, LR * 0.8 / 1.8], rtol=1e-5)


def test_a_sequence_of_steps_is_that_of_the_textbook():
    rng, b1, b2 = np.random.default_rng(0), 0.8, 0.95
    gradients = rng.normal(size=(6, 3))
    optimiser = adam(optax.linear_schedule(LR, 0.0, 10), b1=b1, b2=b2)
    opt, m, v = optimiser.init(jnp.zeros(3)), np.zeros(3), np.zeros(3)
    for t, g in enumerate(gradients):
        step, opt = optimiser.update(f32(*g), opt)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        direction = (m / (1 - b1 ** (t + 1))) / (np.sqrt(v / (1 - b2 ** (t + 1))) + 1e-8)
        np.testing.assert_allclose(step, -LR * (1 - t / 10) * direction, rtol=1e-4)


# descent


def loss(params, target, weight):
    """½ weight |p − target|², and p − target."""
    error = params - target
    return 0.5 * weight * jnp.sum(error**2), error


def test_descent_takes_one_step_and_says_what_it_was_before():
    # p − target = (−1, 3), weight 2: the loss is 10, its gradient (−2, 6); a step of 0.1 leads to (1.2, 1.4)
    optimiser = optax.trace(0.9)  # adds to its memory, and goes up: −0.1 in front makes a descent of it
    optimiser = optax.chain(optimiser, optax.scale(-LR))
    params, target = f32(1, 2), f32(2, -1)
    outcome = jax.jit(lambda p, o: descend(optimiser, loss, p, o, target, 2.0))(params, optimiser.init(params))
    np.testing.assert_allclose(outcome.loss, 10.0, rtol=1e-6)
    np.testing.assert_allclose(outcome.aux, [-1, 3], rtol=1e-6)
    np.testing.assert_allclose(outcome.grads, [-2, 6], rtol=1e-6)
    np.testing.assert_allclose(outcome.params, [1.2, 1.4], rtol=1e-6)
    np.testing.assert_allclose(outcome.opt[0].trace, [-2, 6], rtol=1e-6)
    # the next goes on from there: gradient (−1.6, 4.8), and 0.9 of the last
    again = descend(optimiser, loss, outcome.params, outcome.opt, target, 2.0)
    np.testing.assert_allclose(again.params, [1.2 + 0.1 * (1.6 + 1.8), 1.4 - 0.1 * (4.8 + 5.4)], rtol=1e-5)


def test_descent_of_a_loss_that_says_nothing_else():
    optimiser = optax.sgd(LR)
    params, target = {"a": f32(1), "b": f32(2)}, f32(3)

    def plain(params, target):
        return jnp.sum((params["a"] * params["b"] - target) ** 2)

    outcome = descend(optimiser, plain, params, optimiser.init(params), target, has_aux=False)
    assert outcome.aux is None
    np.testing.assert_allclose(outcome.loss, 1.0, rtol=1e-6)
    np.testing.assert_allclose(outcome.params["a"], [1 + 0.1 * 2 * 2], rtol=1e-6)  # −2 (ab − 3) b = 4
    np.testing.assert_allclose(outcome.params["b"], [2 + 0.1 * 2 * 1], rtol=1e-6)


def test_descent_by_adam_approaches_the_minimum():
    optimiser, target = adam(LR), f32(2, -1)

    def step(carry, _):
        outcome = descend(optimiser, loss, *carry, target, 1.0)
        return (outcome.params, outcome.opt), outcome.loss

    start = f32(0, 0)
    (params, _), losses = jax.lax.scan(step, (start, optimiser.init(start)), length=200)
    np.testing.assert_allclose(params, target, atol=0.02)
    assert losses[0] == 2.5
    assert losses[-1] < 1e-3
