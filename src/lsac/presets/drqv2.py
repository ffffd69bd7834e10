"""Presets of DrQ-v2. All train from rendered images of three successive frames, except `quickstart`."""

import dataclasses

from lsac.agents.drqv2 import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings: images of 84 × 84, every action repeated once, an update every second decision."""
    return Experiment(
        Config(),
        env,
        pixels=84,
        frame_stack=3,
        action_repeat=2,
        steps=1_100_000,
        utd=0.5,
        learning_starts=4_000,
        eval_every=10_000,
    )


official = default


def official_walker(env: str) -> Experiment:
    """The authors' settings for the walker tasks: one-step returns and batches of 512."""
    return dataclasses.replace(default(env), agent=Config(n_step=1, batch_size=512))


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper: batches of 512 for all tasks."""
    return dataclasses.replace(default(env), agent=Config(batch_size=512))


def quickstart(env: str) -> Experiment:
    """Small and fast, for a first look on a laptop: images of 24 × 24; solves lsac/SeenColour-v0."""
    agent = Config(hidden=(128, 128), filters=8, batch_size=64, lr=1e-3, noise_steps=1_000)
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
