"""Arguments of a command."""

import importlib
from typing import Any

import tyro

from lsac.errors import InputError


def parse(cls: Any, args: list[str], prog: str, text: str, **more: Any) -> Any:
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(cls, args=args, prog=prog, description=text, config=config, **more)


def peek(args: list[str], flag: str) -> str | None:
    """The value of an option, before all are parsed: a preset decides the defaults of the rest."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.split("=", 1)[1]
    return None


def import_module(module: str | None) -> None:
    """A file must not cause an import; who types the name of a module wants it."""
    if module is not None:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"--module {module}: cannot be imported ({error})") from None
