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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lsac.agents import AGENTS

ALL = (
    *("--hidden", "16", "--seeds", "2", "--steps", "1200", "--workers", "1", "--eval-every", "600"),
    *("--eval-episodes", "1", "--log-every", "100", "--checkpoint-every", "200"),
)
SMALL = (*ALL, "--batch-size", "16", "--chunk", "8", "--learning-starts", "64", "--replay-capacity", "512")
ON_POLICY = (*ALL, "--chunk", "64", "--num-envs", "2", "--epochs", "2", "--minibatches", "2")
EXTRA = {
    "dipo": ("--denoising-steps", "5", "--action-steps", "3", "--pair-capacity", "512"),
    "redq": ("--critics", "3", "--critic-updates", "2"),
    "lsac": (
        *("--chains", "2", "--synthetic-capacity", "256", "--refresh-every", "300", "--generator.width", "16"),
        *("--generator.dim-t", "8", "--generator.blocks", "1", "--generator.train-steps", "20"),
        *("--generator.batch-size", "32", "--generator.sampler-steps", "4", "--generator.sample-batch", "256"),
    ),
}
ALGORITHMS = tuple(AGENTS)
TESTS = Path(__file__).absolute().parents[1] / "tests"
TASKS = ("Ant-v5", "Hopper-v5", "Pendulum-v1")


class Figure(NamedTuple):
    name: str
    good: int
    tried: int
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.good == self.tried > 0


def on_policy(algorithm: str) -> bool:
    return getattr(AGENTS[algorithm].Config, "on_policy", False)


def train(algorithm: str, env: str, out: Path) -> list[str]:
    options = (*(ON_POLICY if on_policy(algorithm) else SMALL), *EXTRA.get(algorithm, ()))
    return [sys.executable, "-m", "lsac", "train", algorithm, "--env", env, *options, "--out", str(out)]


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


def survive(
    algorithm: str, env: str, folder: Path, rng: random.Random, kills: int, longest: float, sort: int
) -> tuple[int, str]:
    """Trains with at most that many kills at random moments: how many there were, and what went wrong, if anything."""
    command, done = train(algorithm, env, folder), 0
    for _ in range(kills):
        code, output = run(command, rng.uniform(0.1, longest), sort)
        if code == 0:
            return done, ""
        if code not in (-signal.SIGKILL, 75, -signal.SIGTERM):
            return done, f"exit code {code}: {output[-500:]}"
        done += 1
        if (folder / "config.json").is_file():
            command = [sys.executable, "-m", "lsac", "resume", str(folder)]
    code, output = run(command)
    return done, "" if code == 0 else f"exit code {code}: {output[-500:]}"


def kills(full: bool, root: Path, algorithms: list[str]) -> Iterator[Figure]:
    """Kill -9 and SIGTERM at random moments; the run that survived has to be the run that was left alone."""
    wanted = {signal.SIGKILL: 8, signal.SIGTERM: 3} if full else {signal.SIGKILL: 5, signal.SIGTERM: 5}
    for algorithm in algorithms:
        for env in TASKS if full else TASKS[:1]:
            alone, again = root / f"{algorithm}-{env}", root / f"{algorithm}-{env}-again"
            for folder in (alone, again):  # the first one compiles
                started = time.monotonic()
                code, output = run(train(algorithm, env, folder))
                longest = time.monotonic() - started
                if code:
                    raise SystemExit(f"{algorithm} on {env} failed by itself:\n{output[-2000:]}")
            same = fingerprint(alone) == fingerprint(again)
            yield Figure(f"two processes, {algorithm} on {env}: same files", int(same), 1)
            for sort, per_case in wanted.items():
                rng = random.Random(f"{algorithm} {env} {sort}")
                done = good = 0
                note = ""
                while done < per_case:
                    folder = root / "killed"
                    subprocess.run(["rm", "-rf", str(folder)], check=True)
                    count, problem = survive(algorithm, env, folder, rng, min(5, per_case - done), longest, sort)
                    done += count
                    same = not problem and fingerprint(folder) == fingerprint(alone)
                    good += count if same else 0
                    if not same:
                        mine, theirs = fingerprint(alone), {} if problem else fingerprint(folder)
                        note = problem or f"differ: {sorted(k for k, v in mine.items() if theirs.get(k) != v)}"
                yield Figure(f"{sort.name}, {algorithm} on {env}: same files", good, done, note)


def faults(full: bool, root: Path, algorithms: list[str]) -> list[Figure]:
    """Environments that misbehave: named with environment, seed and step, exit code 3, the last checkpoint loadable."""
    sys.path.insert(0, str(TESTS))
    import faulty_envs

    from lsac.runs.folder import RunFolder

    figures = []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    for algorithm in algorithms:
        good, note = 0, ""
        for kind in faulty_envs.FAULTS:
            folder = root / f"{algorithm}-{kind.__name__}"
            words = train(algorithm, f"faulty/{kind.__name__}-v0", folder)[3:]
            words += ["--num-envs", "2", "--checkpoint-every", "8", "--eval-every", "0", "--env-timeout", "3"]
            words += ["--seeds", "1", *(["--chunk", "8"] if on_policy(algorithm) else ["--learning-starts", "8"])]
            code = f"import faulty_envs, sys; from lsac.cli import main; sys.argv = ['lsac', *{words!r}]; main()"
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            text = done.stdout + done.stderr
            try:
                rows = RunFolder(folder).checkpoints.load().rows
                caught = done.returncode == 3 and "of seed 0" in text and "Traceback" not in text
                caught = caught and rows.size > 0 and bool(abs(rows).max() < 1e6)
            except Exception as error:
                caught, text = False, f"{text}{error!r}"
            good += caught
            note = note if caught else f"{kind.__name__}: exit code {done.returncode}, {text[-300:]}"
        figures.append(Figure(f"environment faults caught, {algorithm}", good, len(faulty_envs.FAULTS), note))
    return figures


def hostile(full: bool, root: Path, algorithms: list[str]) -> list[Figure]:
    """Files from strangers: refused in time and without an audit event; and thousands of spoiled ones."""
    sys.path.insert(0, str(TESTS))
    import mutations

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(TESTS / "test_hostile.py")],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    words = done.stdout.split()
    passed = sum(int(words[i - 1]) for i, word in enumerate(words) if word.startswith("passed") and i)
    failed = sum(int(words[i - 1]) for i, word in enumerate(words) if word.startswith("failed") and i)
    count = 10_000 if full else 500
    outcomes = mutations.count_outcomes(count, seed=0)
    other = outcomes.get("other", 0)
    note = ", ".join(f"{name} {number}" for name, number in sorted(outcomes.items()))
    return [
        Figure("hostile files refused", passed, passed + failed, "" if passed else done.stdout[-300:]),
        Figure("spoiled checkpoints and configurations: typed error or a load", count - other, count, note),
    ]


def disks(full: bool, root: Path, algorithms: list[str]) -> list[Figure]:
    """The k-th flush to the disk fails, for every k of one save: the checkpoint before has to load."""
    import numpy as np

    from lsac.runs.checkpoint import Checkpoints, Unsaved

    def save(checkpoints: Checkpoints, unsaved: Unsaved, number: int) -> None:
        unsaved.add(np.full((2, 60, 3), number, np.float32))
        state = {"weight": np.full(3, number, np.float32)}
        checkpoints.save(60 * number, state, {}, unsaved, 60 * number)

    flush, good, k = os.fsync, 0, 0
    while True:
        k += 1
        checkpoints, unsaved, calls = Checkpoints(root / str(k)), Unsaved(1000, 30), []

        def fail(number: int, calls: list = calls, k: int = k) -> None:
            calls.append(number)
            if len(calls) == k:
                raise OSError(28, "No space left on device")
            flush(number)

        save(checkpoints, unsaved, 1)
        os.fsync = fail
        try:
            save(checkpoints, unsaved, 2)
            broke = False
        except OSError:
            broke = True
        finally:
            os.fsync = flush
        if not broke:
            break
        loaded = checkpoints.load()
        good += loaded.record["step"] in (60, 120) and loaded.rows.shape[1] == loaded.record["step"]
    return [Figure("write failures: a checkpoint loads", good, k - 1)]


def soak(full: bool, root: Path, algorithms: list[str]) -> list[Figure]:
    """Memory of the trainer over a long run of a small agent."""
    if not full:
        return []
    command = [sys.executable, "-m", "lsac", "train", "sac", "--env", "Pendulum-v1", "--hidden", "16"]
    command += ["--batch-size", "16", "--steps", "200000", "--replay-capacity", "4096", "--workers", "1"]
    command += ["--chunk", "64", "--utd", "0.25", "--eval-every", "20000", "--out", str(root / "run")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    log, used = root / "run" / "metrics.jsonl", {}
    while child.poll() is None:
        time.sleep(0.2)
        step = json.loads(log.read_text().splitlines()[-1])["step"] if log.is_file() and log.stat().st_size else 0
        status = Path(f"/proc/{child.pid}/status").read_text().splitlines() if child.poll() is None else []
        sizes = [int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")]
        if sizes:
            used[step] = sizes[0]
    warm = {step: size for step, size in used.items() if step >= 100_000}
    growth = max(warm.values()) - min(size for step, size in warm.items() if step < 110_000) if warm else 1e9
    return [Figure("memory growth from step 100 000 to 200 000 under 2 MB", int(growth < 2), 1, f"{growth:.1f} MB")]


PARTS: dict[str, Callable[[bool, Path, list[str]], Iterable[Figure]]] = {
    "kills": kills,
    "faults": faults,
    "hostile": hostile,
    "disks": disks,
    "soak": soak,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries to break runs, and counts what survived.")
    parser.add_argument("--full", action="store_true", help="the whole table; otherwise the share that CI runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts of the table")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), help="which to try")
    args = parser.parse_args()
    figures: list[Figure] = []
    for part in args.only:
        with tempfile.TemporaryDirectory(prefix="torture-") as root:
            for figure in PARTS[part](args.full, Path(root), args.algorithms):
                figures.append(figure)
                print(
                    f"{'ok  ' if figure.reached else 'MISS'} {figure.name}: {figure.good}/{figure.tried} {figure.note}",
                    flush=True,
                )
    sys.exit(0 if all(figure.reached for figure in figures) else 1)


if __name__ == "__main__":
    main()
