"""Finds random keys that are used twice."""

from collections.abc import Callable
from typing import Any

import jax


def uses_a_key_twice(function: Callable[..., Any], *args: Any) -> bool:
    """Whether JAX's checker finds a key that the function uses twice; nothing is computed."""
    try:
        with jax.debug_key_reuse(True):
            jax.jit(function).eval_shape(*args)
    except jax.errors.KeyReuseError:
        return True
    return False
