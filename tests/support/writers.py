"""Writers for the tests of fencing and retries: Arrow input, plain Parquet files, no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore import CheckpointWriter, StateStore
from statestore.catalog.fence import Claim, claim_from_json
from statestore.storage import LocalStorage

__all__ = ["ROWS", "claims", "stored_files", "take"]

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})


def take(store: StateStore, checkpoint_id: int | None = None, rows: Any = ROWS) -> CheckpointWriter:
    with store.snapshot(parallelism=2, checkpoint_id=checkpoint_id) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=4)
        checkpoint.carry_rest()
    return checkpoint


def stored_files(url: str) -> set[str]:
    return {path.name for path in Path(url, "operators").rglob("*.parquet")}


def claims(url: str) -> list[Claim]:
    storage = LocalStorage(url)
    return [
        claim_from_json(storage.read(name), name=name, generation=at)
        for at, name in enumerate(storage.list("writers"), 1)
    ]
