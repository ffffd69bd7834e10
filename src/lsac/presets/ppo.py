"""Presets of PPO."""

from lsac.agents.ppo import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The settings of Tianshou's MuJoCo benchmark, with a quarter of its gradient steps."""
    return Experiment(Config(), env, num_envs=16, chunk=2048, learning_starts=0)


def official(env: str) -> Experiment:
    """The repository that the LSAC paper names, as far as options allow: 80 epochs of full batches of 4000, λ = 1.

    Not available as options: its schedule of the std, the tanh on the mean, and returns centred and scaled per batch.
    """
    agent = Config(
        epochs=80,
        minibatches=1,
        actor_lr=3e-4,
        critic_lr=1e-3,
        anneal_updates=0,
        lam=1.0,
        value_clip=False,
        value_weight=0.5,
        entropy_weight=0.01,
        grad_norm=0.0,
        obs_clip=0.0,
        log_std_init=-0.51,  # a std of 0.6
    )
    return Experiment(agent, env, num_envs=4, chunk=4000, learning_starts=0, time_limits_terminate=True)


def paper(env: str) -> Experiment:
    """The settings in the LSAC paper: three layers of 256, minibatches of 256, Adam at 7e-4, entropy weight 0.01."""
    agent = Config(
        hidden=(256, 256, 256),
        epochs=10,
        minibatches=8,
        actor_lr=7e-4,
        critic_lr=7e-4,
        adam_beta2=0.99,
        entropy_weight=0.01,
    )
    return Experiment(agent, env, num_envs=16, chunk=2048, learning_starts=0)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(epochs=10, minibatches=16)
    return Experiment(
        agent, env, steps=100_000, seeds=3, num_envs=4, chunk=1024, gamma=0.95, learning_starts=0, eval_every=10_000
    )
