"""Times an update, and its matrix products and convolutions alone."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from lsac.agents import VECTORS
from lsac.analysis.reference import paper_costs
from lsac.envs.sources import given
from lsac.nn import langevin
from lsac.presets import preset as find_preset
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, make_agent
from lsac.runs.wording import counted
from lsac.train import device_memory
from lsac.train.devices import concurrent_kernels, unroll
from lsac.train.run import cache_compilations
from lsac.types import Agent, Array, EnvSpec

ROWS = 100_000
"""Transitions in the replay while updates are timed; for an on-policy agent, one chunk."""
IMAGES = 5_000
"""The same for an agent that learns from images, which take thousands of times the memory."""


class Timing(NamedTuple):
    update: float
    """milliseconds of one update of all seeds"""
    products: float
    """milliseconds of the update's matrix products and convolutions alone"""
    ratio: float
    noise: float | None
    """milliseconds to generate the Langevin noise of all critics; None if the algorithm has none"""
    parameters: int
    """parameters of one seed, without target networks"""
    bytes: int
    """bytes of one seed's agent, including its own buffers"""


class Efficiency(NamedTuple):
    update: float
    """milliseconds of one update of all seeds"""
    critics: float
    """milliseconds of the part of an update that the new critics depend on"""
    steps: int
    """optimiser steps of the critics in one update"""
    parameters: int
    bytes: int


class Product(NamedTuple):
    """One matrix product or convolution of an update."""

    left: Any
    right: Any
    """shapes and dtypes of the operands"""
    compute: Callable[[Array, Array], Array]
    flops: int
    """multiplications and additions"""


def products_of(jaxpr: Jaxpr) -> Iterator[Product]:
    """All matrix products and convolutions of a program; those in a loop once per iteration."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in FLOPS:
            left, right = (x.aval for x in equation.invars)
            compute = partial(equation.primitive.bind, **equation.params)
            yield Product(left, right, compute, FLOPS[equation.primitive.name](equation))
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in _inner(equation.params):
            for _ in range(times):
                yield from products_of(inner)


def _flops_of_product(equation: Any) -> int:
    left, right = (x.aval.shape for x in equation.invars)
    (_, contracted), (_, batch) = equation.params["dimension_numbers"]
    free = (n for axis, n in enumerate(right) if axis not in (*contracted, *batch))
    return 2 * math.prod(left) * math.prod(free)


def _flops_of_convolution(equation: Any) -> int:
    """Without the products with zeros that a transposed convolution inserts between the numbers of its input."""
    kernel, params = equation.invars[1].aval.shape, equation.params
    taps = math.prod(kernel) // kernel[params["dimension_numbers"].rhs_spec[0]]
    return 2 * equation.outvars[0].aval.size * taps // math.prod(params["lhs_dilation"])


FLOPS = {"dot_general": _flops_of_product, "conv_general_dilated": _flops_of_convolution}


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def run_products(products: list[Product], operands: list[tuple[Array, Array]]) -> list[Array]:
    """Computes all products. Each has its own operands and its result is returned, so that none is optimised away."""
    return [product.compute(*pair) for product, pair in zip(products, operands, strict=True)]


def table(algorithms: tuple[str, ...], env: str, preset: str, seeds: int, rounds: int, repeats: int) -> None:
    """Prints one line per algorithm, each as soon as it is measured."""
    experiments = {name: find_preset(name, preset, env) for name in algorithms or VECTORS}
    specs = {name: spec_of(experiment) for name, experiment in experiments.items()}
    cache_compilations()
    print(
        f"{env}: {sizes(specs.values())}; "
        f"{counted(seeds, 'seed')} on {jax.devices()[0].device_kind}; "
        f"medians of {counted(rounds, 'round')} of {counted(repeats, 'update')}"
    )
    print(f"{'':8s} {'update':>10s} {'products':>10s} {'ratio':>6s} {'noise':>18s} {'parameters':>12s} {'agent':>10s}")
    for name, experiment in experiments.items():
        t = bench(experiment, specs[name], seeds, rounds, repeats)
        noise = "–" if t.noise is None else f"{t.noise:.2f} ms ({t.noise / t.update:.1%})"
        print(
            f"{name:8s} {t.update:7.2f} ms {t.products:7.2f} ms {t.ratio:6.2f} {noise:>18s} "
            f"{t.parameters:12,} {device_memory.size(t.bytes):>10s}"
        )


def spec_of(experiment: Experiment) -> EnvSpec:
    """What the agent of an experiment sees."""
    return given(experiment.env, pixels=experiment.pixels).spec(experiment.gamma, experiment.frame_stack)


def sizes(specs: Iterable[EnvSpec]) -> str:
    """The sizes of observations and actions in words."""
    seen = []
    for spec in specs:
        frames = f" in stacks of {spec.frame_stack}" if spec.frame_stack > 1 else ""
        image = [f"images of {' × '.join(map(str, spec.frame))}{frames}"] if spec.frame else []
        numbers = [counted(spec.obs_dim, "observation")] if spec.obs_dim or not image else []
        seen.append(" and ".join(image + numbers))
        actions = counted(spec.action_dim, "action")
    return f"{' or '.join(dict.fromkeys(seen))}, {actions}"


def rows_of(spec: EnvSpec) -> int:
    return ROWS if spec.frame is None else IMAGES


def bench(experiment: Experiment, spec: EnvSpec, seeds: int, rounds: int, repeats: int) -> Timing:
    """Times `repeats` updates and their products alternately, `rounds` times; returns medians, also of the ratio."""
    agent, state, replay, keys, update = subject(experiment, spec, seeds, rows_of(spec))
    products = list(products_of(jax.make_jaxpr(update)(state, replay, keys).jaxpr))
    rng = np.random.default_rng(0)
    operands = [tuple(jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in (p.left, p.right)) for p in products]
    compiled = repeated(update, seeds, repeats)
    only_products = jax.jit(partial(run_products, products))
    times: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first one compiles and is not counted
        key = jax.random.key(number)
        (state, _), whole = timed(partial(compiled, state, replay, key))
        part = statistics.mean(timed(partial(only_products, operands))[1] for _ in range(repeats))
        times.append((1e3 * whole / repeats, 1e3 * part))
    whole, part = (statistics.median(column) for column in zip(*times[1:], strict=True))
    ratio = statistics.median(a / b for a, b in times[1:])

    noise = None
    critics = agent.values.critics(state) if agent.values else ()
    if getattr(experiment.agent, "langevin", False):
        draw = jax.jit(lambda key: langevin.gaussian_noise(key, critics))
        draw(keys[0])
        noise = 1e3 * statistics.median(timed(lambda: draw(keys[0]))[1] for _ in range(rounds))
    learnt = (agent.policy(state), critics)
    return Timing(whole, part, ratio, noise, _count(learnt) // seeds, _nbytes(state) // seeds)


def efficiency(env: str, preset: str, seeds: int, rounds: int, repeats: int) -> None:
    """Prints the cost of every algorithm next to the numbers of the LSAC paper, each line as soon as it is measured."""
    experiments = {name: find_preset(name, preset, env) for name in VECTORS}
    paper = paper_costs(env.split("-")[0])
    cache_compilations()
    print(
        f"{env}: {counted(seeds, 'seed')} on {jax.devices()[0].device_kind}; "
        f"medians of {counted(rounds, 'round')} of {counted(repeats, 'update')}; "
        "the last three columns are the paper's\n"
        f"{'':6s} {'update':>11s} {'critics':>11s} {'steps':>6s} {'per step':>10s} {'parameters':>11s} {'agent':>9s} "
        f"{'update':>8s} {'critics':>8s} {'parameters':>10s}"
    )
    for name, experiment in experiments.items():
        e = measure(experiment, spec_of(experiment), seeds, rounds, repeats)
        print(
            f"{name:6s} {e.update:8.2f} ms {e.critics:8.2f} ms {e.steps:6d} {e.critics / e.steps:7.3f} ms "
            f"{e.parameters:11,} {device_memory.size(e.bytes):>9s}",
            end="",
        )
        p = paper.get(name)
        print(f" {p.update:5d} ms {p.critics:5d} ms {p.millions:8.3f} M" if p else "", flush=True)


def measure(experiment: Experiment, spec: EnvSpec, seeds: int, rounds: int, repeats: int) -> Efficiency:
    """Times `repeats` updates and their critics' part alternately, `rounds` times; returns medians."""
    agent, state, replay, _, update = subject(experiment, spec, seeds, ROWS)
    assert agent.values is not None
    critics_of = jax.vmap(agent.values.critics)

    def critics_only(state: Any, key: Array) -> Any:
        def step(key: Array) -> Any:
            return critics_of(update(state, replay, jax.random.split(key, seeds))[0])

        return jax.lax.map(step, jax.random.split(key, repeats))

    whole, part = repeated(update, seeds, repeats), jax.jit(critics_only, compiler_options=concurrent_kernels())
    times: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first one compiles and is not counted
        key = jax.random.key(number)
        critics = timed(partial(part, state, key))[1]
        (state, _), seconds = timed(partial(whole, state, replay, key))
        times.append((1e3 * seconds / repeats, 1e3 * critics / repeats))
    update_ms, critics_ms = (statistics.median(column) for column in zip(*times[1:], strict=True))
    learnt = _count((agent.policy(state), agent.values.critics(state))) // seeds
    return Efficiency(update_ms, critics_ms, agent.gradient_steps, learnt, _nbytes(state) // seeds)


def subject(experiment: Experiment, spec: EnvSpec, seeds: int, rows: int) -> tuple[Agent, Any, rb.Replay, Array, Any]:
    """An agent, and for all seeds its states, replays of `rows` transitions, keys and update."""
    agent = make_agent(experiment, spec)
    keys = jax.random.split(jax.random.key(0), seeds)
    layout, count = rb.layout_of(spec), experiment.chunk if experiment.on_policy else rows
    shape, others = (seeds, count, layout.width), {k: c for k, c in layout.arrays().items() if k != rb.PACKED}
    stored = {name: jnp.zeros((seeds, count, *c.shape), c.dtype) for name, c in others.items()}
    # jitted, or bits, normals and their tanh would lie beside one another in memory
    stored[rb.PACKED] = jax.jit(lambda key: jnp.tanh(jax.random.normal(key, shape)))(jax.random.key(1))
    replay = rb.holding(layout, stored, count, experiment.num_envs)
    axes = rb.seed_axes(layout, experiment.num_envs)
    return agent, jax.jit(jax.vmap(agent.init))(keys), replay, keys, jax.vmap(agent.update, in_axes=(0, axes, 0))


def repeated(update: Any, seeds: int, repeats: int) -> Any:
    """`repeats` updates of all seeds as one program, compiled as in training; its first argument, the states, is
    donated. The replay is an argument, or it would become a constant of the program, of gigabytes where it is large."""

    def updates(state: Any, replay: rb.Replay, key: Array) -> tuple[Any, Any]:
        def step(state: Any, key: Array) -> tuple[Any, Any]:
            return update(state, replay, jax.random.split(key, seeds))

        return jax.lax.scan(step, state, jax.random.split(key, repeats), unroll=unroll())

    return jax.jit(updates, donate_argnums=0, compiler_options=concurrent_kernels())


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = jax.block_until_ready(work())
    return result, time.perf_counter() - started


def _count(tree: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


def _nbytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
