"""Engines train jobs: here, in a bounded number of processes; on Ray in `on_ray`."""

import time
from collections import deque
from typing import Protocol

from lsac.sweeps.machine import Shares
from lsac.sweeps.training import Ended, Job, Training


class Engine(Protocol):
    def submit(self, job: Job) -> None:
        """Trains a job as soon as there is room for it."""

    def ended(self) -> list[tuple[str, Ended]]:
        """Folders of the jobs that have ended since the last call, and how; must be called often."""

    def running(self) -> set[str]:
        """Folders of the jobs that are being trained."""

    def stop(self, folder: str) -> None:
        """Asks a job to save and to end, or not to start."""

    def close(self) -> None:
        """Ends what still runs, at once."""


class Local:
    """Trains jobs in processes of this machine."""

    def __init__(self, shares: Shares):
        self._free = deque(shares.slots)
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, tuple[Training, dict[str, str]]] = {}
        self._stopped: list[str] = []

    def submit(self, job: Job) -> None:
        self._waiting[job.folder] = job

    def ended(self) -> list[tuple[str, Ended]]:
        found = [(folder, Ended("stopped")) for folder in self._stopped]
        self._stopped = []
        for folder, (training, slot) in list(self._running.items()):
            if (end := training.poll()) is not None:
                found.append((folder, end))
                del self._running[folder]
                self._free.append(slot)
        while self._free and self._waiting:
            folder = next(iter(self._waiting))
            slot = self._free.popleft()
            self._running[folder] = Training(self._waiting.pop(folder), slot), slot
        return found

    def running(self) -> set[str]:
        return set(self._running)

    def stop(self, folder: str) -> None:
        if self._waiting.pop(folder, None) is not None:
            self._stopped.append(folder)
        elif folder in self._running:
            self._running[folder][0].stop()

    def close(self) -> None:
        for training, _ in self._running.values():
            training.kill()


def wait(engine: Engine, seconds: float = 0.2) -> list[tuple[str, Ended]]:
    """The jobs that have ended, after a while in which others may."""
    found = engine.ended()
    if not found:
        time.sleep(seconds)
    return found
