"""Parses the arguments of a command. Whatever cannot be parsed is rejected in one sentence that names the option."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import typing
from collections.abc import Callable, Iterator
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from lsac.errors import InputError
from lsac.options import flag, typed
from lsac.runs.wording import translation

registry = ConstructorRegistry()


def _number(word: str) -> float:
    """A number as people write it: 1e6 is whole."""
    try:
        return int(word)
    except ValueError:
        value = float(word)
        return int(value) if value.is_integer() else value


@registry.primitive_rule
def lenient(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Reads numbers and choices. What is none stays as it is, and is rejected by the name of its option, which is not
    known here."""
    reads: dict[Any, Callable[[str], Any]] = {int: _number, float: float}
    choices = typing.get_args(info.type) if typing.get_origin(info.type) is typing.Literal else ()
    if info.type not in reads and not choices:
        return None

    def read(words: list[str]) -> Any:
        try:
            return reads.get(info.type, str)(words[0])
        except ValueError:
            return words[0]

    def fits(value: Any) -> bool:
        return value in choices if choices else type(value) in ((int, float) if info.type is float else (int,))

    metavar = f"{{{','.join(choices)}}}" if choices else info.type.__name__.upper()
    return PrimitiveConstructorSpec(1, metavar, read, fits, lambda value: [str(value)])


def parse(cls: Any, args: list[str], prog: str, text: str, **more: Any) -> Any:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            given, left = tyro.cli(
                cls, args=args, prog=prog, description=text, registry=registry, return_unknown_args=True, **more
            )
    except SystemExit as end:
        if not end.code:
            raise  # it was the help
        counts = dict(_flags(cls, more.get("default")))
        raise _unknown(args, counts, prog) or _incomplete(args, counts, cls, prog, printed.getvalue()) from None
    if left:
        what = "no such option" if left[0].startswith("-") else "belongs to no option"
        nameless = InputError(f"{left[0]}: {what} (see {prog} --help)")
        raise _unknown(left, dict(_flags(cls, more.get("default"))), prog) or nameless
    _require_typed(given)
    return given


def _unknown(words: list[str], counts: dict[str, int], prog: str) -> InputError | None:
    """The error for the first option that does not exist."""
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        if word.replace("_", "-") not in counts:
            close = difflib.get_close_matches(word, counts, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            return InputError(f"{word}: no such option{hint} (see {prog} --help)")
    return None


def _incomplete(args: list[str], counts: dict[str, int], cls: Any, prog: str, printed: str) -> InputError:
    """The error for an option that lacks values, or that is missing."""
    words = [word.replace("_", "-") if word.startswith("--") else word for word in args]
    for i, word in enumerate(words):
        given = len([*itertools.takewhile(lambda value: not value.startswith("--"), words[i + 1 :])])
        if given < (count := counts.get(word, 0)):
            return InputError(f"{word}: needs {'a value' if count == 1 else f'{count} values'} (see {prog} --help)")
    needed = [field.name for field in dataclasses.fields(cls) if field.default is field.default_factory]  # both missing
    options = [flag(name) for name in needed if counts.get(flag(name)) and flag(name) not in words]
    if missing := options or [name.upper() for name in needed if flag(name) not in counts]:
        return InputError(f"{prog}: needs {missing[0]} (see {prog} --help)")
    error = InputError(f"{prog}: {' '.join(args)} cannot be understood")
    error.detail = printed.rstrip()
    return error


def _flags(cls: Any, default: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The options of a dataclass, and of those nested in it, with the number of values that each needs at least."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        markers = getattr(hints[field.name], "__metadata__", ())
        ours = [item for item in markers if hasattr(item, "aliases")]
        name = next((item.name for item in ours if item.name is not None), field.name)
        value = getattr(default, field.name) if default is not None else field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if dataclasses.is_dataclass(value):
            yield from _flags(type(value), value, f"{prefix}{name}." if name else prefix)
        elif not {tyro.conf.Positional, tyro.conf.Suppress} & {*markers}:
            both = isinstance(value, bool) and tyro.conf.FlagCreatePairsOff not in markers
            names = [flag(prefix + side) for side in ([name, f"no-{name}"] if both else [name])]
            names += [alias for item in ours for alias in item.aliases or ()]
            yield from ((each, _count(hints[field.name], value)) for each in names)


def _count(hint: Any, value: Any) -> int:
    """How many values an option needs at least."""
    hint = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        return 0 if ... in inner else len(inner)
    return 0 if isinstance(value, bool) else 1


def _require_typed(given: Any, prefix: str = "") -> None:
    """Rejects what was read as it is and is not of the type of its option, also of a nested dataclass or in a tuple."""
    kind: type = type(given)
    hints, plain = typing.get_type_hints(kind, include_extras=True), typing.get_type_hints(kind)
    for field in dataclasses.fields(given):
        name, value = prefix + field.name, getattr(given, field.name)
        if dataclasses.is_dataclass(value):
            unnamed = any(getattr(item, "name", None) == "" for item in getattr(hints[field.name], "__metadata__", ()))
            _require_typed(value, prefix if unnamed else f"{name}.")
            continue
        items = value if isinstance(value, tuple) else (value,)
        right = _right(plain[field.name])
        wrong = [item for item in items if isinstance(item, str) and right and item not in right]
        if wrong:
            raise InputError(f"{flag(name)} {wrong[0]}: must be {'one of ' * (len(right) > 1)}{', '.join(right)}")
        if float in map(type, items):
            typed(value, plain[field.name], flag(name))


def _right(hint: Any) -> list[str]:
    """What may be given to an option: words, or what it is in words; empty if any text may."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if inner := [_right(leaf) for leaf in typing.get_args(hint) if leaf not in (type(None), ...)]:
        return list(dict.fromkeys(itertools.chain(*inner))) if all(inner) else []
    return {int: ["a whole number"], float: ["a number"]}.get(hint, [])


def translate(args: list[str]) -> None:
    """Rejects options of Stable-Baselines3 with the name that they have here."""
    for word in (word.partition("=")[0] for word in args if word.startswith("--")):
        if instead := translation(word[2:].replace("-", "_"), as_flags=True):
            raise InputError(f"{word}: no such option; {instead}")


def peek(args: list[str], flag: str) -> str | None:
    """The value of an option before parsing: the preset determines the defaults of the other options."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.split("=", 1)[1]
    return None


def import_modules(modules: tuple[str, ...]) -> None:
    """Imports modules that the user named. Files of a run must never cause an import, so it has to be an option."""
    if modules:
        from lsac.envs import ids  # takes a second

        for module in modules:
            ids.import_module(module, f"--module {module}:")
