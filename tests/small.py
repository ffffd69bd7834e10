"""Agents and runs small enough for a test: one table of sizes, as a `Config` and as options of the command line.

An algorithm takes those options that it has, so a new one in `AGENTS` needs no line here.
"""

import dataclasses
from typing import Any

from lsac.agents import AGENTS, learns_from
from lsac.runs.experiment import Experiment
from lsac.types import EnvSpec

SIZES = {
    "hidden": (8,),
    "batch_size": 16,
    "chains": 2,
    "critic_updates": 3,
    "synthetic_capacity": 32,
    "epochs": 2,
    "minibatches": 2,
    "denoising_steps": 5,
    "action_steps": 5,
    "pair_capacity": 2_048,
    "feature_dim": 8,
    "filters": 4,
    "encoder": {"filters": 2, "feature_dim": 4, "batch_size": 16},
    "deterministic_size": 8,
    "stochastic_size": 3,
    "model_units": 8,
    "units": 8,
    "depth": 2,
    "batch_length": 4,
    "horizon": 4,
    "generator": {"width": 16, "dim_t": 16, "blocks": 1, "train_steps": 20, "batch_size": 16, "sampler_steps": 3},
}
"""Every option that makes an agent large."""
RUN = {"seeds": 2, "workers": 1, "eval_episodes": 1}
"""Options of a run, whatever the agent."""
OFF_POLICY = {"chunk": 8, "utd": 1.0, "learning_starts": 16, "replay_capacity": 64}
ON_POLICY = {"chunk": 32, "num_envs": 2}
ONLY_OFF_POLICY = {"learning_starts", "replay_capacity", "utd"}
"""Options of a run that an on-policy agent refuses or has no use for."""


def sizes(algorithm: str) -> dict[str, Any]:
    """Its sizes. A transition of Dreamer is a sequence of images, so a batch has fewer of them."""
    return SIZES | ({"batch_size": 4} if algorithm == "dreamer" else {})


def config(algorithm: str, **wanted: Any) -> Any:
    """The `Config` of an algorithm in small, with the wanted values as far as it has options of these names."""
    # a policy that starts near zero would hide mistakes in what it computes
    return _with(AGENTS[algorithm].Config(), sizes(algorithm) | {"mean_scale": 1.0} | wanted)


def env_of(algorithm: str) -> str:
    """A simple environment from which an algorithm can learn, from images if it must."""
    return "Pendulum-v1" if learns_from(algorithm, "vectors") else "lsac/SeenColour-v0"


def images_of(algorithm: str) -> dict[str, int]:
    """Options of a run with small images."""
    side, stack = (64, 1) if algorithm == "dreamer" else (20, 2)
    return {"pixels": side, "frame_stack": stack}


def image_spec(algorithm: str, spec: EnvSpec) -> EnvSpec:
    """The spec with small images beside its vectors."""
    images = images_of(algorithm)
    return dataclasses.replace(spec, frame=(images["pixels"], images["pixels"], 3), frame_stack=images["frame_stack"])


def flags(algorithm: str, from_images: bool = False, **wanted: Any) -> list[str]:
    """The options of `lsac train` for a small run, with the wanted values as far as agent or run have such options.
    What learns from images does so from those of lsac/SeenColour-v0."""
    run = RUN | (ON_POLICY if on_policy(algorithm) else OFF_POLICY)
    from_images |= not learns_from(algorithm, "vectors")
    run |= images_of(algorithm) | {"env_args": "length=3"} if from_images else {}
    left_out = ONLY_OFF_POLICY if on_policy(algorithm) else set()
    of_a_run = {field.name for field in dataclasses.fields(Experiment)} - {"agent"} - left_out
    words = _words(AGENTS[algorithm].Config(), sizes(algorithm) | wanted)
    for name, value in (run | wanted).items():
        if name in of_a_run:
            words += _option(name, value)
    return words


def on_policy(algorithm: str) -> bool:
    return getattr(AGENTS[algorithm].Config, "on_policy", False)


def _with(base: Any, wanted: dict[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(base)} & wanted.keys()
    changes = {name: wanted[name] for name in names}
    inner = {name: _with(getattr(base, name), value) for name, value in changes.items() if isinstance(value, dict)}
    return dataclasses.replace(base, **changes | inner)


def _words(base: Any, wanted: dict[str, Any], prefix: str = "") -> list[str]:
    names = {field.name for field in dataclasses.fields(base)}
    words = []
    for name, value in wanted.items():
        if name in names:
            inner = isinstance(value, dict)
            words += _words(getattr(base, name), value, f"{prefix}{name}.") if inner else _option(prefix + name, value)
    return words


def _option(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    return ["--" + name.replace("_", "-"), *map(str, values)]
