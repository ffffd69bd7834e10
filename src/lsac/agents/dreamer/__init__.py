"""Dreamer: Hafner, Lillicrap, Ba, Norouzi, *Dream to Control*, ICLR 2020 (arXiv 1912.01603).

A world model learns from images to predict images and rewards in a small state. The actor and the critic learn in
states that the model imagines: the actor maximises imagined returns by gradients through the model.

The options are in config.py, the world model in world_model.py and nn/rssm.py, actor and critic in agent.py.
"""

from lsac.agents.dreamer.agent import State, make
from lsac.agents.dreamer.config import Config
from lsac.agents.dreamer.world_model import open_loop

OBSERVATIONS = "images"

__all__ = ["OBSERVATIONS", "Config", "State", "make", "open_loop"]
