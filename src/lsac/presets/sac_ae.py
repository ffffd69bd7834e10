"""Presets of SAC+AE."""

from lsac.agents.sac_ae import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings of SAC+AE, with two steps per action in every task."""
    return Experiment(
        Config(), env, pixels=84, frame_stack=3, action_repeat=2, learning_starts=2_000, eval_every=10_000
    )


official = default


def drq(env: str) -> Experiment:
    """DrQ: no decoder, randomly shifted images, and the settings of its paper: batches of 512, all step sizes 1e-3."""
    agent = Config(decoder="none", batch_size=512, alpha_lr=1e-3, alpha_beta1=0.9, encoder_tau=0.01)
    return Experiment(
        agent,
        env,
        pixels=84,
        frame_stack=3,
        action_repeat=2,
        learning_starts=2_000,
        replay_capacity=100_000,
        eval_every=10_000,
    )


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: images of 24 × 24; solves lsac/SeenColour-v0."""
    agent = Config(hidden=(64, 64), filters=8, feature_dim=16, batch_size=64, alpha_init=0.05)
    return Experiment(
        agent,
        env,
        pixels=24,
        steps=2_000,
        seeds=3,
        chunk=8,
        learning_starts=500,
        eval_every=500,
        log_every=250,
    )
