"""Named settings, as functions. Each returns a complete experiment, which options on the command line then change."""

from collections.abc import Callable

from lsac.agents import sac
from lsac.errors import InputError
from lsac.experiment import Experiment, find_algorithm

Preset = Callable[[str], Experiment]


def _sac_default(env: str) -> Experiment:
    """The authors' settings: two layers of 256, Adam at 3e-4, one update per step."""
    return Experiment(sac.Config(), env)


def _sac_paper(env: str) -> Experiment:
    """The settings that the LSAC paper compares all methods with: three layers of 256, α starts at 0.2."""
    return Experiment(sac.Config(hidden=(256, 256, 256), alpha_init=0.2), env, learning_starts=10_000)


def _sac_quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1 in two minutes on two cores."""
    agent = sac.Config(hidden=(128, 128), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3)
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)


PRESETS: dict[str, dict[str, Preset]] = {
    "sac": {"default": _sac_default, "paper": _sac_paper, "quickstart": _sac_quickstart},
}


def preset(algorithm: str, name: str, env: str) -> Experiment:
    find_algorithm(algorithm)
    if name not in PRESETS[algorithm]:
        raise InputError(f"--preset {name}: {algorithm} has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name](env)
