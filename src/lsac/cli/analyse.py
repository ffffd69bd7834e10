"""The command `analyse`."""

import difflib
import shlex
import sys

from lsac.cli.arguments import import_modules, parse
from lsac.errors import InputError

ANALYSE_HELP = """usage: lsac analyse NAME DIR [options]

Analyse a run: writes a table and a figure into its folder analysis/, which lsac report includes.

{names}

options of one: lsac analyse q-bias --help

Examples:
  lsac analyse stability runs/cheetah
  lsac analyse q-bias runs/cheetah --pairs 200
"""


def analyse(args: list[str]) -> int:
    from lsac.analyses import NAMES, find
    from lsac.analysis.outcome import write_outcome
    from lsac.analysis.text import encodable

    if not args or args[0].startswith("-"):
        width = max(map(len, NAMES))
        print(ANALYSE_HELP.format(names="\n".join(f"  {name:{width}}  {what}" for name, what in NAMES.items())), end="")
        return 0 if args[:1] in (["--help"], ["-h"]) else 2
    name, args = args[0], args[1:]
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"analyse {name}: must be one of {', '.join(NAMES)}{hint}")
    analysis = find(name)
    given = parse(analysis.Options, args, f"lsac analyse {name}", analysis.HELP)
    import_modules(getattr(given, "module", ()))
    outcome = analysis.analyse(given, lambda text: print(text, file=sys.stderr))
    paths = write_outcome(given.run, name, outcome, shlex.join(["lsac", "analyse", name, *args]))
    print(*(encodable(str(line)) for line in (*outcome.sentences, *paths)), sep="\n")
    return 0
