"""Write a golden store.

    python -m tests.golden.make_store tests/golden/store_v1

It is run once per release that changes the format, into a new folder. Existing goldens are never
rewritten.
"""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from statestore import StateStore

USERS = ["ann", "bob", "zoë", "", "状态"]
DAY = dt.date(2026, 11, 21)


def totals() -> pa.Table:
    """Return a value state with every simple type, nulls and a nested column."""
    nested: list[dict[str, Any] | None] = [
        {"tags": ["a", "b"], "seen": {"DE": 1}},
        None,
        {"tags": [], "seen": {}},
        None,
        None,
    ]
    kind = pa.struct([("tags", pa.list_(pa.string())), ("seen", pa.map_(pa.string(), pa.int64()))])
    return pa.table(
        {
            "user": USERS,
            "count": pa.array([1, 2, None, -4, 5], pa.int64()),
            "share": pa.array([0.5, -0.0, float("inf"), None, 1e-300], pa.float64()),
            "amount": pa.array([Decimal("1.25"), None, Decimal("-3.50"), Decimal(0), None]).cast(
                pa.decimal128(10, 2)
            ),
            "day": pa.array([DAY, None, DAY, None, DAY], pa.date32()),
            "at": pa.array([0, 1, None, -1, 10**15], pa.timestamp("us", "UTC")),
            "nested": pa.array(nested, kind),
        }
    )


def write(store: StateStore) -> None:
    """Take one checkpoint with a state of every kind."""
    options: dict[str, Any] = {"key": "user", "max_parallelism": 4}
    rows = [{"user": user, "n": n} for user in USERS for n in range(2)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("golden", "totals", totals(), **options)
        checkpoint.write_keyed("golden", "by number", rows, kind="map", entry="n", **options)
        checkpoint.write_keyed("golden", "list", rows, kind="list", entry="n", **options)
        checkpoint.write_keyed(
            "golden", "timers", rows, kind="timers", entry="n", time_domain="event", **options
        )
        checkpoint.write_union("source", "offsets", [[{"partition": 0, "offset": 7}], []])
        checkpoint.write_split(
            "source", "splits", [[{"split": "a"}, {"split": "b"}], [{"split": "c"}]]
        )
        checkpoint.write_broadcast("source", "rules", [{"rule": "x > 1"}])


def main() -> None:
    """Write two checkpoints of the same states: one imported from plain Parquet, and one written
    directly.
    """
    directory = sys.argv[1]
    with patch("socket.gethostname", return_value="golden"), TemporaryDirectory() as folder:
        plain = StateStore.open(folder, table_format="parquet")
        write(plain)
        plain.maintenance.copy("latest", StateStore.open(directory, table_format="delta"))
        write(StateStore.open(directory))


if __name__ == "__main__":
    main()
