"""SAC from images with an autoencoder (SAC+AE): Yarats et al., AAAI 2021 (arXiv 1910.01741); DrQ (arXiv 2004.13649).

From *Improving Sample Efficiency in Model-Free Reinforcement Learning from Images*. SAC sees a code of the image. The
encoder learns from the loss of the critics and from reconstructing the image. The actor uses the same convolutions,
but its loss does not train them.

With `--decoder none`, the encoder learns from the critics alone, on randomly shifted images: DrQ, Kostrikov, Yarats,
Fergus, ICLR 2021, *Image Augmentation Is All You Need*.

The options are in config.py, encoder and decoder in autoencoder.py, and SAC on their codes in agent.py.
"""

from lsac.agents.sac_ae.agent import State, make
from lsac.agents.sac_ae.config import Config

OBSERVATIONS = "images"

__all__ = ["OBSERVATIONS", "Config", "State", "make"]
