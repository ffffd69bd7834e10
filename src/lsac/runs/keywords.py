"""Options as keyword arguments of Python: how they are read, and how help and signatures list them."""

import ast
import dataclasses
import difflib
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import numpy as np

from lsac.errors import InputError
from lsac.options import typed
from lsac.runs.experiment import Experiment
from lsac.runs.wording import translation

NO_OPTIONS = {"agent", "env", "steps", "env_args", "wrappers", "steps_before"}
"""Fields of an `Experiment` that are set in another way."""
ARGUMENTS = ("preset", "eval_env", "env_kwargs", "wrappers")
"""Arguments of a model that are no options of a run."""


def with_options(base: Experiment, options: dict[str, Any]) -> Experiment:
    """An experiment with some options of its own or of its agent replaced."""
    fields = {f.name for f in dataclasses.fields(base)} - NO_OPTIONS
    inner = {f.name for f in dataclasses.fields(base.agent)}
    options = _nested(options)
    known = fields | inner
    require_known({name: None for name in options if name not in known}, sorted({*known, *ARGUMENTS}))
    hints = get_type_hints(type(base)) | get_type_hints(type(base.agent))
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    options = {k: _typed_option(v, getattr(base.agent, k, None), hints[k], k) for k, v in plain.items()}
    agent = dataclasses.replace(base.agent, **{k: v for k, v in options.items() if k in inner})
    return dataclasses.replace(base, agent=agent, **{k: v for k, v in options.items() if k in fields})


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Replaces `generator__width=64` by `generator={"width": 64}`."""
    plain = {name: value for name, value in options.items() if "__" not in name}
    for name, value in options.items():
        outer, separator, rest = name.partition("__")
        if separator:
            table = plain.setdefault(outer, {})
            if not isinstance(table, dict):
                raise InputError(f"{name}: {outer} is set as a whole already")
            plain[outer] = table | {rest: value}
    return plain


def _typed_option(value: Any, current: Any, hint: Any, name: str) -> Any:
    """A value of the option's type; a dict changes some fields of an option that is a dataclass."""
    if isinstance(value, dict) and dataclasses.is_dataclass(current):
        value = vars(current) | value
    return typed(value, hint, name)


def require_known(unknown: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in unknown:
        raise InputError(f"{name}: {_hint(name, known)}")


def _hint(name: str, known: Sequence[str]) -> str:
    """What to write instead of an unknown name."""
    known_there = translation(name)
    if known_there:
        return f"is a name of Stable-Baselines3; {known_there}"
    if name == "steps":
        return "no such option; pass the number of steps to learn"
    close = difflib.get_close_matches(name.replace(".", "__"), known, n=1)
    if "." in name:
        close = [name.replace(".", "__")]
    return "no such option" + (f"; did you mean {close[0]}?" if close else "")


def described(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    found = {}
    for field, text in itertools.pairwise(getattr(body, "body", [])):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


class Listed:
    """The options of an experiment as parameters of a class, and the lines of its help."""

    def __init__(self, defaults: Experiment, taken: Sequence[str]):
        """`taken` are the names of parameters that the class has already."""
        self.lines: list[str] = []
        self.parameters: list[inspect.Parameter] = []
        for title, table in {"Options of the algorithm": defaults.agent, "Options of the run": defaults}.items():
            self.lines += ["", f"{title}, with their defaults:", ""]
            texts, hints = described(type(table)), get_type_hints(type(table))
            for field in dataclasses.fields(table):
                if field.name in {*taken, *NO_OPTIONS}:
                    continue
                value = getattr(table, field.name)
                shown = "a dict of options" if dataclasses.is_dataclass(value) else repr(value)
                self.lines.append(f"    {field.name} ({shown}): {texts.get(field.name, 'nested options')}")
                parameter = inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hints[field.name]
                )
                self.parameters.append(parameter)
