"""Named settings, as functions. Each returns a complete experiment, which options on the command line then change.

A module here has the name of its algorithm; its public functions are that algorithm's presets.
"""

from collections.abc import Callable

from lsac.errors import InputError
from lsac.presets import dipo, dsact, lsac, ppo, qsm, redq, sac, td3, trpo
from lsac.runs.experiment import Experiment, find_algorithm

Preset = Callable[[str], Experiment]

PRESETS: dict[str, dict[str, Preset]] = {
    "lsac": {
        "default": lsac.default,
        "paper": lsac.paper,
        "released": lsac.released,
        "adam": lsac.adam,
        "quickstart": lsac.quickstart,
    },
    "sac": {
        "default": sac.default,
        "official": sac.default,
        "paper": sac.paper,
        "quickstart": sac.quickstart,
    },
    "redq": {
        "default": redq.official,
        "official": redq.official,
        "paper": redq.paper,
        "quickstart": redq.quickstart,
    },
    "qsm": {"default": qsm.official, "official": qsm.official, "paper": qsm.paper, "quickstart": qsm.quickstart},
    "td3": {"default": td3.default, "official": td3.default, "paper": td3.paper, "quickstart": td3.quickstart},
    "dsact": {
        "default": dsact.default,
        "official": dsact.official,
        "paper": dsact.paper,
        "quickstart": dsact.quickstart,
    },
    "ppo": {"default": ppo.default, "official": ppo.official, "paper": ppo.paper, "quickstart": ppo.quickstart},
    "trpo": {"default": trpo.default, "official": trpo.official, "paper": trpo.paper, "quickstart": trpo.quickstart},
    "dipo": {"default": dipo.default, "official": dipo.official, "paper": dipo.paper, "quickstart": dipo.quickstart},
}


def preset(algorithm: str, name: str, env: str) -> Experiment:
    find_algorithm(algorithm)
    if name not in PRESETS[algorithm]:
        raise InputError(f"--preset {name}: {algorithm} has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name](env)
