"""How much memory there is, asked before it is taken."""

import os
from pathlib import Path

import jax

from lsac.errors import MemoryRefused


def available(device: jax.Device) -> int | None:
    """Free bytes of a device; of the machine for the CPU; None where nobody can tell."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def require(needed: int, what: str, device: jax.Device) -> str:
    """A sentence on what will be taken; refuses what would leave less than a fifth of the memory free."""
    free = available(device)
    if free is not None and needed > 0.8 * free:
        raise MemoryRefused(
            f"{what} needs {size(needed)}, but only {size(free)} are free on {device}: "
            "lower --replay-capacity or --seeds"
        )
    return f"{what} takes {size(needed)}" + (f" of {size(free)} free" if free is not None else "")


def size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
