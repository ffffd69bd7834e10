"""The commands `doctor` and `bench`."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import tyro

from lsac.cli.arguments import parse
from lsac.errors import InputError

# doctor


@dataclasses.dataclass(frozen=True)
class Doctor:
    env: str = "HalfCheetah-v5"
    """environment whose simulator is timed"""
    seconds: float = 2.0
    """duration of each measurement"""


DOCTOR_HELP = """Show versions, devices, rendering and simulation speed of this machine.

Examples:
  lsac doctor
  lsac doctor --env Pendulum-v1 --seconds 1
"""


def doctor(args: list[str]) -> int:
    from lsac.cli.doctor import diagnose

    given = parse(Doctor, args, "lsac doctor", DOCTOR_HELP)
    if not (math.isfinite(given.seconds) and given.seconds >= 0.1):
        raise InputError(f"--seconds {given.seconds:g}: must be at least 0.1")
    return diagnose(given.env, given.seconds)


# bench


@dataclasses.dataclass(frozen=True)
class Bench:
    algorithms: tyro.conf.Positional[tuple[str, ...]]
    """algorithms to time; all by default"""
    env: str = "HalfCheetah-v5"
    """environment whose observation and action sizes are used; it is not simulated"""
    preset: str = "default"
    """named settings of the algorithms"""
    seeds: int = 1
    """number of seeds in the program"""
    rounds: int = 5
    """number of alternating measurements of updates and products"""
    updates: int | None = None
    """updates per measurement; default: 4 on a CPU, else 32, as in a chunk of training"""
    efficiency: Annotated[bool, tyro.conf.arg(name="algorithms"), tyro.conf.FlagCreatePairsOff] = False
    """one table of all algorithms: time of an update and of its critics, parameters, memory, and the paper's numbers"""
    scaling: tyro.conf.FlagCreatePairsOff[bool] = False
    """curves of one algorithm, lsac by default: time of an update over sizes, beside the least that it could be"""
    axes: tuple[str, ...] = ()
    """what --scaling varies: seeds, chains, batch, replay, observation, each with values of its own if wanted
    (seeds=1,10,100); default: all that the algorithm has"""
    out: Path | None = None
    """CSV file for the points of --scaling; the curves are drawn beside it"""


BENCH_HELP = """Time one update of an algorithm and its matrix products alone; count its parameters and memory.

The ratio of the two means little on a machine that is busy with other work. With --scaling, the floor beside an update
is the longer of two times: its matrix products at the rate of one large product, and reading and writing its weights,
targets and moments once at the rate of one large copy.

Examples:
  lsac bench lsac
  lsac bench sac --env Hopper-v5 --seeds 5
  lsac bench --algorithms --env HalfCheetah-v4
  lsac bench sac --scaling --axes seeds=1,10 batch=64,256 --out scaling.csv
"""


def bench(args: list[str]) -> int:
    import jax

    from lsac.cli.bench import efficiency, table
    from lsac.cli.scaling import curves

    given = parse(Bench, args, "lsac bench", BENCH_HELP)
    updates = given.updates if given.updates is not None else 4 if jax.default_backend() == "cpu" else 32
    for name, value in {"seeds": given.seeds, "rounds": given.rounds, "updates": updates}.items():
        if value < 1:
            raise InputError(f"--{name} {value}: must be at least 1")
    sizes = (given.env, given.preset, given.seeds, given.rounds, updates)
    if given.scaling:
        if given.efficiency:
            raise InputError("--scaling: draws the curves of one algorithm, leave out --algorithms")
        if len(given.algorithms) > 1:
            raise InputError(f"--scaling: draws the curves of one algorithm, not of {' and '.join(given.algorithms)}")
        curves(given.algorithms[0] if given.algorithms else "lsac", *sizes, given.axes, given.out)
        return 0
    for name, value in {"axes": given.axes, "out": given.out}.items():
        if value:
            raise InputError(f"--{name}: is an option of --scaling")
    if given.efficiency:
        if given.algorithms:
            raise InputError(f"--algorithms: times all algorithms, leave out {' '.join(given.algorithms)}")
        efficiency(*sizes)
        return 0
    table(given.algorithms, *sizes)
    return 0
