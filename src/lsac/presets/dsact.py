"""Presets of DSAC-T."""

from lsac.agents.dsact import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings with two changes: one update per environment step, not per 20, and the paper's loss."""
    return Experiment(Config(entropy_range="env"), env, learning_starts=10_000)


def official(env: str) -> Experiment:
    """The authors' settings, with the loss of their code and 20 environment steps per update."""
    agent = Config(loss="released", entropy_range="env")
    return Experiment(agent, env, num_envs=20, utd=0.05, chunk=40, learning_starts=10_000, eval_every=50_000)


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: step sizes of 3e-4, initial α = 0.2."""
    agent = Config(actor_lr=3e-4, critic_lr=3e-4, alpha_init=0.2, entropy_range="env")
    return Experiment(agent, env, learning_starts=10_000)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(hidden=(64, 64), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3, tau=0.02)
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)
