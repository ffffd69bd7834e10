"""Presets of DrQ-v2. All train from rendered images of three successive frames, except `quickstart`."""

from dataclasses import replace

from lsac.agents.drqv2 import Config
from lsac.runs.experiment import Experiment

MEDIUM = (
    *("acrobot-swingup", "cartpole-swingup_sparse", "cheetah-run", "finger-turn_easy", "finger-turn_hard"),
    *("hopper-hop", "quadruped-walk", "quadruped-run", "reacher-easy", "reacher-hard", "walker-run"),
)
HARD = ("humanoid-stand", "humanoid-walk", "humanoid-run")
"""The authors' groups of DeepMind Control tasks, which differ in length and noise; all other tasks count as easy."""


def default(env: str) -> Experiment:
    """The authors' settings for the task: images of 84 × 84, every action repeated once, an update every second
    decision; length and noise by the task's difficulty. Also listed as `official`."""
    task = env.removeprefix("dm_control/").rsplit("-v", 1)[0]
    agent = Config()
    run = Experiment(
        agent,
        env,
        pixels=84,
        frame_stack=3,
        action_repeat=2,
        steps=1_100_000,
        utd=0.5,
        learning_starts=4_000,
        eval_every=10_000,
    )
    if task in MEDIUM:
        agent, run = replace(agent, noise_steps=500_000), replace(run, steps=3_100_000)
    if task in HARD:
        agent = replace(agent, noise_steps=2_000_000, lr=8e-5, feature_dim=100)
        run = replace(run, steps=30_100_000)
    if task.startswith("walker-"):
        agent = replace(agent, n_step=1, batch_size=512)
    if task == "quadruped-run":
        run = replace(run, replay_capacity=100_000)
    return replace(run, agent=agent)


official = default


def paper(env: str) -> Experiment:
    """The settings of the LSAC paper: as the authors', with batches of 512 and step size 1e-4 for all tasks."""
    run = default(env)
    return replace(run, agent=replace(run.agent, batch_size=512, lr=1e-4))


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
