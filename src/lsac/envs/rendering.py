"""How MuJoCo renders without a display. It reads MUJOCO_GL when it is imported, so this module does not import it."""

import importlib
import os
import subprocess
import sys
import tempfile

from lsac.errors import InputError

PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
"""Back ends that need no display, the preferred one first, and their packages on Debian and Ubuntu."""
INSTALL = "to render without a display, MuJoCo needs EGL or OSMesa: on Debian and Ubuntu, install libegl1 or libosmesa6"
PATIENCE = 60.0
"""Seconds after which a back end that gives no answer counts as one that does not work."""
PROBE = (
    "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco><worldbody/></mujoco>');"
    "r = mujoco.Renderer(m, 8, 8); r.update_scene(mujoco.MjData(m)); r.render()"
)
SPEED = """
import time, gymnasium
env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=84, height=84)
env.reset(seed=0), env.render()
begun, images = time.perf_counter(), 0
while time.perf_counter() - begun < 1.0:
    env.render()
    images += 1
print(images / (time.perf_counter() - begun), flush=True)
env.close()
"""


def _asked() -> str:
    """The back end that the user has chosen; empty if there is none."""
    return os.environ.get("MUJOCO_GL", "")


def _printed(code: str, backend: str) -> str | None:
    """What Python prints in a process of its own, because a back end is chosen once in a process; None if it fails."""
    command, environment = [sys.executable, "-c", code], os.environ | {"MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)  # MuJoCo has set it for the back end of this process
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo logs where it runs
        try:
            child = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PATIENCE, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return None
    return None if child.returncode else child.stdout


def working_backend() -> str | None:
    """The first back end of MuJoCo that renders here; None if there is none. If the user has chosen one, only that one
    is tried."""
    tried = [_asked()] if _asked() else PACKAGES
    return next((backend for backend in tried if _printed(PROBE, backend) is not None), None)


def speeds() -> dict[str, float | None]:
    """Images of 84 × 84 per second of a MuJoCo task with every back end, first the one that the user has chosen; None
    with one that does not work."""
    printed = {backend: _printed(SPEED, backend) for backend in filter(None, dict.fromkeys([_asked(), *PACKAGES]))}
    return {backend: None if text is None else float(text) for backend, text in printed.items()}


def require_importable() -> None:
    """Rejects a choice of the user with which MuJoCo cannot even be imported."""
    if not _asked():
        return
    try:
        importlib.import_module("mujoco")
    except Exception as error:
        hint = f", or install {PACKAGES[_asked()]} on Debian and Ubuntu" if _asked() in PACKAGES else ""
        raise InputError(
            f"MUJOCO_GL={_asked()}: MuJoCo cannot be imported with it; unset it, so that one that works is chosen{hint}"
        ) from error


def choose_backend() -> bool:
    """Sets MUJOCO_GL to a back end that works, unless the user has set it; returns whether it is set.

    Processes that are started later inherit it. Gymnasium reads it when it draws, dm_control when it creates its first
    task, and MuJoCo's own renderer when it is imported, which is done again.
    """
    if not _asked() and (backend := working_backend()):
        os.environ["MUJOCO_GL"] = backend
        if (loaded := sys.modules.get("mujoco.rendering.classic.gl_context")) is not None:
            importlib.reload(loaded)
    return bool(_asked())


def has_display() -> bool:
    """Whether a window can be opened; tried in a process of its own, because a display that is gone ends it."""
    if sys.platform != "linux" or "SDL_VIDEODRIVER" in os.environ:
        return True
    if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    code = "import importlib.util as u, sys; sys.exit(bool(u.find_spec('glfw')) and not __import__('glfw').init())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0
