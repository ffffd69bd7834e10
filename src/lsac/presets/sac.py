"""Presets of SAC."""

from lsac.agents.sac import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings: two layers of 256, Adam at 3e-4, one update per step."""
    return Experiment(Config(), env)


official = default


def tuned(env: str) -> Experiment:
    """The settings of CrossQ's SAC runs, which are the public curves on the -v4 tasks: all step sizes 1e-3."""
    return Experiment(Config(actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3), env)


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: three layers of 256, α fixed at 0.2, β₂ = 0.99."""
    agent = Config(hidden=(256, 256, 256), alpha_init=0.2, alpha_lr=0.0, adam_beta2=0.99)
    return Experiment(agent, env, learning_starts=10_000)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1 in two minutes on two cores."""
    agent = Config(hidden=(128, 128), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3)
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)
