"""Every algorithm, by the name that the command line uses.

The command line, the Python classes (the name in capitals), their help, the contract tests and the benchmarks follow
from `AGENTS`. The module `lsac.agents.NAME` offers `Config`, a dataclass of options, and `make(config, spec)`, which
returns an `Agent`; the first line of its docstring is what the help shows. A module with `OBSERVATIONS = "images"`, or
"both", learns from images; all others learn from vectors.
"""

import importlib
from typing import Any, Literal, Protocol, cast

from lsac.types import Agent, EnvSpec


class Algorithm(Protocol):
    """What the module of an algorithm offers."""

    @property
    def Config(self) -> type[Any]: ...

    def make(self, config: Any, spec: EnvSpec) -> Agent: ...


NAMES = (
    "lsac",
    "sac",
    "redq",
    "qsm",
    "td3",
    "dsact",
    "ppo",
    "trpo",
    "dipo",
    "drqv2",
    "sac_ae",
    "dreamer",
)
AGENTS: dict[str, Algorithm] = {name: cast(Algorithm, importlib.import_module(f"{__name__}.{name}")) for name in NAMES}


def learns_from(algorithm: str, kind: Literal["vectors", "images"]) -> bool:
    """Whether an algorithm learns from observations of this kind."""
    return getattr(AGENTS[algorithm], "OBSERVATIONS", "vectors") in (kind, "both")


VECTORS = tuple(name for name in NAMES if learns_from(name, "vectors"))
IMAGES = tuple(name for name in NAMES if learns_from(name, "images"))


def summary(algorithm: str) -> str:
    """One line on an algorithm."""
    return (AGENTS[algorithm].__doc__ or "").partition("\n")[0]
