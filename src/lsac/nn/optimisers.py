"""Adam, as all agents use it."""

from typing import Any

import jax
import optax


def adam(learning_rate: optax.ScalarOrSchedule, **options: float) -> optax.GradientTransformation:
    """Optax's Adam, which raises a float to the power of an integer count: allowed here, forbidden in our tests."""
    inner = optax.adam(learning_rate, **options)

    def update(grads: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(grads, state, params)

    return optax.GradientTransformation(inner.init, update)
