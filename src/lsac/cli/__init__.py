"""The command line. Each command is a function of its remaining arguments; errors are printed as one sentence."""

import os
import sys
import traceback
from collections.abc import Callable

from lsac.cli import analyse, policies, reporting, sweeping, tools, training, tuning
from lsac.envs.rendering import require_importable
from lsac.errors import LsacError
from lsac.train.stopping import abandoned_work

USAGE = """\
usage: lsac COMMAND ...

Train, compare and understand continuous-control agents.

  lsac train ALGO --env ID     train an agent, all seeds in one compiled program
  lsac resume DIR              continue a run that was stopped, or make it longer
  lsac sweep --suite NAME      train a list of experiments, or those of a Python file
  lsac tune ALGO --env ID      search for good options
  lsac eval DIR                run the trained policies and print their returns; film them
  lsac export DIR --out FILE   write a trained policy as ONNX
  lsac report DIR... --out DIR plot curves, compare, and write tables and a page
  lsac analyse NAME DIR        study a run: bias of values, densities, stability, …
  lsac doctor                  show versions, devices and simulation speed of this machine
  lsac bench [ALGO...]         time an update and its matrix products

Help on a command: lsac COMMAND --help
"""


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": training.train,
    "resume": training.resume,
    "sweep": sweeping.sweep,
    "tune": tuning.tune,
    "eval": policies.evaluate,
    "export": policies.export,
    "report": reporting.report,
    "analyse": analyse.analyse,
    "doctor": tools.doctor,
    "bench": tools.bench,
}


def main() -> None:
    import difflib

    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if args else 2)
    if args[0] == "--version":
        from lsac.version import __version__

        print(__version__)
        sys.exit(0)
    if args[0] not in COMMANDS:
        close = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        print(f"lsac: no command {args[0]}{hint} (see lsac --help)", file=sys.stderr)
        sys.exit(2)
    code = 1
    try:
        require_importable()
        code = COMMANDS[args[0]](args[1:])
    except LsacError as error:
        print(*filter(None, [error.detail, f"lsac: {error}"]), sep="\n", file=sys.stderr)
        code = error.exit_code
    except Exception:
        traceback.print_exc()
    if abandoned_work():  # at a normal exit Python would abort because of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
