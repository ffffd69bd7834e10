"""Creates environments so that they draw the images that an agent sees, and rejects those that cannot: `--pixels`."""

import inspect
from typing import Any

import gymnasium as gym

from lsac.envs import drawing, rendering
from lsac.envs.dm_control import DmControl
from lsac.envs.gymnasium import images_in, name_of
from lsac.envs.ids import first_line
from lsac.envs.pixels import Rendered
from lsac.errors import InputError, own_traceback

MODE = "rgb_array"
QUADRUPED_CAMERA = 2
"""The camera that follows the quadruped of DeepMind Control; the others are followed by camera 0."""
GYMNASIUM_CAMERA = "track"
"""The camera that follows a robot of Gymnasium; the one that it draws with by default stays at the start. Models
without this camera are drawn from the usual place."""


def arguments(spec: gym.envs.registration.EnvSpec, side: int, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which an environment draws images of this side, and those that the user has given, which
    count. If MuJoCo draws it, a back end is chosen first."""
    found: dict[str, Any] = {"render_mode": MODE}
    if (mode := given.get("render_mode", MODE)) != MODE:
        raise InputError(f"--pixels {side}: needs render_mode={MODE}, not {mode}")
    kind = _class_of(spec)
    if kind is None or not issubclass(kind, _sized()):
        return found | given
    require_backend(side)
    found |= {"width": side, "height": side}
    if issubclass(kind, DmControl):
        found["camera"] = QUADRUPED_CAMERA if spec.kwargs.get("domain") == "quadruped" else 0
    elif "camera_id" not in given:
        found["camera_name"] = GYMNASIUM_CAMERA
    parameters = inspect.signature(kind).parameters
    all_taken = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in found.items() if all_taken or name in parameters} | given


def _class_of(spec: gym.envs.registration.EnvSpec) -> type | None:
    creator: Any = spec.entry_point
    try:
        creator = gym.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator
    except Exception:  # the reason is told when the environment is created
        return None
    return creator if isinstance(creator, type) else None


def _sized() -> tuple[type, ...]:
    """Classes whose arguments width and height are the size of what they draw."""
    from gymnasium.envs.mujoco import MujocoEnv  # takes half a second, for which other runs need not wait

    from lsac.envs.two_goals import TwoGoals

    return MujocoEnv, TwoGoals, DmControl


def require_backend(side: int) -> None:
    """Chooses a back end of MuJoCo, unless the user has."""
    if not rendering.choose_backend():
        raise InputError(f"--pixels {side}: no back end of MuJoCo works here; {rendering.INSTALL}")


def picture_of(env: gym.Env) -> dict[str, Any]:
    """The arguments with which an environment that exists draws as it does, where `arguments` would choose others."""
    inner: Any = env.unwrapped
    if not issubclass(type(inner), _sized()):
        return {}
    if hasattr(inner, "picture"):
        return dict(inner.picture)
    return {"width": inner.width, "height": inner.height, "camera_name": inner.camera_name}


def rendered(env: gym.Env, side: int, draw: bool) -> Rendered:
    """The environment as one that shows images; rejects one that cannot. With `draw`, it is tried, for which the
    environment is reset."""
    option, name = f"--pixels {side}", name_of(env)
    require_no_image(env, side)
    if MODE not in (env.metadata.get("render_modes") or ()):
        raise cannot(side, name)
    if env.render_mode != MODE:
        raise InputError(f"{option}: {name} was created with render_mode={env.render_mode!r}, but needs {MODE!r}")
    if drawing.renderers(env) or isinstance(env.unwrapped, DmControl):
        require_backend(side)
    shown = Rendered(env, side)
    if draw:
        _try(shown, f"{option}: {name}")
    return shown


def require_no_image(env: gym.Env, side: int) -> None:
    """Rejects an environment whose observations contain an image."""
    if images_in(env.observation_space):
        raise InputError(
            f"--pixels {side}: the observations of {name_of(env)} contain an image already; set --pixels 0"
        )


def cannot(side: int, name: str) -> InputError:
    return InputError(f"--pixels {side}: {name} cannot draw images, because it has no render mode {MODE!r}")


def _try(env: Rendered, what: str) -> None:
    try:
        env.reset(seed=0)
    except Exception as error:
        missing = isinstance(error, gym.error.DependencyNotInstalled)
        hint = f"; {rendering.INSTALL}" if not missing and rendering.working_backend() is None else ""
        failure = InputError(f"{what} cannot draw images: {first_line(error)}{hint}")
        failure.detail = "" if missing else own_traceback(error)
        raise failure from error
