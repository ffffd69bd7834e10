"""Speed of this checkout beside that of an older commit, on one machine, in one run.

    python benchmarks/speed.py --old COMMIT [--rows update loop] [--seeds 1 10] [--algorithms lsac sac] [--steps 30000]

Prints a Markdown table, each row as soon as it is measured. Old and new take turns, each in processes of its own, so
that slow spells of the machine fall on both; the ratio is the median of the ratios of neighbours.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).absolute().parents[1]
RUNS_AT_ONCE = 6
SIMULATORS = 20  # per seed, in the regime of the LSAC paper: as many steps per update
ENOUGH = 2.0  # seconds for which updates are timed
ROWS = ("update", "loop", "compile", "regime", "many")
Numbers = dict[str, float]  # what one measurement found, by its name and unit


class Options(NamedTuple):
    env: str
    preset: str
    steps: int
    chunk: int  # of the row regime


class Started(NamedTuple):
    process: subprocess.Popen[str]
    output: IO[str]


# Runs in a process with PYTHONPATH set to the old or the new source


def time_updates(algorithm: str, preset: str, env: str, seeds: int) -> float:
    """Milliseconds of one update of all seeds. Uses only names that old and new code have."""
    import jax
    import jax.numpy as jnp

    from lsac.envs.sources import given
    from lsac.presets import preset as find_preset
    from lsac.replay import ring as rb
    from lsac.runs.experiment import make_agent

    options, unroll = None, 1  # as in code that is older than these functions
    with contextlib.suppress(ImportError):
        from lsac.train.devices import concurrent_kernels

        options = concurrent_kernels()
    with contextlib.suppress(ImportError):
        from lsac.train import devices

        unroll = devices.unroll() if hasattr(devices, "unroll") else 1
    experiment = find_preset(algorithm, preset, env)
    spec = given(env).spec(gamma=experiment.gamma)
    agent, layout, rows = make_agent(experiment, spec), rb.layout_of(spec), 100_000
    stored = {name: jnp.zeros((seeds, rows, *c.shape), c.dtype) for name, c in layout.arrays().items()}
    stored[rb.PACKED] = jnp.tanh(jax.random.normal(jax.random.key(1), (seeds, rows, layout.width)))
    replay, axes = rb.holding(layout, stored, rows), rb.seed_axes(layout, 1)
    state = jax.jit(jax.vmap(agent.init))(jax.random.split(jax.random.key(0), seeds))
    together = 4 if jax.default_backend() == "cpu" else 32  # as many as in a dispatch of `lsac bench`

    def updates(state: Any, replay: Any, key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            return jax.vmap(agent.update, in_axes=(0, axes, 0))(state, replay, jax.random.split(key, seeds))

        return jax.lax.scan(step, state, jax.random.split(key, together), unroll=unroll)

    compiled = jax.jit(updates, donate_argnums=0, compiler_options=options)
    times: list[float] = []
    while len(times) < 7 or sum(times[2:]) < ENOUGH:  # the first compiles, and the second may still allocate
        started = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, replay, jax.random.key(len(times))))
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times[2:]) / together


# The measurements, each a function of a source folder


def update(options: Options, algorithm: str, seeds: int, source: Path) -> Numbers:
    given = [algorithm, options.preset, options.env, seeds]
    output = call([__file__, "--child", json.dumps(given)], source)
    return {f"update, {algorithm}, {counted(seeds)}: ms": float(output.splitlines()[-1])}


def loop(options: Options, algorithm: str, seeds: int, source: Path) -> Numbers:
    speed, name = trained(options, algorithm, seeds, source), f"loop, {algorithm}, {counted(seeds)}"
    found = {f"{name}: steps/s in total": speed.steps_per_second}
    return found | ({f"{name}: share of refreshes, %": 100 * speed.refreshes} if speed.refreshes else {})


def regime(options: Options, source: Path) -> Numbers:
    """The regime of the LSAC paper: twenty simulators and one update per twenty steps."""
    longer = options._replace(steps=SIMULATORS * options.steps)
    more = ("--num-envs", SIMULATORS, "--utd", 1 / SIMULATORS, "--chunk", options.chunk)
    found = trained(longer, "sac", 1, source, *more).steps_per_second
    return {f"{SIMULATORS} simulators, 1 update per {SIMULATORS} steps, sac, 1 seed: steps/s": found}


def many(options: Options, algorithm: str, source: Path) -> Numbers:
    """Several runs at once. On a GPU they share it better with NVIDIA's MPS, which has to be started before."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runs = [Path(folder) / f"run{i}" for i in range(RUNS_AT_ONCE)]
        commands = [training(options, algorithm, 1, run) for run in runs]
        share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        for each in [stack.enter_context(start(command, source, **share)) for command in commands]:
            ended(each)
        total = sum(rate(run, options.steps).steps_per_second for run in runs)
    return {f"{RUNS_AT_ONCE} runs at once, {algorithm}, 1 seed each: steps/s in total": total}


def first_step(options: Options, algorithm: str, seeds: int, source: Path) -> Numbers:
    """Seconds from the start of the command to its first line of metrics, after one chunk of steps."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"LSAC_CACHE": f"{folder}/cache", "CUDA_CACHE_PATH": f"{folder}/cuda"}
        for kind in ("cold", "warm"):
            command = [*training(options, algorithm, seeds, Path(folder) / kind), "--log-every", 1]
            began, metrics = time.perf_counter(), Path(folder) / kind / "metrics.jsonl"
            with start(command, source, **cache) as started:
                while started.process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
                    time.sleep(0.01)
                found[f"first step, {algorithm}, {counted(seeds)}, {kind} cache: s"] = time.perf_counter() - began
                started.process.terminate()
                ended(started, allowed=(0, 75))
    return found


# Training runs


def training(options: Options, algorithm: str, seeds: int, out: Path) -> list[Any]:
    """A run that goes on for a while after the last step that counts: at its end it would wait for evaluations, and
    leave out a refresh."""
    o, every = options, max(1, options.steps // 30)
    command = ["-m", "lsac", "train", algorithm, "--env", o.env, "--preset", o.preset, "--seeds", seeds, "--out", out]
    command += ["--steps", o.steps + every, "--log-every", every, "--eval-every", o.steps // 3]
    return [*command, "--learning-starts", min(5_000, o.steps // 6), "--checkpoint-every", 0]


class Speed(NamedTuple):
    steps_per_second: float  # of all seeds together
    refreshes: float  # their share of the time


def trained(options: Options, algorithm: str, seeds: int, source: Path, *more: Any) -> Speed:
    with tempfile.TemporaryDirectory() as folder:
        call([*training(options, algorithm, seeds, Path(folder) / "run"), *more], source)
        return rate(Path(folder) / "run", options.steps)


def rate(run: Path, steps: int) -> Speed:
    """From the line of metrics at a third of the steps to the one at `steps`: compiled, learning and warm. With LSAC,
    which refreshes every 10 000 steps, multiples of 30 000 have their share of refreshes in between."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seeds = len({line["seed"] for line in lines})
    mine = [line for line in lines if line["seed"] == lines[0]["seed"]]
    learning = [line for line in mine if line.get("train/n_updates")]  # not those of evaluations, which run beside
    timed = [line for line in learning if line["step"] >= steps // 3]
    if not timed:
        raise SystemExit(f"--steps {steps}: too few to learn from.")
    begin, end = timed[0], next(line for line in timed if line["step"] >= steps)
    seconds = end["seconds"] - begin["seconds"]
    between = [line for line in timed if begin["step"] < line["step"] <= end["step"]]
    refreshes = sum(line.get("time/refresh_seconds", 0.0) for line in between)
    return Speed(seeds * (end["step"] - begin["step"]) / seconds, refreshes / seconds)


@contextlib.contextmanager
def start(command: list[Any], source: Path, **variables: str) -> Iterator[Started]:
    paths = [str(source), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:  # MuJoCo logs where it runs
        words = [sys.executable, *map(str, command)]
        process = subprocess.Popen(words, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Started(process, output)
        finally:
            process.kill()
            process.wait()


def ended(started: Started, allowed: tuple[int, ...] = (0,)) -> str:
    """Waits for a process; returns what it printed, or ends with it if the process failed."""
    code = started.process.wait()
    started.output.seek(0)
    output = started.output.read()
    if code not in allowed:
        raise SystemExit(f"{output[-3000:]}\n{started.process.args}\nfailed with exit code {code}.")
    return output


def call(command: list[Any], source: Path) -> str:
    with start(command, source) as started:
        return ended(started)


# The table


def compare(measure: Callable[[Path], Numbers], sources: tuple[Path, Path], rounds: int) -> None:
    """Prints a row for every number of a measurement."""
    found = [[measure(source) for source in sources] for _ in range(rounds)]
    for name in found[0][0]:
        pairs = [(old[name], new[name]) for old, new in found if name in old and name in new]
        old, new = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(new / old for old, new in pairs)
        print(f"| {name} | {old:,.4g} | {new:,.4g} | {ratio:.2f} |", flush=True)


def counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def measurements(given: argparse.Namespace, options: Options) -> Iterator[Callable[[Path], Numbers]]:
    for row in given.rows:
        if row == "regime":
            yield partial(regime, options)
            continue
        for algorithm in given.algorithms:
            if row == "many":
                yield partial(many, options, algorithm)
            else:
                measure = {"update": update, "loop": loop, "compile": first_step}[row]
                for seeds in given.seeds:
                    yield partial(measure, options, algorithm, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of this checkout beside that of an older commit.")
    parser.add_argument("--old", metavar="COMMIT", help="the older commit, of this repository")
    parser.add_argument("--old-src", type=Path, help="its folder src, where there is no git")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what to measure")
    parser.add_argument("--algorithms", nargs="+", default=["lsac", "sac"], help="of all rows but regime")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10], help="of update, loop and compile")
    parser.add_argument("--env", default="HalfCheetah-v4", help="a Gymnasium id")
    parser.add_argument("--preset", default="default", help="settings of the algorithms")
    parser.add_argument("--steps", type=int, default=30_000, help="steps of a run, of which the last two thirds count")
    parser.add_argument("--chunk", type=int, default=40, help="chunk of the row regime")
    parser.add_argument("--rounds", type=int, default=3, help="how often old and new take turns")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(time_updates(*given.child))
        return
    if (given.old is None) == (given.old_src is None):
        parser.error("name either --old COMMIT or --old-src FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        old = given.old_src.absolute() if given.old_src else checked_out(given.old, Path(folder))
        for source in (old, ROOT / "src"):
            program = "import jax, lsac; print(lsac.__file__, jax.devices()[0].device_kind, sep='\\n')"
            used, device = call(["-c", program], source).splitlines()[-2:]
            if not Path(used).is_relative_to(source):
                raise SystemExit(f"{source} holds no lsac: {used} would be measured.")
        print(f"`python benchmarks/speed.py {' '.join(sys.argv[1:])}`, {device}, {os.cpu_count()} cores\n")
        print("| | old | new | new / old |\n|---|---|---|---|", flush=True)
        options = Options(given.env, given.preset, given.steps, given.chunk)
        for measure in measurements(given, options):
            compare(measure, (old, ROOT / "src"), given.rounds)


def checked_out(commit: str, folder: Path) -> Path:
    """The folder `src` of a commit, unpacked."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE)
    if archive.returncode:
        raise SystemExit(f"--old {commit}: git cannot read this commit.")
    subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return folder / "src"


if __name__ == "__main__":
    main()
