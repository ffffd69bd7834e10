"""The command `sweep`."""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lsac.cli.arguments import parse
from lsac.cli.training import STOPPED
from lsac.errors import InputError
from lsac.runs.wording import counted

if TYPE_CHECKING:
    from lsac.runs.experiment import Experiment
    from lsac.sweeps.engines import Engine
    from lsac.sweeps.plan import Planned


@dataclasses.dataclass(frozen=True)
class Engines:
    """How many experiments are trained at the same time, and where."""

    engine: Literal["local", "ray"] = "local"
    """local: processes on this machine; ray: tasks of Ray, which is started on this machine or found at --address"""
    jobs: int | None = None
    """experiments at the same time; default: one per two cores or, on GPUs, as many as fit into their memory"""
    address: str | None = None
    """address of a running Ray cluster; its machines must see --out under the same path"""


@dataclasses.dataclass(frozen=True)
class Sweep:
    file: tyro.conf.Positional[Path | None] = None
    """Python file that defines experiments, a list or a function that returns one"""
    suite: str | None = None
    """named list of experiments"""
    algorithms: tuple[str, ...] = ()
    """algorithms to compare; default: those of the suite"""
    tasks: tuple[str, ...] = ()
    """environments, or patterns such as '*Cheetah*'; default: all of the suite"""
    preset: str | None = None
    """named settings of the algorithms that have them; default: those of the suite"""
    seeds: int | None = None
    """seeds of every experiment; default: what the suite says"""
    steps: int | None = None
    """environment steps per seed; default: what the suite says"""
    out: Path | None = None
    """folder of the sweep; default: runs/ and the names of suite and preset, or of the file"""
    engines: Annotated[Engines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Engines)
    list: tyro.conf.FlagCreatePairsOff[bool] = False
    """print the experiments and their commands, and train nothing"""


SWEEP_HELP = """Train the experiments of a suite or of a Python file, each with all its seeds in one program.

The same command goes on with what is not finished; finished experiments are left alone. Ctrl-C saves all runs.

Examples:
  lsac sweep --suite smoke --out runs/smoke
  lsac sweep --suite mujoco6 --algorithms lsac sac --tasks 'H*' --seeds 5 --steps 300000 --list
  lsac sweep --suite smoke --algorithms sac --engine ray --jobs 2 --out runs/smoke-ray

Suites:
{suites}
"""


def sweep(args: list[str]) -> int:
    from lsac.sweeps.plan import check_plan, from_file, narrowed, write_plan
    from lsac.sweeps.suites import SUITES
    from lsac.sweeps.sweep import locked, unfinished

    width = max(map(len, SUITES))
    suites = "\n".join(f"  {name:{width}}  {found.__doc__}" for name, found in SUITES.items())
    given = parse(Sweep, args, "lsac sweep", SWEEP_HELP.format(suites=suites))
    if (given.file is None) == (given.suite is None):
        raise InputError(f"lsac sweep: name a Python file, or one suite with --suite ({', '.join(SUITES)})")
    check_engine(given.engines)
    if given.file is not None:
        if given.preset is not None:
            raise InputError(f"--preset {given.preset}: is an option of --suite; a file names its presets itself")
        name, plan = given.file.stem, narrowed(from_file(given.file), given.algorithms)
    else:
        name, plan = _of_suite(given)
    plan = narrowed(plan, (), given.tasks, seeds=given.seeds, steps=given.steps)
    check_plan(plan)
    out = given.out or Path("runs") / name
    if given.list:
        return _list(out, plan)
    with locked(out, "sweep"):
        left = unfinished(out, plan)
        write_plan(out, name, plan)
        if not left:
            print(f"{out}: all {counted(len(plan), 'experiment')} finished; nothing to do")
            return 0
        return _train(out, plan, left, given, args)


def _of_suite(given: Sweep) -> "tuple[str, list[Planned]]":
    """The name and the experiments of a suite; says which algorithms lack the preset."""
    from lsac.sweeps.suites import suite, with_preset

    assert given.suite is not None
    plan = suite(given.suite, given.algorithms, given.preset)
    if given.preset is None:
        return given.suite, plan
    having = with_preset(plan, given.preset)
    if lacking := dict.fromkeys(x for item in plan if (x := item.experiment.algorithm) not in having):
        print(f"--preset {given.preset}: there is none for {', '.join(lacking)}; default is used", file=sys.stderr)
    return f"{given.suite}-{given.preset}", plan


def check_engine(given: Engines) -> None:
    if given.address is not None and given.engine != "ray":
        raise InputError(f"--address {given.address}: needs --engine ray")
    if given.jobs is not None and given.jobs < 1:
        raise InputError(f"--jobs {given.jobs}: must be at least 1")


def _list(out: Path, plan: "Sequence[Planned]") -> int:
    from lsac.sweeps.words import shown, train_words

    for item in plan:
        print(shown(train_words(item.experiment, out / item.path)))
    return 0


@contextlib.contextmanager
def engine_for(given: Engines, experiments: "Sequence[Experiment]") -> "Iterator[tuple[Engine, int, int]]":
    """The engine that the user has chosen, how many jobs it trains at a time, and the workers of each."""
    from lsac.sweeps.engines import Engine, Local
    from lsac.sweeps.machine import share
    from lsac.sweeps.on_ray import OnRay

    engine: Engine
    if given.engine == "ray":
        engine = ray = OnRay(given.jobs, given.address, experiments)
        jobs, workers = ray.jobs, ray.workers
    else:
        shares = share(experiments, given.jobs)
        engine, jobs, workers = Local(shares), shares.jobs, shares.workers
    try:
        yield engine, jobs, workers
    finally:
        engine.close()


def _train(out: Path, plan: "Sequence[Planned]", left: "Sequence[Planned]", given: Sweep, args: list[str]) -> int:
    from lsac.sweeps.sweep import failures, signals_stop, train_all
    from lsac.sweeps.table import Board

    with signals_stop() as stop:
        with engine_for(given.engines, [item.experiment for item in left]) as (engine, jobs, workers), Board() as board:
            done = len(plan) - len(left)
            board.say(f"{out}: {counted(len(left), 'experiment')} to train, {done} finished, {jobs} at a time")
            ends = train_all(out, left, engine, workers, board, stop)
        failed = failures(ends)
        print(*failed, sep="\n", end="\n" if failed else "")
        if stop.requested and any(end.state == "stopped" for end in ends.values()):
            print(f"stopped and saved; continue with: {shlex.join(['lsac', 'sweep', *args])}")
            return STOPPED
    finished = sum(end.state == "finished" for end in ends.values()) + done
    print(f"{finished} of {counted(len(plan), 'experiment')} finished: {out}")
    return 0 if finished == len(plan) else 1
