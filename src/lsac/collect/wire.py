"""The protocol between the trainer and its worker processes: typed messages, sent as JSON and raw arrays.

Decoding a message builds the types listed here and nothing else, so a message cannot execute code.
"""

import json
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from lsac.envs.recipes import Recipe
from lsac.envs.states import SimulatorState
from lsac.errors import CheckpointError, EnvironmentFault, InputError, LsacError

# Simulators


class GroupPlan(NamedTuple):
    """The simulators of a group, some of those of its seed. A decision in each advances the seed by `stride` steps:
    their number times the action repeat."""

    seed: int
    seed_index: int
    envs: list[int]
    stride: int
    value_episodes: int = 0
    """the first simulators, from which an evaluation takes the returns that values are compared with: of the
    deterministic policy, or else of the exploring one, which plays an episode more in each"""


class Episode(NamedTuple):
    """A finished training episode: the seed's step at which it ended, its return and its length in steps."""

    step: int
    reward: float
    length: int


class GroupState(NamedTuple):
    """Everything that the next `Collect` of a group depends on."""

    obs: np.ndarray
    """[E, O]"""
    counts: np.ndarray
    """[2, E]: return and length so far of each running episode, in steps"""
    memory: list[np.ndarray]
    """the leaves [E, …] of the policies' memories"""
    simulators: list[SimulatorState]
    frames: np.ndarray | None = None
    """[E, H, W, channels] if observations have images"""


# Commands


class TableFile(NamedTuple):
    """An array in memory that the trainer and its workers share."""

    file: str
    shape: list[int]


class Setup(NamedTuple):
    """The first command: what to simulate, and with which agent."""

    config: dict[str, Any]
    env: Recipe
    path: list[str]
    """where to look for modules"""
    plans: list[GroupPlan]
    first: int
    """index of the worker's first group among all groups"""
    policies: TableFile
    progress: TableFile
    parent: int
    cache: str | None


class Reset(NamedTuple):
    """Start a new episode in every simulator."""

    step: int


class Collect(NamedTuple):
    """Take `decisions` decisions in every simulator, starting at the seed's step `step`."""

    step: int
    decisions: int
    random: bool


class Evaluate(NamedTuple):
    """Run one episode in every simulator."""

    step: int
    deterministic: bool


class Capture(NamedTuple):
    """Return the state of all groups."""


class Restore(NamedTuple):
    """Continue from captured states."""

    groups: list[GroupState]


Command = Reset | Collect | Evaluate | Capture | Restore

# Results


class Done(NamedTuple):
    """The result of a command that returns nothing."""


class Collected(NamedTuple):
    """Per group: the transitions [T, E, …] and the episodes that ended."""

    stored: list[dict[str, np.ndarray]]
    episodes: list[list[Episode]]


class Played(NamedTuple):
    """One evaluation of a group."""

    returns: np.ndarray
    """[E]"""
    lengths: np.ndarray
    """[E]"""
    states: np.ndarray
    """[n, O + A + 2] evaluation states: an observation, the action taken, and the discounted sums of the rewards that
    followed and of −log π of the later actions"""


class Evaluated(NamedTuple):
    groups: list[Played]


class Captured(NamedTuple):
    """The states of all groups; None for a group whose simulators cannot be captured."""

    groups: list[GroupState | None]


class Failed(NamedTuple):
    """An exception in a worker."""

    kind: str
    message: str
    traceback: str
    """of the user's own code, or for a bug the whole one"""


Result = Done | Collected | Evaluated | Captured | Failed

ERRORS: dict[str, type[LsacError]] = {"fault": EnvironmentFault, "checkpoint": CheckpointError, "input": InputError}
"""Exceptions that are raised again in the trainer; any other is a bug and is shown with its traceback."""


def failed(error: BaseException) -> Failed:
    kind = next((name for name, cls in ERRORS.items() if isinstance(error, cls)), "bug")
    if isinstance(error, LsacError) and kind != "bug":
        return Failed(kind, str(error), error.detail)
    return Failed(kind, str(error), "".join(traceback.format_exception(error)))


def raise_failure(result: Any) -> None:
    if isinstance(result, Failed):
        if result.kind in ERRORS:
            error = ERRORS[result.kind](result.message)
            error.detail = result.traceback
            if error.detail:
                error.add_note(error.detail)  # Python prints it below the message
            raise error
        raise RuntimeError(f"a simulator's worker failed:\n{result.traceback}")


# Encoding

_PARTS = (GroupPlan, Episode, GroupState, SimulatorState, Recipe, TableFile)
_COMMANDS = (Setup, Reset, Collect, Evaluate, Capture, Restore)
_RESULTS = (Done, Collected, Played, Evaluated, Captured, Failed)
TYPES: dict[str, Any] = {cls.__name__: cls for cls in (*_PARTS, *_COMMANDS, *_RESULTS)}


def pack(value: Any) -> tuple[Any, list[np.ndarray]]:
    """Converts a message to JSON and a list of its arrays."""
    arrays: list[np.ndarray] = []

    def encode(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"array": len(arrays) - 1}
        if type(value).__name__ in TYPES:
            return {"type": type(value).__name__, "fields": [encode(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": {name: encode(item) for name, item in value.items()}}
        return [encode(item) for item in value] if isinstance(value, (list, tuple)) else value

    return encode(value), arrays


def unpack(data: Any, arrays: list[np.ndarray]) -> Any:
    """The inverse of `pack`. Raises KeyError, TypeError, ValueError or IndexError if `data` is not a result of it."""

    def decode(data: Any) -> Any:
        if isinstance(data, list):
            return [decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        if "array" in data:
            return arrays[data["array"]]
        if "type" in data:
            return TYPES[data["type"]](*(decode(item) for item in data["fields"]))
        if not isinstance(data["dict"], dict):
            raise TypeError("expected a table")
        return {name: decode(item) for name, item in data["dict"].items()}

    try:
        return decode(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def send(connection: Connection, message: Any) -> None:
    data, arrays = pack(message)
    header = {"message": data, "arrays": [(array.shape, array.dtype.str) for array in arrays]}
    connection.send_bytes(json.dumps(header).encode())
    for array in arrays:
        connection.send_bytes(np.ascontiguousarray(array).tobytes())


def receive(connection: Connection) -> Any:
    header = json.loads(connection.recv_bytes())
    arrays = [np.frombuffer(connection.recv_bytes(), dtype).reshape(shape) for shape, dtype in header["arrays"]]
    return unpack(header["message"], arrays)
