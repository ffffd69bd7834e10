"""Presets: named settings, as functions. Each returns a complete experiment, which command-line options then modify.

The public functions of the module with an algorithm's name are its presets. An algorithm without such a module has one
preset, `default`, with the defaults of its options.
"""

import importlib.util
from collections.abc import Callable
from types import FunctionType

from lsac.agents import AGENTS
from lsac.errors import InputError
from lsac.runs.experiment import Experiment, find_algorithm

Preset = Callable[[str], Experiment]


def presets(algorithm: str) -> dict[str, Preset]:
    """The presets of an algorithm, `default` first."""
    name = f"{__name__}.{algorithm}"
    if importlib.util.find_spec(name) is None:
        return {"default": lambda env: Experiment(AGENTS[algorithm].Config(), env)}
    module = vars(importlib.import_module(name))
    found: dict[str, Preset] = {
        key: x for key, x in module.items() if isinstance(x, FunctionType) and x.__module__ == name
    }
    return {"default": found["default"]} | {key: x for key, x in found.items() if not key.startswith("_")}


def preset(algorithm: str, name: str, env: str) -> Experiment:
    find_algorithm(algorithm)
    found = presets(algorithm)
    if name not in found:
        raise InputError(f"--preset {name}: {algorithm} has {', '.join(found)}")
    return found[name](env)
