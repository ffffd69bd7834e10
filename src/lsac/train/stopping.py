"""A request to stop, and how long work is left alone for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from lsac.errors import Stopped

T = TypeVar("T")
LONG_WORK = "long work"
"""Name of the threads in which it is done."""


class Stop:
    """Signals and callbacks request it; a run heeds it between two chunks, and wherever it waits for long."""

    def __init__(self, final: bool = False) -> None:
        self.requested = False
        self.final = final
        """whether the process ends with the run, so that work may be abandoned and left to a resume"""

    def request(self, *_: Any) -> None:
        self.requested = True

    def heed(self) -> None:
        if self.requested:
            raise Stopped("stopped")


def heeding(stop: Stop, work: Callable[[], T]) -> T:
    """Does something long. If the stop is final, then in another thread, which is abandoned when it is requested:
    signals reach the main one, and only between two of its own steps."""
    if not stop.final:
        return work()
    stop.heed()
    outcome: Future[T] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=do, daemon=True, name=LONG_WORK).start()
    while not outcome.done():
        stop.heed()
        wait([outcome], timeout=0.1)
    return outcome.result()


def at_work() -> bool:
    """Whether something that was left alone goes on: neither the compiler nor a device can be told to stop."""
    return any(thread.name == LONG_WORK for thread in threading.enumerate())
