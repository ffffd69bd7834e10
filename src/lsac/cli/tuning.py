"""The command `tune`."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lsac.cli.arguments import parse
from lsac.cli.sweeping import Engines, check_engine, engine_for
from lsac.cli.training import STOPPED, defaults_of, usage
from lsac.errors import InputError

if TYPE_CHECKING:
    from lsac.sweeps.training import Ended
    from lsac.sweeps.tuning import Tuning

TUNE_HELP = """Tune options of {algorithm} with Optuna. A trial is one run with all its seeds.

Its score is the mean over seeds of the last three evaluations, or of all after step 0 if there are fewer. A trial whose
best evaluation so far is below the median of those that finished, at the same step, is stopped early. The same command
goes on with a study that was stopped, and --trials makes it longer.

Examples:
  lsac tune {algorithm} --env Pendulum-v1 --preset quickstart --trials 2 --out runs/tune
  lsac tune {algorithm} --env Pendulum-v1 --preset quickstart --trials 2 --range gamma=0.9..0.99 --out runs/tune-gamma

Ranges, unless --range gives others:
{ranges}
"""


def tune(args: list[str]) -> int:
    from lsac.runs.experiment import Experiment, check
    from lsac.sweeps.spaces import SPACES, space_of
    from lsac.sweeps.sweep import locked
    from lsac.sweeps.tuning import Tuning

    if not args or args[0].startswith("-"):
        example = "lsac tune sac --env Pendulum-v1 --preset quickstart --trials 2 --out runs/tune"
        return usage(args, "lsac tune ALGO --env ID --trials N", example)
    algorithm, rest = args[0], args[1:]
    config, name, defaults = defaults_of(algorithm, rest)
    defaults = dataclasses.replace(defaults, seeds=3)

    @dataclasses.dataclass(frozen=True)
    class Options:
        experiment: Annotated[Experiment[config], tyro.conf.arg(name="")]  # type: ignore[valid-type]
        trials: int = 20
        """number of trials, also of those that an earlier command has made"""
        range: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
        """what to tune, as name=low..high, name=low..high:log or name=a,b,c; can be repeated, and replaces the
        algorithm's own ranges"""
        preset: str = "default"
        """named settings, which the other options override"""
        out: Path | None = None
        """folder of the study; default: runs/tune- and the names of algorithm and environment"""
        engines: Annotated[Engines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Engines)

    width = max(map(len, SPACES.get(algorithm, {"": None})))
    ranges = "\n".join(
        f"  {key.replace('_', '-'):{width}}  {value}" for key, value in SPACES.get(algorithm, {}).items()
    )
    text = TUNE_HELP.format(algorithm=algorithm, ranges=ranges)
    given = parse(Options, rest, f"lsac tune {algorithm}", text, default=Options(defaults, preset=name))
    base = given.experiment
    if not base.env:
        raise InputError("--env: name an environment, for example --env Pendulum-v1")
    if given.trials < 1:
        raise InputError(f"--trials {given.trials}: must be at least 1")
    if not 0 < base.eval_every <= base.steps:
        raise InputError(
            f"--eval-every {base.eval_every}: must be from 1 to --steps {base.steps}, trials are judged by it"
        )
    check(base)
    check_engine(given.engines)
    out = given.out or Path("runs") / f"tune-{algorithm}-{base.env.replace('/', '-').replace(':', '-')}"
    tuning = Tuning(out, base, space_of(base, given.range))
    with locked(out, "study"):
        return _tune(tuning, given.trials, given.engines, args)


def _tune(tuning: "Tuning", count: int, engines: Engines, args: list[str]) -> int:
    from lsac.envs import ids
    from lsac.sweeps.sweep import failures, signals_stop
    from lsac.sweeps.table import Board
    from lsac.sweeps.tuning import Trials, left_trials, open_study, write_results

    ids.find(tuning.base.env)
    study = open_study(tuning)
    failed: dict[str, Ended] = {}
    with signals_stop() as stop:
        if len(study.trials) < count or left_trials(study, tuning):
            with engine_for(engines, [tuning.base] * count) as (engine, jobs, workers), Board() as board:
                board.say(f"{tuning.folder}: {len(study.trials)} of {count} trials begun, {jobs} at a time")
                trials = Trials(study, tuning, engine, workers)
                trials.run(count, jobs, board, stop)
            failed = trials.failed
    print(*failures(failed), *write_results(tuning, study), sep="\n")
    if stop.requested:
        print(f"stopped and saved; continue with: {shlex.join(['lsac', 'tune', *args])}")
        return STOPPED
    return 1 if failed else 0
