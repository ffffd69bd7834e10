"""The commands `train` and `resume`."""

import contextlib
import dataclasses
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lsac.cli.arguments import import_modules, parse, peek, translate
from lsac.errors import CheckpointError, InputError, Stopped
from lsac.runs.wording import counted

if TYPE_CHECKING:
    from lsac.envs.sources import Environments
    from lsac.presets import Preset
    from lsac.runs.experiment import Experiment
    from lsac.runs.folder import RunFolder
    from lsac.runs.weights_and_biases import Board
    from lsac.train.display import Display
    from lsac.train.logger import Progress, Watch

STOPPED = 75
"""Exit code of a run that was stopped by a signal and saved; `lsac resume` continues it."""

# train

TRAIN_HELP = """Train {algorithm}: {idea}

Examples:
  lsac train {algorithm} --env Pendulum-v1 --preset quickstart
  lsac train {algorithm} --env HalfCheetah-v5 --seeds 5 --steps 300000 --out runs/cheetah

Presets, whose settings the other options override:
{presets}
"""


def train(args: list[str]) -> int:
    from lsac.agents import summary
    from lsac.envs.sources import of_experiment
    from lsac.presets import presets
    from lsac.runs.experiment import Experiment, check
    from lsac.runs.folder import default_path
    from lsac.train.run import new_folder

    if not args or args[0].startswith("-"):
        return usage(args, "lsac train ALGO --env ID", "lsac train sac --env Pendulum-v1 --preset quickstart")
    algorithm, args = args[0], args[1:]
    config, name, defaults = defaults_of(algorithm, args)

    @dataclasses.dataclass(frozen=True)
    class Options:
        experiment: Annotated[Experiment[config], tyro.conf.arg(name="")]  # type: ignore[valid-type]
        preset: str = "default"
        """named settings, which the other options override"""
        out: Path | None = None
        """folder of the run; default: a new one in runs/"""
        overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
        """replace the run that is in the folder"""
        wandb: tyro.conf.FlagCreatePairsOff[bool] = False
        """also send metrics to Weights & Biases, as one run per seed"""
        wandb_project: str | None = None
        """project on Weights & Biases; default: lsac"""

    text = TRAIN_HELP.format(algorithm=algorithm, idea=summary(algorithm), presets=_described(presets(algorithm)))
    given = parse(Options, args, f"lsac train {algorithm}", text, default=Options(defaults, name))
    experiment = given.experiment
    if not experiment.env:
        raise InputError("--env: name an environment, for example --env Pendulum-v1")
    check(experiment)
    environments = of_experiment(experiment)
    folder = new_folder(given.out or default_path(experiment), experiment, environments, given.overwrite)
    try:
        board = _board(given.wandb, given.wandb_project, folder, experiment)
    except BaseException:
        folder.discard()
        raise
    return _run(experiment, environments, folder, board, resume=False)


def _board(wanted: bool, project: str | None, folder: "RunFolder", experiment: "Experiment") -> "Board | None":
    """The run on Weights & Biases, if it is wanted."""
    from lsac.runs.weights_and_biases import Board

    if not wanted:
        if project is not None:
            raise InputError(f"--wandb-project {project}: is an option of --wandb")
        return None
    return Board(folder.path, experiment, project, print)


def usage(args: list[str], form: str, example: str) -> int:
    """Prints how a command is used that begins with the name of an algorithm; returns the exit code."""
    from lsac.agents import AGENTS

    print(
        f"usage: {form} [options]\n\nalgorithms: {', '.join(AGENTS)}\n"
        f"options of one: {form.partition(' ALGO')[0]} sac --help\n\nExample:\n  {example}"
    )
    return 0 if args[:1] in (["--help"], ["-h"]) else 2


def defaults_of(algorithm: str, args: list[str]) -> "tuple[type, str, Experiment]":
    """The type of an algorithm's options, the name of the preset that the user has chosen, and its experiment."""
    from lsac.presets import preset
    from lsac.runs.experiment import find_algorithm

    config = find_algorithm(algorithm).Config
    translate(args)
    name = peek(args, "--preset") or "default"
    return config, name, preset(algorithm, name, peek(args, "--env") or "")


def _described(presets: "dict[str, Preset]") -> str:
    """One line for each preset: its name, and the first line of its docstring."""
    width = max(map(len, presets))
    lines = [f"  {name:{width}}  {(found.__doc__ or '').partition(chr(10))[0]}" for name, found in presets.items()]
    return "\n".join(line.rstrip() for line in lines)


def _run(
    experiment: "Experiment",
    environments: "Environments",
    folder: "RunFolder",
    board: "Board | None",
    resume: bool,
) -> int:
    """Trains until the end, or until a signal; then saves the run."""
    from lsac.runs.experiment import warnings
    from lsac.runs.folder import resume_command
    from lsac.train.display import Display
    from lsac.train.run import Observer, run
    from lsac.train.stopping import Stop

    stop = Stop(final=True)
    before = {s: signal.signal(s, stop.request) for s in (signal.SIGINT, signal.SIGTERM)}
    e, command = experiment, resume_command(folder.path, (experiment.env, *experiment.wrappers))
    finished = False
    try:
        with Display() as display:
            seeds = ("seed " if e.seeds == 1 else "seeds ") + ", ".join(map(str, e.seed_list))
            display.say(f"{e.algorithm} on {e.env}, {e.total_steps:,} steps, {seeds}")
            for warning in warnings(e, folder.checkpoints.step() if resume else 0):
                display.say(warning)
            observer = Observer(_watched(display, board), display.say, display.fitting)
            result = run(e, environments, folder=folder, resume=resume, observer=observer, stop=stop)
        if not result.finished:
            print(f"stopped and saved at step {result.step:,}; continue with: {command}")
            return STOPPED
        finished = True
        _conclude(folder)  # a signal that comes now is too late to stop anything
        return 0
    except Stopped:
        raise Stopped(f"stopped before the first step; continue with: {command}") from None
    finally:
        if board is not None:
            board.close(failed=not finished)
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(display: "Display", board: "Board | None") -> "Watch":
    """What is called with every line of metrics."""
    if board is None:
        return display.watch

    def watch(progress: "Progress") -> None:
        display.watch(progress)
        board.log(progress.lines)

    return watch


def _conclude(folder: "RunFolder") -> None:
    """Prints the result of a finished run and plots its curve."""
    from lsac.analysis.load import load_run
    from lsac.analysis.report import curve_of_run

    run = load_run(folder.path)
    updates = counted(run.experiment.planned_updates(), "update")
    made = ("was" if updates == "1 update" else "were") + (" made" if run.experiment.seeds == 1 else " made per seed")
    print(f"{run.final_sentence()}, {updates} {made}")
    with contextlib.suppress(InputError):  # no episode has ended, so there is nothing to plot
        print(f"curve: {curve_of_run(run, folder.path / 'curve.png')}")
    print(f"run: {folder.path}")


# resume


@dataclasses.dataclass(frozen=True)
class Resume:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    steps: int | None = None
    """new total of environment steps per seed, to extend the run"""
    wandb: tyro.conf.FlagCreatePairsOff[bool] = False
    """also send metrics to Weights & Biases: to the runs that the training began there, or to new ones"""
    wandb_project: str | None = None
    """project on Weights & Biases, if the run has none yet; default: lsac"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


RESUME_HELP = """Continue a stopped run from its newest checkpoint, or extend a finished one with --steps.

A stopped and resumed run gives the same result as an uninterrupted one. An extended run gives the same agents as one
that was started with that many steps, except for PPO and TRPO, whose step sizes depend on the length.

Examples:
  lsac resume runs/cheetah
  lsac resume runs/cheetah --steps 1000000
"""


def resume(args: list[str]) -> int:
    from lsac.envs.sources import of_experiment
    from lsac.runs.experiment import check, longer
    from lsac.runs.folder import RunFolder
    from lsac.train.run import require_memory

    given = parse(Resume, args, "lsac resume", RESUME_HELP)
    import_modules(given.module)
    folder, experiment = RunFolder.open(given.run, to_train=True)
    try:
        step = folder.checkpoints.step()
        if given.steps is not None:
            if given.steps < step:
                raise InputError(f"--steps {given.steps}: the run is at step {step} already")
            if given.steps < experiment.steps:
                raise InputError(
                    f"--steps {given.steps}: the run has {experiment.steps} steps, which a resume does not shorten"
                )
            experiment = longer(experiment, given.steps)
        if step >= experiment.steps and folder.checkpoints.newest() != folder.checkpoints.stopped:
            return _nothing_to_do(folder, step)
        folder.checkpoints.require_resumable()
        if folder.checkpoints.newest() is None:
            folder.require_unsaved(experiment)
        check(experiment)
        environments = of_experiment(experiment)
        require_memory(experiment, environments.spec(experiment.gamma, experiment.frame_stack))
        board = _board(given.wandb, given.wandb_project, folder, experiment)
        return _run(experiment, environments, folder, board, resume=True)
    finally:
        folder.release()


def _nothing_to_do(folder: "RunFolder", step: int) -> int:
    """Says so; completes the files of a finished run, unless an earlier version of lsac has written them."""
    said = f"{folder.path}: finished at step {step:,}; nothing to do"
    try:
        folder.checkpoints.require_resumable()
    except CheckpointError:
        print(said)
        return 0
    folder.checkpoints.tidy()
    if not (folder.path / "curve.png").exists():
        _conclude(folder)
    print(f"{said} (--steps N makes it longer)")
    return 0
