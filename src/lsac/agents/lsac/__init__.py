"""Langevin Soft Actor-Critic: Ishfaq, Wang, Islam, Precup, ICLR 2025 (arXiv 2501.17827).

The agent is in agent.py, its options in config.py, the chains of critics in chains.py, the generator of transitions in
synthesis.py, and learning from images in pixels.py.
"""

from lsac.agents.lsac import agent, pixels
from lsac.agents.lsac.agent import State
from lsac.agents.lsac.config import Config
from lsac.types import Agent, EnvSpec

__all__ = ["Config", "State", "make"]

OBSERVATIONS = "both"


def make(config: Config, spec: EnvSpec) -> Agent:
    """The agent for vectors or, if observations have images, for images."""
    return agent.make(config, spec) if spec.frame is None else pixels.make(config, spec)
