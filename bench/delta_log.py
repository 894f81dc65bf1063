"""The cost of a Delta table's history for the next checkpoint: thousands of versions of one table.

Each version has 128 new files. The files do not exist, because publishing opens no file. After
every hundred versions the log is collected, as ``gc`` does for a store that keeps the last ten
checkpoints.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from bench.measure import Figure, counted, times
from bench.plans import made_up_state
from statestore.delta.backend import DeltaTables
from statestore.delta.log_cleanup import unneeded_files
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry, TableRef
from statestore.format.names import keyed_table, partition_file
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupRange
from statestore.storage import LocalStorage

__all__ = ["figures"]

KEY_GROUPS, KEPT, COLLECTED_EACH, SAMPLE = 128, 10, 100, 500
MOST_OF_FIRST = 1.1
MOST_MEGABYTES = 8

_STATE = made_up_state("operator", "state", KEY_GROUPS, Layout.PARTITIONED)
_STATISTICS = json.dumps(
    {
        "numRecords": 500,
        "minValues": {"user": "user-000000001"},
        "maxValues": {"user": "user-004999999"},
        "nullCount": {"user": 0},
    }
)


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of a version among the first and the last ones, and the log's size.

    ``rows`` is the number of versions, which are not repeated.
    """
    storage = LocalStorage(str(folder))
    tables = DeltaTables(storage)
    seconds = []
    for number in range(1, rows + 1):
        entry = _entry(number)
        start = time.perf_counter()
        version = tables.publish(entry, number).version
        seconds.append(time.perf_counter() - start)
        if version is not None and number % COLLECTED_EACH == 0:
            log = storage.listed(f"{entry.table.path}/_delta_log")
            for item in unneeded_files(storage, log, {entry.table.path: version - KEPT}):
                storage.delete(item.name)
    sample = min(SAMPLE, rows // 3)
    # The very first versions include the warm-up of the process.
    what = f"publish {KEY_GROUPS} files"
    first, last = f"{what}, early", f"{what}, after {rows:,} versions"
    taken = {first: seconds[sample : 2 * sample], last: seconds[-sample:]}
    size = sum(item.size_bytes for item in storage.listed("")) / 1e6
    return [
        times("", first, taken),
        times("B20", last, taken, floor=first, goal=MOST_OF_FIRST),
        counted("B20", f"the log after {rows:,} versions", size, "MB", goal=MOST_MEGABYTES),
    ]


def _entry(number: int) -> KeyedEntry:
    table = TableRef("delta", keyed_table(_STATE.uid, _STATE.name))
    handles = tuple(_handle(number, key_group) for key_group in range(KEY_GROUPS))
    return KeyedEntry(_STATE, table, handles)


def _handle(number: int, key_group: int) -> KeyedStateHandle:
    return KeyedStateHandle(
        path=partition_file(number, key_group, f"{number:016x}"),
        key_groups=KeyGroupRange(key_group, key_group),
        rows=500,
        size_bytes=20_000,
        row_groups=1,
        digest=number,
        sha256=f"{number:064x}",
        statistics=_STATISTICS,
    )
