"""Train, compare and understand continuous-control agents: every seed of a run in one compiled program."""

from typing import TYPE_CHECKING

from lsac.version import __version__

if TYPE_CHECKING:
    from lsac.model import DIPO, DSACT, LSAC, PPO, QSM, REDQ, SAC, TD3, TRPO

__all__ = ["DIPO", "DSACT", "LSAC", "PPO", "QSM", "REDQ", "SAC", "TD3", "TRPO", "__version__"]


def __getattr__(name: str) -> object:
    """Loads the Python interface, and JAX with it, when it is first asked for: `lsac --help` stays quick."""
    if name in __all__:
        from lsac import model

        return getattr(model, name)
    raise AttributeError(f"module 'lsac' has no attribute {name!r}")
