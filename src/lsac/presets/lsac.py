"""Presets of LSAC."""

import dataclasses

from lsac.agents.lsac import synthesis
from lsac.agents.lsac.config import Config, EncoderOptions, Released
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The paper's settings where nothing measured better, with a cheaper, warm-started generator."""
    return Experiment(Config(), env)


def strong(env: str) -> Experiment:
    """A candidate that is not measured yet: one scale for all tasks, and histogram critics on spheres."""
    agent = Config(
        network="sphere",
        actor_network="sphere",
        head="histogram",
        value_bound=5.0,
        std_init=0.1,  # this and ε are those of a Gaussian head, if it is chosen
        std_eps=0.01,
        weight_prior=0.1,
        critic_lr=3e-4,
        critic_lr_end=1.5e-4,
        anneal_from=0,
        moment_eps=1e-16,
        clip_at=10.0,
        endless_pessimism=0.25,
        actor_pessimism=0.0,
        actor_batches=4,
        slow_evaluation=True,
        log_std_min=-10.0,
        log_std_max=2.0,
        alpha_init=0.01,
        entropy_per_action=-0.5,
        synthetic=False,
    )
    swimmer = env.startswith("Swimmer")  # at γ = 0.99 a short surge is worth as much there as swimming on
    agent = dataclasses.replace(agent, alpha_init=0.001) if swimmer else agent
    gamma = 0.999 if swimmer else 0.99
    return Experiment(agent, env, gamma=gamma, normalise_observations=True, scale_rewards=True)


def paper(env: str) -> Experiment:
    """The paper's settings, but for the clip of the critics' drift, which ends in NaN if taken by the letter. A new
    generator is trained for 1e5 steps at every refresh."""
    agent = Config(
        compute_dtype="float32",
        adaptive_share=False,
        refresh_growth=0.0,
        actor_clip=0.7,
        entropy_range="env",
        generator=synthesis.PAPER,
    )
    return Experiment(agent, env, learning_starts=10_000)


def released(env: str) -> Experiment:
    """The published code, bugs included: negligible noise, no synthetic data, 20 environment steps per update."""
    accidents = Released(
        std_without_gradient=True,
        q_ascent=True,
        weight_norm=1e-4,
        shared_averages=True,
        delay=2,
        no_write_back=True,
    )
    agent = Config(
        critic_lr_end=5e-4,
        inverse_temperature=1e16,
        moment_eps=1e-16,  # √(v + 1e-16) for √v + 1e-8
        compute_dtype="float32",
        synthetic=False,
        adaptive_share=False,
        actor_chain="overflow",
        actor_lr=1e-4,
        alpha_init=2.718281828,
        entropy_range="env",
        released=accidents,
    )
    return Experiment(agent, env, num_envs=20, utd=0.05, chunk=40, learning_starts=1_000)


def adam(env: str) -> Experiment:
    """The paper's ablation of the sampler: critics trained by Adam at 3e-4, without noise."""
    return Experiment(Config(sampler="adam", critic_lr=3e-4, critic_lr_end=3e-4), env)


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: solves Pendulum-v1 in two minutes on two cores."""
    generator = synthesis.Config(
        width=128,
        dim_t=32,
        blocks=3,
        train_steps=500,
        batch_size=256,
        sampler_steps=12,
        sample_batch=10_000,
    )
    agent = Config(
        hidden=(64, 64),
        chains=5,
        batch_size=128,
        actor_lr=1e-3,
        alpha_lr=1e-3,
        tau=0.02,  # a short run needs faster target networks
        synthetic_capacity=10_000,
        refresh_every=1_000,
        generator=generator,
    )
    return Experiment(agent, env, steps=6_000, seeds=3, chunk=8, learning_starts=500, eval_every=500, log_every=250)


def pixels(env: str) -> Experiment:
    """From rendered images, as DrQ-v2 sees them: three frames of 84 × 84, every action repeated once, an update every
    second decision. No generated data."""
    return Experiment(
        Config(synthetic=False),
        env,
        pixels=84,
        frame_stack=3,
        action_repeat=2,
        steps=1_100_000,
        utd=0.5,
        learning_starts=4_000,
        eval_every=10_000,
    )


def pixels_quickstart(env: str) -> Experiment:
    """Small and fast, from images of 24 × 24, for a first look on a laptop: learns lsac/SeenColour-v0."""
    agent = Config(
        hidden=(64, 64),
        chains=3,
        batch_size=64,
        synthetic=False,
        actor_lr=1e-3,
        alpha_lr=1e-3,
        tau=0.02,
        encoder=EncoderOptions(filters=8, feature_dim=16, lr=1e-3, batch_size=128),
    )
    return Experiment(
        agent,
        env,
        pixels=24,
        steps=2_000,
        seeds=1,
        chunk=8,
        learning_starts=500,
        eval_every=500,
        log_every=250,
    )
