"""Presets of REDQ."""

from lsac.agents.redq import Config
from lsac.runs.experiment import Experiment

TARGET_ENTROPY = {"Hopper": -1.0, "HalfCheetah": -3.0, "Walker2d": -3.0, "Ant": -4.0, "Humanoid": -2.0}
"""The authors' target entropies, taken from MBPO, for all versions of a task."""


def official(env: str) -> Experiment:
    """The authors' settings: ten critics, twenty critic steps per environment step, their target entropies."""
    return Experiment(Config(target_entropy=TARGET_ENTROPY.get(env.split("-v")[0])), env)


default = official


def tuned(env: str) -> Experiment:
    """The settings of CrossQ's REDQ runs, the public curves on the -v4 tasks: all step sizes 1e-3, H̄ = −dim(A)."""
    return Experiment(Config(actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3), env)


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: three layers of 256, initial α = 0.2."""
    return Experiment(Config(hidden=(256, 256, 256), alpha_init=0.2), env, learning_starts=10_000)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(
        hidden=(64, 64),
        critics=5,
        critic_updates=5,
        batch_size=128,
        actor_lr=1e-3,
        critic_lr=1e-3,
        alpha_lr=1e-3,
    )
    return Experiment(agent, env, steps=4_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)
