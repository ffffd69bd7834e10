"""Presets of TD3."""

from lsac.agents.td3 import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings: two layers of 256, Adam at 3e-4, 25 000 random steps. Also listed as `official`."""
    return Experiment(Config(), env, learning_starts=25_000)


official = default


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: three layers of 256, β₂ = 0.99."""
    return Experiment(Config(hidden=(256, 256, 256), adam_beta2=0.99), env, learning_starts=10_000)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(hidden=(64, 64), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, tau=0.02)
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=1_000, eval_every=500, log_every=250)
