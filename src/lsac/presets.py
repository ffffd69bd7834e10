"""Named settings, as functions. Each returns a complete experiment, which options on the command line then change."""

from collections.abc import Callable

from lsac import synthesis
from lsac.agents import lsac, sac
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


def _lsac_default(env: str) -> Experiment:
    """What measured best: the paper's critics and actor, a cheaper generator that is warm-started."""
    return Experiment(lsac.Config(), env)


def _lsac_paper(env: str) -> Experiment:
    """The paper's budget: a generator trained anew for 1e5 steps, 128 Heun steps, 1e4 random steps."""
    return Experiment(lsac.Config(generator=synthesis.PAPER), env, learning_starts=10_000)


def _lsac_released(env: str) -> Experiment:
    """The published code with its accidents: no noise to speak of, no synthetic data, 20 steps per update."""
    accidents = lsac.Released(
        std_without_gradient=True,
        q_ascent=True,
        weight_norm=1e-4,
        shared_averages=True,
        delay=2,
        no_write_back=True,
    )
    agent = lsac.Config(
        critic_lr_end=5e-4,
        inverse_temperature=1e16,
        synthetic=False,
        actor_chain="overflow",
        actor_lr=1e-4,
        alpha_init=2.718281828,
        released=accidents,
    )
    return Experiment(agent, env, num_envs=20, utd=0.05, chunk=40, learning_starts=1_000)


def _lsac_quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1 in two minutes on two cores."""
    generator = synthesis.Config(
        width=128,
        dim_t=32,
        blocks=3,
        train_steps=500,
        batch_size=256,
        compute_dtype="float32",  # processors are slow at bfloat16
        sampler_steps=12,
        sample_batch=10_000,
    )
    agent = lsac.Config(
        hidden=(64, 64),
        chains=5,
        batch_size=128,
        actor_lr=1e-3,
        alpha_lr=1e-3,
        tau=0.02,  # so short a run cannot wait for slow targets
        synthetic_capacity=10_000,
        refresh_every=1_000,
        generator=generator,
    )
    return Experiment(agent, env, steps=6_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)


PRESETS: dict[str, dict[str, Preset]] = {
    "lsac": {
        "default": _lsac_default,
        "paper": _lsac_paper,
        "released": _lsac_released,
        "quickstart": _lsac_quickstart,
    },
    "sac": {"default": _sac_default, "paper": _sac_paper, "quickstart": _sac_quickstart},
}


def preset(algorithm: str, name: str, env: str) -> Experiment:
    find_algorithm(algorithm)
    if name not in PRESETS[algorithm]:
        raise InputError(f"--preset {name}: {algorithm} has {', '.join(PRESETS[algorithm])}")
    return PRESETS[algorithm][name](env)
