"""Makes small errors in the source of LSAC, one at a time, and counts which of them the tests notice.

    python benchmarks/mutants.py --list                            # all mutants, of all files
    python benchmarks/mutants.py --sample 100 --seed 0 --jobs 2    # a hundred of them
    python benchmarks/mutants.py --only src/lsac/nn/langevin.py    # all of one file
    python benchmarks/mutants.py --only src/lsac/agents/sac.py --tests tests/test_sac.py

A mutant is killed if a test fails, or if the tests take far longer than without it. One that survives is compared with
the original: if it changes a number of `mutant_numbers.py`, a test is missing; if it changes none, it may be the same
program, and does not count. Numbers that are only pinned as they once were (tests/golden.json) kill nothing here, but
the table says whether they would have. The kinds of errors are in `mutant_kinds.py`.
"""

import argparse
import contextlib
import csv
import ctypes
import importlib
import importlib.util
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from mutant_kinds import Mutant, fields_of, mutants_of

ROOT = Path(__file__).absolute().parents[1]
OF_LSAC = ("test_lsac_update.py", "test_lsac.py", "test_lsac_strong.py", "test_agents.py[lsac]")
TESTS = {
    "src/lsac/agents/lsac/agent.py": OF_LSAC,
    "src/lsac/agents/lsac/batches.py": OF_LSAC,
    "src/lsac/agents/lsac/refreshing.py": OF_LSAC,
    "src/lsac/agents/lsac/chains.py": OF_LSAC,
    "src/lsac/agents/lsac/critics.py": OF_LSAC,
    "src/lsac/agents/lsac/acting.py": (*OF_LSAC, "test_actors.py"),
    "src/lsac/agents/lsac/embedding.py": OF_LSAC,
    "src/lsac/agents/lsac/state.py": OF_LSAC,
    "src/lsac/agents/lsac/synthesis.py": (
        *("test_presets.py", "test_synthesis.py", "test_lsac.py", "test_agents.py[lsac]"),
    ),
    "src/lsac/nn/langevin.py": ("test_langevin.py", "test_lsac_update.py", "test_lsac.py"),
    "src/lsac/nn/diffusion.py": ("test_diffusion.py", "test_synthesis.py", "test_dipo.py", "test_qsm.py"),
    "src/lsac/nn/spheres.py": ("test_spheres.py", "test_lsac_strong.py"),
    "src/lsac/nn/batch_norm.py": ("test_batch_norm.py", "test_lsac_strong.py"),
}
"""What is mutated, and the files of tests that are run, the most specific first. Brackets hold a parameter: of that
file only the tests are run that have it. A file that is not there is left out."""
ALGORITHMS = {"src/lsac/nn/diffusion.py": ("lsac", "dipo", "qsm")}
"""Whose golden numbers a file can change, if not LSAC's alone."""
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_max_isa=AVX2 --xla_cpu_multi_thread_eigen=false",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
"""Those of tests/golden.py, which compile quickly and give the same bits in every process; everything is cached."""
WARM = ("jax", "jax.numpy", "optax", "equinox", "scipy.stats", "scipy.special", "gymnasium", "tyro", "rich", "pytest")
"""Imported once, before a process is forked for every mutant. They start neither threads nor a device."""
MARKS = "not learning and not slow and not computing"
PATIENCE = 3.0
"""A mutant is stopped after this many times the seconds that its tests take without it, and one minute."""
MEMORY = 16 * 2**30
"""Bytes of address space of a mutant, which may ask for more than the machine has."""
PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when its parent ends."""
NOTICEABLE = 1e-4
"""Relative difference of a number above which a mutant is more than another rounding."""
COLUMNS = ("mutant", "before", "after", "outcome", "by", "how", "golden", "seconds")


class Target(NamedTuple):
    """A file to mutate, the module that it is, its tests, and the algorithms whose golden numbers it can change."""

    path: Path
    module: str
    tests: tuple[str, ...]
    algorithms: tuple[str, ...]


class Outcome(NamedTuple):
    mutant: Mutant
    outcome: str
    """killed, timeout, survived, or no number changed"""
    by: str = ""
    """the test that failed"""
    how: str = ""
    """what it said; of a survivor, the numbers that differ most, and by how much of their size"""
    golden: str = ""
    """of a survivor, whether a golden number changed"""
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        return self.outcome != "no number changed"

    @property
    def noticed(self) -> bool:
        return self.outcome in ("killed", "timeout")

    def row(self) -> list[str]:
        mutant = self.mutant
        return [mutant.name, mutant.before, mutant.after, *self[1:5], f"{self.seconds:.1f}"]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def target_of(name: str, tests: list[str] | None) -> Target:
    path = (ROOT / name).resolve()
    roots = [Path(folder).resolve() for folder in sys.path if folder]
    root = next((folder for folder in roots if path.is_relative_to(folder) and folder != ROOT), None)
    if root is None or not path.is_file():
        raise SystemExit(f"{name}: no module that could be imported")
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    chosen = tests or [f"tests/{file}" for file in TESTS.get(shown(path), (f"test_{path.stem}.py",))]
    there = tuple(x for x in chosen if (ROOT / x.partition("[")[0]).is_file())
    if not there:
        raise SystemExit(f"{name}: none of its files of tests is there: {', '.join(chosen)}")
    algorithms = ALGORITHMS.get(shown(path), ("lsac",) if shown(path) in TESTS else ())
    return Target(path, module, there, algorithms)


# What a process does with one mutant


class Loader(SourceFileLoader):
    """Loads a module from other source than that of its file."""

    source = b""
    used = False

    def get_code(self, fullname: str) -> Any:
        self.used = True
        return compile(self.source, self.path, "exec")


class Finder:
    def __init__(self, target: Target, source: bytes):
        self.target, self.loader = target, Loader(target.module, str(target.path))
        self.loader.source = source

    def find_spec(self, name: str, path: Any = None, module: Any = None) -> ModuleSpec | None:
        if name != self.target.module:
            return None
        return importlib.util.spec_from_file_location(name, self.target.path, loader=self.loader)


class Recorder:
    """A plugin of pytest: runs the chosen tests in the given order, and keeps the first that fails."""

    def __init__(self, tests: tuple[str, ...]):
        parts = (name.partition("[") for name in tests)
        self.files = {Path(name).name: parameter.rstrip("]") for name, _, parameter in parts}
        self.by = self.how = ""
        self.passed = 0

    def sorted(self, items: list[Any]) -> None:
        chosen = [item for item in items if self.files[item.path.name] in item.name.partition("[")[2]]
        items[:] = sorted(chosen, key=lambda item: list(self.files).index(item.path.name))

    def pytest_collection_finish(self, session: Any) -> None:
        self.sorted(session.items)  # tests/conftest.py has sorted them in its own way

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.by:
            file, colons, test = report.nodeid.partition("::")
            self.by = f"{Path(file).name}{colons}{test}"
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else str(report.longrepr)).strip().splitlines() or [""]
            self.how = (lines[0] if crash else lines[-1])[:120]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.pytest_collectreport(report)
        self.passed += report.when == "call" and report.passed


def tested(target: Target, source: bytes, folder: Path) -> dict[str, Any]:
    """Runs the tests of a module with other source; the first test that fails, if any does."""
    import pytest

    finder, recorder = Finder(target, source), Recorder(target.tests)
    sys.meta_path.insert(0, finder)
    files = [str(ROOT / name.partition("[")[0]) for name in target.tests]
    words = ["-x", "-q", "-p", "no:cacheprovider", "-m", MARKS, f"--basetemp={folder / 'tmp'}"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # jaxtyping is a plugin, and imported already
    code = pytest.main([*words, *files], plugins=[recorder])
    if not finder.loader.used or code not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {code}, and the module was {'' if finder.loader.used else 'not '}loaded")
    return {"survived": code == 0, "by": recorder.by, "how": recorder.how, "passed": recorder.passed}


def programs(target: Target, source: bytes, module: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Functions that compute numbers with other source, by name."""
    import jax

    jax.config.update("jax_numpy_rank_promotion", "raise")  # as tests/conftest.py has it
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    sys.meta_path.insert(0, Finder(target, source))
    yield from importlib.import_module(module).programs(list(target.algorithms))


def result_of(program: Callable[[], Any]) -> list[Any] | str:
    """All arrays that it returns; an exception is a result as well."""
    import jax
    import numpy as np

    try:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(program())]
    except Exception as error:
        return repr(error)


def difference(one: list[Any] | str, other: list[Any] | str) -> float:
    """The largest relative difference: 0 if all bits are the same, infinite if more than numbers differ."""
    import numpy as np

    if isinstance(one, str) or isinstance(other, str) or len(one) != len(other):
        return float("inf")
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return float("inf")
        if a.tobytes() != b.tobytes():
            if a.dtype.kind != "f" or (np.isfinite(a) != np.isfinite(b)).any():
                return float("inf")
            wide = [np.nan_to_num(x.astype(float)) for x in (a, b)]
            largest = max(largest, float(np.max(np.abs(wide[0] - wide[1])) / np.max(np.abs(wide))), 1e-30)
    return largest


def computed(target: Target, source: bytes, module: str, reference: Path, folder: Path) -> list[str]:
    """Saves all numbers; the names of programs that raise, or whose numbers differ when they are computed again."""
    found = {name: result_of(program) for name, program in programs(target, source, module)}
    raised = [f"{name}: {result}" for name, result in found.items() if isinstance(result, str)]
    if reference.is_file():
        earlier = pickle.loads(reference.read_bytes())
        return raised + [name for name, result in found.items() if difference(earlier[name], result)]
    reference.write_bytes(pickle.dumps(found))
    return raised


def compared(target: Target, source: bytes, module: str, reference: Path, folder: Path) -> dict[str, Any]:
    """Which numbers differ most from those of the original and by how much; golden numbers also apart."""
    expected, where, largest, golden = pickle.loads(reference.read_bytes()), "", 0.0, 0.0
    try:
        for name, program in programs(target, source, module):
            pinned = name.startswith("golden")
            if golden > NOTICEABLE or (largest > NOTICEABLE and not pinned):
                continue
            by = difference(expected[name], result_of(program))
            golden = max(golden, by) if pinned else golden
            if by > largest:
                where, largest = name, by
    except Exception as error:  # the module cannot even be imported
        return {"where": repr(error), "by": float("inf"), "golden": float("inf")}
    return {"where": where, "by": largest, "golden": golden}


# Processes

Work = Callable[[Path], Any]
"""the folder of the process → what JSON can hold"""


class Ended(NamedTuple):
    result: Any
    """None if there is none"""
    problem: str
    """why there is none: `timeout`, or the last words of the process"""
    seconds: float


class Child(NamedTuple):
    number: int
    pid: int
    folder: Path
    started: float
    limit: float

    def ended(self) -> Ended | None:
        """None while it runs; one that takes too long is stopped, with all that it started."""
        seconds = time.monotonic() - self.started
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and seconds < self.limit:
            return None
        self.stop()
        if not pid:
            os.waitpid(self.pid, 0)
            return Ended(None, "timeout", seconds)
        result = self.folder / "result.json"
        if status == 0 and result.is_file():
            return Ended(json.loads(result.read_text()), "", seconds)
        output = (self.folder / "output").read_text(errors="replace").strip()
        return Ended(None, f"status {status}: {output[-1000:]}", seconds)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def fork(number: int, work: Work, limit: float, folder: Path) -> Child:
    """A process that has all that this one has imported, and a group and an output of its own."""
    folder.mkdir(parents=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(number, pid, folder, time.monotonic(), limit)
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not even a kill of the parent leaves it behind
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (folder / "result.json").write_text(json.dumps(work(folder)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_all(works: list[tuple[Work, float]], jobs: int, root: Path) -> Iterator[tuple[int, Ended]]:
    """Runs each in a process of its own, for at most that many seconds; number and end of each, as they end."""
    waiting, children = list(enumerate(works))[::-1], []
    try:
        while waiting or children:
            while waiting and len(children) < jobs:
                number, (work, limit) = waiting.pop()
                children.append(fork(number, work, limit, Path(tempfile.mkdtemp(dir=root)) / "process"))
            time.sleep(0.02)
            for child in list(children):
                ended = child.ended()
                if ended:
                    children.remove(child)
                    shutil.rmtree(child.folder.parent, ignore_errors=True)
                    yield child.number, ended
    finally:
        for child in children:
            child.stop()


def alone(work: Work, root: Path) -> Ended:
    return next(run_all([(work, 3600.0)], 1, root))[1]


def uncached(work: Callable[..., Any], *args: Any) -> Any:
    """Reads compiled programs from the cache, but keeps those of a mutant out of it."""
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    return work(*args)


# The run

Pair = tuple[Target, Mutant]


def control(target: Target, root: Path) -> float:
    """Seconds of the tests without a mutant; they must pass. Compiled programs are in the cache afterwards."""
    ended = alone(partial(tested, target, target.path.read_bytes()), root)
    if not ended.result or not ended.result["survived"] or not ended.result["passed"]:
        raise SystemExit(f"{shown(target.path)}: tests fail without any mutant: {ended.result or ended.problem}")
    print(f"{shown(target.path)}: {ended.result['passed']} tests pass in {ended.seconds:.0f} s", flush=True)
    return ended.seconds


def reference_of(target: Target, numbers: str, root: Path) -> Path:
    """The file of the original's numbers, which must be the same when they are computed again."""
    path = root / f"numbers {' '.join(target.algorithms)}"
    for _ in range(0 if path.is_file() else 2):
        ended = alone(partial(computed, target, target.path.read_bytes(), numbers, path), root)
        if ended.problem or ended.result:
            raise SystemExit(f"numbers without any mutant raise or differ: {ended.result or ended.problem}")
    return path


class Progress:
    def __init__(self, total: int):
        self.total, self.count, self.begun = total, 0, time.monotonic()

    def shown(self, outcome: Outcome) -> Outcome:
        self.count += 1
        each = (time.monotonic() - self.begun) / self.count
        left = each * (self.total - self.count) / 60
        state = f"{self.count}/{self.total}, {each:.1f} s each, {left:.0f} min left"
        print(f"[{state}] {outcome.mutant}: {outcome.outcome} {outcome.by or outcome.how}".rstrip(), flush=True)
        return outcome


def outcome_of_tests(mutant: Mutant, ended: Ended) -> Outcome:
    """A mutant that does not come to an end is noticed; if its process broke down, nothing is known of it."""
    if ended.result is None:
        return Outcome(
            mutant, "timeout" if ended.problem == "timeout" else "error", "", ended.problem, "", ended.seconds
        )
    found = ended.result
    return Outcome(mutant, "survived" if found["survived"] else "killed", found["by"], found["how"], "", ended.seconds)


def outcome_of_numbers(mutant: Mutant, ended: Ended) -> Outcome:
    """Of a mutant that survived the tests."""
    found = ended.result or {"where": ended.problem, "by": float("inf"), "golden": float("inf")}
    if not found["by"]:
        return Outcome(mutant, "no number changed", golden="no")
    much = "different" if found["by"] == float("inf") else f"{found['by']:.0e}"
    golden = "yes" if found["golden"] > 1e-6 else "no"  # the tolerance of tests/test_golden.py
    return Outcome(mutant, "survived", "", f"{found['where']}: {much}", golden)


def test_all(pairs: list[Pair], jobs: int, root: Path) -> Iterator[Outcome]:
    """What the tests say of each mutant."""
    limits = {target: 60.0 + PATIENCE * control(target, root) for target in dict.fromkeys(t for t, _ in pairs)}
    progress, works = Progress(len(pairs)), []
    for target, mutant in pairs:
        source = mutant.source(target.path.read_bytes())
        works.append((partial(uncached, tested, target, source), limits[target]))
    for number, ended in run_all(works, jobs, root):
        yield progress.shown(outcome_of_tests(pairs[number][1], ended))


def compare_all(pairs: list[Pair], numbers: str, jobs: int, root: Path) -> Iterator[Outcome]:
    """Whether mutants that no test noticed change a number."""
    references = {target: reference_of(target, numbers, root) for target in dict.fromkeys(t for t, _ in pairs)}
    progress, works = Progress(len(pairs)), []
    for target, mutant in pairs:
        source = mutant.source(target.path.read_bytes())
        works.append((partial(uncached, compared, target, source, numbers, references[target]), 1800.0))
    for number, ended in run_all(works, jobs, root):
        yield progress.shown(outcome_of_numbers(pairs[number][1], ended))


class Table:
    """The outcomes by the names of the mutants, and a file of them that is complete at any time."""

    def __init__(self, path: Path | None, mutants: list[Mutant], resume: bool):
        self.path = path
        self.outcomes: dict[str, Outcome] = {}
        if path and resume and path.is_file():
            with path.open() as file:
                rows = {tuple(row[name] for name in COLUMNS[:3]): row for row in csv.DictReader(file)}
            for mutant in mutants:
                row = rows.get((mutant.name, mutant.before, mutant.after))
                if row:
                    found = [row[name] for name in COLUMNS[3:7]]
                    self.outcomes[mutant.name] = Outcome(mutant, *found, seconds=float(row["seconds"]))

    def has(self, mutant: Mutant) -> bool:
        return mutant.name in self.outcomes

    def survived(self, mutant: Mutant) -> bool:
        """The tests, and was not compared yet."""
        outcome = self.outcomes[mutant.name]
        return outcome.outcome == "survived" and not outcome.how

    def keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.mutant.name] = outcome
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_suffix(".new")
            with written.open("w", newline="") as file:
                rows = (x.row() for x in self.outcomes.values())
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
            written.replace(self.path)


def run(pairs: list[Pair], numbers: str, jobs: int, table: Table, root: Path) -> list[Outcome]:
    """First the tests, then the numbers of survivors; what the table has is not repeated."""
    for outcome in test_all([pair for pair in pairs if not table.has(pair[1])], jobs, root):
        table.keep(outcome)
    for outcome in compare_all([pair for pair in pairs if table.survived(pair[1])], numbers, jobs, root):
        table.keep(outcome._replace(seconds=table.outcomes[outcome.mutant.name].seconds))
    return [table.outcomes[mutant.name] for _, mutant in pairs]


def score(outcomes: list[Outcome]) -> tuple[int, int]:
    """How many mutants were noticed, and how many count."""
    return sum(x.noticed for x in outcomes), sum(x.counts for x in outcomes)


def summary(outcomes: list[Outcome], totals: dict[str, int]) -> str:
    """A table of files and a list of survivors, in Markdown."""
    lines = ["| file | mutants | tried | noticed | survived | no number changed |", "|---|---|---|---|---|---|"]
    for path, total in totals.items():
        own = [x for x in outcomes if x.mutant.path == path]
        noticed, counted = score(own)
        lines.append(f"| {path} | {total} | {len(own)} | {noticed} | {counted - noticed} | {len(own) - counted} |")
    noticed, counted = score(outcomes)
    share = f"{noticed / counted:.1%}" if counted else "none"
    lines += ["", f"Noticed: {noticed} of {counted} that change a number, {share}."]
    for word in ("survived", "no number changed"):
        some = [x for x in outcomes if x.outcome == word]
        lines += ["", f"{word}: {len(some)}", ""]
        lines += [f"- `{x.mutant}` {x.how}{'; golden numbers change' * (x.golden == 'yes')}".rstrip() for x in some]
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Makes small errors in the source, and counts those that tests notice."
    )
    parser.add_argument("--only", nargs="+", default=list(TESTS), metavar="FILE", help="files to mutate")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="files of tests, instead of those for each file")
    parser.add_argument("--numbers", default="mutant_numbers", metavar="MODULE", help="what survivors must not change")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--list", action="store_true", help="print the mutants, and test none")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at the same time")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write mutants.csv and summary.md")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes that are in mutants.csv already")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/lsac/mutants", help="compiled programs")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    targets = [target_of(name, args.tests) for name in args.only]
    fields = fields_of([*(ROOT / "src").rglob("*.py"), *(target.path for target in targets)])
    pairs = [(target, m) for target in targets for m in mutants_of(target.path, shown(target.path), fields)]
    totals = {shown(t.path): sum(target is t for target, _ in pairs) for t in targets}
    table = Table(args.out and args.out / "mutants.csv", [mutant for _, mutant in pairs], args.resume)
    if args.sample is not None and args.sample < len(pairs):
        chosen = random.Random(args.seed).sample(range(len(pairs)), args.sample)
        pairs = [pairs[i] for i in sorted(chosen)]
    if args.list:
        print(*(mutant for _, mutant in pairs), sep="\n")
        return
    cache = {"JAX_COMPILATION_CACHE_DIR": str(args.cache), "LSAC_CACHE": str(args.cache)}
    os.environ.update(SETTINGS | cache | {"PYTHONPATH": os.pathsep.join(sys.path)})
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as root:
        outcomes = run(pairs, args.numbers, max(args.jobs, 1), table, Path(root))
    text = summary(outcomes, totals)
    if args.out:
        (args.out / "summary.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
