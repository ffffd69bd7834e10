"""Options: what each accepts, in which words the rest is rejected, and that no accepted value breaks an agent."""

import ast
import dataclasses
import itertools
import math
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import pytest
import small
import tyro
from replays import spec_of

import lsac
from lsac import options
from lsac.agents import AGENTS
from lsac.agents.lsac.agent import Config as LsacConfig
from lsac.errors import InputError
from lsac.nn.networks import ACTIVATIONS, Activation
from lsac.options import (
    Arguments,
    AtLeast,
    Between,
    LayerWidths,
    MoreThan,
    OneOf,
    OwnBuffer,
    References,
    check_options,
    marked,
)
from lsac.replay import ring as rb
from lsac.runs.experiment import FINITE_POSITIVE, Experiment, check
from lsac.types import Agent

SOURCE = Path(lsac.__file__).parent
SPEC = spec_of(3, 2)
ROWS = 64

FREE = {"target_entropy", "log_std_init", "log_std_min", "log_std_max", "entropy_per_action"}
"""Numbers for which every finite value means something."""


# limits

LIMITS = [
    (AtLeast(1), 1, 0, "must be at least 1"),
    (AtLeast(0), 0, -1, "must not be negative"),
    (MoreThan(0), 1e-30, 0.0, "must be greater than 0"),
    (Between(0, 1), 0.0, -0.1, "must lie between 0 and 1"),
    (Between(0, 1), 1.0, 1.1, "must lie between 0 and 1"),
    (Between(0, 1, without_low=True), 1.0, 0.0, "must be greater than 0 and at most 1"),
    (Between(0, 1, without_high=True), 0.0, 1.0, "must be at least 0 and less than 1"),
    (FINITE_POSITIVE, 1e30, math.inf, "must be a finite number greater than 0"),
    (OneOf(("a", "b")), "b", "c", "must be one of a, b"),
    (LayerWidths(), (1,), (), "needs at least one layer of at least one unit"),
    (LayerWidths(), (2, 1), (2, 0), "needs at least one layer of at least one unit"),
    (Arguments(), (), ("g",), "must be name=value, each name once, for example g=9.81"),
    (Arguments(), ("g=1", "h=", "x=a=b"), ("g=1", "g=2"), "must be name=value, each name once, for example g=9.81"),
    (References(), ("a.b:c",), ("c",), "must be module:name, for example gymnasium.wrappers:FlattenObservation"),
    (References(), (), ("a:b.c",), "must be module:name, for example gymnasium.wrappers:FlattenObservation"),
]


@pytest.mark.parametrize(("limit", "good", "bad", "clause"), LIMITS, ids=str)
def test_a_limit_accepts_what_it_says(limit, good, bad, clause):
    assert limit.accepts(good)
    assert not limit.accepts(bad)
    assert limit.clause == clause


def test_every_kind_of_limit_is_tested():
    assert {type(limit) for limit, *_ in LIMITS} == set(options.Limit.__subclasses__())


@pytest.mark.parametrize("limit", [limit for limit, good, *_ in LIMITS if isinstance(good, float)], ids=str)
def test_no_limit_accepts_what_is_not_a_number(limit):
    assert not limit.accepts(math.nan)


# the walk through a dataclass


@dataclass(frozen=True)
class Inner:
    betas: tuple[options.Decay, options.Decay] = (0.5, 0.9)
    steps: Annotated[int, AtLeast(2)] = 2


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    flat: Annotated[Any, options.WithoutPrefix()] = field(default_factory=Inner)
    hidden: options.Layers = (8,)
    number: float = 0.0
    whole: int = 0
    limit: Annotated[int | None, AtLeast(0)] = None
    switch: bool = True
    kind: Literal["a", "b"] = "a"


INTS = "must be less than 2147483648"
FLOATS = "must lie between -3.4e+38 and 3.4e+38"
REJECTED = [
    ({"inner": Inner(steps=1)}, "--inner.steps 1: must be at least 2"),
    ({"flat": Inner(steps=1)}, "--steps 1: must be at least 2"),
    ({"inner": Inner(betas=(0.5, 1.0))}, "--inner.betas 0.5 1.0: must be at least 0 and less than 1"),
    ({"inner": Inner(betas=(math.nan, 0.5))}, "--inner.betas nan 0.5: must be at least 0 and less than 1"),
    ({"inner": Inner(betas=(0.5,))}, "--inner.betas: has 1 values, not 2"),
    ({"hidden": (8, 0)}, "--hidden 8 0: needs at least one layer of at least one unit"),
    ({"hidden": (2**31, 8)}, f"--hidden 2147483648 8: {INTS}"),
    ({"number": math.nan}, "--number nan: must be a finite number"),
    ({"number": -math.inf}, "--number -inf: must be a finite number"),
    ({"number": -1e39}, f"--number -1e+39: {FLOATS}"),
    ({"whole": 2**31}, f"--whole 2147483648: {INTS}"),
    ({"whole": -(2**31)}, "--whole -2147483648: must be greater than -2147483648"),
    ({"whole": 2**63}, "--whole: 9223372036854775808 is too large"),
    ({"whole": "3"}, "--whole: '3' is not of type int"),
    ({"whole": None}, "--whole: None is not of type int"),
    ({"limit": -1}, "--limit -1: must not be negative"),
    ({"kind": "c"}, "--kind: 'c' is not one of a, b"),
]


@pytest.mark.parametrize(("changes", "sentence"), REJECTED, ids=[sentence for _, sentence in REJECTED])
def test_an_option_is_rejected_with_its_flag_its_value_and_what_is_right(changes, sentence):
    with pytest.raises(InputError) as rejected:
        check_options(Outer(**changes))
    assert str(rejected.value) == sentence


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inner": Inner(steps=3, betas=(0.0, 0.99))},
        {"hidden": (2**31 - 1, 1)},
        {"number": -3e38},
        {"number": 3},  # a whole number may stand for a float
        {"whole": 2**31 - 1},
        {"whole": 1 - 2**31},
        {"limit": 0},
        {"kind": "b", "switch": False},
    ],
    ids=str,
)
def test_the_neighbours_of_what_is_rejected_are_accepted(changes):
    check_options(Outer(**changes))


def test_options_are_found_by_their_marker():
    assert marked(AGENTS["lsac"].Config, OwnBuffer) == ["synthetic_capacity"]
    assert marked(AGENTS["dipo"].Config, OwnBuffer) == ["pair_capacity"]
    assert marked(AGENTS["sac"].Config, OwnBuffer) == []


def test_activations_are_those_of_the_networks():
    assert Activation.__metadata__[0].names == tuple(ACTIVATIONS)


def test_the_command_line_reads_options_that_have_limits():
    args = "--chains 3 --hidden 4 5 --activation tanh --generator.betas 0.5 0.6 --generator.sampler-steps 9 --tau 0.1"
    found = tyro.cli(LsacConfig, args=args.split())
    assert (found.chains, found.hidden, found.activation, found.tau) == (3, (4, 5), "tanh", 0.1)
    assert (found.generator.betas, found.generator.sampler_steps) == ((0.5, 0.6), 9)


# every option of every agent has limits


def unlimited(config: type) -> list[str]:
    """What is wrong with the markers of a dataclass and its nested ones: numbers without a limit, foreign markers."""
    found = []
    for name, hint in typing.get_type_hints(config, include_extras=True).items():
        kind, markers = (hint.__origin__, hint.__metadata__) if hasattr(hint, "__metadata__") else (hint, ())
        found += [f"{name}: {marker}" for marker in markers if not known(marker)]
        if dataclasses.is_dataclass(kind):
            found += [f"{name}.{problem}" for problem in unlimited(kind)]
        elif name not in FREE and not any(isinstance(marker, options.Limit) for marker in markers):
            items = [item for item in typing.get_args(kind) if item is not ...]
            limited = typing.get_origin(kind) is tuple and all(hasattr(item, "__metadata__") for item in items)
            found += [name] if numeric(kind) and not limited else []
    return found


def known(marker: Any) -> bool:
    return isinstance(marker, options.Marker) or type(marker).__module__.startswith("tyro.")


def numeric(hint: Any) -> bool:
    return hint in (int, float) or any(numeric(item) for item in typing.get_args(hint))


@pytest.mark.parametrize("config", [*(module.Config for module in AGENTS.values()), Experiment], ids=[*AGENTS, "run"])
def test_every_number_has_a_limit_and_every_marker_is_known(config):
    assert unlimited(config) == []


def test_a_number_without_a_limit_and_a_misspelt_marker_are_found():
    assert unlimited(Outer) == ["number", "whole"]
    wrong = {"a": Annotated[int, AtLeast], "b": Annotated[float | None, "at least 1"], "c": tuple[int, ...]}
    made = dataclasses.make_dataclass("Wrong", [*wrong.items(), ("nested", Outer)])
    assert [problem.split(":")[0] for problem in unlimited(made)] == [*"aabbc", "nested.number", "nested.whole"]


# unusual values

Place = tuple[str, ...]
"""The names that lead to an option, the last of them its own."""

UNUSUAL = {int: (0, 1, -1, 2**31, 10**12), float: (0.0, -1.0, math.nan, 1e308, math.inf)}


def places(config: type, path: Place = ()) -> Iterator[tuple[Place, type, int]]:
    """Every number among the options: where, of which type, and how many of it the smallest tuple needs (or 0)."""
    for name, hint in typing.get_type_hints(config).items():
        inner = typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            yield from places(typing.cast(type, hint), (*path, name))
        elif hint in UNUSUAL or (inner and inner[0] in UNUSUAL):
            size = len([item for item in inner if item is not ...]) if typing.get_origin(hint) is tuple else 0
            yield (*path, name), inner[0] if inner else hint, size


def changed(config: Any, path: Place, value: Any) -> Any:
    name, *rest = path
    return dataclasses.replace(config, **{name: changed(getattr(config, name), tuple(rest), value) if rest else value})


ALL = [(algorithm, path, kind, size) for algorithm in AGENTS for path, kind, size in places(AGENTS[algorithm].Config)]
EVERYWHERE = pytest.mark.parametrize(
    ("algorithm", "path", "kind", "size"), ALL, ids=[f"{algorithm}.{'.'.join(path)}" for algorithm, path, *_ in ALL]
)


def experiment_of(algorithm: str, agent: Any) -> Experiment:
    run = {"learning_starts": 0, "chunk": ROWS} if small.on_policy(algorithm) else {"steps": 2_048}
    return Experiment(agent, "Pendulum-v1", **run)


def rejection(experiment: Experiment) -> str | None:
    """The sentence with which an experiment is rejected, if it is."""
    try:
        check(experiment)
    except InputError as error:
        return str(error)
    return None


def accepted(algorithm: str, path: Place, kind: type, size: int) -> Iterator[Any]:
    """The agents' options with the unusual values that are accepted; the others are rejected by the option's name."""
    for value in UNUSUAL[kind]:
        agent = changed(small.config(algorithm), path, (value,) * size if size else value)
        sentence = rejection(experiment_of(algorithm, agent))
        if sentence is None:
            yield agent
        else:
            assert f"--{'.'.join(path).replace('_', '-')} " in sentence
            assert sentence.isprintable()


def trace(algorithm: str, agent_options: Any) -> bool:
    """Traces all programs of an agent, without compiling them: whether its state keeps its structure and shapes."""
    agent, key = AGENTS[algorithm].make(agent_options, SPEC), jax.random.key(0)
    first = state = jax.eval_shape(agent.init, key)
    replay = jax.eval_shape(lambda: rb.make(rb.layout_of(SPEC), ROWS, 4))
    state, _ = jax.eval_shape(agent.update, state, replay, key)
    if agent.refresh is not None:
        state, *_ = jax.eval_shape(agent.refresh.fit, state, replay, key)
        state, *_ = jax.eval_shape(agent.refresh.generate, state, key)
    shapes = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (first, state)]
    return jax.tree.structure(first) == jax.tree.structure(state) and shapes[0] == shapes[1]


def test_numbers_are_found_wherever_they_are():
    found = {(algorithm, path) for algorithm, path, *_ in ALL}
    expected = {("lsac", ("generator", "betas")), ("lsac", ("released", "delay")), ("sac", ("hidden",))}
    assert expected | {("ppo", ("anneal_updates",)), ("sac", ("target_entropy",)), ("trpo", ("max_kl",))} <= found
    assert len(found) > 100


@pytest.mark.parametrize(
    ("path", "kind", "size"), [*places(Experiment)], ids=lambda x: x[0] if type(x) is tuple else ""
)
def test_an_unusual_value_of_a_run_is_accepted_or_rejected_by_name(path, kind, size):
    run = experiment_of("sac", small.config("sac"))
    found = [rejection(changed(run, path, value)) for value in UNUSUAL[kind]]
    rejected = [sentence for sentence in found if sentence is not None]
    assert rejected
    assert all(f"--{path[0].replace('_', '-')} " in sentence and sentence.isprintable() for sentence in rejected)


@EVERYWHERE
def test_an_unusual_value_is_accepted_or_rejected_by_name(algorithm, path, kind, size):
    assert len(list(accepted(algorithm, path, kind, size))) < len(UNUSUAL[kind]), "nothing at all is rejected"


@EVERYWHERE
@pytest.mark.slow
def test_an_unusual_value_that_is_accepted_can_be_traced(algorithm, path, kind, size):
    for agent in accepted(algorithm, path, kind, size):
        assert trace(algorithm, agent)


@pytest.mark.parametrize(
    ("algorithm", "path", "kind", "size"),
    [
        ("sac", ("alpha_lr",), float, 0),
        ("sac", ("target_entropy",), float, 0),
        ("dipo", ("action_steps",), int, 0),
        ("dipo", ("action_clip",), float, 0),
        ("td3", ("noise_clip",), float, 0),
        ("ppo", ("grad_norm",), float, 0),
        ("trpo", ("anneal_updates",), int, 0),
        ("lsac", ("generator", "betas"), float, 2),
        ("lsac", ("exchange_every",), int, 0),
    ],
)
def test_some_unusual_values_that_are_accepted_can_be_traced(algorithm, path, kind, size):
    assert (algorithm, path, kind, size) in ALL
    found = list(accepted(algorithm, path, kind, size))
    assert found
    for agent in found:
        assert trace(algorithm, agent)


def test_a_value_that_breaks_an_agent_is_noticed():
    """Such as the one that nothing rejected before options had limits."""
    broken = changed(small.config("lsac"), ("generator", "sampler_steps"), 1)
    with pytest.raises(ValueError, match="at least 2 steps"):
        trace("lsac", broken)


# who knows what


def imports(path: Path) -> set[str]:
    """The modules that a file imports, wherever it does."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    parts = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    inner = [f"lsac.{alias.name}" for node in parts if node.module == "lsac" for alias in node.names]
    return {*named, *inner, *(str(node.module) for node in parts)}


def test_options_depend_on_nothing_but_the_errors():
    outside = {name for name in imports(SOURCE / "options.py") if name.split(".")[0] not in sys.stdlib_module_names}
    assert outside == {"lsac.errors"}


@pytest.mark.parametrize(
    "name",
    ["runs/datafile.py", "runs/checkpoint.py", "collect/wire.py", "collect/groups.py", "collect/snapshot.py"],
)
def test_storage_and_simulation_do_not_depend_on_the_description_of_a_run(name):
    assert not any(module.startswith("lsac.runs.experiment") for module in imports(SOURCE / name))


def test_no_agent_depends_on_the_description_of_a_run():
    found = set(itertools.chain.from_iterable(imports(path) for path in (SOURCE / "agents").rglob("*.py")))
    assert not any(module.startswith("lsac.runs") for module in found)


def owned():
    """The names of options that belong to agents alone."""
    shared = {*(field.name for field in dataclasses.fields(Experiment)), *Agent._fields}
    return {path[-1] for _, path, *_ in ALL} - shared


@pytest.mark.parametrize("name", ["options.py", "runs/experiment.py", "train/run.py"])
def test_generic_code_names_no_option_of_an_agent(name):
    nodes = list(ast.walk(ast.parse((SOURCE / name).read_text())))
    said = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    said |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    said |= {str(node.arg) for node in nodes if isinstance(node, ast.keyword)}
    assert owned() & said == set()
    assert {"synthetic_capacity", "anneal_updates", "batch_size"} <= owned()


def test_no_message_outside_the_agents_names_a_flag_of_an_agent():
    flags = {"--" + name.replace("_", "-") for name in owned()}
    generic = [path for path in SOURCE.rglob("*.py") if not {"agents", "presets"} & set(path.parts)]
    assert "--obs-clip" in flags
    found = {
        (path.name, flag) for path in generic for flag in flags if re.search(rf"{flag}(?![\w-])", path.read_text())
    }
    assert found == set()
