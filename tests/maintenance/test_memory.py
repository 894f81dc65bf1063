"""No operation holds a complete key group, column or state in memory.

All rows are in one key group, or in few that each are a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MEGABYTES = 120
"""The bytes of the only key group. An operation that holds it exceeds its bound."""
MOST_MEGABYTES = 150
"""The allowed growth after the first operation. It covers about 60 MB of memory that Python and
Arrow keep for later use, pieces and row groups, and 16 MiB for sorting.
"""
MORE_MEGABYTES = {
    **dict.fromkeys(("compact", "comparison", "rekey", "edit before compaction", "purge"), 215),
    **dict.fromkeys(("flink export", "flink export to more key groups", "edit by SQL"), 250),
    **dict.fromkeys(("flink import", "flink repack"), 190),
}
"""The bounds of operations that also hold the pieces of several streams, or DuckDB's buffers. With
the key group, each of them would need at least 120 MB more than its usual growth.
"""

OPERATIONS = {
    "snapshot": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_keyed("u", "s", batches(0, rows), key="k", max_parallelism=key_groups)""",
    "changes": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_changes("u", "s", batches(rows // 2, rows // 2 + rows))""",
    "restore": """
for _ in store.restore(parallelism=1).keyed("u", "s").to_batches(0):
    pass""",
    "get": """
state = store.restore(parallelism=1).keyed("u", "s")
assert [row["k"] for row in state.get(rows // 2)] == [rows // 2]""",
    "lookup": """
keys = pa.table({"k": range(0, rows, rows // 1000)})
assert store.restore(parallelism=1).keyed("u", "s").lookup(keys).num_rows >= 1000""",
    "lazy": """
lazy = store.restore(parallelism=1).keyed("u", "s").lazy(0, limit_bytes=2**24)
assert [row["k"] for row in lazy.get(rows // 2)] == [rows // 2]
assert (lazy.fetch(), lazy.fetched) == (0, ())""",
    "sql": """
rows_of = store.restore(parallelism=1).keyed("u", "s").to_batches(0)
assert sum(batch.num_rows for batch in rows_of) == rows + rows // 2""",
    "diff": """
[changed] = store.inspect.diff(1, 2).states
assert changed.added == rows // 2""",
    "verify": """assert store.maintenance.verify("all", deep=True).is_intact""",
    "copy": """store.maintenance.copy(2, folder + "-copied")""",
    "flink export": """export_savepoint(store, folder + "-savepoint", checkpoint=1)""",
    "flink import": """
imported = StateStore.open(folder + "-imported", table_format="parquet", parquet=parquet)
import_savepoint(folder + "-savepoint", imported)""",
    "flink repack": """
repack_savepoint(folder + "-savepoint", folder + "-repacked", max_parallelism=2)""",
    "flink export to more key groups": """
export_savepoint(store, folder + "-more", checkpoint=1, max_parallelism=2)""",
    "edit before compaction": """
put = [{"k": key, "v": "new"} for key in (1, 2 * rows)]
done = store.maintenance.edit("u", "s", delete=[0], put=put, checkpoint=2, dry_run=True)
assert done.rows_after == rows + rows // 2""",
    "compact": """store.maintenance.compact()""",
    "edit": """
put = [{"k": key, "v": "new"} for key in (1, 2 * rows)]
done = store.maintenance.edit("u", "s", delete=[0, -1], put=put)
assert (done.deleted, done.put, done.rows_after) == (1, 2, rows + rows // 2)""",
    "edit by SQL": """
sql = "SELECT k + 1 AS k, v FROM state"
store.maintenance.edit("u", "s", sql=sql, checkpoint=1, dry_run=True)""",
    "comparison": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_changes_against("u", "s", batches(rows // 4, rows))""",
    "purge": """
store.maintenance.expire(retain=1)
subject = OperatorKey("u", rows // 2)
assert store.maintenance.forget(subject, search=False).replaced""",
    "rekey": """
store.maintenance.rekey("u", "s", hash_scheme="flink-sql", checkpoint="latest")""",
    "salvage": """store.maintenance.salvage("latest")""",
}

ONE_OF_A_KIND = (
    *("snapshot", "changes", "get", "verify", "flink export", "compact", "edit"),
    "purge",
)
"""Write, merge, find, read, convert, fold, correct and rewrite rows, in each run."""

OF_SEVERAL_FILES = (*("snapshot", "changes", "diff", "verify", "compact", "comparison"), "purge")

SCRIPT = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import statestore.interop.flink.exporting.repack
import statestore.maintenance.edit_sql
from statestore import OperatorKey, ParquetOptions, StateStore
from statestore.interop.flink import export_savepoint, import_savepoint, repack_savepoint
from bench.memory import batches

def megabytes(what):
    text = Path("/proc/self/status").read_text()
    return dict(line.split(":", 1) for line in text.splitlines())[what].split()[0]

# Budgets that no setting lowers.
statestore.interop.flink.exporting.repack.MEMORY_BYTES = 2**24
statestore.maintenance.edit_sql._LEAST_SQL_BYTES = 2**26
folder, rows, key_groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[4])
parquet = ParquetOptions(memory_bytes=2**24, row_group_bytes=2**21)
store = StateStore.open(folder, table_format="parquet", compaction=None, parquet=parquet)
peaks, before = {}, int(megabytes("VmRSS"))
for name, operation in json.loads(sys.argv[3]).items():
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    exec(operation)
    peaks[name] = (int(megabytes("VmHWM")) - before) / 1024
print(json.dumps(peaks))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "key_groups"),
    [
        (ONE_OF_A_KIND, 1),
        ((*OPERATIONS,), 1),
        (OF_SEVERAL_FILES, 8),
    ],
)
def test_no_operation_holds_a_key_group(
    tmp_path: Path, names: tuple[str, ...], key_groups: int
) -> None:
    """Also not several of them, which are read at the same time or follow each other."""
    chosen = {name: OPERATIONS[name] for name in names}
    arguments = [str(tmp_path / "store"), str(MEGABYTES * 1000), json.dumps(chosen)]
    arguments.append(str(key_groups))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
    )
    peaks = json.loads(done.stdout.splitlines()[-1])
    most = {name: MORE_MEGABYTES.get(name, MOST_MEGABYTES) for name in names}
    assert {name: peak for name, peak in peaks.items() if peak > most[name]} == {}
