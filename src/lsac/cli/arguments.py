"""Parses the arguments of a command."""

import importlib
from typing import Any

import tyro

from lsac.errors import InputError


def parse(cls: Any, args: list[str], prog: str, text: str, **more: Any) -> Any:
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(cls, args=args, prog=prog, description=text, config=config, **more)


def peek(args: list[str], flag: str) -> str | None:
    """The value of an option before parsing: the preset determines the defaults of the other options."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.split("=", 1)[1]
    return None


def import_module(module: str | None) -> None:
    """Imports a module that the user named. Files of a run must never cause an import, so it has to be an option."""
    if module is not None:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"--module {module}: cannot be imported ({error})") from None
