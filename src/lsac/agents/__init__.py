"""Every algorithm, by the name that the command line uses. A module here offers `Config`, `State` and `make`."""

from types import ModuleType

from lsac.agents import dipo, dsact, ppo, qsm, redq, sac, td3, trpo
from lsac.agents.lsac import agent as lsac

AGENTS: dict[str, ModuleType] = {
    "lsac": lsac,
    "sac": sac,
    "redq": redq,
    "qsm": qsm,
    "td3": td3,
    "dsact": dsact,
    "ppo": ppo,
    "trpo": trpo,
    "dipo": dipo,
}
