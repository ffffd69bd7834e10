"""Presets of Dreamer."""

from lsac.agents.dreamer import Config
from lsac.runs.experiment import Experiment


def default(env: str) -> Experiment:
    """The authors' settings: images of 64×64, 100 updates every 1 000 environment steps. Also listed as `official`."""
    return Experiment(Config(), env, pixels=64, action_repeat=2, chunk=500, utd=0.2, eval_every=10_000)


official = default


def quickstart(env: str) -> Experiment:
    """Small, from images of 24 × 24, for a first look on a laptop: learns lsac/SeenColour-v0."""
    agent = Config(
        deterministic_size=32,
        stochastic_size=8,
        model_units=32,
        depth=4,
        units=64,
        batch_size=16,
        batch_length=8,
        model_lr=1e-3,
        actor_lr=3e-4,
        critic_lr=3e-4,
        horizon=5,
        predict_discount=True,
    )
    return Experiment(
        agent,
        env,
        pixels=24,
        steps=8_000,
        chunk=16,
        utd=0.25,
        learning_starts=500,
        replay_capacity=8_000,
        eval_every=500,
        log_every=500,
    )
