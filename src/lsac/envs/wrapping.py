"""Wrappers of an environment, given by name or as functions, and those that need care."""

import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from lsac.envs import ids
from lsac.envs.gymnasium import name_of
from lsac.envs.recipes import importable, reference_of
from lsac.errors import InputError, own_traceback
from lsac.options import References, shown

Wrap = Callable[[gym.Env], gym.Env]

OWN_PACKAGES = frozenset(
    {"lsac", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium", "mujoco", "matplotlib"}
    | {"tyro", "rich", "safetensors", "tensorboardX", "google", "ml_dtypes", "jaxtyping", "OpenGL", "glfw", "etils"}
)
"""Packages that lsac itself imports, so that being imported does not mean that the user wants their functions."""


class Layer(NamedTuple):
    name: str
    """module:name, or empty if no other process would find it"""
    wrap: Wrap


def layer_of(wrapper: str | Wrap) -> Layer:
    if not isinstance(wrapper, str):
        if not callable(wrapper):
            raise InputError(f"wrappers: {shown(wrapper)} is neither a wrapper nor a function of an environment")
        return Layer(reference_of(wrapper), wrapper)
    if not References().accepts([wrapper]):
        raise InputError(f"--wrapper {wrapper}: {References().clause}")
    module, _, name = wrapper.partition(":")
    ids.import_module(module, f"--wrapper {wrapper}: module {module}")
    found = getattr(sys.modules[module], name, None)
    if found is None:
        raise InputError(f"--wrapper {wrapper}: module {module} has no {name}")
    if problem := _problem(found, module):  # or the run could not be opened again
        raise InputError(f"--wrapper {wrapper}: {problem}")
    return Layer(wrapper if importable(module) else "", found)


def require_safe_wrapper(wrapper: str, where: str) -> None:
    """Rejects a wrapper that a file names unless it is a wrapper, or a function of a module that the user imported."""
    module, _, name = wrapper.partition(":")
    loaded = sys.modules.get(module)
    if loaded is None:
        raise InputError(
            f"{where}, wrappers: {wrapper} names a module, which a file must not import: pass --module {module}"
        )
    found = vars(loaded).get(name)  # without the module's own __getattr__, which could import
    if problem := _problem(found, module):
        raise InputError(f"{where}, wrappers: {wrapper} {problem}")


def _problem(found: Any, module: str) -> str | None:
    """Why an object of a module cannot be a wrapper that a run names; None if it can."""
    if inspect.isclass(found) and issubclass(found, gym.Wrapper):
        return None
    foreign = module.partition(".")[0] in {*sys.stdlib_module_names, *OWN_PACKAGES}
    if not inspect.isfunction(found) or foreign:
        return "is neither a Gymnasium wrapper nor a function of your own module"
    if found.__module__ != module:
        return f"is defined in another module; write {found.__module__}:{found.__name__}"
    return None


def wrapped(env: gym.Env, layers: Sequence[Layer]) -> gym.Env:
    for name, wrap in layers:
        name = f"--wrapper {name}" if name else f"wrappers: {shown(wrap)}"
        try:
            env = wrap(env)
        except Exception as error:
            failure = InputError(f"{name}: raised {type(error).__name__}: {ids.first_line(error)}")
            failure.detail = own_traceback(error)
            raise failure from error
        if not isinstance(env, gym.Env):
            raise InputError(f"{name}: returned {shown(env)}, not an environment")
    return env


def stack_of(env: gym.Env) -> list[gym.Env]:
    """The layers of an environment, outermost first."""
    found = [env]
    while isinstance(found[-1], gym.Wrapper):
        found.append(found[-1].env)
    return found


def require_no_statistics(env: gym.Env) -> None:
    """Rejects statistics of observations outside the agent: a saved policy would be useless without them."""
    if any(isinstance(layer, NormalizeObservation) for layer in stack_of(env)):
        raise InputError(
            f"environment {name_of(env)}: the statistics of NormalizeObservation would not be saved with the policy; "
            "leave it out and set --normalise-observations (in Python normalise_observations=True)"
        )


def true_rewards(env: gym.Env) -> gym.Env:
    """The environment without `NormalizeReward`."""
    stack = stack_of(env)
    for outer, inner in itertools.pairwise(stack):
        while isinstance(inner, NormalizeReward):
            inner = inner.env
        if isinstance(outer, gym.Wrapper):
            outer.env = inner
    while isinstance(env, NormalizeReward):
        env = env.env
    return env
