"""The machine's main memory."""

import os
from pathlib import Path


def free() -> int | None:
    """Bytes that can still be used; None if unknown."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        machine = int(fields["MemAvailable"].split()[0]) * 1024
        allowed = container_allows()
        return machine if allowed is None else min(machine, allowed)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


CONTROL_GROUPS = (  # files with limit and usage; cached files count as used but can be evicted
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def container_allows(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Free bytes within a container's memory limit, which /proc/meminfo does not reflect; None without a limit."""
    for limit, used, table, cached in CONTROL_GROUPS:
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
            statistics = dict(line.split() for line in (group / table).read_text().splitlines())
        except (OSError, ValueError):  # absent, or "max"
            continue
        return max(0, left + int(statistics.get(cached, 0)))
    return None
