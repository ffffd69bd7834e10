"""Tries to break runs, and counts what survived: python benchmarks/torture.py [--full] [--only kills ...] [--jobs 8]

Prints a table; exits with 1 if anything missed its target. `tests/test_torture.py` damages what is counted here, and
shows that every count then misses its target.
"""

import argparse
import contextlib
import csv
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lsac.agents import AGENTS, IMAGES, VECTORS
from lsac.replay.ring import FIRST, PACKED
from lsac.runs.checkpoint import Checkpoints, Unsaved
from lsac.runs.folder import RunFolder

# The tests own the small sizes, the faulty environments and the spoiled files. Pytest has both folders on its path by
# `pythonpath` in pyproject.toml; this line does the same for a plain `python benchmarks/torture.py`.
sys.path.insert(0, str(Path(__file__).absolute().parents[1] / "tests"))
import faulty_envs
import mutations
import small

TESTS = Path(small.__file__).absolute().parent
RUN = {
    **{"steps": 1200, "log_every": 100, "checkpoint_every": 200, "eval_every": 600},
    **{"learning_starts": 64, "replay_capacity": 512, "refresh_every": 300},
}
"""Besides the small sizes of the tests; an agent takes the options that it has."""
FAULTY_RUN = RUN | {
    **{"seeds": 1, "num_envs": 2, "chunk": 8, "learning_starts": 8, "checkpoint_every": 8},
    **{"eval_every": 0, "env_timeout": 3},
}
MUTANTS = Path(__file__).absolute().with_name("mutants.py")
MUTANTS_SHARE = 0.95
"""Of the errors that change a number."""
TASKS = ("Ant-v5", "Hopper-v5", "Pendulum-v1")
SEEN = "lsac/SeenColour-v0"
"""The task whose observations are images."""
PATIENCE = 120.0
"""Seconds within which a run that was asked to stop has ended, and its workers with it."""
LONGEST = 3600.0
"""Seconds within which a run that is left alone has ended."""
STOPPED = 75
"""Exit code of a run that was stopped and saved."""
FAULT = 3
"""Exit code of a run whose environment misbehaved."""
SOAK_STEPS, SOAK_FROM, SOAK_EDGE = 200_000, 100_000, 10_000
SOAK_LIMIT = 2.0
"""MB by which the memory of a trainer may grow in the second half of the soak."""


class Figure(NamedTuple):
    name: str
    good: int
    tried: int
    note: str = ""
    share: float = 1.0
    """of what was tried that has to be good"""

    @property
    def reached(self) -> bool:
        return self.tried >= self.good >= self.share * self.tried > 0

    def __str__(self) -> str:
        return f"{'ok  ' if self.reached else 'MISS'} {self.name}: {self.good}/{self.tried} {self.note}".rstrip()


class Part(NamedTuple):
    """Something to count that depends on nothing else, so that several can be counted at the same time."""

    name: str
    count: Callable[[], list[Figure]]


class Commands(NamedTuple):
    start: list[str]
    resume: list[str]


class Ended(NamedTuple):
    code: int | None
    """None if it had to be killed because it, or a worker of it, did not end"""
    output: str

    def __str__(self) -> str:
        end = "did not end, or left a worker behind" if self.code is None else f"exit code {self.code}"
        return f"{end}: {self.output[-500:]}"


# Runs


def options(algorithm: str, env: str = TASKS[0]) -> list[str]:
    return small.flags(algorithm, from_images=env == SEEN, **RUN)


def train(algorithm: str, env: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "lsac", "train", algorithm, "--env", env, *options(algorithm, env), "--out", str(out)]


def commands(algorithm: str, env: str, folder: Path) -> Commands:
    return Commands(train(algorithm, env, folder), [sys.executable, "-m", "lsac", "resume", str(folder)])


def run(
    command: list[str],
    kill_after: float | None = None,
    with_signal: int = signal.SIGKILL,
    environment: dict[str, str] | None = None,
) -> Ended:
    """Runs a command in a group of its own, and sends it a signal after some seconds.

    Its output ends when the last process that writes to it has ended, so a worker left behind does not go unseen.
    """
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=tempfile.gettempdir(),
        env=environment,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        output, _ = child.communicate(timeout=LONGEST if kill_after is None else kill_after)
        return Ended(child.returncode, output)
    if kill_after is not None:
        os.kill(child.pid, with_signal)  # the trainer alone: its workers have to notice by themselves
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = child.communicate(timeout=PATIENCE)
            return Ended(child.returncode, output)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    output = ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        output, _ = child.communicate(timeout=10)
    return Ended(None, output)


# Kills


def fingerprint(folder: Path) -> dict[str, str]:
    """The SHA-256 of everything that a run leaves, without the times at which it did things."""
    files = sorted((folder / "checkpoints").rglob("*.safetensors"))
    found = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    if not files or not lines:
        raise ValueError(f"{len(files)} files of checkpoints and {len(lines)} lines of metrics")  # equal, but empty
    timeless = [{k: v for k, v in x.items() if k != "seconds" and not k.startswith("time/")} for x in lines]
    return found | {"metrics.jsonl": hashlib.sha256(json.dumps(timeless).encode()).hexdigest()}


def difference(alone: Path, other: Path) -> str:
    """In what a run differs from the one that was left alone; nothing if they are the same."""
    try:
        mine, theirs = fingerprint(alone), fingerprint(other)
    except (OSError, ValueError) as error:
        return f"not to be compared: {error}"
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    return f"differ: {', '.join(names)}" if names else ""


def progress(folder: Path) -> tuple[int, int] | None:
    """Changes whenever the run writes a line."""
    log = folder / "metrics.jsonl"
    return (log.stat().st_mtime_ns, log.stat().st_size) if log.is_file() else None


def expected_end(code: int | None, sort: int, wrote: bool) -> bool:
    """Whether that is how a run ends after a signal. A stop is noticed by every run that got as far as to write."""
    if sort == signal.SIGKILL:
        return code == -signal.SIGKILL
    return code == STOPPED or (code == -signal.SIGTERM and not wrote)


def finished_before(ended: Ended, folder: Path, sort: int) -> bool:
    """Whether a stop came after the last sentence of a finished run, while Python exited."""
    return sort == signal.SIGTERM and ended.code == -signal.SIGTERM and f"run: {folder}" in ended.output


def survive(
    given: Commands, folder: Path, rng: random.Random, kills: int, longest: float, sort: int
) -> tuple[int, str]:
    """Trains with at most that many kills at random moments: how many there were, and what went wrong, if anything."""
    command, done = given.start, 0
    for _ in range(kills):
        before = progress(folder)
        ended = run(command, rng.uniform(0.1, longest), sort)
        if ended.code == 0 or finished_before(ended, folder, sort):
            return done, ""
        if not expected_end(ended.code, sort, progress(folder) != before):
            return done, str(ended)
        done += 1
        if (folder / "config.json").is_file():
            command = given.resume
    ended = run(command)
    return done, "" if ended.code == 0 else str(ended)


def endure(
    name: str, make: Callable[[Path], Commands], alone: Path, place: Path, wanted: int, longest: float, sort: int
) -> Figure:
    """Kills runs until there were as many kills as wanted; those of a run that ends as another one are misses."""
    rng, done, good, note = random.Random(name), 0, 0, ""
    for attempt in range(5 + 2 * wanted):  # a run may end before it is killed, but not every time
        if done >= wanted:
            break
        folder = place / f"{alone.name}-{signal.Signals(sort).name}-{attempt}"
        count, problem = survive(make(folder), folder, rng, min(5, wanted - done), longest, sort)
        problem = problem or difference(alone, folder)
        done += max(count, 1) if problem else count  # a run that goes wrong untouched is a miss as well
        good += 0 if problem else count
        note = problem or note
        shutil.rmtree(folder, ignore_errors=True)
    return Figure(name, good, max(done, wanted), note if done >= wanted else note or f"only {done} kills")


def twins(name: str, one: Path, other: Path) -> Figure:
    problem = difference(one, other)
    return Figure(name, int(not problem), 1, problem)


def disturb(algorithm: str, env: str, root: Path, wanted: dict[signal.Signals, int]) -> list[Figure]:
    """Two runs that are left alone, and runs that are killed: all leave the same files."""
    alone, again = root / f"{algorithm}-{env}", root / f"{algorithm}-{env}-again"
    longest = 0.0
    for folder in (alone, again):  # the first one compiles
        started = time.monotonic()
        ended = run(train(algorithm, env, folder))
        longest = time.monotonic() - started
        if ended.code != 0:
            return [Figure(f"{algorithm} on {env}: trains when it is left alone", 0, 1, str(ended))]
    figures = [twins(f"two processes, {algorithm} on {env}: same files", alone, again)]
    for sort, count in wanted.items():
        name = f"{sort.name}, {algorithm} on {env}: same files"
        figures.append(endure(name, partial(commands, algorithm, env), alone, root, count, longest, sort))
    return figures


def kills(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """Kill -9 and SIGTERM at random moments; the run that survived has to be the run that was left alone."""
    wanted = {signal.SIGKILL: 8, signal.SIGTERM: 3} if full else {signal.SIGKILL: 5, signal.SIGTERM: 5}
    cases = [(name, env) for name in algorithms if name in VECTORS for env in (TASKS if full else TASKS[:1])]
    cases += [(name, SEEN) for name in algorithms if name in IMAGES]
    return [Part(f"kills, {name} on {env}", partial(disturb, name, env, root, wanted)) for name, env in cases]


# Environments that misbehave


def faulty(algorithm: str, kind: str, out: Path) -> list[str]:
    """A training on an environment that has to be imported before it is known."""
    words = ["train", algorithm, "--env", f"faulty/{kind}-v0", *small.flags(algorithm, **FAULTY_RUN)]
    words += ["--out", str(out)]
    code = f"import faulty_envs, sys; from lsac.cli import main; sys.argv = ['lsac', *{words!r}]; main()"
    return [sys.executable, "-c", code]


def fault_problem(ended: Ended, folder: Path) -> str:
    """What is wrong with how a run ended whose second environment misbehaved; nothing if all is as it should be.

    The exit code is that of a fault, the environment is named with its seed and step, there is no traceback, and the
    last checkpoint holds nothing bad.
    """
    step = 2 * faulty_envs.BAD_STEP  # of two environments
    place = rf"environment 1 of seed 0,? (step {step}\b|after {step + 1} steps\b)"
    text = " ".join(ended.output.split())
    if ended.code != FAULT:
        return str(ended)
    if "Traceback" in text or not re.search(place, text):
        return f"the fault is not named, or with a traceback: {text[-300:]}"
    try:
        saved = RunFolder(folder).checkpoints.load()
    except Exception as error:
        return f"no checkpoint to go on from: {error!r}"
    vectors = saved.stored[PACKED]
    if not vectors.size or not np.abs(vectors).max() < 1e6:  # a NaN is not smaller than anything
        return "bad transitions in the checkpoint"
    bad = [name for name, array in saved.state.items() if array.dtype.kind == "f" and np.isnan(array).any()]
    return f"NaN in the checkpoint: {', '.join(bad)}" if bad else ""


def catch(name: str, command: Callable[[str, Path], list[str]], root: Path, kinds: Iterable[str]) -> Figure:
    """Trains on an environment of each kind, and counts the faults that were caught."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    problems = {}
    for kind in kinds:
        folder = root / kind
        problems[kind] = fault_problem(run(command(kind, folder), environment=environment), folder)
    missed = [f"{kind}: {problem}" for kind, problem in problems.items() if problem]
    return Figure(name, len(problems) - len(missed), len(problems), "; ".join(missed))


def faults(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """Environments that misbehave: named with environment, seed and step, exit code 3, the last checkpoint loadable."""
    kinds = [kind.__name__ for kind in faulty_envs.FAULTS]

    def count(algorithm: str) -> list[Figure]:
        name = f"environment faults caught, {algorithm}"
        return [catch(name, partial(faulty, algorithm), root / algorithm, kinds)]

    return [Part(f"faults, {name}", partial(count, name)) for name in algorithms if name in VECTORS]


# Files from strangers


def passed_tests(name: str, code: int, report: Path, output: str) -> Figure:
    """Counts tests from the report that pytest leaves. One that is skipped, or cannot even be collected, is a miss."""
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        total, bad = (
            sum(int(suite.attrib[word]) for suite in suites for word in words)
            for words in (("tests",), ("failures", "errors", "skipped"))
        )
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        return Figure(name, 0, 1, f"no report of the tests ({error!r}): {output[-300:]}")
    good = max(total - bad, 0)
    if code != 0 and good == total:
        return Figure(name, good, total + 1, f"pytest ended with {code}: {output[-300:]}")
    return Figure(name, good, total, "" if good == total > 0 else output[-300:])


def refusals(tests: Path, root: Path) -> list[Figure]:
    root.mkdir(parents=True, exist_ok=True)
    report = root / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests.parent.parent)
    return [passed_tests("hostile files refused", done.returncode, report, done.stdout + done.stderr)]


def spoiled(outcomes: dict[str, int], count: int) -> Figure:
    """Counts the outcomes in `mutations.GOOD`; none if fewer than half were rejected, because damage was too small."""
    good = sum(outcomes.get(word, 0) for word in mutations.GOOD)
    if 2 * outcomes.get("refused", 0) < count:
        good = 0
    note = ", ".join(f"{name} {number}" for name, number in sorted(outcomes.items()))
    return Figure("spoiled checkpoints and configurations: typed error or a load", good, count, note)


def hostile(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """Files from others: rejected in time and without an audit event; and thousands of damaged ones."""
    count = 10_000 if full else 500
    return [
        Part("hostile files", partial(refusals, TESTS / "test_hostile.py", root)),
        Part("spoiled files", lambda: [spoiled(mutations.count_outcomes(count, seed=0), count)]),
    ]


# Disks


@contextlib.contextmanager
def failing_flush(k: int) -> Iterator[list[int]]:
    """The k-th flush fails, and half of its file is lost; counts them all. Other threads flush undisturbed."""
    flush, thread, calls = os.fsync, threading.get_ident(), []

    def fail(number: int) -> None:
        if threading.get_ident() != thread:
            return flush(number)
        calls.append(number)
        if len(calls) != k:
            return flush(number)
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(number, status.st_size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = fail
    try:
        yield calls
    finally:
        os.fsync = flush


def save(checkpoints: Checkpoints, unsaved: Unsaved, number: int) -> None:
    """The checkpoint of that number, whose agent and sixty newest transitions hold it everywhere."""
    unsaved.add({PACKED: np.full((2, 60, 3), number, np.float32), FIRST: np.full((2, 60), number % 2 == 0)})
    state = {"weight": np.full(3, number, np.float32)}
    checkpoints.save(60 * number, state, {}, unsaved, 60 * number)


def loaded_number(checkpoints: Checkpoints) -> int:
    """The number of the checkpoint that loads, if all that was saved with it and before it is there."""
    loaded = checkpoints.load()
    number = loaded.record["step"] // 60
    numbers = np.broadcast_to(np.repeat(np.arange(1, number + 1), 60), (2, 60 * number))
    expected = {PACKED: np.repeat(numbers[..., None], 3, axis=2), FIRST: numbers % 2 == 0}
    same = loaded.stored.keys() == expected.keys()
    same = same and all(np.array_equal(loaded.stored[name], expected[name]) for name in expected)
    if not same or not np.array_equal(loaded.state["weight"], np.full(3, number)):
        raise ValueError(f"checkpoint {number} holds other numbers than it was saved with")
    return number


def flush_problem(root: Path, k: int) -> str:
    """What is wrong after the k-th flush of a save failed; nothing if a checkpoint loads and the next save works."""
    checkpoints, unsaved = Checkpoints(root), Unsaved(1000, 30)
    save(checkpoints, unsaved, 1)
    try:
        with failing_flush(k):
            save(checkpoints, unsaved, 2)
        return f"flush {k}: its failure went unnoticed"
    except OSError:
        pass
    try:
        numbers = [loaded_number(checkpoints)]
        save(checkpoints, unsaved, 3)
        numbers.append(loaded_number(checkpoints))
    except Exception as error:
        return f"flush {k}: {error!r}"
    return "" if numbers[0] in (1, 2) and numbers[1] == 3 else f"flush {k}: checkpoints {numbers} are loaded"


def failed_flushes(root: Path) -> list[Figure]:
    checkpoints, unsaved = Checkpoints(root / "undisturbed"), Unsaved(1000, 30)
    save(checkpoints, unsaved, 1)
    with failing_flush(0) as calls:
        save(checkpoints, unsaved, 2)
    problems = [flush_problem(root / str(k), k) for k in range(1, len(calls) + 1)]
    note = "; ".join(filter(None, problems))
    return [Figure("write failures: a checkpoint loads", problems.count(""), len(problems), note)]


def disks(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """The k-th flush to the disk fails, for every k of one save: the checkpoint before has to load."""
    return [Part("disks", partial(failed_flushes, root))]


# Memory


def growth(code: int | None, sizes: list[tuple[int, float]]) -> Figure:
    """Steps and MB of a whole run → whether its memory stays as it is, once all that it needs is there."""
    name = f"memory growth from step {SOAK_FROM:,} to {SOAK_STEPS:,} under {SOAK_LIMIT:g} MB".replace(",", " ")
    early = [size for step, size in sizes if SOAK_FROM <= step < SOAK_FROM + SOAK_EDGE]
    late = [size for step, size in sizes if step >= SOAK_STEPS - SOAK_EDGE]
    if code != 0 or not early or not late:
        return Figure(name, 0, 1, f"exit code {code}, {len(early)} early and {len(late)} late measurements")
    more = max(size for step, size in sizes if step >= SOAK_FROM) - min(early)
    return Figure(name, int(more < SOAK_LIMIT), 1, f"{more:.1f} MB")


def last_step(log: Path) -> int:
    """Of the last line that is complete."""
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    return json.loads(lines[-1])["step"] if lines else 0


def watch(command: list[str], log: Path, every: float = 0.2) -> tuple[int, list[tuple[int, float]]]:
    """Runs a command; its exit code, and how many MB it had at which steps."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    sizes = []
    while child.poll() is None:
        time.sleep(every)
        step, status = last_step(log), Path(f"/proc/{child.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)  # none once it has ended
        if found:
            sizes.append((step, int(found[1]) / 1024))
    return child.returncode, sizes


def soak(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """Memory of the trainer over a long run of a small agent."""
    command = [sys.executable, "-m", "lsac", "train", "sac", "--env", "Pendulum-v1", "--hidden", "16"]
    command += ["--batch-size", "16", "--steps", str(SOAK_STEPS), "--replay-capacity", "4096", "--workers", "1"]
    command += ["--chunk", "64", "--utd", "0.25", "--eval-every", "20000", "--out", str(root / "run")]
    return [Part("soak", lambda: [growth(*watch(command, root / "run" / "metrics.jsonl"))])] if full else []


# Errors in the source


def noticed(command: list[str], out: Path) -> list[Figure]:
    """Counts the mutants that tests noticed, from the table that the command leaves; it does not hold without one."""
    name = f"errors in the source noticed by tests, at least {MUTANTS_SHARE:.0%}"
    done = subprocess.run([*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        return [Figure(name, 0, 1, f"exit code {done.returncode}: {done.stdout[-300:]}")]
    with (out / "mutants.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] != "no number changed"]
    survivors = [row["mutant"] for row in rows if row["outcome"] not in ("killed", "timeout")]
    return [Figure(name, len(rows) - len(survivors), len(rows), "; ".join(survivors), MUTANTS_SHARE)]


def mutants(full: bool, root: Path, algorithms: list[str]) -> list[Part]:
    """Small errors in the source of LSAC, one at a time: its tests have to fail."""
    command = [sys.executable, str(MUTANTS), "--sample", "200" if full else "20"]
    return [Part("mutants", partial(noticed, command, root))] if "lsac" in algorithms else []


# The table

PARTS: dict[str, Callable[[bool, Path, list[str]], list[Part]]] = {
    "kills": kills,
    "faults": faults,
    "hostile": hostile,
    "disks": disks,
    "soak": soak,
    "mutants": mutants,
}


def figures_of(part: Part) -> list[Figure]:
    """What a part counts; one that fails, or counts nothing, is a miss, and the others go on."""
    try:
        return part.count() or [Figure(part.name, 0, 1, "nothing was counted")]
    except Exception as error:
        return [Figure(part.name, 0, 1, repr(error))]


def table(parts: list[Part], jobs: int) -> bool:
    """Prints all figures in the order of their parts; whether all were reached, and there were any."""
    figures = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(figures_of, parts):
            for figure in found:
                figures.append(figure)
                print(figure, flush=True)
    return bool(figures) and all(figure.reached for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries to break runs, and counts what survived.")
    parser.add_argument("--full", action="store_true", help="the whole table; otherwise the share that CI runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts of the table")
    parser.add_argument("--algorithms", nargs="+", choices=AGENTS, default=list(AGENTS), help="which to try")
    parser.add_argument("--jobs", type=int, default=1, help="algorithms and parts that are tried at the same time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torture-") as root:
        parts = [part for name in args.only for part in PARTS[name](args.full, Path(root) / name, args.algorithms)]
        reached = table(parts, max(args.jobs, 1))
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
