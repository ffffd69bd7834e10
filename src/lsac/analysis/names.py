"""Names of algorithms, curves and files, for people."""

import re
from collections import Counter

from lsac.analysis.load import Run
from lsac.analysis.text import encodable
from lsac.errors import InputError

PUBLISHED: dict[str, str] = {
    "lsac": "LSAC",
    "sac": "SAC",
    "redq": "REDQ",
    "qsm": "QSM",
    "td3": "TD3",
    "dsact": "DSAC-T",
    "ppo": "PPO",
    "trpo": "TRPO",
    "dipo": "DIPO",
    "drqv2": "DrQ-v2",
    "sac_ae": "SAC-AE",
    "dreamer": "Dreamer",
}
"""The names that the papers of the algorithms use."""
LONGEST = 100
"""Characters of the name of a file."""


def published(algorithm: str) -> str:
    return PUBLISHED.get(algorithm, algorithm.upper())


def label(runs: list[Run], given: list[str | None] | None = None) -> list[str]:
    """A name for each run: the one that is given, or its algorithm's; where it occurs several times on one environment,
    with its folder."""
    names = [_name(run.algorithm, name) for run, name in zip(runs, given or [None] * len(runs), strict=True)]
    counts = Counter(_on_environments(runs, names))
    alike = [counts[key] > 1 for key in _on_environments(runs, names)]
    # as many parts of the path as tell them apart
    for depth in range(1, max(len(run.path.resolve().parts) for run in runs) + 1):
        labels = [
            f"{name} · {_folder(run, depth)}" if several else name
            for run, name, several in zip(runs, names, alike, strict=True)
        ]
        if len({*_on_environments(runs, labels)}) == len(runs):
            break
    return labels


def _name(algorithm: str, given: str | None) -> str:
    """The published name, also where a sweep gives the algorithm's own name as label, in letters of any case."""
    own = published(algorithm)
    return own if given is None or given.lower() in (algorithm, own.lower()) else given


def check_labels(runs: list[Run], labels: tuple[str, ...]) -> list[str]:
    """The labels given for the runs, one each, and different on the same environment."""
    if len(labels) != len(runs):
        right = "1 label, for the one curve" if len(runs) == 1 else f"{len(runs)} labels, one for each curve"
        raise InputError(f"--labels {' '.join(labels)}: must be {right}")
    (env, name), count = Counter(_on_environments(runs, list(labels))).most_common(1)[0]
    if count > 1:
        raise InputError(
            f"--labels {' '.join(labels)}: {name} is given to {count} curves on {env}, which need one each"
        )
    return list(labels)


def file_names(envs: list[str]) -> dict[str, str]:
    """A name for the files of each environment, of letters, digits, '.', '_' and '-' only."""
    names: dict[str, str] = {}
    for env in dict.fromkeys(envs):
        name = plain = re.sub(r"[^\w.-]+", "-", env)[:LONGEST].rstrip("-")
        number = 2
        while name in names.values():
            name, number = f"{plain}-{number}", number + 1
        names[env] = name
    return names


def _folder(run: Run, depth: int) -> str:
    return str(encodable("/".join(run.path.resolve().parts[-depth:])))


def _on_environments(runs: list[Run], names: list[str]) -> list[tuple[str, str]]:
    return [(run.env, name) for run, name in zip(runs, names, strict=True)]
