"""Parses the arguments of a command."""

from typing import Any

import tyro


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


def import_modules(modules: tuple[str, ...]) -> None:
    """Imports modules that the user named. Files of a run must never cause an import, so it has to be an option."""
    if modules:
        from lsac.envs import ids  # takes a second

        for module in modules:
            ids.import_module(module, f"--module {module}:")
