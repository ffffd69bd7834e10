"""The commands `eval`, `report`, `doctor` and `bench`."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import tyro

from lsac.cli.arguments import import_modules, parse
from lsac.errors import InputError

# eval


@dataclasses.dataclass(frozen=True)
class Evaluate:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = 10
    """episodes per seed"""
    policy: str = "last"
    """last (of the newest checkpoint) or best (in the evaluations during training)"""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """use exploratory actions instead of deterministic ones"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


EVAL_HELP = """Run the trained policies of every seed and print their returns.

Examples:
  lsac eval runs/cheetah
  lsac eval runs/cheetah --episodes 20 --policy best
"""


def evaluate(args: list[str]) -> int:
    from lsac.train.evaluate_run import evaluate_run

    given = parse(Evaluate, args, "lsac eval", EVAL_HELP)
    import_modules(given.module)
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
    """folder for the figures and tables"""
    band: str = "t"
    """band around the mean over seeds: t (95 % t-interval), bootstrap (95 %), std, minmax or none"""
    pool: bool = False
    """join runs that differ only in their seeds, or in their length, into one curve"""
    labels: tuple[str, ...] = ()
    """names of the curves, in the order of the runs; default: the algorithms, with folders where needed"""
    format: tuple[str, ...] = ("png",)
    """formats of the figures: png, pdf, svg"""
    columns: int = 2
    """width of the learning curves, in columns of a paper: 1 (3.4 inches) or 2 (7 inches)"""


REPORT_HELP = """Plot learning curves and diagnostics, mean and band over seeds, and write tables.

Examples:
  lsac report runs/cheetah --out report
  lsac report runs/cheetah runs/hopper --labels new old --band std --out report
  lsac report runs/cheetah runs/hopper --format pdf svg --columns 1 --out report
"""


def _require_one_of(option: str, value: Any, right: Iterable[Any]) -> None:
    if value not in right:
        *others, last = map(str, right)
        raise InputError(f"{f'--{option} {value}'.strip()}: must be {', '.join(others)} or {last}")


def report(args: list[str]) -> int:
    from lsac.analysis.figures import FORMATS, WIDTHS, Look
    from lsac.analysis.load import load_runs, pool
    from lsac.analysis.names import check_labels, label
    from lsac.analysis.report import write_report
    from lsac.analysis.stats import BANDS

    given = parse(Report, args, "lsac report", REPORT_HELP)
    if not given.runs:
        raise InputError("lsac report: name at least one folder of a run")
    _require_one_of("band", given.band, BANDS)
    _require_one_of("columns", given.columns, WIDTHS)
    for format in given.format or ("",):
        _require_one_of("format", format, FORMATS)
    runs = load_runs(given.runs)
    runs = pool(runs) if given.pool else runs
    labels = check_labels(runs, given.labels) if given.labels else label(runs)
    try:
        look = Look(given.band, given.columns, tuple(dict.fromkeys(given.format)))
        paths = write_report(runs, labels, given.out, look)
    except OSError as error:
        raise InputError(f"--out {given.out}: cannot be written ({error.strerror})") from None
    print(*paths, sep="\n")
    return 0


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


BENCH_HELP = """Time one update of an algorithm and its matrix products alone; count its parameters and memory.

The ratio of the two means little on a machine that is busy with other work.

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
            raise InputError(f"--algorithms: times all algorithms, leave out {' '.join(given.algorithms)}")
        efficiency(given.env, given.preset, given.seeds, given.rounds, updates)
        return 0
    table(given.algorithms, given.env, given.preset, given.seeds, given.rounds, updates)
    return 0
