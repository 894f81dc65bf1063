"""Two small stores of each layout for damage tests, also in the form that older releases wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore import StateStore
from statestore.format.documents import document_bytes
from statestore.format.names import manifest_path
from statestore.format.state import Layout
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from statestore.streaming.progress import PROGRESS

__all__ = ["KEYS", "QUERY", "fill", "unseal"]

KEYS = 240
QUERY = "the query"


def fill(path: Path, layout: Layout) -> StateStore:
    """Take two checkpoints: a keyed state, a copy of it with changes, and operator states."""
    options = ParquetOptions(row_group_rows=16)
    store = StateStore.open(str(path), table_format="parquet", layout=layout, parquet=options)
    told: dict[str, Any] = {"key": "k", "max_parallelism": 4}
    splits = [
        [{"topic": "t", "partition": 2 * part + i, "offset": 7} for i in range(2)]
        for part in (0, 1)
    ]
    for number in (1, 2):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "whole", _rows(0, KEYS), **told)
            if number == 1:
                checkpoint.write_keyed("u", "changed", _rows(0, KEYS), **told)
            else:
                checkpoint.write_changes(
                    "u",
                    "changed",
                    Changes(_rows(KEYS // 2, KEYS + 9), pa.table({"k": ["k000", "k001"]})),
                    **told,
                )
            checkpoint.write_split("source", "splits", splits)
            checkpoint.write_union("source", "offsets", splits)
            checkpoint.write_broadcast("source", PROGRESS, [{"query": QUERY, "batch": number}])
    return store


def _rows(first: int, stop: int) -> pa.Table:
    numbers = range(first, stop)
    return pa.table(
        {
            "k": [f"k{number:03}" for number in numbers],
            "n": numbers,
            "x": [number / 7 for number in numbers],
            "v": [{"a": {"b": [number] * (number % 3)}} for number in numbers],
        }
    )


def unseal(store: StateStore, path: Path) -> StateStore:
    """Return a copy whose manifests have no checksums of footers."""
    shutil.copytree(store.url, path)
    for number in store.checkpoints():
        name = path / manifest_path(number)
        document = json.loads(name.read_text())
        del document["sha256"]
        _forget(document)
        name.write_bytes(document_bytes(document))
    return StateStore.open(str(path), table_format="parquet")


def _forget(node: Any) -> None:
    if isinstance(node, dict):
        for member in ("footer_bytes", "footer_sha256"):
            node.pop(member, None)
    for inner in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        _forget(inner)
