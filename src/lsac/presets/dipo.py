"""Presets of DIPO."""

from lsac.agents.dipo import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings, except that improved actions are stored."""
    return Experiment(Config(), env, learning_starts=10_000)


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: the authors', except for β₂ = 0.99."""
    return Experiment(Config(adam_beta2=0.99), env, learning_starts=10_000)


def official(env: str) -> Experiment:
    """The behaviour of the authors' code: improved actions are not stored, and time limits count as terminations."""
    agent = Config(no_write_back=True)
    return Experiment(agent, env, learning_starts=10_000, eval_every=10_000, time_limits_terminate=True)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(
        hidden=(64, 64),
        denoising_steps=10,
        batch_size=128,
        actor_lr=1e-3,
        critic_lr=1e-3,
        action_steps=10,
        action_lr=0.06,
        tau=0.02,
        pair_capacity=100_000,  # so that the run can be extended
    )
    return Experiment(agent, env, steps=8_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)
