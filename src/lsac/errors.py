"""Errors that the user can fix. Each message is one sentence; the command line prints it without a traceback."""


class LsacError(Exception):
    exit_code = 1


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
