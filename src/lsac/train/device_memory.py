"""Checks for sufficient memory before a run allocates it."""

import jax

from lsac.errors import MemoryRefused
from lsac.runs import main_memory
from lsac.train.devices import Devices


def available(device: jax.Device) -> int | None:
    """Free bytes of a device, or of the machine for the CPU; None if unknown."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return main_memory.free()


def seeds_sharing(devices: Devices) -> int:
    """The number of a run's seeds that share one memory: those of one device, or all on CPUs, which have only one."""
    return devices.seeds if on_cpu(devices) else devices.seeds_each


def on_cpu(devices: Devices) -> bool:
    return devices.used[0].platform == "cpu"


def require(needed: int, what: str, devices: Devices, advice: str) -> str:
    """Rejects a request for more than 80 % of the free memory of any device; otherwise returns a sentence on the memory
    it takes."""
    where = f"each of {devices}" if seeds_sharing(devices) < devices.seeds else str(devices)
    return _required(needed, what, devices.used, where, advice)


def require_main(needed: int, what: str, advice: str) -> str:
    """The same for the machine's main memory."""
    return _required(needed, what, jax.local_devices(backend="cpu")[:1], "this machine", advice)


def _required(needed: int, what: str, devices: list[jax.Device], where: str, advice: str) -> str:
    known = [free for free in map(available, devices) if free is not None]
    if known and needed > 0.8 * min(known):
        raise MemoryRefused(f"{what} need {size(needed)}, but only {size(min(known))} are free on {where}: {advice}")
    return f"{what} take {size(needed)}" + (f" of {size(min(known))} free" if known else "") + f", on {where}"


def size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
