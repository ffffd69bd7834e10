"""The ways in which an environment can be given: by its id, as an object, or as a function that creates it."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from gymnasium.wrappers import NormalizeReward

from lsac.envs import drawable, ids, rendering, wrapping
from lsac.envs.gymnasium import Spaces, name_of
from lsac.envs.pixels import Rendered
from lsac.envs.recipes import (
    GymSpec,
    Recipe,
    is_found,
    named,
    read_arguments,
    recipe_of,
    reference_of,
    without_numpy,
    written,
)
from lsac.envs.wrapping import Layer, Wrap, layer_of, require_no_statistics, stack_of, true_rewards, wrapped
from lsac.errors import InputError, own_traceback
from lsac.options import shown
from lsac.types import EnvSpec

Make = Callable[[], gym.Env]


def close(env: gym.Env) -> None:
    env.close()


class Source(NamedTuple):
    """Where simulators come from."""

    make: Make
    """creates an environment in this process"""
    recipe: Recipe | None
    """None if it can be created in this process only; it then runs in a thread"""
    release: Callable[[gym.Env], None] = close
    """is called with an environment that `make` returned and that is no longer used"""


class Environments(NamedTuple):
    """Where the simulators of a run come from, and how its configuration describes them."""

    name: str
    """id or class name"""
    training: Source
    evaluation: Source | None
    """None if no further simulators can be created; the run then has no evaluations"""
    space: Spaces
    args: tuple[str, ...] = ()
    """name=value of each argument, as in `Experiment.env_args`"""
    wrappers: tuple[str, ...] = ()
    """module:name of each wrapper, as in `Experiment.wrappers`"""
    recreatable: bool = True
    """whether name, args and wrappers alone create the environment again"""
    why_single: str = ""
    """why there can be one training simulator only, and what helps; empty if there can be more"""

    def spec(self, gamma: float, frame_stack: int = 1) -> EnvSpec:
        return self.space.spec(gamma, frame_stack)


class Described(Protocol):
    """The part of an `Experiment` that describes its environment."""

    @property
    def env(self) -> str: ...

    @property
    def env_args(self) -> tuple[str, ...]: ...

    @property
    def wrappers(self) -> tuple[str, ...]: ...

    @property
    def pixels(self) -> int: ...


def of_experiment(experiment: Described) -> Environments:
    e = experiment
    found = given(e.env, env_kwargs=read_arguments(e.env_args), wrappers=e.wrappers, pixels=e.pixels)
    return found._replace(args=e.env_args)


def given(
    env: str | gym.Env | Make,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Wrap] = (),
    eval_env: str | gym.Env | Make | None = None,
    pixels: int = 0,
) -> Environments:
    """The environments that a user describes.

    `env` is an id, an environment, or a function or class that creates a new environment at each call. `env_kwargs`
    are its arguments, `wrappers` are applied to it, the first one innermost. `eval_env` replaces it in evaluations; it
    is used as it is, without `env_kwargs` and `wrappers`. With `pixels`, the observations of both are images of that
    side, which the environment draws.
    """
    if isinstance(wrappers, str) or not isinstance(wrappers, Sequence):
        raise InputError(f"wrappers: {shown(wrappers)} is not a list; write wrappers=[…]")
    if not isinstance(env_kwargs or {}, Mapping) or not all(isinstance(name, str) for name in env_kwargs or {}):
        raise InputError(f"env_kwargs: {shown(env_kwargs)} is not a dict of arguments by their names")
    layers = [layer_of(wrapper) for wrapper in wrappers]
    if pixels:
        rendering.choose_backend()  # before MuJoCo tasks of any package are created
    base = _base(env, {k: without_numpy(v) for k, v in (env_kwargs or {}).items()}, "env", pixels)
    names = [layer.name for layer in layers if layer.name]
    sample = _sample(base, layers, pixels, of_user=isinstance(env, gym.Env))
    space = Spaces(sample)
    recipe = base.recipe if len(names) == len(layers) else None
    if recipe is not None:
        recipe = recipe._replace(wrappers=tuple(names), pixels=pixels)
        sample.close()
    more = None if base.more is None else functools.partial(_make, base.more, layers, pixels)
    if recipe is None:
        lender = _Lender(sample, more, isinstance(env, gym.Env))
        training = Source(lender.lend, recipe, lender.release)
    else:
        assert more is not None
        training = Source(more, recipe)
    evaluation = Source(more, recipe) if more else None
    if evaluation and any(isinstance(layer, NormalizeReward) for layer in stack_of(sample)):
        evaluation = _with_true_rewards(evaluation)
    if eval_env is not None:
        evaluation = _evaluation(eval_env, space, pixels)
    return Environments(
        base.name,
        training,
        evaluation,
        space,
        base.args,
        (*base.wrappers, *names),
        base.recreatable and len(names) == len(layers) and eval_env is None,
        base.why_single,
    )


def _evaluation(eval_env: str | gym.Env | Make, like: Spaces, pixels: int) -> Source:
    base = _base(eval_env, {}, "eval_env", pixels)
    sample = _sample(base, [], pixels, of_user=isinstance(eval_env, gym.Env))
    found = Spaces(sample)
    for kind in ("observation", "action"):
        mine, other = getattr(found, kind), getattr(like, kind)
        if mine != other:
            raise InputError(f"eval_env: its {kind} space is {mine}, but that of the training environment is {other}")
    if base.more is None:
        raise InputError(f"eval_env: {base.why_single}")
    more = functools.partial(_make, base.more, [], pixels)
    source = Source(more, None if base.recipe is None else base.recipe._replace(pixels=pixels))
    normalises = any(isinstance(layer, NormalizeReward) for layer in stack_of(sample))
    if base.recipe is not None:
        sample.close()
    elif not isinstance(eval_env, gym.Env):
        lender = _Lender(sample, more, of_user=False)
        source = Source(lender.lend, None, lender.release)
    return _with_true_rewards(source) if normalises else source


def _sample(base: "_Base", layers: Sequence[Layer], pixels: int, of_user: bool) -> gym.Env:
    """The first environment, with its wrappers; rejects one that cannot be used."""
    env = wrapped(base.sample, layers)
    require_no_statistics(env)
    return drawable.rendered(env, pixels, draw=not of_user) if pixels else env


def _make(more: Make, layers: Sequence[Layer], pixels: int) -> gym.Env:
    env = wrapped(more(), layers)
    return Rendered(env, pixels) if pixels else env


def _with_true_rewards(source: Source) -> Source:
    recipe = source.recipe
    if recipe is not None:
        recipe = recipe._replace(wrappers=(*recipe.wrappers, f"{wrapping.__name__}:true_rewards"))
    return Source(lambda: true_rewards(source.make()), recipe, source.release)


# What the user gave, without its wrappers


class _Base(NamedTuple):
    name: str
    sample: gym.Env
    """an environment: the object itself, or one that was created"""
    more: Make | None
    """creates further ones; None if that is impossible"""
    recipe: Recipe | None
    args: tuple[str, ...]
    wrappers: tuple[str, ...] = ()
    recreatable: bool = True
    why_single: str = ""


def _base(env: Any, kwargs: dict[str, Any], option: str, pixels: int) -> _Base:
    if isinstance(env, str):
        return _of_id(env, kwargs, pixels)
    _require_one(env, option)
    if isinstance(env, gym.Env):
        if kwargs:
            raise InputError("env_kwargs: cannot be given to an environment that exists already; pass its id or class")
        return _of_object(env, option, pixels)
    if not callable(env):
        raise InputError(
            f"{option}: {shown(env)} is neither the id of an environment, nor an environment, nor a function that "
            "creates one"
        )
    return _of_factory(functools.partial(env, **kwargs) if kwargs else env, option, pixels)


def _require_one(env: Any, option: str) -> None:
    """Rejects vector environments, those of Gymnasium and of Stable-Baselines3."""
    if hasattr(env, "num_envs") and not isinstance(env, (gym.Env, type)):
        raise InputError(
            f"{option}: {type(env).__name__} holds several environments; give the id of one, or a function that "
            f"creates one, and num_envs={env.num_envs}"
        )


def _of_id(env_id: str, kwargs: dict[str, Any], pixels: int) -> _Base:
    registered = ids.find(env_id)
    limit = kwargs.get("max_episode_steps", registered.max_episode_steps)
    if limit is not None and (type(limit) is not int or limit < -1 or limit == 0):
        raise InputError(f"--env-args max_episode_steps={shown(limit)}: must be at least 1, or -1 for no limit")
    own = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    if pixels:
        own = drawable.arguments(registered, pixels, own)
    spec = dataclasses.replace(
        registered, kwargs={**registered.kwargs, **own}, max_episode_steps=None if limit == -1 else limit
    )
    more = functools.partial(ids.build, spec)
    try:
        sample = more()
    except InputError as error:
        no_mode = re.search(r"^--env-args render_mode:|\) takes no arguments", str(error))
        if pixels and "render_mode" not in kwargs and no_mode:
            plain = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
            drawable.require_no_image(ids.build(dataclasses.replace(spec, kwargs=plain)), pixels)
            raise drawable.cannot(pixels, env_id) from None
        raise
    args = written(kwargs)
    recreatable = len(args) == len(kwargs)
    return _Base(env_id, sample, more, recipe_of(spec, env_id, own), args, recreatable=recreatable)


def _of_object(env: gym.Env, option: str, pixels: int) -> _Base:
    args, wrappers, recreatable = _description(env, pixels)
    more, why = _copies(env)
    helps = "create it by a function (eval_env=lambda: …)"
    if option == "env":
        helps = "pass a function that creates it (lambda: …), or eval_env= and seeds=1, num_envs=1"
    why_single = f"environment {name_of(env)} cannot be copied, because {why}; {helps}" if why else ""
    return _Base(name_of(env), env, more, None, args, wrappers, recreatable, why_single)


def _copies(env: gym.Env) -> tuple[Make | None, str]:
    """A function that copies an environment by its spec; None, and the reason, if that is impossible."""
    spec = env.spec
    if spec is None:
        return None, "it has no spec"
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            return None, f"its wrapper {wrapper.name} does not record its arguments"
    more = functools.partial(ids.build, spec)
    try:
        copy = more()
        copy.close()
    except InputError as error:
        return None, f"its spec does not create it again ({error})"
    if (copy.observation_space, copy.action_space) != (env.observation_space, env.action_space):
        return None, "its spec creates an environment with other spaces"
    return more, ""


def _of_factory(factory: Make, option: str, pixels: int) -> _Base:
    sample = _call(factory, option)

    def more() -> gym.Env:
        made = _call(factory, option)
        if made is sample:
            raise InputError(f"{option}: the function returned the same environment twice; it must create a new one")
        return made

    reference = reference_of(factory)
    recipe = Recipe(factory=reference) if reference else None
    return _Base(name_of(sample), sample, more, recipe, *_description(sample, pixels))


def _call(factory: Make, option: str) -> gym.Env:
    try:
        env = factory()
    except InputError:
        raise
    except Exception as error:
        kind = type(error).__name__
        failure = InputError(f"{option}: the function that creates it raised {kind}: {ids.first_line(error)}")
        failure.detail = own_traceback(error)
        raise failure from error
    _require_one(env, option)
    if not isinstance(env, gym.Env):
        raise InputError(f"{option}: the function that creates it returned {shown(env)}, not an environment")
    return env


def _description(env: gym.Env, pixels: int) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Arguments and wrappers with which the id of an environment creates it again, and whether they are complete."""
    spec = env.spec
    registered = ids.OWN.get(spec.id) or gym.registry.get(spec.id) if spec else None
    if spec is None or registered is None or spec.entry_point != registered.entry_point:
        return (), (), False
    common = len(registered.additional_wrappers)
    added = spec.additional_wrappers[common:]
    kwargs = {name: without_numpy(value) for name, value in spec.kwargs.items() if name != "render_mode"}
    try:
        kwargs = {k: v for k, v in kwargs.items() if k not in registered.kwargs or bool(registered.kwargs[k] != v)}
    except ValueError:  # arrays have no single truth value
        return (), (), False
    if pixels:
        kwargs |= drawable.picture_of(env)
    if spec.max_episode_steps != registered.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    args, wrappers = written(kwargs), tuple(w.entry_point for w in added if w.kwargs == {} and is_found(w.entry_point))
    complete = (
        len(args) == len(kwargs)
        and len(wrappers) == len(added)
        and spec.additional_wrappers[:common] == registered.additional_wrappers
    )
    return args, wrappers, complete


class _Lender:
    """Lends an environment that exists already; while it is in use, creates others."""

    def __init__(self, first: gym.Env, more: Make | None, of_user: bool):
        self._first, self._more, self._lent, self._of_user = first, more, False, of_user

    def lend(self) -> gym.Env:
        if not self._lent:
            self._lent = True
            return self._first
        if self._more is None:
            raise InputError(
                f"environment {name_of(self._first)}: cannot be copied, so there can be one simulator only"
            )
        return self._more()

    def release(self, env: gym.Env) -> None:
        """The first one stays open if it belongs to the user."""
        if env is self._first and self._of_user:
            self._lent = False
        else:
            env.close()


def create(recipe: Recipe) -> gym.Env:
    """Creates an environment in this process."""
    by_spec = bool(recipe.spec)
    env = ids.build(GymSpec.from_json(recipe.spec)) if by_spec else _call(named(recipe.factory), "env")
    env = wrapped(env, [Layer(name, named(name)) for name in recipe.wrappers])
    return Rendered(env, recipe.pixels) if recipe.pixels else env
