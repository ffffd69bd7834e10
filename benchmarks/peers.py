"""Whole-loop speed of SAC, side by side: lsac, SBX (JAX) and Stable-Baselines3 (PyTorch), on the CPU.

    python benchmarks/peers.py [--steps 3000] [--repeats 3] [--env HalfCheetah-v5]

Everything a user waits for counts (acting, simulating, storing, learning); start-up and compilation do not.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import gymnasium

SOURCE = str(Path(__file__).absolute().parents[1] / "src")  # this checkout is measured, installed or not
CROWDED = 0.2  # cores; thread pools wait for their slowest thread, so one busy neighbour costs a multiple
HIDDEN = (256, 256, 256)
BATCH_SIZE = 256
LEARNING_STARTS = 500
CLOCK_STARTS = LEARNING_STARTS + 500  # by then every program has been compiled and has run a while

# torch goes first and stays pinned, so that no later resolve replaces a CPU build with gigabytes of CUDA.
TORCH = "torch==2.13.0"
PEER_PACKAGES = ("stable-baselines3", "sbx-rl", "gymnasium[mujoco]", "mujoco>=3.17,<4")
SYSTEMS = {"ours": "lsac", "sbx": "SBX", "sb3": "Stable-Baselines3"}
REPORTED = ("lsac", "stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium", "mujoco")


class Run(NamedTuple):
    steps_per_second: float
    updates_per_step: float
    versions: dict[str, str]
    others: float = 0.0  # cores that other programs took meanwhile


def versions() -> dict[str, str]:
    """What the speed depends on, as far as this interpreter has it."""
    found = {package.name.replace("_", "-"): package.version for package in distributions()}
    return {name: found[name] for name in REPORTED if name in found}


def peer_python(folder: Path) -> Path:
    """The interpreter of the peers' virtual environment, which is built unless a finished one is there."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "peers.txt"
    wanted = "\n".join((f"python {sys.version_info.major}.{sys.version_info.minor}", TORCH, *PEER_PACKAGES))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not stamp.is_file():  # somebody else's: neither install into it nor empty it
            raise SystemExit(f"--venv {folder} is in use by something else; name an empty or a new folder.")
        if stamp.read_text() == wanted:
            return python
        shutil.rmtree(folder)  # ours, but unfinished or for other versions
    say(f"building the peers' environment in {folder}, once, a few minutes")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text("unfinished")
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for packages in ((TORCH,), (TORCH, *PEER_PACKAGES)):
        say(f"  pip install {' '.join(packages)}")
        call([*pip, *packages], "pip install")
    stamp.write_text(wanted)
    return python


def measure_peer(system: str, python: Path, env: str, steps: int, seed: int) -> Run:
    # -I: the peers see their own packages only, whatever PYTHONPATH says.
    command = [str(python), "-I", __file__, "--inner", system, "--env", env]
    output = call([*command, "--steps", str(steps), "--seed", str(seed)], SYSTEMS[system])
    return Run(**json.loads(output.splitlines()[-1]))


def measure_ours(env: str, steps: int, seed: int) -> Run:
    """From the first log line after the warm-up to the last one."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "lsac", "train", "sac", "--env", env, "--steps", str(steps)]
        command += ["--seeds", "1", "--seed", str(seed), "--hidden", *map(str, HIDDEN)]
        command += ["--batch-size", str(BATCH_SIZE), "--learning-starts", str(LEARNING_STARTS)]
        command += ["--eval-every", "0", "--out", str(out)]
        call(command, "lsac")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = [line for line in lines if "seconds" in line and line["step"] >= CLOCK_STARTS]
    if not timed or timed[-1]["step"] == timed[0]["step"]:
        raise SystemExit(f"lsac logged fewer than two times after step {CLOCK_STARTS}; raise --steps.")
    gone, seconds, updates = (timed[-1][k] - timed[0][k] for k in ("step", "seconds", "train/n_updates"))
    return Run(gone / seconds, updates / gone, versions())


def call(command: list[str], what: str) -> str:
    """Runs a command on the CPU and returns what it printed; on failure ends with its last words."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": SOURCE}
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo drops its log into the current one
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stdout + done.stderr)[-3000:]
        raise SystemExit(f"\n{words}\n{what} failed with exit code {done.returncode}.")
    return done.stdout


def cpu_seconds_of_others() -> float:
    """CPU time since boot that went to anything but the finished runs; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - os.times().children_user - os.times().children_system


def inner(system: str, env: str, steps: int, seed: int) -> None:
    """Runs inside the peers' environment: trains once and prints a `Run` as JSON."""
    if system == "sb3":
        from stable_baselines3 import SAC
    else:
        from sbx import SAC
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        started = stopped = 0.0
        first_step = first_update = 0

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:  # before the step, so that each timed step has its own update
            if not self.started and self.num_timesteps >= CLOCK_STARTS:
                self.first_step, self.first_update = self.num_timesteps, self.model._n_updates
                self.started = time.perf_counter()

        def _on_training_end(self) -> None:
            self.stopped = time.perf_counter()

    schedule = {"learning_starts": LEARNING_STARTS, "train_freq": 1, "gradient_steps": 1, "seed": seed}
    sizes = {"batch_size": BATCH_SIZE, "policy_kwargs": {"net_arch": list(HIDDEN)}}
    model = SAC("MlpPolicy", env, device="cpu", **schedule, **sizes)
    clock = Clock()
    model.learn(steps, callback=clock)
    timed = model.num_timesteps - clock.first_step
    updates = model._n_updates - clock.first_update
    print(json.dumps(Run(timed / (clock.stopped - clock.started), updates / timed, versions())._asdict()))


def compare(systems: list[str], env: str, steps: int, repeats: int, folder: Path) -> None:
    python = peer_python(folder) if set(systems) != {"ours"} else Path()
    say(f"{env}: {steps} steps a run, clock from step {CLOCK_STARTS}, {os.cpu_count()} cores")
    runs: dict[str, list[Run]] = {system: [] for system in systems}
    for repeat in range(repeats):
        # In turn, never two at once: a slow spell of the machine then falls on all systems alike.
        for system in systems:
            say(f"  round {repeat + 1} of {repeats}, {SYSTEMS[system]:18s}", end="")
            began, before = time.perf_counter(), cpu_seconds_of_others()
            if system == "ours":
                run = measure_ours(env, steps, repeat)
            else:
                run = measure_peer(system, python, env, steps, repeat)
            if run.updates_per_step != 1:
                raise SystemExit(f"{SYSTEMS[system]}: {run.updates_per_step} updates per step, not 1.")
            wall = time.perf_counter() - began
            runs[system].append(run._replace(others=(cpu_seconds_of_others() - before) / wall))
            crowd = runs[system][-1].others
            say(f"{run.steps_per_second:8.1f} steps/s   ({wall:.0f} s in all, others took {crowd:.1f} cores)")
    print_table(runs)


def print_table(runs: dict[str, list[Run]]) -> None:
    print(f"\n{'system':18s}  {'steps/s':>8s}  {'ours/it':>8s}  all repeats")
    for system, mine in runs.items():
        speeds = [run.steps_per_second for run in mine]
        ratio = "-"
        if "ours" in runs:
            pairs = zip(runs["ours"], mine, strict=True)
            ratio = f"{statistics.median(a.steps_per_second / b.steps_per_second for a, b in pairs):.2f}x"
        repeats = "  ".join(f"{speed:.1f}" for speed in speeds)
        print(f"{SYSTEMS[system]:18s}  {statistics.median(speeds):8.1f}  {ratio:>8s}  {repeats}")
    for system, mine in runs.items():
        print(f"{SYSTEMS[system]}: " + ", ".join(" ".join(pair) for pair in mine[0].versions.items()))
    crowd = max(run.others for mine in runs.values() for run in mine)
    if crowd > CROWDED:
        print(f"Not a fair comparison: other programs took {crowd:.1f} cores. Wait for a quiet machine.")


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of SAC, side by side: lsac, SBX, Stable-Baselines3.")
    parser.add_argument("--steps", type=int, default=3000, help="environment steps of one run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; each runs every system once")
    parser.add_argument("--env", default="HalfCheetah-v5", help="a Gymnasium id with a Box action space")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="which to run")
    parser.add_argument("--venv", type=Path, default=Path("~/.cache/lsac/peers"), help="the peers' folder")
    parser.add_argument("--inner", choices=("sbx", "sb3"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps <= CLOCK_STARTS:
        parser.error(f"--steps {args.steps} leaves nothing to time; it must exceed {CLOCK_STARTS}.")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats} must be at least 1.")
    if ":" not in args.env and args.env not in gymnasium.registry:  # module:id is only known once imported
        parser.error(f"--env {args.env} is not a registered Gymnasium id, such as HalfCheetah-v5.")
    if args.inner:
        inner(args.inner, args.env, args.steps, args.seed)
    else:
        systems = list(dict.fromkeys(args.systems))  # each once, in the order given
        compare(systems, args.env, args.steps, args.repeats, args.venv.expanduser().absolute())


if __name__ == "__main__":
    main()
