"""Named settings, as functions. Each returns a complete experiment, which options on the command line then change.

A module here has the name of its algorithm; its public functions are that algorithm's presets.
"""

from collections.abc import Callable

from lsac.errors import InputError
from lsac.experiment import Experiment, find_algorithm
from lsac.presets import lsac, sac

Preset = Callable[[str], Experiment]

PRESETS: dict[str, dict[str, Preset]] = {
    "lsac": {
        "default": lsac.default,
        "paper": lsac.paper,
        "released": lsac.released,
        "adam": lsac.adam,
        "quickstart": lsac.quickstart,
    },
    "sac": {"default": sac.default, "paper": sac.paper, "quickstart": sac.quickstart},
}


def preset(algorithm: str, name: str, env: str) -> Experiment:
    find_algorithm(algorithm)
    if name not in PRESETS[algorithm]:
        raise InputError(f"--preset {name}: {algorithm} has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name](env)
