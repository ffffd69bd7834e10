"""Agents small enough for a test."""

import dataclasses
from typing import Any

from lsac.agents import AGENTS

SIZES = {
    "hidden": (8,),
    "batch_size": 16,
    "chains": 2,
    "critic_updates": 3,
    "synthetic_capacity": 32,
    "epochs": 2,
    "minibatches": 2,
    "mean_scale": 1.0,
    "denoising_steps": 5,
    "action_steps": 5,
    "pair_capacity": 2_048,
    "generator": {"width": 8, "dim_t": 8, "blocks": 1, "train_steps": 20, "batch_size": 16, "sampler_steps": 3},
}
"""Every option that makes an agent large; an algorithm takes those that it has."""


def config(algorithm: str, **wanted: Any) -> Any:
    """The `Config` of an algorithm in small, with the wanted values as far as it has options of these names."""
    return _with(AGENTS[algorithm].Config(), SIZES | wanted)


def on_policy(algorithm: str) -> bool:
    return getattr(AGENTS[algorithm].Config, "on_policy", False)


def _with(base: Any, wanted: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(base)} & wanted.keys()
    changes = {name: wanted[name] for name in names}
    inner = {name: _with(getattr(base, name), value) for name, value in changes.items() if isinstance(value, dict)}
    return dataclasses.replace(base, **changes | inner)
