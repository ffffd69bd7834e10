"""Reports versions, devices and simulation speed of this machine, and known problems."""

import os
import subprocess
import sys

import jax

from lsac.envs import rates
from lsac.envs.sources import given
from lsac.runs.experiment import versions
from lsac.train import device_memory

KNOWN_BAD = {"mujoco": ("4", "dm_control 1.0.50 cannot load its tasks with MuJoCo 4: install 'mujoco>=3.17,<4'")}


def diagnose(env_id: str, seconds: float) -> int:
    """Prints a report; returns 1 if there is a known problem."""
    found = versions()
    print("versions: " + ", ".join(f"{name} {version}" for name, version in found.items()))
    problems = [text for name, (prefix, text) in KNOWN_BAD.items() if found[name].startswith(prefix + ".")]
    for device in jax.devices():
        free = device_memory.available(device)
        print(f"device: {device} ({device.device_kind}), {device_memory.size(free) if free else 'unknown memory'} free")
    text = rendering()
    print(f"rendering: {text}")
    recipe = given(env_id).training.recipe
    if recipe is None:
        print(f"simulation of {env_id}: not measured, because no other process can create it")
    else:
        measured = rates.measure(recipe, seconds)
        failed = "its simulator fails under random actions"
        print(f"simulation of {env_id}: {measured.sentence() if measured else failed}")
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


def rendering() -> str:
    """The first MuJoCo back end that renders without a display."""
    code = (
        "import mujoco; m = mujoco.MjModel.from_xml_string('<mujoco><worldbody/></mujoco>');"
        "r = mujoco.Renderer(m, 8, 8); r.update_scene(mujoco.MjData(m)); r.render()"
    )
    asked = os.environ.get("MUJOCO_GL")
    for backend in [asked] if asked else ["egl", "osmesa"]:
        environment = os.environ | {"MUJOCO_GL": backend}
        child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=120)
        if child.returncode == 0:
            return f"works with MUJOCO_GL={backend}"
    return "no back end works (to render without a display, MuJoCo needs EGL: on Debian, install libegl1)"
