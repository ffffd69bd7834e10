"""Requests to stop a run, and long work that such a request interrupts."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from lsac.errors import Stopped

T = TypeVar("T")
LONG_WORK = "long work"
"""Name of the threads that run it."""


class Stop:
    """A stop flag: signals and callbacks set it; a run checks it between two chunks and during long waits."""

    def __init__(self, final: bool = False) -> None:
        self.requested = False
        self.final = final
        """whether the process exits after the run, so that long work can be abandoned and repeated by a resume"""

    def request(self, *_: Any) -> None:
        self.requested = True

    def check(self) -> None:
        if self.requested:
            raise Stopped("stopped")


class Interrupts:
    """A context in which the first Ctrl-C requests a stop, and only the second one raises KeyboardInterrupt at once.

    Python delivers signals to the main thread only; in any other thread this does nothing.
    """

    def __init__(self, stop: Stop):
        self._stop, self.received = stop, False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.received:
            self._before(number, frame)
        self.received = True
        self._stop.request()

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def interruptible(stop: Stop, work: Callable[[], T]) -> T:
    """Runs `work`. If the process exits after a stop, runs it in a daemon thread that a stop abandons: Python delivers
    signals only to the main thread, between bytecodes."""
    if not stop.final:
        return work()
    stop.check()
    outcome: Future[T] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=do, daemon=True, name=LONG_WORK).start()
    while not outcome.done():
        stop.check()
        wait([outcome], timeout=0.1)
    return outcome.result()


def abandoned_work() -> bool:
    """Whether abandoned work still runs: neither the compiler nor a device can be interrupted."""
    return any(thread.name == LONG_WORK for thread in threading.enumerate())
