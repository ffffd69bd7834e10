"""Reports versions, devices and simulation speed of this machine, and known problems."""

from lsac.envs import rates
from lsac.envs.rendering import INSTALL, PACKAGES, speeds
from lsac.envs.sources import given
from lsac.runs.experiment import versions
from lsac.train import device_memory
from lsac.train.devices import Devices, visible

KNOWN_BAD = {"mujoco": ("4", "dm_control 1.0.50 cannot load its tasks with MuJoCo 4: install 'mujoco>=3.17,<4'")}


def diagnose(env_id: str, seconds: float) -> int:
    """Prints a report; returns 1 if there is a known problem."""
    found = versions()
    print("versions: " + ", ".join(f"{name} {version}" for name, version in found.items()))
    problems = [text for name, (prefix, text) in KNOWN_BAD.items() if found[name].startswith(prefix + ".")]
    for device in visible():
        free = device_memory.available(device)
        print(f"device: {device} ({device.device_kind}), {device_memory.size(free) if free else 'unknown memory'} free")
    print(f"seeds: {spread()}")
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


def spread() -> str:
    """How runs of a few numbers of seeds are spread over the devices."""
    count = len(visible())
    if count == 1:
        return "all of a run on this device"
    examples = ", ".join(f"{seeds} on {len(Devices(seeds).used)}" for seeds in (1, 5, 10))
    return f"those of a run are spread equally over devices: {examples}, a multiple of {count} on all {count}"


def rendering() -> str:
    """How fast the back ends of MuJoCo render without a display."""
    found = speeds()
    if not any(found.values()):
        return f"no back end works ({INSTALL})"
    works = "MUJOCO_GL={} draws {:,.0f} images of 84 × 84 per second"
    parts = [works.format(name, speed) if speed else _broken(name) for name, speed in found.items()]
    return ", ".join(parts)


def _broken(backend: str) -> str:
    hint = f" (on Debian and Ubuntu, install {PACKAGES[backend]})" if backend in PACKAGES else ""
    return f"MUJOCO_GL={backend} does not work{hint}"
