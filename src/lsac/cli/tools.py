"""The commands that train nothing: eval, report, doctor and bench."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from lsac.cli.arguments import import_module, parse
from lsac.errors import InputError

# eval


@dataclasses.dataclass(frozen=True)
class Evaluate:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = 10
    """episodes per seed"""
    policy: str = "last"
    """last (of the newest checkpoint) or best (of the evaluations during training)"""
    stochastic: bool = False
    """sample actions instead of taking the mean"""
    module: str | None = None
    """module to import first, where the run's environment is module:Env"""


EVAL_HELP = """Run the trained policies of every seed and print their returns.

Examples:
  lsac eval runs/cheetah
  lsac eval runs/cheetah --episodes 20 --policy best
"""


def evaluate(args: list[str]) -> int:
    from lsac.train.policies import evaluate_run

    given = parse(Evaluate, args, "lsac eval", EVAL_HELP)
    import_module(given.module)
    if given.episodes < 1:
        raise InputError(f"--episodes {given.episodes}: must be at least 1")
    if given.policy not in ("last", "best"):
        raise InputError(f"--policy {given.policy}: must be last or best")
    print(evaluate_run(given.run, given.episodes, given.policy, not given.stochastic))
    return 0


# report


@dataclasses.dataclass(frozen=True)
class Report:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs"""
    out: Path
    """folder for the curves (PNG) and the table (CSV)"""


REPORT_HELP = """Draw learning curves and diagnostics (mean and 95 % interval over seeds) and write a table.

Examples:
  lsac report runs/cheetah --out report
  lsac report runs/cheetah runs/hopper --out report
"""


def report(args: list[str]) -> int:
    from lsac.analysis.load import load_run
    from lsac.analysis.report import write_report

    given = parse(Report, args, "lsac report", REPORT_HELP)
    if not given.runs:
        raise InputError("lsac report: name at least one folder of a run")
    runs = [load_run(run) for run in given.runs]
    try:
        paths = write_report(runs, given.out)
    except OSError as error:
        raise InputError(f"--out {given.out}: cannot be written ({error.strerror})") from None
    print(*paths, sep="\n")
    return 0


# doctor


@dataclasses.dataclass(frozen=True)
class Doctor:
    env: str = "HalfCheetah-v5"
    """environment whose simulation is timed"""
    seconds: float = 2.0
    """how long each rate is measured"""


DOCTOR_HELP = """Say what this machine has: versions, devices, rendering, and how fast it simulates.

Examples:
  lsac doctor
  lsac doctor --env Pendulum-v1 --seconds 1
"""


def doctor(args: list[str]) -> int:
    from lsac.cli.doctor import diagnose

    given = parse(Doctor, args, "lsac doctor", DOCTOR_HELP)
    return diagnose(given.env, given.seconds)


# bench


@dataclasses.dataclass(frozen=True)
class Bench:
    algorithms: tyro.conf.Positional[tuple[str, ...]]
    """which to time; all if none is named"""
    env: str = "HalfCheetah-v5"
    """environment whose sizes are used; nothing is simulated"""
    preset: str = "default"
    """named settings of the algorithms"""
    seeds: int = 1
    """seeds in the one program"""
    rounds: int = 5
    """how often updates and products are timed, in turn"""
    updates: int | None = None
    """updates of one timing; default: 32, as many as training starts at a time, on a CPU 4"""
    efficiency: Annotated[bool, tyro.conf.arg(name="algorithms")] = False
    """all algorithms in one table: time of an update and of its critics, parameters, memory, the LSAC paper beside"""


BENCH_HELP = """Time one update of an algorithm beside its matrix products alone, and count what it holds.

Examples:
  lsac bench lsac
  lsac bench sac --env Hopper-v5 --seeds 5
  lsac bench --algorithms --env HalfCheetah-v4
"""


def bench(args: list[str]) -> int:
    import jax

    from lsac.cli.bench import efficiency, table

    given = parse(Bench, args, "lsac bench", BENCH_HELP)
    updates = given.updates if given.updates is not None else 4 if jax.default_backend() == "cpu" else 32
    for name, value in {"seeds": given.seeds, "rounds": given.rounds, "updates": updates}.items():
        if value < 1:
            raise InputError(f"--{name} {value}: must be at least 1")
    if given.efficiency:
        if given.algorithms:
            raise InputError(f"--algorithms: is for all of them, so {' '.join(given.algorithms)} cannot be named too")
        efficiency(given.env, given.preset, given.seeds, given.rounds, updates)
        return 0
    table(given.algorithms, given.env, given.preset, given.seeds, given.rounds, updates)
    return 0
