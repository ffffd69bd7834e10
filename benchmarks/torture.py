"""Tries to break runs, and counts what survived: python benchmarks/torture.py [--full] [--only kills ...]

Prints a table; exits with 1 if anything missed its target.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SMALL = (
    *("--hidden", "16", "--batch-size", "16", "--seeds", "2", "--steps", "1200", "--chunk", "8", "--workers", "1"),
    *("--learning-starts", "64", "--eval-every", "200", "--eval-episodes", "1", "--log-every", "100"),
    *("--checkpoint-every", "200", "--replay-capacity", "512"),
)
EXTRA = {
    "lsac": (
        *("--chains", "2", "--synthetic-capacity", "256", "--refresh-every", "300", "--generator.width", "16"),
        *("--generator.dim-t", "8", "--generator.blocks", "1", "--generator.train-steps", "20"),
        *("--generator.batch-size", "32", "--generator.sampler-steps", "4", "--generator.sample-batch", "256"),
    ),
}
ALGORITHMS = ("sac", "lsac")
TASKS = ("Ant-v5", "Hopper-v5", "Pendulum-v1")


class Figure(NamedTuple):
    name: str
    good: int
    tried: int
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.good == self.tried


def train(algorithm: str, env: str, out: Path) -> list[str]:
    command = [sys.executable, "-m", "lsac", "train", algorithm, "--env", env, *SMALL, *EXTRA.get(algorithm, ())]
    return [*command, "--out", str(out)]


def run(command: list[str], kill_after: float | None = None, with_signal: int = signal.SIGKILL) -> tuple[int, str]:
    """Runs a command in a group of its own, and kills it, workers and all, after some seconds."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=tempfile.gettempdir(),
    )
    try:
        output, _ = child.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        os.kill(child.pid, with_signal)  # the trainer alone: its workers have to notice by themselves
        output, _ = child.communicate()
    return child.returncode, output


def fingerprint(folder: Path) -> dict[str, str]:
    """The SHA-256 of everything that a run leaves, without the times at which it did things."""
    files = sorted((folder / "checkpoints").rglob("*.safetensors"))
    found = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in x.items() if k != "seconds" and not k.startswith("time/")} for x in lines]
    return found | {"metrics.jsonl": hashlib.sha256(json.dumps(timeless).encode()).hexdigest()}


def survive(algorithm: str, env: str, folder: Path, rng: random.Random, kills: int, longest: float, sort: int) -> str:
    """Trains with that many kills at random moments; empty if the run came to its end, else what went wrong."""
    command = train(algorithm, env, folder)
    for _ in range(kills):
        code, output = run(command, rng.uniform(0.1, longest), sort)
        if code == 0:
            return ""
        if code not in (-signal.SIGKILL, 75, -signal.SIGTERM):
            return f"exit code {code}: {output[-500:]}"
        if (folder / "checkpoints").is_dir() and any((folder / "checkpoints").glob("*.safetensors")):
            command = [sys.executable, "-m", "lsac", "resume", str(folder)]
        elif folder.exists():  # killed before the first checkpoint: there is nothing to continue
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    code, output = run(command)
    return "" if code == 0 else f"exit code {code}: {output[-500:]}"


def kills(full: bool, root: Path) -> list[Figure]:
    """Kill -9 and SIGTERM at random moments; the run that survived has to be the run that was left alone."""
    figures = []
    per_case = 34 if full else 5
    for algorithm in ALGORITHMS:
        for env in TASKS if full else TASKS[:1]:
            alone, again = root / f"{algorithm}-{env}", root / f"{algorithm}-{env}-again"
            for folder in (alone, again):  # the first one compiles
                started = time.monotonic()
                code, output = run(train(algorithm, env, folder))
                longest = time.monotonic() - started
                if code:
                    raise SystemExit(f"{algorithm} on {env} failed by itself:\n{output[-2000:]}")
            same = fingerprint(alone) == fingerprint(again)
            figures.append(Figure(f"two processes, {algorithm} on {env}: same files", int(same), 1))
            for sort in (signal.SIGKILL, signal.SIGTERM):
                rng = random.Random(f"{algorithm} {env} {sort}")
                done = good = 0
                note = ""
                while done < per_case:
                    folder = root / "killed"
                    subprocess.run(["rm", "-rf", str(folder)], check=True)
                    count = min(5, per_case - done)
                    problem = survive(algorithm, env, folder, rng, count, longest, sort)
                    done += count
                    same = not problem and fingerprint(folder) == fingerprint(alone)
                    good += count if same else 0
                    if not same:
                        mine, theirs = fingerprint(alone), {} if problem else fingerprint(folder)
                        note = problem or f"differ: {sorted(k for k, v in mine.items() if theirs.get(k) != v)}"
                figures.append(
                    Figure(f"{signal.Signals(sort).name}, {algorithm} on {env}: same files", good, done, note)
                )
    return figures


PARTS: dict[str, Callable[[bool, Path], list[Figure]]] = {"kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries to break runs, and counts what survived.")
    parser.add_argument("--full", action="store_true", help="the whole table; otherwise the share that CI runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts of the table")
    args = parser.parse_args()
    figures: list[Figure] = []
    for part in args.only:
        with tempfile.TemporaryDirectory(prefix="torture-") as root:
            for figure in PARTS[part](args.full, Path(root)):
                figures.append(figure)
                print(
                    f"{'ok  ' if figure.reached else 'MISS'} {figure.name}: {figure.good}/{figure.tried} {figure.note}",
                    flush=True,
                )
    sys.exit(0 if all(figure.reached for figure in figures) else 1)


if __name__ == "__main__":
    main()
