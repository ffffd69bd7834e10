"""Errors that the user can fix. Each message is one sentence; the command line prints it without a traceback."""

import traceback
from pathlib import Path

FOLDER = str(Path(__file__).parent)


class LsacError(Exception):
    exit_code = 1
    detail = ""
    """the traceback of the user's own code that caused it, printed above the message"""


class InputError(LsacError, ValueError):
    """An option or argument is invalid: the message names it, its value and what is allowed."""

    exit_code = 2


class CheckpointError(InputError):
    """A file of a run or a model is missing, damaged, not written by lsac, or of another format."""


class EnvironmentFault(LsacError, RuntimeError):
    """A simulator misbehaved: the message names the environment, seed, step and field."""

    exit_code = 3


class Diverged(LsacError, ArithmeticError):
    """A loss or a policy is no longer finite: the message names the seed, the quantity and the step."""

    exit_code = 4


class Stopped(LsacError):
    """A stop was requested while the run was working or waiting."""

    exit_code = 75


class SaveFailed(LsacError, OSError):
    """A checkpoint could not be written; the previous one is unchanged."""


class MemoryRefused(InputError, MemoryError):
    """The run does not fit into memory: the message says how much it needs and how much is free."""


def own_traceback(error: BaseException) -> str:
    """The traceback of an error in the user's code, without the frames of lsac; empty if no other frame is left."""
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    left = 0
    while part is not None:
        part.stack[:] = [frame for frame in part.stack if not _is_internal(frame.filename)]
        left += len(part.stack)
        part = part.__cause__ or part.__context__
    text = "".join(whole.format()).strip()
    return text.replace("Traceback (most", "Environment traceback (most") if left else ""


def _is_internal(file: str) -> bool:
    return file.startswith((FOLDER, "<frozen importlib")) or file.endswith("importlib/__init__.py")
