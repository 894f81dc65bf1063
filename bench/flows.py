"""Count the modules of the package that a flow uses: ``python -m bench.flows``.

A module counts if one of its functions runs between the first and the last call of a flow, in this
thread or in threads that the flow starts. Code that runs only on import does not count.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from statestore.store import StateStore

__all__ = ["FLOWS", "main", "modules_of"]

ROWS = pa.table({"k": [f"k{i}" for i in range(500)], "v": list(range(500))})
OFFSETS = [[{"topic": "t", "partition": p, "offset": 10 * p}] for p in range(4)]


def modules_of(flow: Callable[[], object]) -> list[str]:
    """Return the modules of the package in which a function ran, sorted by name."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_globals.get("__name__", ""))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        flow()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(name for name in seen if name.partition(".")[0] == "statestore")


def snapshot(store: StateStore) -> None:
    """Store a table as keyed state, partitioned by key group."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=16, layout="ranged")


def restore(store: StateStore) -> None:
    """Read the rows of one subtask at another parallelism."""
    store.restore(parallelism=3).keyed("u", "n").to_batches(1)


def change(store: StateStore) -> None:
    """Change some rows; the layers are folded into the base in the background."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_changes("u", "n", ROWS.slice(0, 400), key="k")


def element(store: StateStore) -> None:
    """Write an operator's elements and redistribute them to other subtasks."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.carry_rest()
        checkpoint.write_split("source", "offsets", OFFSETS)
    store.restore(parallelism=3).operator_state("source", "offsets").subtask(1)


FLOWS = {"snapshot": snapshot, "restore": restore, "change": change, "operator element": element}


def main() -> None:
    """Print the number of modules of each flow, and their names."""
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(str(Path(folder, "store")), table_format="parquet")
        snapshot(store)  # one-time initialization is not part of any flow
        restore(store)
        for name, flow in FLOWS.items():
            found = modules_of(lambda flow=flow: flow(store))  # type: ignore[misc]
            print(f"{name}: {len(found)} modules")
            print(*(f"  {module}" for module in found), sep="\n")


if __name__ == "__main__":
    main()
