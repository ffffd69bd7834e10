"""What this machine has, and what is wrong with it."""

import os
import subprocess
import sys
import time

import jax
import numpy as np

from lsac import memory
from lsac.envs import gymnasium as adapter
from lsac.experiment import versions

KNOWN_BAD = {"mujoco": ("4", "dm_control 1.0.50 cannot load its tasks with MuJoCo 4: install 'mujoco>=3.17,<4'")}


def diagnose(env_id: str, seconds: float) -> int:
    """Prints the findings; 1 if something is known not to work."""
    found = versions()
    print("versions: " + ", ".join(f"{name} {version}" for name, version in found.items()))
    problems = [text for name, (prefix, text) in KNOWN_BAD.items() if found[name].startswith(prefix + ".")]
    for device in jax.devices():
        free = memory.available(device)
        print(f"device: {device} ({device.device_kind}), {memory.size(free) if free else 'unknown memory'} free")
    text = rendering()
    print(f"rendering: {text}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    adapter.Simulator(adapter.build(adapter.find(env_id))).close()  # says what is wrong with it, if anything is
    serial = rates(env_id, 1, seconds)[0]
    print(f"simulation of {env_id}: {serial:,.0f} steps/s in one process")
    if cores > 1:
        together = sum(rates(env_id, cores, seconds))
        verdict = (
            "worth it: runs use one worker per core" if together > 1.1 * serial else "not worth it: use --workers 1"
        )
        print(f"simulation of {env_id}: {together:,.0f} steps/s in {cores} processes; parallel is {verdict}")
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


def rates(env_id: str, processes: int, seconds: float) -> list[float]:
    """Steps per second of simulators that run at the same time, each in a process of its own."""
    code = f"from lsac.doctor import rate; print(rate({env_id!r}, {seconds!r}))"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(processes)
    ]
    return [float(child.communicate()[0].split()[-1]) for child in children]


def rate(env_id: str, seconds: float) -> float:
    simulator = adapter.Simulator(adapter.build(adapter.find(env_id)))
    rng = np.random.default_rng(0)
    simulator.reset(0)
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        _, _, terminated, truncated = simulator.step(rng.uniform(-1, 1, simulator.spec.action_dim))
        steps += 1
        if terminated or truncated:
            simulator.reset()
    return steps / (time.perf_counter() - started)


def rendering() -> str:
    """The first MuJoCo back end that draws a picture without a screen."""
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
    return "no back end works (videos need EGL: on Debian, install libegl1)"
