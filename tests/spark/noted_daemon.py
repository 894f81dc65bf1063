"""The daemon that ``DAEMON`` names; ``NOTED`` names the file for the daemon's and workers' output.

By default this output passes through the JVM, which may end before the last line is forwarded.
"""

from __future__ import annotations

import os
import runpy

if __name__ == "__main__":
    noted = os.open(os.environ["NOTED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(noted, 2)
    runpy.run_module(os.environ["DAEMON"], run_name="__main__", alter_sys=True)
