"""The commands that train: train and resume."""

import contextlib
import dataclasses
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from lsac.cli.arguments import import_module, parse, peek
from lsac.errors import InputError, Stopped

RESUMES = {
    "exact": "exact: the simulators go on where they were",
    "episode": "not exact: the simulators cannot be captured and start new episodes",
    "start": "exact: it had not been saved yet and starts again",
}
STOPPED = 75
"""Exit code of a run that a signal stopped: it is saved, and `lsac resume` continues it."""

# train

TRAIN_HELP = """Train {algorithm}: {idea}

Examples:
  lsac train {algorithm} --env Pendulum-v1 --preset quickstart
  lsac train {algorithm} --env HalfCheetah-v5 --seeds 5 --steps 300000 --out runs/cheetah

Presets: {presets}. Options change what the preset sets.
"""


def train(args: list[str]) -> int:
    from lsac.presets import PRESETS, preset
    from lsac.runs.experiment import check, find_algorithm
    from lsac.runs.folder import RunFolder, default_path
    from lsac.train.run import describe, require_memory, source_of

    if not args or args[0].startswith("-"):
        print(
            f"usage: lsac train ALGO --env ID [options]\n\nalgorithms: {', '.join(PRESETS)}\n"
            "options of one: lsac train sac --help\n\nExample:\n"
            "  lsac train sac --env Pendulum-v1 --preset quickstart"
        )
        return 0 if args[:1] in (["--help"], ["-h"]) else 2
    algorithm, args = args[0], args[1:]
    module = find_algorithm(algorithm)
    from lsac.runs.experiment import Experiment

    name = peek(args, "--preset") or "default"
    defaults = preset(algorithm, name, peek(args, "--env") or "")

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
    given = parse(Options, args, f"lsac train {algorithm}", text, default=Options(defaults, name))
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


def _run(algorithm: str, experiment: Any, source: Any, spec: Any, folder: Any, resume: bool) -> int:
    from lsac.runs.folder import Resumed
    from lsac.train.display import Display
    from lsac.train.run import Training
    from lsac.train.stopping import Stop, heeding

    stop = Stop(final=True)
    before = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Display() as display:
            display.say(f"{algorithm} on {experiment.env}, {experiment.steps:,} steps, seeds {experiment.seed_list}")
            training = Training(algorithm, experiment, source, spec, folder, display.watch, display.say, source, stop)
            try:
                if resume:
                    saved = folder.checkpoints.newest() is not None
                    load = partial(_restore, training.loop, folder)
                    kind = heeding(stop, load) if saved else "start"
                    folder.write_config(algorithm, experiment, Resumed(training.loop.step, kind))
                    display.say(f"continuing at step {training.loop.step:,}; {RESUMES[kind]}")
                finished = training.loop.run(stop)
            finally:
                training.close()
    except Stopped:
        raise Stopped(f"stopped before the first step; continue with: lsac resume {folder.path}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not finished:
        print(f"stopped and saved at step {training.loop.step:,}; continue with: lsac resume {folder.path}")
        return STOPPED
    _conclude(folder)
    return 0


def _restore(loop: Any, folder: Any) -> str:
    return loop.restore(folder.checkpoints.load())


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

A stopped run ends as it would have ended; one that is made longer is not, number for number, the run that would have
been started with so many steps.

Examples:
  lsac resume runs/cheetah
  lsac resume runs/cheetah --steps 1000000
"""


def resume(args: list[str]) -> int:
    from lsac.runs.experiment import check, longer
    from lsac.runs.folder import RunFolder
    from lsac.train.run import describe, require_memory, source_of

    given = parse(Resume, args, "lsac resume", RESUME_HELP)
    import_module(given.module)
    folder, algorithm, experiment = RunFolder.open(given.run, to_train=True)
    try:
        step = folder.checkpoints.step()
        if given.steps is not None:
            if given.steps < step:
                raise InputError(f"--steps {given.steps}: the run is at step {step} already")
            experiment = longer(experiment, given.steps)
        if step >= experiment.steps and folder.checkpoints.newest() != folder.checkpoints.stopped:
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
