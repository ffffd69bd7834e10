"""The command line in a process that ends with the one that started it: python -m lsac.sweeps.guarded train sac …

The standard input is a pipe whose other end only the parent holds. When the parent ends, also by `kill -9`, the pipe
does, and this process ends at once: the next one to train in the folder does not have to wait for it. A run that is
killed continues from its newest checkpoint.
"""

import os
import runpy
import signal
import threading


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("lsac", run_name="__main__", alter_sys=True)
