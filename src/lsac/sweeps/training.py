"""Trains one experiment in a process of its own, which is started again if something kills it."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from lsac.errors import InputError, Stopped
from lsac.runs.folder import LOCK
from lsac.sweeps.runs import finished
from lsac.sweeps.words import shown

COMMAND = (sys.executable, "-m", "lsac.sweeps.guarded")
"""What takes the words of a job."""
LOG = "train.log"
"""What a run of a sweep prints, in its folder."""
PATIENCE = 120.0
"""Seconds to wait for a process that still trains in the folder: one whose parent was killed ends within moments, but a
network file system keeps the lock of a machine that is lost for a minute or two."""
RESTARTS = 3
"""How often an experiment whose process is killed is started again, in one sweep."""
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


class Job(NamedTuple):
    """An experiment to be trained, as plain data: it may travel to another machine."""

    folder: str
    """absolute path of its run"""
    steps: int
    train: Sequence[str]
    """words after `lsac` that start the run"""
    resume: Sequence[str]
    """words after `lsac` that continue it"""


class Ended(NamedTuple):
    state: str
    """finished, stopped or failed"""
    sentence: str = ""
    """why it failed"""
    code: int = 0
    """exit code of the command that failed"""


class Training:
    """Call `poll` until it returns how the experiment has ended. What there is to do is read from the run's folder."""

    def __init__(self, job: Job, environment: dict[str, str]):
        self._job, self._environment = job, environment
        self._folder = Path(job.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._waiting_since: float | None = None
        self._restarts, self._stopping = 0, False

    def poll(self) -> Ended | None:
        try:
            if self._process is None:
                return self._start()
            code = self._process.poll()
            if code is None:
                return None
            self._release()
            return self._ended(code)
        except InputError as error:  # of a damaged checkpoint
            return Ended(FAILED, str(error))

    def stop(self) -> None:
        """Asks the run to save and to end; `poll` tells when it has."""
        if not self._stopping and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        self._stopping = True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._release()

    def _start(self) -> Ended | None:
        """Starts the process, unless there is nothing to do; returns None if it runs, or will."""
        if finished(self._folder, self._job.steps):
            return Ended(FINISHED)
        if self._stopping:
            return Ended(STOPPED)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if _is_locked(self._folder):
                self._waiting_since = self._waiting_since or time.monotonic()
                if time.monotonic() - self._waiting_since > PATIENCE:
                    return Ended(FAILED, "another process is training in its folder")
                return None
            self._log = (self._folder / LOG).open("ab")
        except OSError as error:
            return Ended(FAILED, f"its folder cannot be written ({error.strerror})")
        words = list(self._job.resume if (self._folder / "config.json").is_file() else self._job.train)
        self._log.write(f"$ {shown(words)}\n".encode())
        self._log.flush()
        self._process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=subprocess.PIPE,  # never written to: its end tells the child that this process has ended
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | self._environment,
            start_new_session=True,  # Ctrl-C reaches only the sweep, which then stops its runs
        )
        return None

    def _ended(self, code: int) -> Ended | None:
        """How the experiment has ended, by the exit code of its process; None if it is started again."""
        if code == 0:
            if finished(self._folder, self._job.steps):
                return Ended(FINISHED)
            return Ended(FAILED, f"its process ended without an error before the last step, see {self._folder / LOG}")
        if code == Stopped.exit_code or (self._stopping and code == -signal.SIGTERM):
            return Ended(STOPPED)
        if code > 0:
            return Ended(FAILED, _last_words(self._folder / LOG), code)
        if self._stopping:
            return Ended(STOPPED)
        if self._restarts < RESTARTS:
            self._restarts += 1
            self._waiting_since = None
            return None
        return Ended(FAILED, f"its process was killed {1 + RESTARTS} times, the last time by {_signal_name(-code)}")

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._log is not None:
            self._log.close()
        self._process = self._log = None


def _is_locked(folder: Path) -> bool:
    """Whether a process trains in this folder; a new one could not."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)  # network file systems lock what can be written
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _last_words(log: Path) -> str:
    """The sentence with which a command has failed."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("lsac: ") for line in lines if line.startswith("lsac: ")]
    return said[-1] if said and lines[-1].startswith("lsac: ") else f"{lines[-1].strip()} (see {log})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
