"""Curves of cost: the time of an update over the number of seeds, of chains, and so on, beside its floor.

The floor is the time that the machine needs at least: for the matrix products of the update at the rate of one large
product, or for reading and writing once what an update changes (weights, targets, moments) at the rate of one large
copy, whichever takes longer. Both rates are measured on the spot. What stays in a chip's cache from one update to the
next is moved faster than that copy, so small agents can come out below their floor.
"""

import contextlib
import csv
import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
from jax.extend.core import Jaxpr
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from lsac.analysis import figures
from lsac.analysis.colours import ALGORITHMS
from lsac.cli.bench import products_of, repeated, rows_of, sizes, spec_of, subject, timed
from lsac.errors import InputError, MemoryRefused
from lsac.options import OwnBuffer, marked
from lsac.presets import preset as find_preset
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, check, make_agent
from lsac.runs.wording import counted
from lsac.train import device_memory
from lsac.train.devices import Devices
from lsac.train.run import cache_compilations
from lsac.types import EnvSpec

AXES: dict[str, tuple[int, ...]] = {
    "seeds": (1, 2, 5, 10, 20, 50),
    "chains": (2, 5, 10, 20, 50, 100),
    "batch": (64, 256, 1_024, 4_096),
    "replay": (100_000, 1_000_000, 10_000_000),
    "observation": (10, 30, 100, 400),
}
"""What is varied, and its values; everything else stays as the preset has it."""
OF_IMAGES: dict[str, tuple[int, ...]] = {
    "seeds": (1, 2, 5, 10),
    "batch": (64, 256, 1_024),
    "replay": (1_000, 10_000, 100_000),
}
"""The same where the agent learns from images, whose sizes do not depend on the observation's vector."""
OPTIONS = {"chains": "chains", "batch": "batch_size"}
"""Axes that are options of the agent; an algorithm without the option has no such curve."""
LARGE = {"cpu": (1_024, 2**28)}
LARGER = (8_192, 2**31)
"""Rows of the large product and bytes of the large copy, on a CPU and elsewhere."""
TRIES = 5
"""The machine's rates are the best of this many."""
ENDS = "the curve ends here"


class Case(NamedTuple):
    """What is timed at one point of a curve."""

    experiment: Experiment
    spec: EnvSpec
    seeds: int
    rows: int
    """transitions in the replay of each seed"""


class Point(NamedTuple):
    """One point of a curve, and one line of the CSV file."""

    axis: str
    value: int
    seeds: int
    update_ms: float
    """milliseconds of one update of all seeds"""
    updates_per_second: float
    """updates per second, of all seeds together"""
    floor_ms: float
    bound: str
    """what the floor consists of: products or memory"""
    gflop: float
    """10⁹ multiplications and additions of the update's matrix products"""
    mib: float
    """MiB that the update reads and writes at least"""


# The cases


def axes_of(algorithm: str, words: Iterable[str], experiment: Experiment) -> dict[str, tuple[int, ...]]:
    """The axes that `--axes` names, each as `name` or `name=value,value,…`; without any, all that the algorithm has."""
    present = {name: values for name, values in AXES.items() if _has(experiment, name)}
    if experiment.pixels:
        present |= {name: values for name, values in OF_IMAGES.items() if name in present}
        present.pop("observation")
    chosen = {}
    for word in words:
        name, equals, text = word.partition("=")
        if name not in AXES:
            *others, last = AXES
            raise InputError(f"--axes {word}: must be {', '.join(others)} or {last}")
        if name not in present:
            raise InputError(f"--axes {word}: {algorithm} has no such size; it has {', '.join(present)}")
        chosen[name] = _values(word, text) if equals else present[name]
    return chosen or present


def _has(experiment: Experiment, axis: str) -> bool:
    if axis in OPTIONS:
        return hasattr(experiment.agent, OPTIONS[axis])
    return axis != "replay" or not experiment.on_policy


def _values(word: str, text: str) -> tuple[int, ...]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(number >= 1 and number.is_integer() for number in numbers):
        raise InputError(f"--axes {word}: the values must be whole numbers of at least 1, separated by commas")
    return tuple(sorted(map(int, numbers)))  # ascending, because a curve ends where memory does


def varied(case: Case, axis: str, value: int) -> Case:
    """The case with another value on one axis."""
    if axis == "seeds":
        return case._replace(seeds=value)
    if axis == "replay":
        return case._replace(rows=value)
    if axis == "observation":
        return case._replace(spec=dataclasses.replace(case.spec, obs_shape=(value,)))
    agent = dataclasses.replace(case.experiment.agent, **{OPTIONS[axis]: value})
    experiment = dataclasses.replace(case.experiment, agent=agent)
    check(experiment)
    return case._replace(experiment=experiment)


# The floor


def moved_bytes(jaxpr: Jaxpr, is_buffer: list[bool]) -> int:
    """Bytes that an update reads and writes at least: every array of the state that it changes, twice. Of a buffer it
    touches a few rows only, which do not count."""
    before, after = jaxpr.invars[: len(is_buffer)], jaxpr.outvars[: len(is_buffer)]
    total = 0
    for old, new, buffer in zip(before, after, is_buffer, strict=True):
        array: Any = new.aval
        total += 0 if new is old or buffer else 2 * array.size * array.dtype.itemsize
    return total


def buffers(case: Case) -> list[bool]:
    """For every array of an agent's state, whether it is a buffer: whether its shape depends on a buffer's size."""
    agent = case.experiment.agent
    own = {name: 2 * getattr(agent, name) for name in marked(type(agent), OwnBuffer)}
    larger = dataclasses.replace(case.experiment, agent=dataclasses.replace(agent, **own))
    pairs = zip(_state(case), _state(case._replace(experiment=larger)), strict=True)
    return [a.shape != b.shape for a, b in pairs]


def _state(case: Case) -> list[Any]:
    """Shapes and dtypes of one seed's state."""
    agent = make_agent(case.experiment, case.spec)
    return jax.tree.leaves(jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0))))


@functools.cache
def product_rate(dtype: str) -> float:
    """Floating-point operations per second of one large matrix product."""
    rows, _ = LARGE.get(jax.default_backend(), LARGER)
    a, b = (jax.random.normal(jax.random.key(i), (rows, rows)).astype(dtype) for i in range(2))
    multiply = jax.jit(jnp.matmul)
    return 2 * rows**3 / min(timed(partial(multiply, a, b))[1] for _ in range(TRIES + 1))


@functools.cache
def memory_rate() -> float:
    """Bytes per second, read and written, of one large copy onto itself."""
    _, size = LARGE.get(jax.default_backend(), LARGER)
    copy = jax.jit(lambda x: x + 1.0, donate_argnums=0)  # in place, as weights are: new pages would cost more
    x, seconds = jnp.zeros(size // 4), []
    for _ in range(TRIES + 1):
        x, taken = timed(partial(copy, x))
        seconds.append(taken)
    return 2 * size / min(seconds)


# Measuring


def measured(case: Case, axis: str, value: int, rounds: int, repeats: int) -> Point:
    """Times `repeats` updates, `rounds` times; the median."""
    _, state, replay, keys, update = subject(*case)
    jaxpr = jax.make_jaxpr(update)(state, replay, keys).jaxpr
    compiled = repeated(update, case.seeds, repeats)
    times = []
    for number in range(rounds + 1):  # the first one compiles and is not counted
        (state, _), seconds = timed(partial(compiled, state, replay, jax.random.key(number)))
        times.append(1e3 * seconds / repeats)
    milliseconds = statistics.median(times[1:])

    work = [(product.flops, str(product.left.dtype)) for product in products_of(jaxpr)]
    products = 1e3 * sum(count / product_rate(dtype) for count, dtype in work)
    count = moved_bytes(jaxpr, buffers(case))
    memory = 1e3 * count / memory_rate()
    bound = "products" if products >= memory else "memory"
    gflop = sum(count for count, _ in work) / 1e9
    per_second = 1e3 * case.seeds / milliseconds
    return Point(axis, value, case.seeds, milliseconds, per_second, max(products, memory), bound, gflop, count / 2**20)


def require_memory(case: Case) -> None:
    """Rejects a case whose replay and agents do not fit into memory."""
    rows = case.experiment.chunk if case.experiment.on_policy else case.rows
    agent = sum(x.size * x.dtype.itemsize for x in _state(case))
    needed = case.seeds * (agent + rb.nbytes(rb.layout_of(case.spec), rows))
    device_memory.require(needed, "replay and agents", Devices(1), ENDS)


def attempt(case: Case, axis: str, value: int, rounds: int, repeats: int) -> Point | str:
    """A point, or the sentence that memory does not suffice for it."""
    try:
        require_memory(case)
        return measured(case, axis, value, rounds, repeats)
    except MemoryRefused as error:
        return f"{axis} {value:,}: {error}"
    except jax.errors.JaxRuntimeError as error:
        words = str(error).partition("\n")[0]
        if "RESOURCE_EXHAUSTED" not in words:
            raise
        return f"{axis} {value:,}: {words.partition('RESOURCE_EXHAUSTED: ')[2].rstrip('.')}: {ENDS}"


def curves(
    algorithm: str,
    env: str,
    preset: str,
    seeds: int,
    rounds: int,
    repeats: int,
    axes: tuple[str, ...],
    out: Path | None,
) -> None:
    """Prints one line per point, each as soon as it is measured; with `out`, also writes them, and draws them beside
    it."""
    experiment = find_preset(algorithm, preset, env)
    spec = spec_of(experiment)
    base = Case(experiment, spec, seeds, rows_of(spec))
    cases = {
        (axis, value): varied(base, axis, value)
        for axis, values in axes_of(algorithm, axes, experiment).items()
        for value in values
    }
    cache_compilations()
    with _written(out) as file:
        print(
            f"{algorithm} on {env}: {sizes([spec])}, "
            f"{counted(seeds, 'seed')}, {base.rows:,} transitions; {jax.devices()[0].device_kind}: "
            f"{product_rate('float32') / 1e12:.3g} TFLOP/s in float32, {memory_rate() / 1e9:.3g} GB/s; "
            f"medians of {counted(rounds, 'round')} of {counted(repeats, 'update')}\n"
            f"{'':11s} {'':>10s} {'update':>11s} {'updates/s':>10s} {'floor':>11s} {'':8s} {'ratio':>6s}",
            flush=True,
        )
        points: list[Point] = []
        ended: set[str] = set()
        for (axis, value), case in cases.items():
            if axis in ended:
                continue
            found = attempt(case, axis, value, rounds, repeats)
            print(found if isinstance(found, str) else _line(found), flush=True)
            if file is not None:
                _write(file, found, axis, value, (algorithm, env, preset, jax.devices()[0].device_kind))
            if isinstance(found, str):
                ended.add(axis)
            else:
                points.append(found)
    if out is not None and points:
        print(*[out, *draw(points, f"{algorithm} on {env}, {jax.devices()[0].device_kind}", out)], sep="\n")


# Writing

RUN = ("algorithm", "env", "preset", "device")
"""Columns of the CSV file before those of `Point`; the last one is `note`, which says where memory ends."""


def _line(p: Point) -> str:
    return (
        f"{p.axis:11s} {p.value:10,} {p.update_ms:8.3f} ms {p.updates_per_second:10,.0f} {p.floor_ms:8.3f} ms "
        f"{p.bound:8s} {p.update_ms / p.floor_ms:6.2f}"
    )


@contextlib.contextmanager
def _written(out: Path | None) -> Iterator[IO[str] | None]:
    """The CSV file with its header; opened before anything is measured, so that a wrong name costs no time."""
    if out is None:
        yield None
        return
    if out.suffix != ".csv":
        raise InputError(f"--out {out}: must end in .csv")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.open("w", newline="")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from None
    with file:
        csv.writer(file).writerow([*RUN, *Point._fields, "note"])
        yield file


def _write(file: IO[str], found: Point | str, axis: str, value: int, run: tuple[str, ...]) -> None:
    if isinstance(found, str):
        row = [axis, value, *[""] * (len(Point._fields) - 2), found]
    else:
        row = [*(f"{x:.6g}" if isinstance(x, float) else x for x in found), ""]
    csv.writer(file).writerow([*run, *row])
    file.flush()


def draw(points: list[Point], title: str, out: Path) -> list[Path]:
    """One panel per axis: milliseconds of an update, and its floor."""
    axes = list(dict.fromkeys(point.axis for point in points))
    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(2.4 * len(axes) + 0.6, 2.4), layout="constrained")
        panels = figure.subplots(1, len(axes), squeeze=False, sharey=True)[0]
        for panel, axis in zip(panels, axes, strict=True):
            mine = [point for point in points if point.axis == axis]
            for name, style, colour in (("update", "-o", ALGORITHMS["lsac"]), ("floor", "--o", "0.5")):
                heights = [getattr(point, f"{name}_ms") for point in mine]
                panel.plot([point.value for point in mine], heights, style, ms=3, color=colour, label=name)
            panel.set(xscale="log", yscale="log", xlabel=axis)
            panel.set_xticks([point.value for point in mine])
            panel.set_xticks([], minor=True)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panels[0].set_ylabel("ms per update of all seeds")
        panels[0].legend(frameon=False)
        figure.suptitle(figures.plain(title), fontsize=9)
        return figures.save(figure, out.with_suffix(""), ("png",))
