"""The command line. Every command is a function that takes the rest of the arguments; errors become one sentence."""

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from lsac.errors import InputError, LsacError, Stopped

RESUMES = {
    "exact": "exact: the simulators go on where they were",
    "episode": "not exact: the simulators cannot be captured and start new episodes",
    "start": "exact: it had not been saved yet and starts again",
}
STOPPED = 75
"""Exit code of a run that a signal stopped: it is saved, and `lsac resume` continues it."""

USAGE = """\
usage: lsac COMMAND ...

Train, compare and understand continuous-control agents.

  lsac train ALGO --env ID     train an agent, all seeds in one compiled program
  lsac resume DIR              continue a run that was stopped, or make it longer
  lsac eval DIR                run the trained policies and print their returns
  lsac report DIR... --out DIR draw curves and write tables
  lsac doctor                  what this machine has, and how fast it simulates
  lsac bench [ALGO...]         how long an update takes, beside its matrix products alone

Every command explains itself: lsac COMMAND --help
"""


def _parse(cls: Any, args: list[str], prog: str, text: str, **more: Any) -> Any:
    config = (tyro.conf.FlagCreatePairsOff,)
    return tyro.cli(cls, args=args, prog=prog, description=text, config=config, **more)


# train

TRAIN_HELP = """Train {algorithm}: {idea}

Examples:
  lsac train {algorithm} --env Pendulum-v1 --preset quickstart
  lsac train {algorithm} --env HalfCheetah-v5 --seeds 5 --steps 300000 --out runs/cheetah

Presets: {presets}. Options change what the preset sets.
"""


def train(args: list[str]) -> int:
    from lsac.experiment import check, find_algorithm
    from lsac.folder import RunFolder, default_path
    from lsac.presets import PRESETS, preset
    from lsac.training import describe, require_memory, source_of

    if not args or args[0].startswith("-"):
        print(
            f"usage: lsac train ALGO --env ID [options]\n\nalgorithms: {', '.join(PRESETS)}\n"
            "options of one: lsac train sac --help\n\nExample:\n"
            "  lsac train sac --env Pendulum-v1 --preset quickstart"
        )
        return 0 if args[:1] in (["--help"], ["-h"]) else 2
    algorithm, args = args[0], args[1:]
    module = find_algorithm(algorithm)
    from lsac.experiment import Experiment

    name = _peek(args, "--preset") or "default"
    defaults = preset(algorithm, name, _peek(args, "--env") or "")

    @dataclasses.dataclass(frozen=True)
    class Options:
        experiment: Annotated[Experiment[module.Config], tyro.conf.arg(name="")]  # type: ignore[name-defined]
        preset: str = "default"
        """named settings to start from"""
        out: Path | None = None
        """folder of the run; default: a new one in runs/"""

    text = TRAIN_HELP.format(
        algorithm=algorithm,
        idea=(module.__doc__ or "").splitlines()[0],
        presets=", ".join(PRESETS[algorithm]),
    )
    given = _parse(Options, args, f"lsac train {algorithm}", text, default=Options(defaults, name))
    experiment = given.experiment
    if not experiment.env:
        raise InputError("--env: name an environment, for example --env Pendulum-v1")
    check(experiment)
    source = source_of(experiment.env)
    spec = describe(source)
    require_memory(algorithm, experiment, spec)  # refused before a folder is made
    path = given.out or default_path(algorithm, experiment.env, experiment.seed)
    folder = RunFolder.create(path, algorithm, experiment)
    try:
        return _run(algorithm, experiment, source, spec, folder, resume=False)
    finally:
        folder.release()


def _peek(args: list[str], flag: str) -> str | None:
    """The value of an option, before all are parsed: a preset decides the defaults of the rest."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.split("=", 1)[1]
    return None


def _import(module: str | None) -> None:
    """A file must not cause an import; who types the name of a module wants it."""
    if module is not None:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"--module {module}: cannot be imported ({error})") from None


def _run(algorithm: str, experiment: Any, source: Any, spec: Any, folder: Any, resume: bool) -> int:
    from lsac.display import Display
    from lsac.folder import Resumed
    from lsac.loops import Stop
    from lsac.training import Training

    stop = Stop()
    before = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Display() as display:
            display.say(f"{algorithm} on {experiment.env}, {experiment.steps:,} steps, seeds {experiment.seed_list}")
            training = Training(algorithm, experiment, source, spec, folder, display.watch, display.say, source, stop)
            try:
                if resume:
                    saved = folder.checkpoints.newest() is not None
                    kind = training.loop.restore(folder.checkpoints.load()) if saved else "start"
                    folder.write_config(algorithm, experiment, Resumed(training.loop.step, kind))
                    display.say(f"continuing at step {training.loop.step:,}; {RESUMES[kind]}")
                finished = training.loop.run(stop)
            finally:
                training.close()
    except Stopped as error:
        raise Stopped(f"{error}; continue with: lsac resume {folder.path}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not finished:
        print(f"stopped and saved at step {training.loop.step:,}; continue with: lsac resume {folder.path}")
        return STOPPED
    _conclude(folder)
    return 0


def _conclude(folder: Any) -> None:
    from lsac.analysis.load import load_run
    from lsac.analysis.report import curve_of_run

    run = load_run(folder.path)
    print(run.final_sentence())
    with contextlib.suppress(InputError):  # no episode has ended yet, so there is nothing to draw
        print(f"curve: {curve_of_run(run, folder.path / 'curve.png')}")
    print(f"run: {folder.path}")


# resume


@dataclasses.dataclass(frozen=True)
class Resume:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    steps: int | None = None
    """new number of environment steps per seed, if the run is to become longer"""
    module: str | None = None
    """module to import first, where the run's environment is module:Env"""


RESUME_HELP = """Continue a run that was stopped, exactly where it was saved; or make a finished one longer.

Examples:
  lsac resume runs/cheetah
  lsac resume runs/cheetah --steps 1000000
"""


def resume(args: list[str]) -> int:
    from lsac.experiment import check, longer
    from lsac.folder import RunFolder
    from lsac.training import describe, require_memory, source_of

    given = _parse(Resume, args, "lsac resume", RESUME_HELP)
    _import(given.module)
    folder, algorithm, experiment = RunFolder.open(given.run, to_train=True)
    try:
        step = folder.checkpoints.step()
        if given.steps is not None:
            if given.steps < step:
                raise InputError(f"--steps {given.steps}: the run is at step {step} already")
            experiment = longer(experiment, given.steps)
        if step >= experiment.steps:
            folder.checkpoints.tidy()
            if not (given.run / "curve.png").exists():
                _conclude(folder)
            print(f"{given.run}: finished at step {step:,}; nothing to do (--steps N makes it longer)")
            return 0
        if folder.checkpoints.newest() is None:
            folder.require_unsaved(experiment)
        check(experiment)
        source = source_of(experiment.env)
        spec = describe(source)
        require_memory(algorithm, experiment, spec)
        return _run(algorithm, experiment, source, spec, folder, resume=True)
    finally:
        folder.release()


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
    from lsac.evaluate import evaluate_run

    given = _parse(Evaluate, args, "lsac eval", EVAL_HELP)
    _import(given.module)
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

    given = _parse(Report, args, "lsac report", REPORT_HELP)
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
    from lsac.doctor import diagnose

    given = _parse(Doctor, args, "lsac doctor", DOCTOR_HELP)
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
    updates: int = 4
    """updates of one timing"""
    efficiency: Annotated[bool, tyro.conf.arg(name="algorithms")] = False
    """all algorithms in one table: time of an update and of its critics, parameters, memory, the LSAC paper beside"""


BENCH_HELP = """Time one update of an algorithm beside its matrix products alone, and count what it holds.

Examples:
  lsac bench lsac
  lsac bench sac td3 --env Hopper-v5 --seeds 5
  lsac bench --algorithms --env HalfCheetah-v4
"""


def bench(args: list[str]) -> int:
    from lsac.bench import efficiency, table

    given = _parse(Bench, args, "lsac bench", BENCH_HELP)
    for name in ("seeds", "rounds", "updates"):
        if getattr(given, name) < 1:
            raise InputError(f"--{name} {getattr(given, name)}: must be at least 1")
    if given.efficiency:
        if given.algorithms:
            raise InputError(f"--algorithms: is for all of them, so {' '.join(given.algorithms)} cannot be named too")
        efficiency(given.env, given.preset, given.seeds, given.rounds, given.updates)
        return 0
    table(given.algorithms, given.env, given.preset, given.seeds, given.rounds, given.updates)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "report": report,
    "doctor": doctor,
    "bench": bench,
}


def main() -> None:
    import difflib

    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if args else 2)
    if args[0] == "--version":
        from lsac.version import __version__

        print(__version__)
        sys.exit(0)
    if args[0] not in COMMANDS:
        close = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        print(f"lsac: no command {args[0]}{hint} (see lsac --help)", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(COMMANDS[args[0]](args[1:]))
    except Stopped as error:
        print(f"lsac: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # the compiler may still be at work in its thread, and cannot be told to stop
    except LsacError as error:
        print(f"lsac: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
