"""Writes the folders of many made-up runs and times `lsac report --pool` on them: reading, statistics, figures, page.

python benchmarks/many_runs.py --runs 10000                     # in a folder that is removed afterwards
python benchmarks/many_runs.py --runs 10000 --keep runs/many    # leaves runs and report there
"""

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lsac.agents import AGENTS
from lsac.runs.experiment import Experiment, to_json

TASKS = ("HalfCheetah-v4", "Ant-v4", "Swimmer-v4", "Walker2d-v4", "Hopper-v4", "Humanoid-v4")
TASKS += (
    "dm_control/cheetah-run-v0",
    "dm_control/walker-run-v0",
    "dm_control/hopper-hop-v0",
    "dm_control/fish-swim-v0",
)
ALGORITHMS = ("lsac", "sac", "td3", "redq", "dsact")
POINTS = 100
"""Evaluations of a run, and as many other lines."""
TRAIN = ("actor_loss", "critic_loss", "q_mean", "entropy", "ent_coef", "critic_grad_norm")
EVAL = ("std_reward", "mean_ep_length", "q", "mc_return", "q_bias", "q_spread")


def lines_of(seed: int, generator: np.random.Generator, end: float) -> str:
    """The metrics of one run: returns that rise with noise, and other metrics of positive size."""
    steps = np.linspace(10_000, 1_000_000, POINTS).astype(int).tolist()
    returns = end * (1 - np.exp(-np.linspace(0.1, 4, POINTS))) * generator.lognormal(0, 0.15) + generator.normal(
        0, 0.03 * end, POINTS
    )
    other = generator.lognormal(size=(POINTS, len(TRAIN) + len(EVAL)))
    text = []
    for i, step in enumerate(steps):
        head = {"step": step, "seed": seed, "seconds": round(step / 900, 3)}
        train = {f"train/{name}": float(x) for name, x in zip(TRAIN, other[i], strict=False)}
        text.append(
            {
                **head,
                "time/fps": 900.0,
                "rollout/ep_rew_mean": float(0.9 * returns[i]),
                "train/n_updates": step,
                **train,
            }
        )
        numbers = {f"eval/{name}": float(x) for name, x in zip(EVAL, other[i, len(TRAIN) :], strict=True)}
        text.append({**head, "eval/mean_reward": float(returns[i]), **numbers})
    return "".join(json.dumps(line) + "\n" for line in text)


def write_runs(folder: Path, count: int) -> list[Path]:
    """As many runs of one seed, spread evenly over tasks and algorithms."""
    generator = np.random.default_rng(0)
    pairs = [(task, algorithm) for task in TASKS for algorithm in ALGORITHMS]
    configs = {}
    for task, algorithm in pairs:
        configs[task, algorithm] = to_json(Experiment(AGENTS[algorithm].Config(), env=task, steps=1_000_000))
    paths = []
    for i in range(count):
        task, algorithm = pairs[i % len(pairs)]
        path = folder / f"{algorithm}-{i:05d}"
        path.mkdir(parents=True)
        config = configs[task, algorithm]
        config["experiment"] = config["experiment"] | {"seed": i // len(pairs)}
        (path / "config.json").write_text(json.dumps(config))
        end = 700.0 if "/" in task else 5_000.0
        (path / "metrics.jsonl").write_text(lines_of(i // len(pairs), generator, end))
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="folder for the runs and the report, which stay")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="many-runs-"))
    try:
        began = time.perf_counter()
        paths = write_runs(folder / "runs", given.runs)
        size = sum((path / "metrics.jsonl").stat().st_size for path in paths)
        curves = min(given.runs, len(TASKS) * len(ALGORITHMS))
        print(
            f"{given.runs:,} runs of one seed, {2 * POINTS} lines each, {size / 2**20:,.0f} MiB; {curves} curves of ",
            end="",
        )
        print(
            f"{math.ceil(given.runs / curves)} seeds on {len(TASKS)} tasks; written in "
            f"{time.perf_counter() - began:.0f} s"
        )
        command = [sys.executable, "-m", "lsac", "report", *map(str, paths), "--pool", "--out", str(folder / "report")]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        page = (folder / "report" / "index.html").stat().st_size
        cpu = used.ru_utime + used.ru_stime
        print(f"lsac report: {seconds:.1f} s, {cpu:.1f} s of them on a core; page of {page / 2**20:.1f} MiB")
    finally:
        if not given.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
