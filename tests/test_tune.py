"""Tuning: ranges, scores, trials that are stopped early, and studies that are interrupted."""

import csv
import dataclasses
import io
import json
import signal
import sqlite3
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
from commands import TINY, finish, lsac, start
from made_up_runs import write_lines
from matplotlib.backends.backend_agg import FigureCanvasAgg

from lsac.agents import AGENTS
from lsac.errors import InputError
from lsac.presets import preset
from lsac.sweeps.plan import experiment
from lsac.sweeps.spaces import Choice, Range, current, distributions, read_range, readable, space_of, with_parameters
from lsac.sweeps.table import Board
from lsac.sweeps.training import Ended
from lsac.sweeps.tuning import Trials, Tuning, evaluations, open_study, score, write_results
from lsac.sweeps.tuning_figure import STYLE, figure_of
from lsac.train.stopping import Stop

EVERY = 200
BASE = experiment("sac", "Pendulum-v1", steps=1000, eval_every=EVERY, seeds=2, hidden=(8,)).experiment


# ranges


def test_a_range_is_read():
    assert read_range("critic-lr=1e-5..1e-2:log") == ("critic_lr", Range(1e-5, 1e-2, True))
    assert read_range("gamma=0.9..0.99") == ("gamma", Range(0.9, 0.99))
    assert read_range("--target-entropy=-4..-1") == ("target_entropy", Range(-4.0, -1.0))
    assert read_range("generator.width=64..256:log") == ("generator.width", Range(64.0, 256.0, True))
    assert read_range("activation=relu,gelu") == ("activation", Choice(("relu", "gelu")))
    assert read_range("batch-size=64,128") == ("batch_size", Choice((64, 128)))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("critic-lr", "must be name=low..high"),
        ("critic-lr=1e-3", "must be name=low..high"),
        ("critic-lr=1e-2..1e-3", "must go from a lower number to a higher"),
        ("critic-lr=0..1:log", "with :log from one above 0"),
        ("critic-lr=-1..1", "--critic-lr -1.0: must be greater than 0"),
        ("critic-lr=a..b", "must be name=low..high"),
        ("critic-rl=1e-3..1e-2", "--critic-rl is no option of sac"),
        ("seeds=1..3", "--seeds is the same in all trials"),
        ("activation=relu,step", "--activation step: must be one of relu"),
        ("gamma=0.9..1.5", "--gamma 1.5: must lie between 0 and 1"),
    ],
)
def test_a_bad_range_gets_a_sentence(word, sentence, tmp_path):
    result = lsac("tune", "sac", "--env", "Pendulum-v1", "--range", word, "--out", tmp_path / "out")
    assert result.code == 2
    assert sentence in result.sentence
    assert "--range" in result.sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sac", "--trials", "3"], "--env: name an environment"),
        (["sac", "--env", "Pendulum-v1", "--trials", "0"], "--trials 0: must be at least 1"),
        (["sac", "--env", "Pendulum-v1", "--eval-every", "0"], "--eval-every 0: must be from 1 to --steps"),
        (["sca", "--env", "Pendulum-v1"], "algorithm sca: must be one of"),
        (["sac", "--env", "Pendulum-v9"], "--env Pendulum-v9: no such Gymnasium environment"),
    ],
)
def test_bad_words_get_a_sentence(words, sentence, tmp_path):
    result = lsac("tune", *words, *(["--out", tmp_path / "out"] if "--env" in words else []))
    assert result.code == 2
    assert sentence in result.sentence


@pytest.mark.parametrize("algorithm", AGENTS)
def test_every_algorithm_has_ranges_around_its_defaults(algorithm):
    base = preset(algorithm, "default", "Pendulum-v1")
    space = space_of(base, ())
    assert len(space) >= 3
    for name, found in distributions(base, space).items():
        assert found.low <= current(base, name) <= found.high, name


def test_options_keep_their_type():
    space = {"batch_size": Range(32, 64, True), "tau": Range(0.001, 0.1), "critics": Choice((2, 3))}
    kinds = {name: type(found).__name__ for name, found in distributions(BASE, space).items()}
    assert kinds == {
        "batch_size": "IntDistribution",
        "tau": "FloatDistribution",
        "critics": "CategoricalDistribution",
    }
    found = readable(space, {"batch_size": 33, "tau": 0.0123456, "critics": 3})
    assert found == {"batch_size": 33, "tau": 0.01235, "critics": 3}
    assert readable({"gamma": Range(0.9, 0.99999)}, {"gamma": 0.999985}) == {"gamma": 0.99999}, "stays within"
    assert with_parameters(BASE, found).agent.tau == 0.01235
    deep = experiment("lsac", "Pendulum-v1").experiment
    assert with_parameters(deep, {"generator.width": 64}).agent.generator.width == 64


# scores


def write_evaluations(folder, values, seeds=2):
    """Metrics of seeds that differ by ±1 from a value at each evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "seed": seed, "eval/mean_reward": value + 2 * seed - 1}
        for step, value in values.items()
        for seed in range(seeds)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_score_is_the_mean_over_seeds_of_the_last_evaluations(tmp_path):
    write_evaluations(tmp_path, {0: 1000.0, 100: 1.0, 200: 2.0, 300: 4.0, 400: 6.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 500, "seed": 0, "eval/mean_reward": 99.0}) + "\n")  # of one seed only
    values = evaluations(tmp_path, 2)
    assert values == {0: 1000.0, 100: 1.0, 200: 2.0, 300: 4.0, 400: 6.0}
    assert score(values) == 4.0
    assert score({0: 3.0, 100: 5.0}) == 5.0
    assert score({0: 3.0}) == 3.0


# studies


class Pretend:
    """An engine whose runs learn by a formula of their critic_lr: more is better. Each call makes one evaluation."""

    def __init__(self, stop=None, after=None, fails=None, untrained=0.0):
        self.jobs, self.values, self._stopped = {}, {}, set()
        self.trained: list[str] = []
        self._stop, self._after, self._fails, self._calls = stop, after, fails or {}, 0
        self._untrained = untrained

    def submit(self, job):
        folder = Path(job.folder)
        words = [*job.train, "--critic-lr", "3e-4"]  # the default, which a command leaves out
        self.jobs[job.folder] = float(words[words.index("--critic-lr") + 1])
        metrics = folder / "metrics.jsonl"
        self.values[job.folder] = evaluations(folder, 2) if metrics.exists() else {0: self._untrained}
        self.trained.append(folder.name)

    def ended(self):
        self._calls += 1
        if self._stop is not None and self._calls == self._after:
            self._stop.request()
        ends = []
        for folder, rate in list(self.jobs.items()):
            values = self.values[folder]
            step = max(values) + EVERY
            if folder in self._stopped or Path(folder).name in self._fails:
                ends.append((folder, Ended("stopped") if folder in self._stopped else self._fails[Path(folder).name]))
            else:
                values[step] = step * rate
                write_evaluations(Path(folder), values)
                if step >= BASE.steps:
                    ends.append((folder, Ended("finished")))
        for folder, _ in ends:
            del self.jobs[folder]
        return ends

    def running(self):
        return set(self.jobs)

    def stop(self, folder):
        self._stopped.add(folder)

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr("lsac.sweeps.engines.time.sleep", lambda seconds: None)


def tuning_in(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    return Tuning(folder, dataclasses.replace(BASE, **changes), {"critic_lr": Range(1e-4, 1e-2, True)})


def run(tuning, count, engine, stop=None, jobs=1):
    study = open_study(tuning)
    trials = Trials(study, tuning, engine, 0)
    trials.run(count, jobs, Board(io.StringIO()), stop or Stop())
    return study, trials


def table(study):
    return [(trial.state.name, trial.params, trial.value) for trial in study.trials]


def test_a_study_finds_the_best_and_stops_what_is_worse(tmp_path):
    tuning = tuning_in(tmp_path / "study")
    study, trials = run(tuning, 9, engine := Pretend(), jobs=2)
    states = [trial.state.name for trial in study.trials]
    assert states[:4] == ["COMPLETE"] * 4, "the first ones are not stopped"
    assert states.count("PRUNED") >= 1
    assert set(states) == {"COMPLETE", "PRUNED"}
    assert engine.trained == [f"{i:04d}" for i in range(9)]
    for trial in study.trials:
        last = max(trial.intermediate_values)
        if trial.state.name == "PRUNED":
            assert 250 <= last < 1000, "not in the first quarter of the run"
        else:
            rate = readable(tuning.space, trial.params)["critic_lr"]
            assert trial.value == pytest.approx(800 * rate)
    said = "\n".join(write_results(tuning, study))
    best = max((t for t in study.trials if t.value is not None), key=lambda t: t.value)
    option = f"--critic-lr {float(format(best.params['critic_lr'], '.4g'))!r}"
    assert f"best: trial {best.number}, score" in said
    written = (tmp_path / "study/best.txt").read_text()
    assert written.startswith(option + "\n")
    assert f"lsac train sac --env Pendulum-v1 --hidden 8 {option}" in written
    assert "--seed 2" in written, "seeds that were not tuned on"
    assert (tmp_path / "study/tuning.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((tmp_path / "study/trials.csv").read_text().splitlines()))
    assert [row["state"].upper() for row in rows] == states
    assert trials.failed == {}


@pytest.mark.parametrize(
    ("seeds", "values", "said"),
    [
        (2, {0: 9.0, 100: 1.0, 200: 3.0}, "score 2.0 (mean of 2 seeds, last 2 evaluations)"),
        (2, {0: 9.0, 100: 1.0, 200: 3.0, 300: 3.0, 400: 3.0}, "score 3.0 (mean of 2 seeds, last 3 evaluations)"),
        (1, {0: 9.0, 100: 1.0}, "score 1.0 (mean of 1 seed, last evaluation)"),
        (1, {0: 9.0}, "score 9.0 (mean of 1 seed, last evaluation)"),
    ],
)
def test_what_is_said_of_the_best_score_is_what_was_counted(seeds, values, said, tmp_path):
    class Once(Pretend):
        def ended(self):
            ends = [(folder, Ended("finished")) for folder in self.jobs]
            for folder, _ in ends:
                lines = [{"step": s, "seed": i, "eval/mean_reward": v} for s, v in values.items() for i in range(seeds)]
                Path(folder).mkdir(parents=True)
                write_lines(Path(folder), lines)
            self.jobs = {}
            return ends

    tuning = tuning_in(tmp_path / "study", seeds=seeds)
    study, _ = run(tuning, 1, Once())
    lines = write_results(tuning, study)
    assert lines[:2] == ["1 trial to the end, 0 stopped early", f"best: trial 0, {said}"]


TICKS = {
    "critic_lr": Range(6.5e-5, 8e-4, log=True),
    "narrow": Range(1e-3, 2e-3, log=True),
    "wide": Range(1e5, 1e9, log=True),
    "gamma": Range(0.95, 0.999),
    "close": Range(0.9501, 0.9502),
    "replay": Range(1e5, 1e6),
    "activation": Choice(("relu", "gelu", "elu", "tanh", "mish")),
    "scale_rewards": Choice(("True", "False")),
    "batch_size": Choice((64, 128, 1024)),
}


def test_the_labels_of_the_figure_of_a_study_do_not_touch():
    trials = []
    for i in range(12):
        params = {
            name: range_.values[i % len(range_.values)]
            if isinstance(range_, Choice)
            else range_.low * (range_.high / range_.low) ** (i / 11)
            for name, range_ in TICKS.items()
        }
        state = SimpleNamespace(name="COMPLETE")
        trials.append(SimpleNamespace(number=i, value=-1000.0 - i, state=state, params=params))
    with matplotlib.rc_context(STYLE):
        figure = figure_of(TICKS, trials)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == ["trial", *(name.replace("_", "-") for name in TICKS)]
    for axes in panels:
        low, high = axes.get_xlim()
        ticks = [*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks()]
        labels = [tick.label1 for tick in ticks if tick.label1.get_text() and low <= tick.get_loc() <= high]
        boxes = sorted(label.get_window_extent(renderer).extents.tolist() for label in labels)
        gaps = [after[0] - (before[0] if labels[0].get_rotation() else before[2]) for before, after in pairwise(boxes)]
        assert gaps, axes.get_xlabel()
        assert min(gaps) > (15 if labels[0].get_rotation() else 3), axes.get_xlabel()
    texts = {axes.get_xlabel(): [label.get_text() for label in axes.get_xticklabels()] for axes in panels}
    assert texts["scale-rewards"] == ["True", "False"]
    assert texts["batch-size"] == ["64", "128", "1024"]
    assert {"1e5", "1e7"} <= {*texts["wide"]}


def test_an_untrained_agent_saves_no_trial(tmp_path):
    tuning = tuning_in(tmp_path / "study")
    study, _ = run(tuning, 9, Pretend(untrained=1e6), jobs=2)
    assert "PRUNED" in [trial.state.name for trial in study.trials]
    assert not any(0 in trial.intermediate_values for trial in study.trials)


@pytest.mark.parametrize(
    ("range_", "words"),
    [
        ("normalise-observations=True,False", {"--normalise-observations", "--no-normalise-observations"}),
        ("time-limits-terminate=False,True", {"--time-limits-terminate", "--no-time-limits-terminate"}),
        ("activation=relu,gelu", {"--activation relu", "--activation gelu"}),
    ],
)
def test_the_best_options_can_be_pasted(range_, words, tmp_path):
    tuning = tuning_in(tmp_path / "study")._replace(space=space_of(BASE, [range_]))
    study, _ = run(tuning, 2, Pretend())
    write_results(tuning, study)
    options = (tmp_path / "study/best.txt").read_text().splitlines()[0]
    assert options in words
    result = lsac("train", "sac", "--env", "nothing-v0", *options.split())
    assert result.sentence.startswith("lsac: --env nothing-v0: no such Gymnasium environment")


@pytest.mark.parametrize("after", [2, 8])
def test_an_interrupted_study_goes_on_as_if_it_had_not_been(tmp_path, after):
    whole, _ = run(tuning_in(tmp_path / "whole"), 3, Pretend())
    stop = Stop()
    tuning = tuning_in(tmp_path / "parts")
    first, _ = run(tuning, 3, Pretend(stop, after), stop)
    begun = len(first.trials)
    unfinished = [trial.number for trial in first.trials if trial.state.name == "RUNNING"]
    assert len(unfinished) == 1, "the stop came in the middle of a trial"
    second, _ = run(tuning, 3, engine := Pretend())
    assert engine.trained[0] == f"{unfinished[0]:04d}"
    assert len(engine.trained) == 3 - begun + 1, "what was finished is not trained again"
    assert table(second) == table(whole)
    longer, _ = run(tuning, 4, Pretend())
    assert table(longer)[:3] == table(whole)
    assert len(longer.trials) == 4


def test_a_trial_without_values_is_given_up(tmp_path):
    """Of a process that was killed while it asked for them."""
    tuning = tuning_in(tmp_path / "study")
    open_study(tuning).ask()
    study, _ = run(tuning, 2, Pretend())
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


def test_failed_trials_are_told_and_the_others_go_on(tmp_path):
    broken, diverged = Ended("failed", "it broke", 3), Ended("failed", "a loss is not finite", 4)
    engine = Pretend(fails={"0001": broken, "0002": diverged})
    study, trials = run(tuning_in(tmp_path / "study"), 4, engine)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    assert trials.failed == {"trial 1": broken}, "that a trial diverges is a result"


def test_a_study_of_something_else_is_refused(tmp_path):
    tuning = tuning_in(tmp_path / "study")
    open_study(tuning)
    open_study(tuning)
    open_study(tuning_in(tmp_path / "study", workers=2, env_timeout=5.0))
    with pytest.raises(InputError, match=r"holds a study of another steps \(1000, not 2000\); choose another"):
        open_study(tuning_in(tmp_path / "study", steps=2000))
    with pytest.raises(InputError, match=r"another critic-lr \(0.0001..0.01:log, not 0.1..0.2\)"):
        open_study(tuning._replace(space={"critic_lr": Range(0.1, 0.2)}))
    with pytest.raises(InputError, match=r"another gamma \(None, not 0.9..1\)"):
        open_study(tuning._replace(space={**tuning.space, "gamma": Range(0.9, 1.0)}))
    with pytest.raises(InputError, match=r"another critic-lr \(0.0001..0.01:log, not None\)"):
        open_study(tuning._replace(space={}))


@pytest.mark.parametrize("damage", [b"no database", 4096])
def test_a_damaged_database_gets_a_sentence(damage, tmp_path):
    tuning = tuning_in(tmp_path / "study")
    run(tuning, 1, Pretend())
    file = tmp_path / "study/study.db"
    file.write_bytes(damage if isinstance(damage, bytes) else file.read_bytes()[:damage] + b"x" * 20_000)
    with pytest.raises(InputError, match=r"study\.db: is not a study of Optuna, or is damaged \(\w+\)$"):
        open_study(tuning)


def test_a_database_lies_in_its_folder_whatever_that_is_called(tmp_path):
    tuning = tuning_in(tmp_path / "tq?x=1 {a}%20")
    run(tuning, 1, Pretend())
    assert len(open_study(tuning).trials) == 1
    assert [path.parent for path in tmp_path.rglob("study.db")] == [tuning.folder]


def test_the_database_holds_numbers_and_text_only(tmp_path):
    """No blob, so nothing that could be unpickled."""
    tuning = tuning_in(tmp_path / "study")
    run(tuning, 2, Pretend())
    database = sqlite3.connect(tmp_path / "study/study.db")
    tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
    assert "trial_params" in tables
    kinds = set()
    for name in tables:
        for row in database.execute(f"select * from {name}"):
            kinds |= {type(value) for value in row}
    database.close()
    assert kinds <= {int, float, str, type(None)}


@pytest.mark.slow
def test_a_real_study_is_stopped_and_goes_on(tmp_path):
    out = tmp_path / "study"
    small = [word if word != "0" else "160" for word in TINY]
    words = ["tune", "sac", "--env", "Pendulum-v1", *small, "--eval-episodes", 1, "--seeds", 2, "--steps", 320]
    words += ["--trials", 3, "--range", "critic-lr=1e-4..1e-2:log", "--jobs", 1, "--out", out]
    process = start(*words)
    while not (out / "trials/0001/metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    first = finish(process)
    assert first.code in (0, 75)
    second = lsac(*words)
    assert second.code == 0, second
    assert "3 trials to the end" in second.out
    assert sorted(path.name for path in (out / "trials").iterdir()) == ["0000", "0001", "0002"]
    again = lsac(*words)
    assert again.code == 0
    assert again.out.splitlines()[-4:] == second.out.splitlines()[-4:]
