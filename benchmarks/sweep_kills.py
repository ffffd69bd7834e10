"""Kills sweeps on Ray, and counts those that end as if nothing had happened: python benchmarks/sweep_kills.py

A sweep of small runs is left alone once. Then it is repeated, and at a random moment a worker of Ray, the process that
trains, or the whole sweep is killed with `kill -9`; a killed sweep is started again. Every experiment has to be
finished once, with the same files as in the sweep that was left alone. Exits with 1 if one is not.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torture import Figure, difference

PLAN = """
from lsac.sweeps.plan import experiment

SMALL = {"hidden": (8,), "batch_size": 16, "chunk": 8, "learning_starts": 16, "replay_capacity": 512, "workers": 1}
OFTEN = {"log_every": 100, "checkpoint_every": 200, "eval_every": 600, "eval_episodes": 1}
SIZES = {"steps": 4_000, "seeds": 2}


def experiments():
    pairs = [("sac", "Pendulum-v1"), ("td3", "Pendulum-v1"), ("sac", "Hopper-v5")]
    return [experiment(*pair, **SMALL, **OFTEN, **SIZES) for pair in pairs]
"""
EXPERIMENTS = 3
LINGERING = 10.0
"""Seconds within which all processes of a killed sweep have ended."""
KINDS = ("worker", "driver", "trainer")


class Process(NamedTuple):
    pid: int
    parent: int
    words: str


class Killed(NamedTuple):
    kind: str
    after: float
    problem: str


def command(place: Path, engine: str = "ray") -> list[str]:
    plan = place.parent / "plan.py"
    plan.write_text(PLAN)
    words = ["sweep", str(plan), "--out", str(place), "--jobs", "2", "--engine", engine]
    return [sys.executable, "-m", "lsac", *words]


def start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                yield Process(int(entry.name), parent, words)


def descendants(pid: int) -> list[Process]:
    found, frontier, known = [], {pid}, list(processes())
    while frontier:
        children = [process for process in known if process.parent in frontier]
        found += children
        frontier = {process.pid for process in children}
    return found


def victims(driver: int, kind: str) -> list[int]:
    """The processes of a sweep that are of one kind."""
    if kind == "driver":
        return [driver]
    mark = "ray::train_job" if kind == "worker" else "lsac.sweeps.guarded"
    return [process.pid for process in descendants(driver) if mark in process.words]


def kill(driver: subprocess.Popen[bytes], kind: str, after: float, rng: random.Random) -> bool:
    """Waits, and kills a process of this kind, as soon as there is one; False if the sweep has ended before."""
    due = time.monotonic() + after
    while driver.poll() is None:
        found = victims(driver.pid, kind) if time.monotonic() >= due else []
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


def lingering(place: Path) -> list[Process]:
    """Processes that still train in the folder of a killed sweep after a while."""
    until = time.monotonic() + LINGERING
    while True:
        left = [process for process in processes() if f"{place}/" in process.words]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.2)


def problem_of(alone: Path, place: Path) -> str:
    """What is wrong with a sweep that was killed and went on; nothing if it is the one that was left alone."""
    paths = sorted(str(config.parent.relative_to(alone)) for config in alone.glob("*/*/config.json"))
    if len(paths) != EXPERIMENTS:
        return f"the sweep that was left alone has {len(paths)} experiments"
    for path in paths:
        if different := difference(alone / path, place / path):
            return f"{path}: {different}"
        ends = sum("final evaluation return" in line for line in (place / path / "train.log").read_text().splitlines())
        if ends > 1:
            return f"{path}: finished {ends} times"
    again = subprocess.run(command(place), capture_output=True, text=True, timeout=300)
    return "" if again.returncode == 0 and "nothing to do" in again.stdout else f"not finished: {again.stdout}"


def disturbed(alone: Path, place: Path, kind: str, after: float, rng: random.Random) -> Killed | None:
    """A sweep with one kill; None if it had ended before."""
    log = place.with_suffix(".log")
    driver = start(command(place), log)
    if not kill(driver, kind, after, rng):
        return None
    code = driver.wait(timeout=600)
    if kind == "driver":
        if left := lingering(place):
            return Killed(kind, after, f"left behind: {left[0].words}")
        code = start(command(place), log).wait(timeout=600)
    problem = problem_of(alone, place) if code == 0 else f"exit code {code}: {log.read_text()[-500:]}"
    return Killed(kind, after, problem)


def repeat(root: Path, sweeps: int, kinds: list[str], seed: int) -> list[Killed]:
    rng, alone = random.Random(seed), root / "alone"
    for place in (root / "first", alone):  # the first one compiles
        started = time.monotonic()
        code = start(command(place), place.with_suffix(".log")).wait()
        longest = time.monotonic() - started
        if code != 0:
            raise SystemExit(f"the sweep that is left alone fails: {place.with_suffix('.log').read_text()[-500:]}")
    print(f"left alone: {longest:.1f} s", flush=True)
    done: list[Killed] = []
    for attempt in range(3 * sweeps):
        if len(done) == sweeps:
            break
        place = root / f"sweep-{attempt}"
        found = disturbed(alone, place, kinds[len(done) % len(kinds)], rng.uniform(0.5, longest), rng)
        if found is not None:
            done.append(found)
            verdict = f"MISS {found.problem}" if found.problem else "ok"
            print(f"{len(done)}: {found.kind} killed after {found.after:.1f} s: {verdict}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=20, help="sweeps with one kill each")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=["worker", "driver"], help="what is killed, in turn"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        done = repeat(Path(root), given.sweeps, given.kinds, given.seed)
    figures = []
    for kind in given.kinds:
        of_kind = [killed for killed in done if killed.kind == kind]
        note = "; ".join(killed.problem for killed in of_kind if killed.problem)
        good = sum(not killed.problem for killed in of_kind)
        figures.append(Figure(f"{kind} killed: finished once, same files", good, len(of_kind), note))
    print(*figures, sep="\n")
    sys.exit(0 if len(done) == given.sweeps and all(figure.reached for figure in figures) else 1)


if __name__ == "__main__":
    main()
