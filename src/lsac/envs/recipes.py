"""Environments as plain data: how another process, or a later run, creates the same one."""

import dataclasses
import importlib
import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from lsac.envs import ids
from lsac.errors import InputError

GymSpec = gym.envs.registration.EnvSpec


class Recipe(NamedTuple):
    """How another process creates an environment: plain data."""

    spec: str = ""
    """a Gymnasium EnvSpec as JSON, or empty"""
    factory: str = ""
    """module:name of a function or class that creates the environment without arguments, or empty"""
    wrappers: Sequence[str] = ()
    """module:name of each wrapper, innermost first"""
    pixels: int = 0
    """side of the images that the agent sees in place of observations; 0 for the observations"""


def search_path() -> list[str]:
    """Where another process has to look for modules, to find what this one finds."""
    return [folder or os.getcwd() for folder in sys.path]


def reference_of(value: Any) -> str:
    """module:name of a function or class that another process finds under this name; empty if it would not."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (inspect.isfunction(value) or inspect.isclass(value)) or not (module and name):
        return ""
    return f"{module}:{name}" if importable(module) and getattr(sys.modules[module], name, None) is value else ""


def importable(module: str) -> bool:
    """Whether a new process could import a module: not what was typed into a notebook or run as a script."""
    loaded = sys.modules.get(module)
    return module != "__main__" and (loaded is None or getattr(loaded, "__spec__", None) is not None)


def recipe_of(spec: GymSpec, env_id: str, kwargs: dict[str, Any]) -> Recipe | None:
    """The recipe of a registered environment; None if only this process can create it."""
    entry = spec.entry_point
    reference = reference_of(entry) if callable(entry) else entry
    if reference and importable(reference.partition(":")[0]):
        changes: dict[str, Any] = {"entry_point": reference, "kwargs": spec.kwargs}
    elif ":" in env_id and importable(env_id.partition(":")[0]):  # importing its module registers it again
        changes = {"entry_point": f"{ids.__name__}:registered", "kwargs": {"env_id": env_id, "arguments": kwargs}}
    else:
        return None
    try:
        changes["kwargs"] = as_json(changes["kwargs"])
        data = as_json(dataclasses.asdict(dataclasses.replace(spec, vector_entry_point=None, **changes)))
    except TypeError:  # some value is not data
        return None
    return Recipe(spec=json.dumps({k: v for k, v in data.items() if k not in ("namespace", "name", "version")}))


def is_found(reference: str) -> bool:
    module, _, name = reference.partition(":")
    return importable(module) and hasattr(sys.modules.get(module), name)


def named(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


# Arguments


def read_arguments(args: Sequence[str]) -> dict[str, Any]:
    """The arguments that name=value describes; a value is JSON, or else a string."""
    return {name: _value(text, name) for name, _, text in (arg.partition("=") for arg in args)}


def _value(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise InputError(f"--env-args {name}: its value is nested too deeply") from None


def written(kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """name=value of those arguments that can be written so."""
    written = []
    for name, value in kwargs.items():
        try:
            text = json.dumps(as_json(value))
        except TypeError:
            continue
        plain = isinstance(value, str) and _value(value, name) == value
        written.append(f"{name}={value if plain else text}")
    return tuple(written)


def without_numpy(value: Any) -> Any:
    """A value whose NumPy scalars are numbers of Python."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(without_numpy, value))
    return {k: without_numpy(v) for k, v in value.items()} if type(value) is dict else value


def as_json(value: Any) -> Any:
    """A value that JSON carries; raises TypeError if it would come back as something else than lists for tuples."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: as_json(item) for name, item in value.items()}
    raise TypeError(f"{type(value).__name__} is not data")
