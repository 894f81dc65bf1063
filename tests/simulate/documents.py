"""Read a store without the product's code: only with JSON, SHA-256 and Parquet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq

__all__ = [
    *("OFFSETS", "TOTALS", "Checkpoint", "Others", "Rows", "checkpoint_of", "document_of"),
    *("others_of", "rows_of"),
]

Rows = dict[str, dict[str, Any]]
"""The rows by key of a keyed state."""

Others = dict[str, Any]
"""The contents of the states that only some jobs write, by name: rows by key, or elements."""
TOTALS, OFFSETS = "totals", "offsets"

SEAL = re.compile(rb'(.*),"sha256":"([0-9a-f]{64})"\}\n', re.DOTALL)
KEY, COUNT, MARK = "k", "n", "__deleted__"


@dataclass
class Checkpoint:
    """A manifest: its writer, its parent, and the files that it names, with length and hash."""

    number: int
    token: str
    writer: str
    generation: int
    origin: dict[str, Any]
    files: dict[str, tuple[int, str]]
    operators: list[dict[str, Any]]
    created_at_ms: int
    batches: dict[str, dict[str, int]]
    label: str | None
    rows: Rows | None = field(default=None)
    others: Others = field(default_factory=dict)


def document_of(data: bytes) -> dict[str, Any] | None:
    """Return a sealed document; None if any byte has changed."""
    match = SEAL.fullmatch(data)
    if match is None or hashlib.sha256(match[1]).hexdigest() != match[2].decode():
        return None
    document: dict[str, Any] = json.loads(match[1] + b"}")
    return document


def checkpoint_of(data: bytes, read: Callable[[str], bytes | None]) -> Checkpoint | None:
    """Return a manifest; None if it is damaged; ``read`` returns the bytes of its file lists."""
    document = document_of(data)
    if document is None:
        return None
    files: dict[str, tuple[int, str]] = {}
    for operator in document["operators"]:
        for state in operator["keyed"]:
            for part in (state, *(state.get("changes") or ())):
                _bring_in(part, read, files)
        for state in (*operator["keyed"], *operator["operator"]):
            files |= _files(state["table"]["path"], state["files"])
            for layer in state.get("changes") or ():
                files |= _files(layer["path"], layer["files"])
    return Checkpoint(
        number=document["checkpoint_id"],
        token=document["writer"]["token"],
        writer=document["writer"]["name"],
        generation=document["writer"].get("generation", 0),
        origin=document.get("origin") or {},
        files=files,
        operators=document["operators"],
        created_at_ms=document["created_at_ms"],
        batches=document.get("batches") or {},
        label=next((one["uid"] for one in document["operators"] if one["keyed"]), None),
    )


# Lists that were complete once, by SHA-256: their contents stay known after a loss.
_LISTS: dict[str, dict[str, list[Any]]] = {}


def _bring_in(
    part: dict[str, Any], read: Callable[[str], bytes | None], files: dict[str, tuple[int, str]]
) -> None:
    """Put the files of a state or layer where they would be without a list; record the list."""
    known = part.get("file_list")
    if known is None:
        return
    path, sha256 = known["path"], known["sha256"]
    files[path] = known["size_bytes"], sha256
    raw = read(path)
    document = document_of(raw) if raw and hashlib.sha256(raw).hexdigest() == sha256 else None
    if document is not None:
        _LISTS[sha256] = document["files"]
    part["files"] = _LISTS.get(sha256, {"path": [], "size_bytes": [], "sha256": []})


def rows_of(checkpoint: Checkpoint, data: dict[str, bytes]) -> Rows:
    """Return the rows of a checkpoint's main state, whose files are complete."""
    found: Rows = {}
    for operator in checkpoint.operators:
        for state in operator["keyed"]:
            if state["name"] != TOTALS:
                found |= _keyed_rows(state, data, checkpoint)
    return found


def others_of(checkpoint: Checkpoint, data: dict[str, bytes]) -> Others:
    """Return the contents of a checkpoint's other states, whose files are complete."""
    found: Others = {}
    for operator in checkpoint.operators:
        for state in operator["keyed"]:
            if state["name"] == TOTALS:
                found[TOTALS] = _keyed_rows(state, data, checkpoint)
        for state in operator["operator"]:
            if state["name"] == OFFSETS:
                tables = _tables(state["table"]["path"], state["files"], data, checkpoint)
                found[OFFSETS] = [row["offset"] for _, rows in tables for row in rows]
    return found


def _keyed_rows(state: dict[str, Any], data: dict[str, bytes], checkpoint: Checkpoint) -> Rows:
    """Return the rows of a keyed state: the base with its layers, in order."""
    found: Rows = {}
    for _, rows in _tables(state["table"]["path"], state["files"], data, checkpoint):
        found |= {row[KEY]: {KEY: row[KEY], COUNT: row[COUNT]} for row in rows}
    for layer in state.get("changes") or ():
        _put_over(found, layer, data, checkpoint)
    return found


def _put_over(
    found: Rows, layer: dict[str, Any], data: dict[str, bytes], checkpoint: Checkpoint
) -> None:
    for _, rows in _tables(layer["path"], layer["files"], data, checkpoint):
        live = [row for row in rows if _is_live(row["key_group"], layer["live"])]
        for row in live:
            if row[MARK]:
                found.pop(row[KEY], None)
        found |= {row[KEY]: {KEY: row[KEY], COUNT: row[COUNT]} for row in live if not row[MARK]}


def _is_live(group: int, live: list[list[int]]) -> bool:
    return any(first <= group <= last for first, last in live)


def _tables(
    folder: str, files: dict[str, Any], data: dict[str, bytes], checkpoint: Checkpoint
) -> Any:
    for path in files["path"]:
        name = f"{folder}/{path}"
        yield name, _parquet(checkpoint.files[name][1], data[name])


@lru_cache(maxsize=4096)
def _parquet(sha256: str, data: bytes) -> tuple[dict[str, Any], ...]:
    """Return the rows of a file; many checkpoints name the same file."""
    return tuple(pq.ParquetFile(BytesIO(data)).read(use_threads=False).to_pylist())


def _files(folder: str, files: dict[str, Any]) -> dict[str, tuple[int, str]]:
    paths = (f"{folder}/{path}" for path in files["path"])
    facts = zip(files["size_bytes"], files["sha256"], strict=True)
    return dict(zip(paths, facts, strict=True))
