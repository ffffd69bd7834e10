"""Presets of TRPO."""

from lsac.agents.trpo import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The settings of Tianshou's MuJoCo benchmark: 16 simulators; 1024 steps and 20 critic steps per update."""
    return Experiment(Config(), env, num_envs=16, chunk=1024, learning_starts=0)


def official(env: str) -> Experiment:
    """The repository that the LSAC paper names: 15 000 steps per update, γ = 0.995, λ = 0.97; V is fitted with Adam."""
    agent = Config(
        backtrack=0.5,
        kl_check=False,
        epochs=10,
        minibatches=15,
        anneal_updates=0,
        lam=0.97,
        obs_clip=5.0,
        mean_scale=0.1,
        log_std_init=0.0,
    )
    return Experiment(agent, env, num_envs=10, chunk=15_000, gamma=0.995, learning_starts=0, time_limits_terminate=True)


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper for all methods: three layers of 256, minibatches of 256, Adam at 3e-4."""
    agent = Config(hidden=(256, 256, 256), epochs=10, minibatches=8, critic_lr=3e-4)
    return Experiment(agent, env, num_envs=16, chunk=2048, learning_starts=0)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1."""
    agent = Config(epochs=10, minibatches=32)
    return Experiment(
        agent, env, steps=100_000, seeds=3, num_envs=8, chunk=2048, gamma=0.95, learning_starts=0, eval_every=10_000
    )
