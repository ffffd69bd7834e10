"""The command `report`."""

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from lsac.cli.arguments import parse
from lsac.errors import InputError

if TYPE_CHECKING:
    from lsac.analysis.figures import Look
    from lsac.analysis.load import Run
    from lsac.analysis.report import Going
    from lsac.analysis.sources import Loaded


@dataclasses.dataclass(frozen=True)
class Report:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs, and of sweeps with all their runs"""
    out: Path
    """folder for the page, the figures and the tables"""
    band: str = "t"
    """band around the curve over seeds: t (95 % t-interval of the mean), bootstrap (95 %), median (90 % bootstrap of
    the median, which is then the curve), std, minmax or none"""
    pool: bool = False
    """join runs that differ only in their seeds, or in their length, into one curve"""
    labels: tuple[str, ...] = ()
    """names of the curves, in the order of the runs; default: those of the sweep, or the algorithms, with folders where
    needed"""
    format: tuple[str, ...] = ("png", "svg")
    """formats of the figures: png, pdf, svg"""
    columns: int = 2
    """width of the learning curves, in columns of a paper: 1 (3.4 inches) or 2 (7 inches)"""
    smooth: tyro.conf.FlagCreatePairsOff[bool] = False
    """draw returns as the mean over a centred window of 11 points, 20 on DeepMind Control"""
    published: tyro.conf.FlagCreatePairsOff[bool] = False
    """draw the LSAC paper's returns and the best public curve beside the runs; the page can show them in any case"""
    references: Path | None = None
    """CSV file with the columns env, low and high: the returns that are the scores 0 and 1 across tasks"""
    watch: tyro.conf.FlagCreatePairsOff[bool] = False
    """renew the page while runs go on, until all have finished or Ctrl-C"""
    every: float = 30.0
    """seconds between two looks of --watch"""


REPORT_HELP = """Compare runs: one page that opens offline, figures, and tables.

Examples:
  lsac report runs/cheetah --out report
  lsac report runs/cheetah runs/hopper --labels new old --band std --out report
  lsac report runs/cheetah runs/hopper --format pdf svg --columns 1 --out report
  lsac report runs/cheetah runs/hopper --watch --every 10 --out report
"""


def report(args: list[str]) -> int:
    from lsac.analysis.figures import FORMATS, WIDTHS, Look
    from lsac.analysis.sources import load
    from lsac.analysis.stats import BANDS

    given = parse(Report, args, "lsac report", REPORT_HELP)
    if not given.runs:
        raise InputError("lsac report: name at least one folder of a run")
    _require_one_of("band", given.band, BANDS)
    _require_one_of("columns", given.columns, WIDTHS)
    for format in given.format or ("",):
        _require_one_of("format", format, FORMATS)
    if (given.out / "config.json").exists():
        raise InputError(f"--out {given.out}: is the folder of a run; choose another folder for the report")
    if not (math.isfinite(given.every) and given.every >= 0.1):
        raise InputError(f"--every {given.every:g}: must be at least 0.1 seconds")
    look = Look(given.band, given.columns, tuple(dict.fromkeys(given.format)), given.smooth, given.published)
    if given.watch:
        return _watch(given, look)
    _print(_write(given, look, load(given.runs, progress=_Progress())))
    return 0


def _write(given: Report, look: "Look", loaded: "Loaded", going: "Going | None" = None) -> list[Path]:
    from lsac.analysis.reference import references
    from lsac.analysis.report import write_report

    begun = _curves(given, loaded.begun)
    labels = _labels(given, loaded, begun)
    runs = _curves(given, loaded.runs) if loaded.waiting else begun
    known = references(given.references)
    try:
        return write_report(runs, [labels[run.path] for run in runs], given.out, look, known, going)
    except OSError as error:
        raise _unwritable(given, error) from None


def _curves(given: Report, runs: "list[Run]") -> "list[Run]":
    from lsac.analysis.load import pool

    return pool(runs) if given.pool else runs


def _labels(given: Report, loaded: "Loaded", curves: "list[Run]") -> dict[Path, str]:
    """The label of each run, also of those that are left out: it is the same when they have returns."""
    from lsac.analysis.names import check_labels, label
    from lsac.analysis.text import encodable

    of_sweeps = dict(zip((run.path for run in loaded.begun), loaded.labels, strict=True))
    if given.labels:
        labels = check_labels(curves, tuple(map(encodable, given.labels)))
    else:
        labels = label(curves, [of_sweeps[run.path] for run in curves]) if curves else []
    return {part.path: name for run, name in zip(curves, labels, strict=True) for part in run.parts}


def _watch(given: Report, look: "Look") -> int:
    """Renews the page whenever metrics have arrived; draws the figures at the end."""
    from lsac.analysis.sources import Loaded, load

    _check(given)
    page, seen, said, loaded = given.out / "index.html", None, "", Loaded([], [], [], 0)
    try:
        while True:
            try:
                state = _state(given)
                if state != seen:
                    loaded = load(given.runs, patient=True)
                    all = len(loaded.begun) + loaded.absent
                    going = sum(not run.finished for run in loaded.runs) + loaded.waiting
                    if not going:
                        break
                    if loaded.runs:
                        _write(given, look, loaded, _going(given, going, all))
                    seen = state
                    said = _say(f"{going} of {all} runs are going; {page}", said)
            except InputError as error:  # a line may be half written
                said = _say(f"{error}; not yet" if seen is None else f"{error}; the page stays as it is", said)
            time.sleep(given.every)
    except KeyboardInterrupt:
        with contextlib.suppress(InputError):
            loaded = load(given.runs, patient=True)
    if loaded.runs:
        _print(_write(given, look, loaded))
    return 0


def _check(given: Report) -> None:
    """Rejects what will not become right by waiting: folders, labels, references and where the report goes."""
    from lsac.analysis.reference import references
    from lsac.analysis.sources import load_begun

    loaded = load_begun(given.runs)
    _labels(given, loaded, _curves(given, loaded.begun))
    references(given.references)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(given, error) from None


def _unwritable(given: Report, error: OSError) -> InputError:
    return InputError(f"--out {given.out}: cannot be written ({error.strerror})")


def _state(given: Report) -> list[tuple[str, int, int]]:
    """Sizes and times of the metrics, which change when a line is added."""
    from lsac.analysis.sources import find

    files = [each.path / "metrics.jsonl" for each in find(given.runs)]
    found = [(file, file.stat()) for file in files if file.is_file()]
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found]


def _going(given: Report, going: int, all: int) -> "Going":
    from lsac.analysis.report import Going

    seconds = max(1, math.ceil(given.every))
    verb = "is" if going == 1 else "are"
    words = f"{going} of {all} {verb} still going: this page of {time.strftime('%H:%M:%S')} loads itself again every"
    return Going(seconds, f"{words} {seconds} s.")


def _say(text: str, before: str) -> str:
    """Prints a sentence unless it was the last one."""
    if text != before:
        _print([text])
    return text


def _print(lines: Iterable[object]) -> None:
    from lsac.analysis.text import encodable

    print(*(encodable(str(line)) for line in lines), sep="\n", flush=True)


class _Progress:
    """Says how many of many runs were read, every other second."""

    def __init__(self) -> None:
        self._began = self._said = 0.0

    def __call__(self, done: int, all: int) -> None:
        now = time.monotonic()
        if done == 1:  # the first one also waits for imports
            self._began = self._said = now
        if now - self._said < 2 or done == all:
            return
        self._said = now
        rate = (done - 1) / (now - self._began)
        print(f"read {done:,} of {all:,} runs, {rate:.0f}/s, {(all - done) / rate:.0f} s left", file=sys.stderr)


def _require_one_of(option: str, value: Any, right: Iterable[Any]) -> None:
    if value not in right:
        *others, last = map(str, right)
        raise InputError(f"{f'--{option} {value}'.strip()}: must be {', '.join(others)} or {last}")
