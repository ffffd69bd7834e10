"""Environments that show images: the agent sees what the environment draws, in place of its observations."""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lsac.envs import drawing
from lsac.errors import EnvironmentFault


class Rendered(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Observations are RGB images of `side` × `side` pixels: what the environment draws after every step."""

    def __init__(self, env: gym.Env, side: int):
        gym.utils.RecordConstructorArgs.__init__(self, side=side)
        super().__init__(env)
        self.side = side
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        drawing.give_thread(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        return self._image(), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._image(), reward, terminated, truncated, info

    def render(self) -> Any:
        return drawing.in_own_thread(self.env, self.env.render)

    def close(self) -> None:
        drawing.close(self.env)

    def _image(self) -> np.ndarray:
        picture = self.render()
        if not isinstance(picture, np.ndarray):
            raise EnvironmentFault(f"render returned {type(picture).__name__}, not an RGB image")
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            raise EnvironmentFault(f"render returned {picture.dtype} {picture.shape}, not an RGB image")
        return resized(picture, self.side)


def resized(picture: np.ndarray, side: int) -> np.ndarray:
    """A picture [H, W, C] as [side, side, C]: every pixel is the mean over its share of the area, rounded."""
    height, width = picture.shape[:2]
    if height == width == side:
        return picture
    rows = _sums(picture, side)
    sums = _sums(rows.swapaxes(0, 1).astype(np.int64), side).swapaxes(0, 1)
    area = height * width
    return ((sums + area // 2) // area).astype(np.uint8)


def _sums(lines: np.ndarray, parts: int) -> np.ndarray:
    """Lines [N, …] divided into equal parts [parts, …]: the sum over each, times `parts`; a whole number."""
    index, weights = _overlaps(len(lines), parts)
    shape = (parts,) + (1,) * (lines.ndim - 1)
    found: Any = sum(weight.reshape(shape) * lines[at] for at, weight in zip(index, weights, strict=True))
    return found


@functools.cache
def _overlaps(size: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, parts] the pixels in a line of `size` that each of its equal parts touches, and the share of the pixel that
    lies in it, times `parts`."""
    start = np.arange(parts, dtype=np.int32) * size  # a pixel is `parts` long, a part is `size` long
    most = int(np.max((start + size - 1) // parts - start // parts)) + 1
    index = start // parts + np.arange(most, dtype=np.int32)[:, None]
    shares = np.minimum((index + 1) * parts, start + size) - np.maximum(index * parts, start)
    return np.minimum(index, size - 1), np.maximum(shares, 0)
