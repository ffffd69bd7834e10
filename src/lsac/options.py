"""Options: their allowed values, how they are checked, and how they are read from a file.

A limit is declared on the field that it limits:

    chains: Annotated[int, AtLeast(1)] = 10

`typed` converts a value that a person gives, `check_options` checks a dataclass and the dataclasses nested in it. Rules
between fields are written in a method `check(self, experiment)` of the algorithm's `Config`.
"""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

from lsac.errors import InputError

INT_LIMIT = 2**31
"""Bound on the absolute value of integers: JAX counts in 32 bits."""

FLOAT_LIMIT = 3.4e38
"""Agents compute in float32, where anything larger is infinite."""


# markers


class Marker:
    """Metadata of an option, given in `Annotated`."""


class Limit(Marker):
    """The allowed values of an option. `clause` completes the sentence that rejects any other value."""

    @property
    def clause(self) -> str:
        raise NotImplementedError

    def accepts(self, value: Any) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(Limit):
    limit: float

    @property
    def clause(self) -> str:
        return f"must be at least {self.limit}" if self.limit else "must not be negative"

    def accepts(self, value: Any) -> bool:
        return value >= self.limit


@dataclass(frozen=True)
class MoreThan(Limit):
    limit: float

    @property
    def clause(self) -> str:
        return f"must be greater than {self.limit}"

    def accepts(self, value: Any) -> bool:
        return value > self.limit


@dataclass(frozen=True)
class Between(Limit):
    """From `low` to `high`, both included unless `without_low` or `without_high` says otherwise."""

    low: float
    high: float
    without_low: bool = False
    without_high: bool = False

    @property
    def clause(self) -> str:
        if not (self.without_low or self.without_high):
            return f"must lie between {self.low} and {self.high}"
        low = f"greater than {self.low}" if self.without_low else f"at least {self.low}"
        if self.high == math.inf:
            return f"must be a finite number {low}"
        return f"must be {low} and {'less than' if self.without_high else 'at most'} {self.high}"

    def accepts(self, value: Any) -> bool:
        above = value > self.low if self.without_low else value >= self.low
        return above and (value < self.high if self.without_high else value <= self.high)


@dataclass(frozen=True)
class OneOf(Limit):
    names: tuple[str, ...]

    @property
    def clause(self) -> str:
        return f"must be one of {', '.join(self.names)}"

    def accepts(self, value: Any) -> bool:
        return value in self.names


@dataclass(frozen=True)
class LayerWidths(Limit):
    """Allowed widths of hidden layers."""

    @property
    def clause(self) -> str:
        return "needs at least one layer of at least one unit"

    def accepts(self, value: Any) -> bool:
        return len(value) > 0 and min(value) >= 1


@dataclass(frozen=True)
class Arguments(Limit):
    """Arguments of an environment, each written as name=value."""

    @property
    def clause(self) -> str:
        return "must be name=value, each name once, for example g=9.81"

    def accepts(self, value: Any) -> bool:
        names = [re.fullmatch(r"([A-Za-z_]\w*)=.*", item, re.DOTALL) for item in value]
        return all(names) and len({name[1] for name in names if name}) == len(names)


@dataclass(frozen=True)
class References(Limit):
    """Functions or classes, each written as module:name."""

    @property
    def clause(self) -> str:
        return "must be module:name, for example gymnasium.wrappers:FlattenObservation"

    def accepts(self, value: Any) -> bool:
        return all(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", item) for item in value)


@dataclass(frozen=True)
class DrawnFromReplay(Marker):
    """The option counts transitions sampled from the replay, so it must not exceed the replay's capacity."""


@dataclass(frozen=True)
class OwnBuffer(Marker):
    """The option sets the size of a buffer that the agent keeps in addition to the replay: lower it to save memory."""


@dataclass(frozen=True)
class AddedLater(Marker):
    """The option was added later; files of runs from before it are read with the value `before`."""

    before: Any


@dataclass(frozen=True)
class WithoutPrefix(Marker):
    """The options of this nested dataclass are named without the field's name as a prefix."""


# the common kinds of options

Count: TypeAlias = Annotated[int, AtLeast(1)]
CountOrZero: TypeAlias = Annotated[int, AtLeast(0)]
Positive: TypeAlias = Annotated[float, MoreThan(0)]
NotNegative: TypeAlias = Annotated[float, AtLeast(0)]
Share: TypeAlias = Annotated[float, Between(0, 1)]
PositiveShare: TypeAlias = Annotated[float, Between(0, 1, without_low=True)]
Decay: TypeAlias = Annotated[float, Between(0, 1, without_high=True)]
Layers: TypeAlias = Annotated[tuple[int, ...], LayerWidths()]
BatchSize: TypeAlias = Annotated[int, AtLeast(1), DrawnFromReplay()]
BufferSize: TypeAlias = Annotated[int, AtLeast(1), OwnBuffer()]


# checking


class RunOptions(Protocol):
    """The options of a run that `Config.check` of an algorithm may read; an `Experiment` has them."""

    @property
    def steps(self) -> int: ...

    @property
    def chunk(self) -> int: ...

    @property
    def replay_capacity(self) -> int: ...

    @property
    def normalise_observations(self) -> bool: ...

    @property
    def scale_rewards(self) -> bool: ...


def check_options(config: Any, prefix: str = "") -> None:
    """Raises an error for the first option of a dataclass, nested ones included, whose value is not allowed."""
    kind: type = type(config)
    hints, plain = _hints(kind), _hints(kind, with_markers=False)
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_options(value, prefix if any(_markers(hints[field.name], WithoutPrefix)) else f"{name}.")
            continue
        if not _is_exactly(value, typed(value, plain[field.name], flag(name))):  # files could not give it back
            raise _wrong_type(value, plain[field.name], flag(name))
        problem = _problem(value, hints[field.name])
        if problem:
            raise InputError(f"{flag(name)} {_text(value)}: {problem}")


@functools.cache
def _hints(cls: type, with_markers: bool = True) -> dict[str, Any]:
    """The type hints of a dataclass, which Python would evaluate anew for every file that is read."""
    return typing.get_type_hints(cls, include_extras=with_markers)


def _is_exactly(value: Any, converted: Any) -> bool:
    """Whether a value has the type that it was converted to; a whole number may stand for a float."""
    if isinstance(converted, tuple):
        return type(value) is tuple and all(_is_exactly(*pair) for pair in zip(value, converted, strict=True))
    return type(value) in ((int, float) if type(converted) is float else (type(converted),))


def _problem(value: Any, hint: Any) -> str | None:
    """Why a value of the right type is not allowed; None if it is."""
    for limit in _markers(hint, Limit):
        if value is not None and not limit.accepts(value):
            return limit.clause
    if isinstance(value, (list, tuple)):
        problems = (_problem(*pair) for pair in zip(value, _items(hint, value), strict=True))
        return next(filter(None, problems), None)
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, float) and abs(value) > FLOAT_LIMIT:
        return f"must lie between -{FLOAT_LIMIT:g} and {FLOAT_LIMIT:g}"
    if isinstance(value, int) and abs(value) >= INT_LIMIT:
        return f"must be less than {INT_LIMIT}" if value > 0 else f"must be greater than -{INT_LIMIT}"
    return None


M = TypeVar("M", bound=Marker)


def _markers(hint: Any, kind: type[M]) -> Iterable[M]:
    return (item for item in getattr(hint, "__metadata__", ()) if isinstance(item, kind))


def _items(hint: Any, value: Sequence[Any]) -> Sequence[Any]:
    """The type hints of the items of a tuple."""
    inner = typing.get_args(hint.__origin__ if hasattr(hint, "__metadata__") else hint)
    return inner[:1] * len(value) if inner[1:] == (...,) else inner


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def flag(name: str) -> str:
    """The command-line option that sets a field."""
    return "--" + name.replace("_", "-")


def marked(cls: type, kind: type[Marker]) -> list[str]:
    """The names of a dataclass's options that have a marker of this kind."""
    hints = _hints(cls)
    return [field.name for field in dataclasses.fields(cls) if any(_markers(hints[field.name], kind))]


# reading


def printable(text: str) -> str:
    """Text from a file, made safe for an error message: short, on one line, without terminal control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:200])


def shown(value: Any) -> str:
    """A value from a file, made safe for an error message."""
    if isinstance(value, (dict, list, tuple)):  # its repr could be too deeply nested to compute
        return "a table" if isinstance(value, dict) else "a list"
    return printable(repr(value))


def read_options(cls: type, data: Any, where: str) -> Any:
    """Builds a dataclass from a dict of its fields, whose names and types are checked."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: must be a table of options")
    hints, full = _hints(cls, with_markers=False), _hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    for name in data:
        if name not in names:
            close = difflib.get_close_matches(printable(name), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{where}: unknown option {printable(name)}{hint}")
    data = {name: later.before for name in names for later in _markers(full[name], AddedLater)} | data
    values = {name: typed(value, hints[name], f"{where}, {name}") for name, value in data.items()}
    missing = [field.name for field in dataclasses.fields(cls) if field.name not in data]
    if missing:
        raise InputError(f"{where}: option {missing[0]} is missing")
    return cls(**values)


def typed(value: Any, hint: Any, where: str) -> Any:
    """The value converted to the hinted type, or an error.

    An int may stand for a float, a whole float for an int (1e6), a number for a tuple of one, a list or an array for a
    tuple, and a scalar of NumPy for a number.
    """
    if isinstance(hint, TypeVar):
        return value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(f"{where}: {shown(value)} is too large")
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return read_options(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise InputError(f"{where}: {shown(value)} is not one of {', '.join(typing.get_args(hint))}")
    for option in _alternatives(hint):
        if option is type(None) and value is None:
            return None
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, float):
            if not value.is_integer():
                raise InputError(f"{where} {value}: must be a whole number")
            return typed(int(value), int, where)
        if typing.get_origin(option) is tuple:
            if type(value) in (int, float) and typing.get_args(option)[1:] == (...,):
                value = [value]
            if isinstance(value, (list, tuple)):
                return _typed_items(value, _items(option, value), where)
        if isinstance(option, type) and type(value) is option:
            return value
    raise _wrong_type(value, hint, where)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _wrong_type(value: Any, hint: Any, where: str) -> InputError:
    return InputError(f"{where}: {shown(value)} is not of type {getattr(hint, '__name__', hint)}")


def _typed_items(value: Sequence[Any], hints: Sequence[Any], where: str) -> tuple[Any, ...]:
    if len(value) != len(hints):
        raise InputError(f"{where}: has {len(value)} values, not {len(hints)}")
    return tuple(typed(item, hint, where) for item, hint in zip(value, hints, strict=True))
