"""DeepMind Control: every task of the suite as a Gymnasium environment, without Shimmy.

Observations are the task's numbers in the suite's order, as one float32 vector; actions are in [−1, 1]. The time limit
is Gymnasium's `TimeLimit`, a truncation: no task of the suite but `lqr` ever terminates.
"""

import logging
import re
import warnings
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces

from lsac.envs import drawing, physics
from lsac.errors import InputError
from lsac.options import shown

TASKS: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""Domains and tasks of the suite, so that they are known before dm_control is imported, which takes a second."""
STEPS = 1000
"""Control steps of an episode, in every task."""
UNLIMITED = 1e6
"""An actuator with a larger range has no limit to which [−1, 1] could be scaled; its actions are taken as they are."""
KEYS = 624
"""Words in the state of NumPy's legacy random generator."""


def specs() -> dict[str, gym.envs.registration.EnvSpec]:
    """The specs of all tasks by their ids, which are those of Shimmy. They are not in Gymnasium's registry, because
    Shimmy puts its own there."""
    made = {}
    for domain, tasks in TASKS.items():
        for task in tasks:
            name = f"dm_control/{domain}-{task}-v0"
            made[name] = gym.envs.registration.EnvSpec(
                name,
                entry_point=f"{__name__}:DmControl",
                max_episode_steps=STEPS,
                kwargs={"domain": domain, "task": task},
            )
    return made


class DmControl(gym.Env):
    """One task of the suite."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012  (as in every environment)

    def __init__(
        self,
        domain: str,
        task: str,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
        camera: int = 0,
    ):
        if not isinstance(domain, str) or task not in TASKS.get(domain, ()):
            raise InputError(f"domain, task: {shown(domain)} has no task {shown(task)}")
        self._env: Any = _load(domain, task)
        self.metadata = self.metadata | {"render_fps": round(1 / self._env.control_timestep())}
        self.render_mode, self.picture = render_mode, {"width": width, "height": height, "camera": camera}
        limits = self._env.action_spec()
        limited = (limits.minimum > -UNLIMITED) & (limits.maximum < UNLIMITED)
        self._low = np.where(limited, limits.minimum, -1.0)
        self._half_range = (np.where(limited, limits.maximum, 1.0) - self._low) / 2
        self.action_space = spaces.Box(-1.0, 1.0, limits.shape, np.float32)
        size = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.task.random.seed(seed % 2**32)  # NumPy's legacy generator takes no larger ones
        return _flat(self._begin().observation), {}

    def _begin(self) -> Any:
        """Starts an episode: quadruped-escape draws then."""
        return drawing.in_own_thread(self, self._env.reset)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        step = self._env.step(self._low + (np.asarray(action, np.float64) + 1.0) * self._half_range)
        terminated = bool(step.last() and step.discount == 0.0)
        return _flat(step.observation), float(step.reward), terminated, bool(step.last() and not terminated), {}

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        return self._env.physics.render(self.picture["height"], self.picture["width"], self.picture["camera"])

    def close(self) -> None:
        self.free_pictures()
        self._env.close()

    def free_pictures(self) -> None:
        """Frees what it has drawn with, which the suite's `close` leaves to Python."""
        if self._env.physics._contexts:
            self._env.physics._free_rendering_contexts()

    def get_state(self) -> dict[str, Any]:
        """Everything that the next step or reset depends on: simulation, targets in the model, and random numbers."""
        simulation = self._env.physics
        arrays = physics.captured(simulation.model.ptr, simulation.data.ptr)
        _, keys, *rest = self._env.task.random.get_state()
        return {f"physics.{name}": array for name, array in arrays.items()} | {"keys": keys, "rest": list(rest)}

    def set_state(self, state: dict[str, Any]) -> None:
        keys, (position, has_gauss, gauss) = state["keys"], state["rest"]
        known = keys.dtype == np.uint32 and keys.shape == (KEYS,) and type(gauss) is float
        if not known or position not in range(KEYS + 1) or has_gauss not in (0, 1):  # NumPy would read beyond its array
            raise ValueError("the random generator is not one of NumPy's")
        simulation = self._env.physics
        model, data = simulation.model.ptr, simulation.data.ptr
        arrays = {name.split(".", 1)[1]: x for name, x in state.items() if name.startswith("physics.")}
        self._begin()  # some tasks compute constants at their first reset
        physics.restore(model, data, arrays)
        mujoco.mj_step1(model, data)  # a step of the suite begins with the contacts that the last one ended with
        physics.restore(model, data, arrays)
        drawing.in_own_thread(self, self.free_pictures)  # OpenGL has a copy of the terrain
        self._env.task.random.set_state(("MT19937", keys, position, has_gauss, gauss))


def _load(domain: str, task: str) -> Any:
    """Loads a task without a time limit of its own, and without the warnings of its imports and models."""
    logger = logging.getLogger("absl")
    before = logger.level
    try:
        logger.setLevel(logging.ERROR)  # cheetah has a deprecated attribute
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW warns if there is no display
            from dm_control import suite

            return suite.load(domain, task, task_kwargs={"time_limit": float("inf")})
    except ModuleNotFoundError as error:
        if re.match("dm_control|dm_env|labmaze|absl", error.name or ""):
            raise gym.error.DependencyNotInstalled("dm_control is not installed: pip install 'lsac[dmc]'") from None
        raise
    finally:
        logger.setLevel(before)


def _flat(observation: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)
