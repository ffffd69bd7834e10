"""Errors that a user can do something about. Each is one sentence; the command line prints it and no traceback."""


class LsacError(Exception):
    exit_code = 1


class InputError(LsacError, ValueError):
    """Something the user typed or passed is wrong: names the field, the value and what is right."""

    exit_code = 2


class CheckpointError(InputError):
    """A file of a run or a model is missing, damaged, foreign or of another format."""


class EnvironmentFault(LsacError, RuntimeError):
    """A simulator misbehaved: names the environment, seed, step and field."""

    exit_code = 3


class Diverged(LsacError, ArithmeticError):
    """A loss or a policy is no longer a number: names the seed, the quantity and the step."""

    exit_code = 4


class Stopped(LsacError):
    """A signal came while something long was under way."""

    exit_code = 75


class SaveFailed(LsacError, OSError):
    """A checkpoint could not be written; the one before is as it was."""


class MemoryRefused(InputError, MemoryError):
    """What was asked for cannot fit: says how much it needs and how much there is."""
