"""The newest observations of a group of simulators: arrays [E, O], or `Pixels` of frames and vectors."""

from typing import Any

import numpy as np

from lsac.types import EnvSpec, Pixels


def blank(spec: EnvSpec, count: int) -> Any:
    """Zeros, as `count` simulators of this spec would return observations."""
    vectors: Any = np.zeros((count, *spec.obs_shape), np.float32)
    if spec.frame is None:
        return vectors
    images: Any = np.zeros((count, *spec.frame), np.uint8)
    return Pixels(images, vectors)


def put(observations: Any, i: int, obs: Any) -> None:
    """Writes the observation of simulator i."""
    if isinstance(observations, Pixels):
        observations.image[i], observations.vector[i] = obs
    else:
        observations[i] = obs


def of_one(observations: Any, i: int) -> Any:
    """A copy of the observation of simulator i."""
    if isinstance(observations, Pixels):
        return Pixels(observations.image[i].copy(), observations.vector[i].copy())
    return observations[i].copy()


def vectors(observations: Any) -> Any:
    """Observations, of any number of simulators, without their images."""
    return observations.vector if isinstance(observations, Pixels) else observations


def frames(observations: Any) -> Any:
    """Only their images; None if there are none."""
    return observations.image if isinstance(observations, Pixels) else None
