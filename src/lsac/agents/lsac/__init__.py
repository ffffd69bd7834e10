"""Langevin Soft Actor-Critic: Ishfaq, Wang, Islam, Precup, ICLR 2025 (arXiv 2501.17827).

The agent is in agent.py, its options in config.py, the chains of critics in chains.py, the generator of transitions in
synthesis.py.
"""

from lsac.agents.lsac.agent import State, make
from lsac.agents.lsac.config import Config

__all__ = ["Config", "State", "make"]
