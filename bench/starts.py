"""The start of a program: an import, the help of the command, and a list of many checkpoints.

Each runs in a new process with compiled modules, as an installation has them. The value is the
processor time, which depends less on other load than the elapsed time. A process that imports
nothing is Python's own share of it. The listed checkpoints are full ones, and increments with up to
a hundred layers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from bench.measure import Figure, sample
from statestore import StateStore

CHECKPOINTS = 1_000
ROWS, CHANGES = 100_000, 1_000
COMMAND = "import sys; from statestore.cli.main import main; sys.exit(main(sys.argv[1:]))"


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the processor seconds of each start; ``rows`` is the number of checkpoints."""
    full, changed = folder / "full", folder / "changed"
    _make(full, rows, is_incremental=False)
    _make(changed, rows, is_incremental=True)
    listed = f"statestore list, {rows:,}"
    starts = {
        "Python alone": (["pass"], None),
        "import statestore": (["import statestore"], 0.04),
        "statestore --help": ([COMMAND, "--help"], 0.15),
        f"{listed} full checkpoints": ([COMMAND, "list", "--store", str(full)], 0.3),
        f"{listed} checkpoints of changes": ([COMMAND, "list", "--store", str(changed)], 0.3),
    }
    seconds: dict[str, list[float]] = {what: [] for what in starts}
    for repeat in range(repeats + 1):
        for what, (arguments, _) in starts.items():
            spent = _processor_seconds([sys.executable, "-c", *arguments], folder / "compiled")
            if repeat:  # the first one compiles the modules
                seconds[what].append(spent)
    return [
        sample("B22", f"{what}, processor time", seconds[what], goal=goal)
        for what, (_, goal) in starts.items()
    ]


def _make(folder: Path, checkpoints: int, *, is_incremental: bool) -> None:
    store = StateStore.open(str(folder), table_format="parquet", layout="auto")
    keys = range(ROWS if is_incremental else CHANGES)
    table = pa.table({"k": keys, "n": keys})
    for number in range(checkpoints):
        with store.snapshot(parallelism=4) as taken:
            if is_incremental and number:
                first = number * CHANGES % ROWS
                taken.write_changes("u", "s", table.slice(first, CHANGES))
            else:
                taken.write_keyed("u", "s", table, key="k", max_parallelism=128)


def _processor_seconds(command: list[str], compiled: Path) -> float:
    """Run a program and return its processor time; its compiled modules are in a folder."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(compiled)}
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise RuntimeError(f"{command} ended with exit {started.returncode}")
    return used.ru_utime + used.ru_stime
