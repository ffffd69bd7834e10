"""The command line as a shell sees it: arguments go in; an exit code, output and errors come out."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lsac import cli

TINY = (
    *("--hidden", "16", "--batch-size", "32", "--chunk", "8", "--replay-capacity", "64"),
    *("--learning-starts", "16", "--eval-every", "0", "--workers", "1"),
)
"""The smallest run that learns. Runs of equal sizes share one compiled program, so tests should not vary these."""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What a person reads after an error: exactly one line, and no traceback anywhere."""
        assert "Traceback" not in self.err + self.out, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("lsac: ")]
        assert len(lines) == 1, f"expected one line that starts with 'lsac: ', got {self.err!r}"
        return lines[0]


def lsac(*args: object) -> Result:
    """Runs a command in this process, which saves the seconds that a new one takes to start."""
    before = sys.argv
    sys.argv = ["lsac", *map(str, args)]
    code = None
    printed: list[str] = []
    try:
        with _captured(printed):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    assert isinstance(code, int), f"exit code {code!r}"
    return Result(code, *printed)


def start(*args: object, **options: Any) -> subprocess.Popen[str]:
    """Starts a command in a process of its own."""
    command = [sys.executable, "-m", "lsac", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process: subprocess.Popen[str], timeout: float = 240) -> Result:
    out, err = process.communicate(timeout=timeout)
    return Result(process.returncode, out, err)


@contextlib.contextmanager
def _captured(printed: list[str]) -> Iterator[None]:
    """Fills the list with what this process and its children print to standard output and to standard error."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        kept = [os.dup(1), os.dup(2)]
        try:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                yield
        finally:
            for number, old in enumerate(kept, start=1):
                os.dup2(old, number)
                os.close(old)
            for file in (out, err):
                file.flush()
                file.seek(0)
                printed.append(file.read())


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
