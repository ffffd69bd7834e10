"""Every algorithm, by the name that the command line uses. A module here offers `Config`, `State` and `make`."""

from types import ModuleType

from lsac.agents import lsac, sac

AGENTS: dict[str, ModuleType] = {"lsac": lsac, "sac": sac}
