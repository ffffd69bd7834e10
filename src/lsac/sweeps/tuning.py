"""Tunes options with Optuna. A trial is one run with all its seeds; the mean over seeds of its last evaluations is its
score.

The folder holds study.db, Optuna's own SQLite database: numbers, names and JSON, nothing that could be executed. A
sampler is not stored; each trial has one of its own, so that a study which was interrupted goes on as if it had not
been.
"""

import csv
import dataclasses
import json
import shlex
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lsac.errors import Diverged, InputError
from lsac.runs.datafile import read_json, write_bytes
from lsac.runs.experiment import Experiment
from lsac.runs.wording import counted
from lsac.sweeps.engines import Engine, wait
from lsac.sweeps.runs import FREE, last_lines
from lsac.sweeps.spaces import Space, distributions, readable, with_parameters
from lsac.sweeps.sweep import job_of, stop_all
from lsac.sweeps.table import RUNNING, Board, Row
from lsac.sweeps.training import FINISHED, STOPPED, Ended
from lsac.sweeps.words import differences, option_words, shown, train_words
from lsac.train.stopping import Stop

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

LAST = 3
"""Evaluations at the end of a run whose mean is its score; a run with fewer has that of all after step 0."""
STARTUP = 4
"""Trials that are not stopped early, so that there is something to compare the next ones with."""
WARM_UP = 0.25
"""Share of a run's steps before which no trial is stopped."""
METRICS_LIMIT = 2**28
"""Bytes of metrics that are read of a trial."""


class Tuning(NamedTuple):
    folder: Path
    base: Experiment
    """the experiment whose options are tuned"""
    space: Space

    def place(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def experiment(self, parameters: dict[str, Any]) -> Experiment:
        """The experiment of a trial."""
        return with_parameters(self.base, readable(self.space, parameters))


# Scores


def evaluations(folder: Path, seeds: int) -> dict[int, float]:
    """The mean over seeds of each evaluation, by its step; evaluations that lack a seed are left out."""
    found: dict[int, dict[int, float]] = {}
    for line in last_lines(folder, METRICS_LIMIT):
        if "eval/mean_reward" in line:
            found.setdefault(line["step"], {})[line["seed"]] = float(line["eval/mean_reward"])
    return {step: sum(row.values()) / seeds for step, row in sorted(found.items()) if len(row) == seeds}


def score(values: dict[int, float]) -> float:
    """The mean of the last evaluations; the one of step 0, before any training, only if there is no other."""
    trained = [value for step, value in values.items() if step > 0] or list(values.values())
    last = trained[-LAST:]
    return sum(last) / len(last)


# The study


def open_study(tuning: Tuning) -> "Study":
    """The study in a folder, new or as it was left; rejects a folder with another one."""
    try:
        import optuna
    except ImportError:
        raise InputError("lsac tune: Optuna is not installed; install it with: pip install 'lsac[tune]'") from None
    _require_same(tuning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = (tuning.folder / "study.db").absolute()
    # the path as it is: in an address of a database some characters have a meaning
    connection = {"creator": lambda: sqlite3.connect(file, check_same_thread=False)}
    pruner = optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=int(WARM_UP * tuning.base.steps))
    try:
        storage = optuna.storages.RDBStorage("sqlite:///study.db", connection)
        study = optuna.create_study(
            storage=storage, study_name="lsac", direction="maximize", pruner=pruner, load_if_exists=True
        )
        study.get_trials()
    except Exception as error:  # a damaged file raises errors of many kinds, of SQLite, SQLAlchemy, Optuna and Python
        raise InputError(f"{file}: is not a study of Optuna, or is damaged ({type(error).__name__})") from None
    return study


def _require_same(tuning: Tuning) -> None:
    """Rejects a folder in which something else is tuned; writes down what is."""
    file = tuning.folder / "tune.json"
    table = {
        "algorithm": tuning.base.algorithm,
        "experiment": dataclasses.asdict(tuning.base),
        "ranges": {name: str(values) for name, values in tuning.space.items()},
        "score": f"mean over seeds of the last {LAST} evaluations",
    }
    table = json.loads(json.dumps(table))
    if not file.exists():
        write_bytes(file, [json.dumps(table, indent=2).encode(), b"\n"])
        return
    before = read_json(file)
    for name, old, new in differences(before if isinstance(before, dict) else {}, table):
        option = name.partition(".")[2] or name
        if option not in FREE:
            what = f"another {option.replace('_', '-')} ({old}, not {new})"
            raise InputError(f"--out {tuning.folder}: holds a study of {what}; choose another")


def next_trial(study: "Study", tuning: Tuning) -> "Trial":
    """A new trial. Its proposal depends on the trials before it and on its number alone."""
    from optuna.samplers import TPESampler

    study.sampler = TPESampler(seed=(tuning.base.seed + 7919 * len(study.trials)) % 2**32)
    return study.ask(distributions(tuning.base, tuning.space))


def left_trials(study: "Study", tuning: Tuning) -> "list[Trial]":
    """The trials that were running when the study was left; those that had no values yet are given up."""
    from optuna.trial import Trial, TrialState

    found = []
    for frozen in study.get_trials(states=(TrialState.RUNNING,)):
        if frozen.params.keys() == tuning.space.keys():
            found.append(Trial(study, frozen._trial_id))
        else:
            study.tell(frozen.number, state=TrialState.FAIL)
    return found


class Trials:
    """The trials that are being trained."""

    def __init__(self, study: "Study", tuning: Tuning, engine: Engine, workers: int):
        self._study, self._tuning, self._engine, self._workers = study, tuning, engine, workers
        self.running: dict[str, Trial] = {}
        self._pruned: set[str] = set()
        self._known: dict[str, set[int]] = {}  # steps of the evaluations that Optuna has been told
        self._sizes: dict[str, int] = {}  # of the metrics when they were last read
        self.failed: dict[str, Ended] = {}
        self.rows: dict[str, Row] = {}

    def start(self, trial: "Trial") -> None:
        experiment = self._tuning.experiment(trial.params)
        place = self._tuning.place(trial.number)
        job = job_of(place, experiment, self._workers)
        self.running[job.folder] = trial
        self._known[job.folder] = set(self._study.trials[trial.number].intermediate_values)
        self.rows[job.folder] = Row(f"trial {trial.number}", place, experiment, RUNNING)
        self._engine.submit(job)

    def report(self) -> None:
        """Passes new evaluations on, and stops trials that are worse than most."""
        for folder, trial in self.running.items():
            if folder in self._pruned or not self._grown(folder):
                continue
            for step, value in evaluations(Path(folder), self._tuning.base.seeds).items():
                if step > 0 and step not in self._known[folder]:  # an untrained agent says nothing of a trial
                    self._known[folder].add(step)
                    trial.report(value, step)
            if trial.should_prune():
                self._pruned.add(folder)
                self._engine.stop(folder)

    def _grown(self, folder: str) -> bool:
        """Whether there are metrics that have not been read yet."""
        metrics = Path(folder, "metrics.jsonl")
        size = metrics.stat().st_size if metrics.is_file() else 0
        before, self._sizes[folder] = self._sizes.get(folder, 0), size
        return size != before

    def ended(self, folder: str, end: Ended) -> None:
        """Tells Optuna how a trial has ended. One that was stopped, and not by us, goes on another time."""
        from optuna.trial import TrialState

        trial = self.running.pop(folder)
        state = end.state
        values = evaluations(Path(folder), self._tuning.base.seeds)
        if state == FINISHED and values:
            self._study.tell(trial, score(values))
        elif (folder in self._pruned and state == STOPPED) or end.code == Diverged.exit_code:
            self._study.tell(trial, state=TrialState.PRUNED)  # what diverges is worse than all others, and no failure
            state = "pruned"
        elif state != STOPPED:
            self._study.tell(trial, state=TrialState.FAIL)
            self.failed[f"trial {trial.number}"] = end
        self.rows[folder] = self.rows[folder]._replace(state=state)

    def run(self, count: int, jobs: int, board: Board, stop: Stop) -> None:
        """Runs trials until there are `count`, `jobs` at a time, or until a stop."""
        left, asked = left_trials(self._study, self._tuning), False
        while True:
            while not stop.requested and len(self.running) < jobs and (left or len(self._study.trials) < count):
                self.start(left.pop(0) if left else next_trial(self._study, self._tuning))
            if stop.requested and not asked:
                asked = True
                stop_all(self._engine, self.running, board)
            if not self.running:
                return
            ended = wait(self._engine)
            self.report()  # also what the trials that have ended had not reported yet
            for folder, end in ended:
                self.ended(folder, end)
            board.show(list(self.rows.values()), at_once=not self.running)


# Results


def write_results(tuning: Tuning, study: "Study") -> list[str]:
    """Writes trials.csv, tuning.png and best.txt; returns what to print."""
    from optuna.trial import TrialState

    from lsac.sweeps.tuning_figure import draw

    frozen = study.get_trials()
    _write_table(tuning, frozen)
    complete = [trial for trial in frozen if trial.state == TrialState.COMPLETE]
    pruned = sum(trial.state == TrialState.PRUNED for trial in frozen)
    said = f"{counted(len(complete), 'trial')} to the end, {pruned} stopped early"
    if not complete:
        return [f"{said}; there is no score yet"]
    figure = draw(tuning.space, frozen, tuning.folder / "tuning.png")
    best = max(complete, key=lambda trial: (trial.value, -trial.number))
    base = tuning.base
    chosen = readable(tuning.space, best.params).items()
    options = shlex.join(word for name, value in chosen for word in option_words(name, value))
    again = dataclasses.replace(tuning.experiment(best.params), seed=base.seed + base.seeds)
    command = shown(train_words(again))
    write_bytes(tuning.folder / "best.txt", [f"{options}\n\n# with seeds that were not tuned on\n{command}\n".encode()])
    # those that Optuna has been told are after step 0; without any, the score is the one before training
    points = max(1, min(LAST, len(best.intermediate_values)))
    of_what = f"mean of {counted(base.seeds, 'seed')}, last {counted(points, 'evaluation')}"
    return [
        said,
        f"best: trial {best.number}, score {best.value:,.1f} ({of_what.replace('last 1 ', 'last ')})",
        f"options: {options}",
        f"try it on seeds that were not tuned on: {command}",
        f"written: {tuning.folder / 'best.txt'}, {tuning.folder / 'trials.csv'}, {figure}",
    ]


def _write_table(tuning: Tuning, frozen: "list[FrozenTrial]") -> None:
    """One row per trial: its state, its score, and its values."""
    with (tuning.folder / "trials.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", "state", "score", *tuning.space])
        for trial in frozen:
            value = "" if trial.value is None else repr(trial.value)
            values = readable(tuning.space, trial.params).values()
            rows.writerow([trial.number, trial.state.name.lower(), value, *map(str, values)])
