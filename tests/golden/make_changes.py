"""Write a golden store with incremental checkpoints.

    python -m tests.golden.make_changes tests/golden/changes_v2

With the argument ``lists`` each state has its file list in a separate document. Existing goldens
are never rewritten.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

from statestore import ParquetOptions, StateStore
from statestore.snapshot.state_spec import Changes

__all__ = ["STATES"]

STATES: dict[int, dict[tuple[str, str | None], int]] = {
    1: {(f"u{i}", m): i for i in range(6) for m in ("x", None)},
}
"""The content of each checkpoint: value by user and map key."""
STATES[2] = {k: v for k, v in STATES[1].items() if k[0] != "u1"} | {("u2", "x"): 20}
STATES[3] = {k: v for k, v in STATES[2].items() if k != ("u3", None) and k[0] != "u0"} | {
    ("u0", "new"): 1
}
STATES[4] = STATES[3]


def rows(state: dict[tuple[str, str | None], int]) -> list[dict[str, Any]]:
    """Return a state as rows."""
    return [{"user": user, "m": m, "n": n} for (user, m), n in state.items()]


def main() -> None:
    """Write a base, two checkpoints of changes, and one in which some of them are folded."""
    with patch("socket.gethostname", return_value="golden"):
        parquet = ParquetOptions(list_bytes=1) if "lists" in sys.argv else None
        store = StateStore.open(
            sys.argv[1], table_format="parquet", compaction=None, parquet=parquet
        )
        told: dict[str, Any] = {"key": "user", "entry": "m"}
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(
                "golden",
                "n",
                rows(STATES[1]),
                kind="map",
                **told,
                max_parallelism=4,
                layout="partitioned",
            )
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes(
                "golden", "n", Changes(rows({("u2", "x"): 20}), [{"user": "u1"}])
            )
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes(
                "golden",
                "n",
                Changes(
                    rows({("u0", "new"): 1}), [{"user": "u3", "m": None}], cleared=[{"user": "u0"}]
                ),
            )
        store.maintenance.compact(everything=True, key_groups="1")


if __name__ == "__main__":
    main()
