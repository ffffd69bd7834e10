"""Presets of QSM."""

from lsac.agents.qsm import Config
from lsac.runs.experiment import Experiment


def official(env: str) -> Experiment:
    """The authors' settings: two layers of 512, M_q = 50, 1e4 random steps."""
    return Experiment(Config(), env, learning_starts=10_000)


default = official


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: three layers of 256."""
    return Experiment(Config(hidden=(256, 256, 256)), env, learning_starts=10_000)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    # τ is larger than in `default`, because a short run needs faster target networks
    agent = Config(hidden=(64, 64), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, tau=0.02)
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)
