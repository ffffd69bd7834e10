"""Continuous-control reinforcement learning in JAX: Langevin Soft Actor-Critic and eleven baselines.

Every algorithm has a class, named in capitals: `lsac.LSAC`, `lsac.SAC`, `lsac.TD3`, … All seeds of a run train in
parallel inside one compiled program.
"""

from typing import TYPE_CHECKING

from lsac.version import __version__

if TYPE_CHECKING:
    from lsac.model import Model

__all__ = ["__version__"]


def __getattr__(name: str) -> "type[Model]":
    """Loads the Python interface, and JAX with it, when a class is first used, so that `lsac --help` stays fast."""
    if not name.startswith("_") and name.isupper():
        from lsac.model import CLASSES

        if name in CLASSES:
            return CLASSES[name]
    raise AttributeError(f"module 'lsac' has no attribute {name!r}")


def __dir__() -> list[str]:
    from lsac.model import CLASSES

    return [*__all__, *CLASSES]
