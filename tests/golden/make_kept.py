"""Write a golden store with ranged files, subtasks and a savepoint.

    python -m tests.golden.make_kept tests/golden/kept_v1

Existing goldens are never rewritten.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from statestore import KeyGroupAssignment, StateStore, key_group_of
from tests.golden.make_store import totals


def evolved() -> pa.Table:
    """Return the rows of the second checkpoint, in which one column was dropped and one
    was added.
    """
    rows = totals().drop_columns(["day"])
    return rows.append_column("note", pa.array(["x", None, "", "y", None]))


def write(store: StateStore, rows: pa.Table, **told: Any) -> None:
    """Take one checkpoint, whose two subtasks write their own rows."""
    owners = KeyGroupAssignment(max_parallelism=4, parallelism=2)
    users = rows.column("user").to_pylist()
    own = [owners.subtask_of(key_group_of(user, max_parallelism=4)) for user in users]
    with store.snapshot(parallelism=2) as checkpoint:
        writer = checkpoint.declare_keyed(
            "golden",
            "totals",
            rows.schema,
            key="user",
            max_parallelism=4,
            layout="ranged",
            **told,
        )
        for i in range(2):
            part = rows.filter(pa.array([subtask == i for subtask in own]))
            checkpoint.acknowledge(writer.subtask(i).write(part))


def main() -> None:
    """Write two checkpoints, the first with a savepoint."""
    with patch("socket.gethostname", return_value="golden"):
        store = StateStore.open(sys.argv[1], table_format="parquet")
        write(store, totals())
        store.maintenance.savepoint("before upgrade")
        write(store, evolved(), dropped="day")


if __name__ == "__main__":
    main()
