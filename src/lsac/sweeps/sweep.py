"""Trains the experiments of a plan in one folder, each once."""

import contextlib
import dataclasses
import fcntl
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lsac.errors import InputError, Stopped
from lsac.runs.experiment import Experiment
from lsac.runs.folder import LOCK
from lsac.sweeps.engines import Engine, wait
from lsac.sweeps.plan import Planned
from lsac.sweeps.runs import finished, require_same
from lsac.sweeps.table import RUNNING, WAITING, Board, Row
from lsac.sweeps.training import FAILED, Ended, Job
from lsac.sweeps.words import resume_words, train_words
from lsac.train.stopping import Stop


def unfinished(folder: Path, plan: Sequence[Planned]) -> list[Planned]:
    """The experiments that are to be trained; rejects folders that hold another run than the planned one."""
    for item in plan:
        require_same(folder / item.path, item.experiment)
    return [item for item in plan if not finished(folder / item.path, item.experiment.steps)]


def job_of(folder: Path, experiment: Experiment, workers: int) -> Job:
    """The job that trains an experiment in a folder; `workers` if the experiment does not set them."""
    place = folder.absolute()
    e = dataclasses.replace(experiment, workers=experiment.workers or workers)
    return Job(str(place), e.steps, train_words(e, place), resume_words(e, place))


def train_all(
    folder: Path, plan: Sequence[Planned], engine: Engine, workers: int, board: Board, stop: Stop
) -> dict[str, Ended]:
    """Trains experiments until each has ended, or until a stop; how each of them has ended, by its path."""
    ends: dict[str, Ended] = {}
    paths = {}
    for item in plan:
        job = job_of(folder / item.path, item.experiment, workers)
        paths[job.folder] = item.path
        engine.submit(job)
    asked = False
    while len(ends) < len(plan):
        if stop.requested and not asked:
            asked = True
            stop_all(engine, [place for place, path in paths.items() if path not in ends], board)
        ended = wait(engine)
        ends |= {paths[place]: end for place, end in ended}
        running = {paths[place] for place in engine.running()}
        rows = [Row(item.path, folder / item.path, item.experiment, _state(item, ends, running)) for item in plan]
        board.show(rows, at_once=len(ends) == len(plan))
    return ends


def stop_all(engine: Engine, folders: Iterable[str], board: Board) -> None:
    board.say("stopping: every run saves its state; a second signal ends them at once")
    for folder in folders:
        engine.stop(folder)


def _state(item: Planned, ends: dict[str, Ended], running: set[str]) -> str:
    if item.path in ends:
        return ends[item.path].state
    return RUNNING if item.path in running else WAITING


@contextlib.contextmanager
def signals_stop() -> Iterator[Stop]:
    """A stop that the first Ctrl-C or SIGTERM requests; the second one ends the work at once."""
    stop = Stop()

    def handle(*_: object) -> None:
        if stop.requested:
            raise Stopped("ended at once: runs continue from their newest checkpoints, with the same command")
        stop.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Makes the folder, and keeps other sweeps out of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"--out {folder}: another {what} is running in this folder") from None
        yield
    finally:
        os.close(handle)


def failures(ends: dict[str, Ended]) -> list[str]:
    """One sentence for each experiment that failed."""
    return [f"{path}: failed: {end.sentence}" for path, end in ends.items() if end.state == FAILED]
