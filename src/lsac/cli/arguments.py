"""Parses the arguments of a command."""

import dataclasses
import typing
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from lsac.errors import InputError
from lsac.options import flag, typed
from lsac.runs.wording import translation

registry = ConstructorRegistry()


@registry.primitive_rule
def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Reads 1e6 as a whole number. What is not whole stays a float, and is rejected by the name of its option."""

    def read(words: list[str]) -> float:
        try:
            return int(words[0])
        except ValueError:
            value = float(words[0])
            return int(value) if value.is_integer() else value

    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(1, "INT", read, lambda value: type(value) is int, lambda value: [str(value)])


def parse(cls: Any, args: list[str], prog: str, text: str, **more: Any) -> Any:
    given = tyro.cli(cls, args=args, prog=prog, description=text, registry=registry, **more)
    _require_whole(given)
    return given


def _require_whole(given: Any, prefix: str = "") -> None:
    """Rejects floats where an option, also of a nested dataclass or in a tuple, is a whole number."""
    kind: type = type(given)
    hints, plain = typing.get_type_hints(kind, include_extras=True), typing.get_type_hints(kind)
    for field in dataclasses.fields(given):
        name, value = prefix + field.name, getattr(given, field.name)
        if dataclasses.is_dataclass(value):
            unnamed = any(getattr(item, "name", None) == "" for item in getattr(hints[field.name], "__metadata__", ()))
            _require_whole(value, prefix if unnamed else f"{name}.")
        elif float in map(type, value if isinstance(value, tuple) else (value,)):
            typed(value, plain[field.name], flag(name))


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
