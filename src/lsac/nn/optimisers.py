"""Adam, as all agents use it, and one gradient step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax


def adam(
    learning_rate: optax.ScalarOrSchedule, max_norm: float = 0.0, **options: float
) -> optax.GradientTransformation:
    """Adam; with `max_norm`, the global norm of the gradients is first clipped to it."""
    inner = optax.adam(learning_rate, **options)
    return _permissive(optax.chain(optax.clip_by_global_norm(max_norm), inner) if max_norm else inner)


def scale_by_adam(max_norm: float = 0.0, **options: float) -> optax.GradientTransformation:
    """Adam's direction, m̂ / (√v̂ + ε), without a step size."""
    inner = optax.scale_by_adam(**options)
    return _permissive(optax.chain(optax.clip_by_global_norm(max_norm), inner) if max_norm else inner)


def _permissive(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Allows implicit dtype promotion, which the tests forbid elsewhere: Optax raises a float to an integer power."""

    def update(grads: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(grads, state, params)

    return optax.GradientTransformation(inner.init, update)


class Descent(NamedTuple):
    """The outcome of one gradient step."""

    params: Any
    opt: optax.OptState
    loss: Any
    aux: Any
    """the second value that the loss function returned"""
    grads: Any


def descend(
    optimiser: optax.GradientTransformation,
    loss: Callable[..., Any],
    params: Any,
    opt: optax.OptState,
    *args: Any,
    has_aux: bool = True,
) -> Descent:
    """One optimiser step on `loss(params, *args)`, which returns the loss and, with `has_aux`, a second value."""
    value, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, *args)
    updates, opt = optimiser.update(grads, opt, params)
    found, aux = value if has_aux else (value, None)
    return Descent(optax.apply_updates(params, updates), opt, found, aux, grads)
