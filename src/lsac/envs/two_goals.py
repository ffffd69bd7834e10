"""The two-goal mazes: a point mass or an ant starts between two goals, of which it observes neither."""

import contextlib
import io
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv

from lsac.envs import physics
from lsac.envs.mazes import ANT_MAZE, POINT_ID, Maze, maze_of
from lsac.errors import InputError
from lsac.options import shown

RADIUS = 0.5
"""Distance in metres at which a goal is reached."""


class TwoGoals(gym.Env):
    """A body in a maze. An observation is its joint positions, the first two of which are x and y, and velocities.

    `info` has the `position` (x, y), whether a goal is reached (`success`), and the index of that `goal`, or −1.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array"]}  # noqa: RUF012  (as in every environment)

    def __init__(self, maze: Maze, body: MujocoEnv, start_noise: float):
        if not (_is_number(start_noise) and start_noise >= 0):
            raise InputError(f"start_noise: {shown(start_noise)} must be a number that is not negative")
        self.maze, self._body, self._start_noise = maze, body, start_noise
        self.render_mode = body.render_mode
        self.picture = {"width": body.width, "height": body.height}
        self.action_space = body.action_space
        size = body.model.nq + body.model.nv
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts in the middle of the start cell: joint positions are within ± the noise of their values there, and
        velocities normally distributed with this std, as Gymnasium's Ant starts."""
        super().reset(seed=seed)
        body, noise, random = self._body, self._start_noise, self.np_random
        body.reset()
        position = body.init_qpos + noise * random.uniform(-1.0, 1.0, body.model.nq)
        body.set_state(position, body.init_qvel + noise * random.standard_normal(body.model.nv))
        return self._obs(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._body.step(action)
        info = self._info()
        reward, terminated = self.outcome(info["position"], info["success"])
        return self._obs(), reward, terminated, False, info

    def outcome(self, position: np.ndarray, success: bool) -> tuple[float, bool]:
        """Reward, and whether the episode terminates."""
        raise NotImplementedError

    def render(self) -> Any:
        return self._body.render()

    def close(self) -> None:
        self._body.close()

    def get_state(self) -> dict[str, Any]:
        return dict(physics.captured(self._body.model, self._body.data))

    def set_state(self, state: dict[str, Any]) -> None:
        physics.restore(self._body.model, self._body.data, state)

    def _obs(self) -> np.ndarray:
        return np.concatenate([self._body.data.qpos, self._body.data.qvel]).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        position = self._body.data.qpos[:2].copy()
        goal = int(self.maze.goal_of(position, RADIUS))
        return {"position": position, "success": goal >= 0, "goal": goal}


class PointMaze(TwoGoals):
    """A ball that is pushed in x and y: the reward is minus the distance to the nearer goal, and nothing terminates."""

    metadata = TwoGoals.metadata | {"render_fps": 100}

    def __init__(
        self,
        layout: str = "medium",
        start_noise: float = 0.1,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
    ):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # it prints a note on other environments
                from gymnasium_robotics.envs.maze import point
        except ModuleNotFoundError:
            raise gym.error.DependencyNotInstalled(
                "gymnasium-robotics is not installed: pip install 'lsac[maze]'"
            ) from None
        maze = maze_of(POINT_ID, layout)
        assert maze is not None
        tree = ElementTree.parse(Path(point.__file__).parents[1] / "assets" / "point" / "point.xml")
        picture = {"render_mode": render_mode, "width": width, "height": height}
        super().__init__(maze, _built(point.PointEnv, tree, maze, picture), start_noise)

    def outcome(self, position: np.ndarray, success: bool) -> tuple[float, bool]:
        return -float(np.linalg.norm(self.maze.goals - position, axis=-1).min()), False


class Ant(MujocoEnv):
    """The body of Gymnasium's Ant, without its task."""

    metadata = TwoGoals.metadata | {"render_fps": 20}

    def __init__(self, xml_file: str, **picture: Any):
        super().__init__(xml_file, 5, None, **picture)

    def reset_model(self) -> np.ndarray:
        self.set_state(self.init_qpos, self.init_qvel)
        return np.empty(0)

    def step(self, action: np.ndarray) -> Any:
        self.do_simulation(action, self.frame_skip)
        if self.render_mode == "human":
            self.render()


class AntMaze(TwoGoals):
    """An ant: the reward is 1 at either goal, where the episode terminates, and 0 everywhere else."""

    metadata = TwoGoals.metadata | {"render_fps": 20}

    def __init__(
        self,
        gear: float = 30.0,
        start_noise: float = 0.1,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
    ):
        """`gear` is the torque of the motors: weaker than the 150 of Gymnasium's Ant, which falls on its back."""
        if not (_is_number(gear) and gear > 0):
            raise InputError(f"gear: {shown(gear)} must be a number larger than 0")
        tree = ElementTree.parse(Path(gym.envs.mujoco.__file__).parent / "assets" / "ant.xml")
        for motor in tree.iter("motor"):
            motor.set("gear", str(gear))
        picture = {"render_mode": render_mode, "width": width, "height": height}
        super().__init__(ANT_MAZE, _built(Ant, tree, ANT_MAZE, picture), start_noise)

    def outcome(self, position: np.ndarray, success: bool) -> tuple[float, bool]:
        return float(success), success


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and np.isfinite(value)


def _built(body: Callable[..., MujocoEnv], tree: Any, maze: Maze, picture: dict[str, Any]) -> MujocoEnv:
    """A body in its maze, seen from above."""
    _add_maze(tree, maze)
    rows, columns = maze.walls.shape
    middle = (maze.centre((0, 0)) + maze.centre((rows - 1, columns - 1))) / 2
    camera = {"lookat": np.append(middle, 0.0), "distance": 1.35 * rows * maze.cell, "elevation": -90, "azimuth": 90}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "maze.xml")
        tree.write(path)
        return body(xml_file=str(path), camera_id=-1, default_camera_config=camera, **picture)


def _add_maze(tree: Any, maze: Maze) -> None:
    """Adds walls, as high as those of Gymnasium-Robotics, and a red disc at each goal."""
    world = tree.find(".//worldbody")
    half, height = maze.cell / 2, maze.cell * (0.2 if maze.cell == 1.0 else 0.25)
    for row, column in np.argwhere(maze.walls).tolist():
        x, y = maze.centre((row, column))
        place = {"name": f"wall_{row}_{column}", "pos": f"{x} {y} {height}", "size": f"{half} {half} {height}"}
        looks = {"type": "box", "contype": "1", "conaffinity": "1", "rgba": "0.7 0.5 0.3 1"}
        ElementTree.SubElement(world, "geom", place | looks)
    for index, (x, y) in enumerate(maze.goals):
        place = {"name": f"goal_{index}", "pos": f"{x} {y} 0.01", "size": f"{RADIUS} 0.01"}
        ElementTree.SubElement(world, "site", place | {"type": "cylinder", "rgba": "0.9 0.1 0.1 0.6"})
