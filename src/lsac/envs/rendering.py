"""How MuJoCo renders without a display. It reads MUJOCO_GL when it is imported, so this module does not import it."""

import os
import subprocess
import sys

INSTALL = "to render without a display, MuJoCo needs EGL or OSMesa: on Debian and Ubuntu, install libegl1 or libosmesa6"
PROBE = (
    "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco><worldbody/></mujoco>');"
    "r = mujoco.Renderer(m, 8, 8); r.update_scene(mujoco.MjData(m)); r.render()"
)


def working_backend() -> str | None:
    """The first back end of MuJoCo that renders here, tried in processes of their own; None if there is none. If
    MUJOCO_GL is set, only that one is tried."""
    asked = os.environ.get("MUJOCO_GL")
    for backend in [asked] if asked else ["egl", "osmesa"]:
        environment = os.environ | {"MUJOCO_GL": backend}
        child = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, timeout=120)
        if child.returncode == 0:
            return backend
    return None


def choose_backend() -> None:
    """Sets MUJOCO_GL to a back end that works, unless the user has set it."""
    if "MUJOCO_GL" not in os.environ and (backend := working_backend()):
        os.environ["MUJOCO_GL"] = backend


def has_display() -> bool:
    """Whether a window can be opened; tried in a process of its own, because a display that is gone ends it."""
    if sys.platform != "linux" or "SDL_VIDEODRIVER" in os.environ:
        return True
    if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    code = "import importlib.util as u, sys; sys.exit(bool(u.find_spec('glfw')) and not __import__('glfw').init())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0
