"""Ids of Gymnasium environments: finds what is registered, and says what to do where nothing is."""

import difflib
import importlib
import importlib.util
import os
import re
import sys
import warnings
from typing import Any, NamedTuple

import gymnasium as gym

import lsac.envs.mazes
import lsac.envs.probes  # noqa: F401  (like the mazes, they are registered when their module is imported)
from lsac.envs import dm_control
from lsac.errors import InputError, own_traceback


class Package(NamedTuple):
    """A package that registers environments when its module is imported."""

    ids: str
    """regular expression of how its ids begin"""
    module: str
    pip: str


PACKAGES = (
    Package("dm_control/", "shimmy", "'shimmy[dm-control]'"),  # what is not in the suite
    Package("bsuite/", "shimmy", "'shimmy[bsuite]'"),
    Package("ALE/", "ale_py", "ale-py"),
    Package("(Fetch|Hand|Adroit|PointMaze|AntMaze|Franka)", "gymnasium_robotics", "gymnasium-robotics"),
    Package("(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    Package("Meta-World/", "metaworld", "metaworld"),
    Package("Panda", "panda_gym", "panda-gym"),
    Package("PyFlyt/", "PyFlyt.gym_envs", "PyFlyt"),
)
"""Well-known packages, for the sentence that rejects an id of theirs."""

OWN = dm_control.specs()
"""Environments of this package that are not in Gymnasium's registry."""


def find(env_id: str) -> gym.envs.registration.EnvSpec:
    """The registered spec of an id, or an error that says what to do; `module:Env-v0` imports the module."""
    module, colon, name = env_id.partition(":")
    if colon:
        import_module(module, f"--env {env_id}: module {module}")
    else:
        module, name = "", env_id
        if name in OWN:
            return OWN[name]
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        reason = "" if isinstance(error, gym.error.UnregisteredEnv) else f" ({first_line(error)})"
        raise InputError(f"--env {env_id}: no such Gymnasium environment{reason}{_hint(name, module)}") from None


def _hint(env_id: str, module: str) -> str:
    """`module` is the one that the user named, or empty."""
    own = difflib.get_close_matches(env_id, OWN, n=1, cutoff=0.8)
    if own and not module:
        return f"; did you mean {own[0]}?"
    for package in PACKAGES:
        if not module and re.match(package.ids, env_id):
            install = "" if _can_be_found(package.module) else f"install it with: pip install {package.pip}, and "
            return f"; it belongs to the package {package.module}: {install}write --env {package.module}:{env_id}"
    close = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.75)
    if close:
        return f"; did you mean {module + ':' if module else ''}{close[0]}?"
    if module:
        return f"; module {module} does not register it"
    return f"; if it is your own, name its module: MODULE:{env_id}, or with commands on a run --module MODULE"


def import_module(module: str, what: str) -> None:
    """Imports a module that the user named. The working directory is searched last, so that nothing in it can replace
    an installed package. `what` begins the sentence if it fails."""
    if not _can_be_found(module):
        sys.path.append(os.getcwd())
        importlib.invalidate_caches()
    try:
        importlib.import_module(module)
    except Exception as error:
        install = next((package.pip for package in PACKAGES if package.module == module), None)
        hint = f"; install it with: pip install {install}" if install and isinstance(error, ImportError) else ""
        failure = InputError(f"{what} cannot be imported ({first_line(error)}){hint}")
        failure.detail = own_traceback(error)
        raise failure from error


def _can_be_found(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.modules or not top or importlib.util.find_spec(top) is not None


def build(spec: gym.envs.registration.EnvSpec) -> gym.Env:
    """Creates an environment from a spec."""
    try:
        with warnings.catch_warnings():
            if "render_mode" in spec.kwargs:  # one that an environment does not have is rejected elsewhere
                warnings.filterwarnings("ignore", ".*possible render_modes", UserWarning)
            return gym.make(spec, disable_env_checker=True)
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if isinstance(error, TypeError) and unknown and unknown[1] in spec.kwargs:
            raise InputError(f"--env-args {unknown[1]}: {spec.id} has no argument of this name") from None
        if isinstance(error, InputError):  # about an argument of an environment of this package
            raise InputError(f"--env-args {error}") from None
        failure = InputError(f"--env {spec.id}: could not be created: {first_line(error)}")
        if not isinstance(error, gym.error.DependencyNotInstalled):
            failure.detail = own_traceback(error)
        raise failure from error


def registered(env_id: str, arguments: dict[str, Any], **rest: Any) -> gym.Env:
    """An environment as its entry point returns it: itself an entry point, for those that have no name to import.

    The arguments are apart, because they may come from a file, which must not choose the id. `rest` is what Gymnasium
    adds, such as a render mode.
    """
    spec = find(env_id)
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        creator = gym.envs.registration.load_env_creator(creator)
    return creator(**{**spec.kwargs, **arguments, **rest})


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
