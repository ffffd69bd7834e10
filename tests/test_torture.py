"""Every count of benchmarks/torture.py can fail: for each kind of damage, a figure that is then not reached.

The runs here are those of a script that only pretends to train, so that a control takes no longer than it must.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import mutations
import numpy as np
import pytest
import small
import torture
from torture import Commands, Ended, Figure, Part

from lsac.agents import AGENTS
from lsac.runs import checkpoint, datafile
from lsac.runs.checkpoint import Checkpoints, Unsaved

PRETENDER = r"""
import json, os, pathlib, signal, subprocess, sys, time
folder, damage = pathlib.Path(sys.argv[1]), sys.argv[2]
log, stop = folder / "metrics.jsonl", []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
if damage == "default handler":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
if damage == "ignores a stop":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if damage == "crashes":
    sys.exit("no such luck")
if damage == "leaves a worker":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
resumed = (folder / "config.json").exists()
(folder / "config.json").write_text("{}")
lines = log.read_text().splitlines() if log.exists() else []
lines = [line for line in lines if line.endswith("}")]
for step in range(len(lines), 20):
    lines.append(json.dumps({"step": step, "seconds": time.time()}))
    log.write_text("\n".join(lines) + "\n")
    time.sleep(0.02)
    if stop:
        sys.exit(1 if damage == "fails when stopped" else 75)
if damage == "loses a line" and resumed:
    log.write_text("\n".join(lines[1:]) + "\n")
state = b"other" if damage == "another checkpoint" or (damage == "resumes inexactly" and resumed) else b"state"
(folder / "checkpoints" / "step-0000000020.safetensors").write_bytes(state)
os._exit(0)  # while Python ends by itself, it no longer handles signals
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretender") / "pretender.py"
    path.write_text(PRETENDER)
    return path


def pretend(script: Path, damage: str, folder: Path) -> Commands:
    command = [sys.executable, "-S", str(script), str(folder), damage]
    if damage == "ignores a stop":  # from the very beginning: Python takes a while to start
        command = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", *command]
    return Commands(command, command)


class Alone(NamedTuple):
    """A run that was left alone, and how many seconds it took: kills come at moments within that time."""

    folder: Path
    seconds: float


@pytest.fixture
def alone(script, tmp_path):
    started = time.monotonic()
    assert torture.run(pretend(script, "", tmp_path / "alone").start).code == 0
    return Alone(tmp_path / "alone", time.monotonic() - started)


def misses(figure: Figure) -> bool:
    return not figure.reached and str(figure).startswith("MISS") and bool(figure.note)


# Sizes


@pytest.mark.parametrize("algorithm", AGENTS)
def test_small_options_are_those_of_the_small_config(algorithm):
    """The command line makes the same agent as `small.config`, but for what is no size."""
    words = small.flags(algorithm, refresh_every=48, steps=96)
    given = {flag: words[i + 1] for i, flag in enumerate(words) if flag.startswith("--")}
    assert given["--steps"] == "96"
    assert ("--learning-starts" in given) != small.on_policy(algorithm)
    config = small.config(algorithm)
    for name in small.SIZES.keys() - {"hidden", "generator", "encoder"}:
        flag = "--" + name.replace("_", "-")
        assert given.get(flag) == (str(getattr(config, name)) if hasattr(config, name) else None)
    assert given.get("--hidden") == ("8" if hasattr(config, "hidden") else None)
    assert ("--encoder.filters" in given) == hasattr(config, "encoder")
    assert ("--generator.dim-t" in given) == ("--refresh-every" in given) == hasattr(config, "generator")


def test_a_new_algorithm_needs_no_line_of_its_own(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Config:
        on_policy: ClassVar[bool] = True
        hidden: tuple[int, ...] = (256, 256)
        epochs: int = 80
        temperature: float = 1.0

    monkeypatch.setitem(AGENTS, "newest", types.SimpleNamespace(Config=Config))
    assert small.config("newest") == Config(hidden=(8,), epochs=2)
    words = small.flags("newest", chunk=16, learning_starts=8)
    expected = "--hidden 8 --epochs 2 --seeds 2 --workers 1 --eval-episodes 1 --chunk 16 --num-envs 2"
    assert " ".join(words) == expected
    assert "newest" in torture.train("newest", "Ant-v5", Path("there"))


# Kills and twins


def endure(script: Path, damage: str, alone: Alone, sort: int = signal.SIGKILL, wanted: int = 3) -> Figure:
    make, place = partial(pretend, script, damage), alone.folder.parent / "place"
    return torture.endure("kills", make, alone.folder, place, wanted, alone.seconds, sort)


@pytest.mark.parametrize("sort", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_survives_reaches_its_figure(sort, script, alone):
    figure = endure(script, "", alone, sort)
    assert figure.reached, figure
    assert figure.tried >= 3


@pytest.mark.parametrize("damage", ["loses a line", "another checkpoint", "resumes inexactly", "crashes"])
def test_a_run_that_does_not_survive_kills(damage, script, alone):
    assert misses(endure(script, damage, alone))


@pytest.mark.parametrize("damage", ["default handler", "fails when stopped"])
def test_a_run_that_does_not_stop_as_it_should(damage, script, alone):
    assert misses(endure(script, damage, alone, signal.SIGTERM))


def test_a_run_that_ignores_every_stop_is_not_tried_forever(script, alone):
    figure = endure(script, "ignores a stop", alone, signal.SIGTERM, wanted=1)
    assert misses(figure)
    assert figure.note == "only 0 kills"


def test_how_a_run_may_end_after_a_signal():
    kill, term = signal.SIGKILL, signal.SIGTERM
    for sort, code, wrote in [
        (kill, -9, False),
        (kill, -9, True),
        (term, 75, False),
        (term, 75, True),
        (term, -15, False),
    ]:
        assert torture.expected_end(code, sort, wrote)
    for sort, code in [
        (kill, 75),
        (kill, -15),
        (kill, 1),
        (kill, None),
        (term, -15),
        (term, -9),
        (term, 1),
        (term, None),
    ]:
        assert not torture.expected_end(code, sort, wrote=True)


def test_a_worker_left_behind_is_a_miss(script, alone, monkeypatch):
    monkeypatch.setattr(torture, "PATIENCE", 0.5)
    figure = endure(script, "leaves a worker", alone, wanted=1)
    assert misses(figure)
    assert "left a worker behind" in figure.note


def test_a_run_that_never_ends_is_a_miss(monkeypatch):
    monkeypatch.setattr(torture, "LONGEST", 0.3)
    assert torture.run([sys.executable, "-S", "-c", "import time; time.sleep(60)"]).code is None


def damage_nothing(folder: Path) -> None:
    pass


def flip_a_byte(folder: Path) -> None:
    path = next((folder / "checkpoints").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def lose_a_line(folder: Path) -> None:
    log = folder / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))


def change_a_number(folder: Path) -> None:
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text().replace('"step": 7', '"step": 8'))


def lose_a_checkpoint(folder: Path) -> None:
    next((folder / "checkpoints").iterdir()).unlink()


def add_a_checkpoint(folder: Path) -> None:
    (folder / "checkpoints" / "best.safetensors").write_bytes(b"state")


def lose_all_lines(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text("")


def lose_the_log(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


DAMAGES = (
    *(flip_a_byte, lose_a_line, change_a_number, lose_a_checkpoint, add_a_checkpoint, lose_all_lines, lose_the_log),
)


def test_a_difference_between_two_processes_is_a_miss(script, tmp_path):
    """Times may differ; a byte, a line, a number or a file may not."""
    for damage in (damage_nothing, *DAMAGES):
        one, other = (tmp_path / damage.__name__ / name for name in ("one", "other"))
        for folder in (one, other):
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "checkpoints" / "step-0000000020.safetensors").write_bytes(b"state")
            lines = [json.dumps({"step": step, "seconds": hash(folder), "time/x": id(step)}) for step in range(9)]
            (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        damage(other)
        figure = torture.twins("twins", one, other)
        assert figure.reached if damage is damage_nothing else misses(figure), damage
        if damage in (lose_a_checkpoint, lose_all_lines, lose_the_log):
            damage(one)
            assert misses(torture.twins("twins", one, other)), "two runs that left nothing are no twins"


def test_an_algorithm_that_does_not_train_by_itself_is_a_miss(tmp_path, monkeypatch):
    monkeypatch.setattr(torture, "train", lambda *_: [sys.executable, "-S", "-c", "raise SystemExit('broken')"])
    (figure,) = torture.disturb("sac", "Ant-v5", tmp_path, {signal.SIGKILL: 1})
    assert misses(figure)


# Environment faults

NAMED = "lsac: environment 1 of seed 0, step 44: the observation contains nan"


def saved_run(folder: Path, row: float = 1.0, weight: float = 1.0) -> Path:
    unsaved = Unsaved(1000, 30)
    unsaved.add({"vectors": np.full((1, 40, 3), row, np.float32), "first": np.zeros((1, 40), bool)})
    Checkpoints(folder / "checkpoints").save(40, {"weight": np.full(3, weight, np.float32)}, {}, unsaved, 40)
    return folder


def test_a_fault_that_was_caught(tmp_path):
    run = saved_run(tmp_path)
    assert torture.fault_problem(Ended(3, NAMED), run) == ""
    seen = "lsac: the worker was killed by SIGKILL; last seen:\nenvironment 1 of seed 0, after 45 steps"
    assert torture.fault_problem(Ended(3, seen), run) == ""


@pytest.mark.parametrize("code", [0, 1, 2, 4, 75, -9, None])
def test_another_exit_code_is_a_miss(code, tmp_path):
    assert torture.fault_problem(Ended(code, NAMED), saved_run(tmp_path))


@pytest.mark.parametrize(
    "output",
    [
        *("", "lsac: something went wrong", f"Traceback (most recent call last):\n{NAMED}"),
        *(NAMED.replace("44", "43"), NAMED.replace("seed 0", "seed 1"), NAMED.replace("ment 1", "ment 0")),
    ],
)
def test_a_fault_that_is_not_named_is_a_miss(output, tmp_path):
    assert torture.fault_problem(Ended(3, output), saved_run(tmp_path))


@pytest.mark.parametrize("row", [np.nan, np.inf, 1e7])
def test_a_bad_number_among_the_transitions_is_a_miss(row, tmp_path):
    assert torture.fault_problem(Ended(3, NAMED), saved_run(tmp_path, row=row)) == "bad transitions in the checkpoint"


def test_a_bad_number_in_the_agent_is_a_miss(tmp_path):
    assert torture.fault_problem(Ended(3, NAMED), saved_run(tmp_path, weight=np.nan)) == "NaN in the checkpoint: weight"


def test_a_checkpoint_that_does_not_load_is_a_miss(tmp_path):
    assert "no checkpoint" in torture.fault_problem(Ended(3, NAMED), tmp_path / "nothing")
    (path,) = (saved_run(tmp_path) / "checkpoints").glob("step-*")
    path.write_bytes(path.read_bytes()[:-1])
    assert "no checkpoint" in torture.fault_problem(Ended(3, NAMED), tmp_path)


def test_one_fault_of_three_that_is_not_caught_is_a_miss(tmp_path):
    """Trainings that print and exit as they are told, in folders with good checkpoints."""

    def command(kind, folder):
        code = 0 if kind == "Unnoticed" else 3
        return [sys.executable, "-S", "-c", f"print({NAMED!r}); raise SystemExit({code})"]

    for kind in ("Raises", "Unnoticed", "Hangs"):
        saved_run(tmp_path / kind)
    assert torture.catch("faults", command, tmp_path, ["Raises", "Hangs"]).reached
    figure = torture.catch("faults", command, tmp_path, ["Raises", "Unnoticed", "Hangs"])
    assert misses(figure)
    assert (figure.good, figure.tried) == (2, 3)
    assert figure.note.startswith("Unnoticed: exit code 0")
    assert not torture.catch("faults", command, tmp_path, []).reached


# Hostile and spoiled files

PASSES, FAILS = "def test_a():\n    pass\n", "def test_b():\n    assert False\n"
BREAKS = "import pytest\n@pytest.fixture\ndef x():\n    1 / 0\ndef test_c(x):\n    pass\n"
SKIPS = "import pytest\n@pytest.mark.skip\ndef test_d():\n    pass\n"


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        (PASSES, (1, 1)),
        (PASSES + FAILS, (1, 2)),
        (PASSES + BREAKS, (1, 2)),
        (PASSES + SKIPS, (1, 2)),
        ("import no_such_module_at_all\n" + PASSES, (0, 1)),
        ("# 5 passed, says a comment\n", (0, 1)),
    ],
    ids=["passes", "fails", "cannot start", "is skipped", "cannot be collected", "is empty"],
)
def test_only_tests_that_pass_are_counted(code, counts, tmp_path):
    path = tmp_path / "tests" / "test_it.py"
    path.parent.mkdir()
    path.write_text(code)
    (figure,) = torture.refusals(path, tmp_path / "place")
    assert (figure.good, figure.tried) == counts
    assert figure.reached if code == PASSES else misses(figure)


def test_a_report_that_is_missing_or_says_too_little_is_a_miss(tmp_path):
    report = tmp_path / "report.xml"
    good = '<testsuites><testsuite tests="2" failures="0" errors="0" skipped="0"/></testsuites>'
    assert misses(torture.passed_tests("hostile", 0, report, "2 passed"))
    for text in ("", good[:-9], "<testsuites/>", "<testsuites><testsuite/></testsuites>", good.replace("2", "two")):
        report.write_text(text)
        assert misses(torture.passed_tests("hostile", 0, report, "2 passed")), text
    report.write_text(good)
    assert torture.passed_tests("hostile", 0, report, "2 passed").reached
    assert misses(torture.passed_tests("hostile", 2, report, "interrupted")), "all passed, but pytest was not content"


def test_an_outcome_that_is_not_good_is_a_miss():
    good = {"refused": 70, "identical": 10, "as written": 20}
    assert torture.spoiled(good, 100).reached
    for bad in ("wrong: loaded as something else", "wrong: KeyError: 'x'", "not a sentence: a\nb", "other"):
        figure = torture.spoiled(good | {"refused": 69, bad: 1}, 100)
        assert misses(figure)
        assert figure.good == 99
    assert misses(torture.spoiled(good, 101)), "one is unaccounted for"
    assert misses(torture.spoiled({"identical": 100}, 100)), "nothing was spoiled"


def test_a_reader_that_checks_no_digest_does_not_reach_the_figure(monkeypatch):
    assert torture.spoiled(mutations.count_outcomes(100, seed=1), 100).reached
    monkeypatch.setattr(datafile, "_digest", lambda arrays, text: "0" * datafile.DIGITS)
    assert misses(torture.spoiled(mutations.count_outcomes(100, seed=1), 100))


def test_a_reader_that_checks_no_types_does_not_reach_the_figure(monkeypatch):
    monkeypatch.setattr(checkpoint, "field", lambda table, name, *_: table[name])
    assert misses(torture.spoiled(mutations.count_outcomes(100, seed=1), 100))


def test_files_that_nobody_spoiled_do_not_reach_the_figure(monkeypatch):
    monkeypatch.setattr(mutations, "BYTES", [lambda rng, data: data])
    monkeypatch.setattr(mutations, "spoil", lambda rng, table: table)
    assert misses(torture.spoiled(mutations.count_outcomes(100, seed=1), 100))


# Disks


def written_in_place(path, parts):
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def test_every_flush_of_a_save_may_fail(tmp_path):
    (figure,) = torture.failed_flushes(tmp_path)
    assert figure.reached, figure
    assert figure.tried == 6, "two files of transitions and a checkpoint, each with its folder"


def test_a_file_that_is_written_in_place_is_lost_with_its_flush(tmp_path, monkeypatch):
    monkeypatch.setattr(datafile, "write_bytes", written_in_place)
    (figure,) = torture.failed_flushes(tmp_path)
    assert misses(figure)
    assert figure.tried == 3


def test_a_failure_that_nobody_hears_of_is_a_miss(tmp_path, monkeypatch):
    write = datafile.write_bytes

    def quiet(path, parts):
        with contextlib.suppress(OSError):
            write(path, parts)

    monkeypatch.setattr(datafile, "write_bytes", quiet)
    (figure,) = torture.failed_flushes(tmp_path)
    assert misses(figure)
    assert figure.good == 0


def test_a_save_that_flushes_nothing_is_a_miss(tmp_path, monkeypatch):
    monkeypatch.setattr(datafile, "write_bytes", lambda path, parts: path.write_bytes(b"".join(parts)))
    (figure,) = torture.failed_flushes(tmp_path)
    assert not figure.reached


def test_a_save_after_a_failure_that_forgets_transitions_is_a_miss(tmp_path, monkeypatch):
    """As if what could not be saved were not kept for the next time."""
    save = Checkpoints.save

    def forgetful(self, step, state, record, unsaved, total):
        try:
            save(self, step, state, record, unsaved, total)
        except OSError:
            unsaved.reset({"vectors": np.zeros((2, 0, 3), np.float32), "first": np.zeros((2, 0), bool)})
            raise

    monkeypatch.setattr(Checkpoints, "save", forgetful)
    assert misses(torture.failed_flushes(tmp_path)[0])


# Memory


def series(mb_per_step: float, stop: int = 200_001) -> list[tuple[int, float]]:
    return [(step, 300 + mb_per_step * step) for step in range(0, stop, 1000)]


def test_memory_that_grows_is_a_miss():
    assert torture.growth(0, series(0.0)).reached
    assert torture.growth(0, series(1e-5)).reached, "1 MB"
    assert misses(torture.growth(0, series(3e-5))), "3 MB"
    steady = series(0.0)
    assert misses(torture.growth(0, [*steady, (150_000, 303.0)])), "a peak"
    assert torture.growth(0, [(0, 500.0), *steady]).reached, "what comes before does not count"


@pytest.mark.parametrize("code", [1, 3, -9, None])
def test_a_soak_that_failed_is_a_miss(code):
    assert misses(torture.growth(code, series(0.0)))


@pytest.mark.parametrize(
    "sizes",
    [[], series(0.0, 150_000), series(0.0)[150:], [(100_000, 300.0)]],
    ids=["nothing", "ended early", "begun late", "one"],
)
def test_a_soak_with_too_few_measurements_is_a_miss(sizes):
    assert misses(torture.growth(0, sizes))


def test_memory_is_measured_while_a_program_runs(tmp_path):
    """A program that takes 20 MB more in the second half of its steps; a line that is only half written is left."""
    program = f"""
import json, pathlib, time
log, held = pathlib.Path({str(tmp_path / "metrics.jsonl")!r}), b""
for step in range(0, 200_001, 10_000):
    if step == 150_000:
        held = b"x" * 20_000_000
    log.write_text(json.dumps({{"step": step}}) + "\\n" + '{{"ste')
    time.sleep(0.05)
"""
    command = [sys.executable, "-S", "-c", program]
    code, sizes = torture.watch(command, tmp_path / "metrics.jsonl", every=0.01)
    assert code == 0
    assert len({step for step, _ in sizes}) > 10
    figure = torture.growth(code, sizes)
    assert misses(figure)
    assert 15 < float(figure.note.split()[0]) < 25


# Errors in the source


TINY = "def f(x):\n    return -(x * 2)\n"
TESTED, UNTESTED = (
    "import tiny\ndef test_f():\n    " + line + "\n" for line in ("assert tiny.f(3) == -6", "tiny.f(3)")
)
PROGRAMS = "import tiny\ndef programs(_):\n    yield 'f', lambda: tiny.f(3.0)\n"


def mutants_of_a_tiny_module(folder: Path, tests: str) -> Figure:
    for name, text in (("tiny.py", TINY), ("test_tiny.py", tests), ("tiny_numbers.py", PROGRAMS)):
        (folder / name).write_text(text)
    command = ["env", f"PYTHONPATH={folder}", sys.executable, str(torture.MUTANTS), "--cache", str(folder / "cache")]
    command += ["--only", str(folder / "tiny.py"), "--tests", str(folder / "test_tiny.py"), "--numbers", "tiny_numbers"]
    (figure,) = torture.noticed(command, folder / "out")
    return figure


def test_tests_that_notice_every_error_reach_the_figure(tmp_path):
    figure = mutants_of_a_tiny_module(tmp_path, TESTED)
    assert figure.reached, figure
    assert figure.tried == 3


def test_tests_that_test_nothing_do_not_reach_the_figure(tmp_path):
    figure = mutants_of_a_tiny_module(tmp_path, UNTESTED)
    assert misses(figure)
    assert (figure.good, figure.tried) == (0, 3)
    assert "tiny.py:2" in figure.note


def test_a_program_that_ends_without_a_table_does_not_reach_the_figure(tmp_path):
    broken = [sys.executable, "-S", "-c", "raise SystemExit('tests fail without any mutant')"]
    (figure,) = torture.noticed(broken, tmp_path)
    assert misses(figure)
    assert "exit code 1: tests fail" in figure.note


def test_a_share_of_good_ones_may_be_enough():
    assert Figure("errors", 95, 100, "five survive", 0.95).reached
    assert misses(Figure("errors", 94, 100, "six survive", 0.95))
    assert misses(Figure("errors", 0, 0, "none", 0.95))
    assert misses(Figure("errors", 101, 100, "more than there were", 0.95))
    assert misses(Figure("kills", 99, 100, "one is too many"))


# The table


def test_one_miss_spoils_the_table(capsys):
    good, bad = Figure("good", 2, 2), Figure("bad", 1, 2, "why")
    parts = [Part("a", lambda: [good]), Part("b", lambda: [good, good])]
    assert torture.table(parts, jobs=2)
    assert not torture.table([*parts, Part("c", lambda: [bad])], jobs=1)
    assert capsys.readouterr().out.splitlines()[-1] == "MISS bad: 1/2 why"
    assert not torture.table([Part("d", lambda: [Figure("nothing", 0, 0)])], jobs=1)
    assert not torture.table([], jobs=1), "a table without figures says nothing"
    assert not torture.table([Part("e", list), *parts], jobs=2), "a part that counted nothing"
    assert not torture.table([Part("f", lambda: 1 // 0), *parts], jobs=2), "a part that failed"
    assert capsys.readouterr().out.count("ok   good: 2/2") == 6, "the others go on"


def test_the_command_says_so_with_its_exit_code(tmp_path):
    """A soak belongs to the full table only, so there is nothing to count."""
    command = [sys.executable, torture.__file__, "--only", "soak"]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == 1


def test_a_stop_that_comes_after_the_last_sentence_is_no_miss_and_one_before_it_is(tmp_path):
    """Python may still be exiting when the signal arrives; the run has ended by then."""
    late = torture.Ended(-signal.SIGTERM, f"curve: x\nrun: {tmp_path}\n")
    assert torture.finished_before(late, tmp_path, signal.SIGTERM)
    for other in (
        late._replace(output="step 8/16"),
        late._replace(code=1),
        late._replace(output=f"run: {tmp_path}x"[:-2]),
    ):
        assert not torture.finished_before(other, tmp_path, signal.SIGTERM)
    assert not torture.finished_before(late, tmp_path, signal.SIGKILL)
