"""PySpark's daemon, with what it and its workers print in the file that ``NOTED`` names.

By itself that goes through the JVM, which may be gone before the last line is passed on.
"""

from __future__ import annotations

import os
import runpy

if __name__ == "__main__":
    noted = os.open(os.environ["NOTED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(noted, 2)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
