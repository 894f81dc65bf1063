"""Where in a store a key is still to be found: rows of data files, and bytes of all others.

Of the operator's keyed states every data file is read, whether or not a manifest names it: its key
columns, batch by batch. Of every other file the bytes are searched for the key's text, as it is and
as JSON escapes it; what is short is found by chance, and so is not searched for. Delta logs are
read besides: their statistics hold least and greatest keys, numbers and dates too, and a long text
cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError, MissingFileError
from statestore.files.digest import row_hashes
from statestore.files.reader import open_data
from statestore.files.types import arrow_schema
from statestore.files.writer import LONGEST_TEXT
from statestore.format.handles import Handle
from statestore.format.state import KeyedState
from statestore.restore.export import json_value
from statestore.storage import Storage
from statestore.storage.base import named

__all__ = ["SHORTEST_TEXT", "KeyNeedles", "in_bytes", "in_delta_log", "in_rows", "needles_of"]

SHORTEST_TEXT = 4
"""Text of fewer bytes is in many files by chance."""

_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class KeyNeedles:
    """A key as it may lie in files that are not data: bytes, per key column the forms of its text,
    and the values that a Delta log may have for it. No bytes when some column's cannot be searched.
    """

    texts: tuple[tuple[bytes, ...], ...]
    values: tuple[tuple[Any, ...], ...]


def needles_of(wanted: pa.RecordBatch) -> KeyNeedles:
    """Return what to look for of a key, one row as ``key_batch`` returns it."""
    columns = list(wanted.to_pylist()[0].values())
    texts = tuple(_texts(value) for value in columns if isinstance(value, str))
    values = tuple(_bounds_of(json_value(value)) for value in columns)
    return KeyNeedles(texts if texts and all(texts) else (), values)


def in_rows(
    storage: Storage,
    name: str,
    state: KeyedState,
    wanted: pa.RecordBatch,
    handle: Handle | None,
) -> int | None:
    """Return how many rows of a data file have the key; None when it is no whole Parquet file.

    ``handle`` is that of a manifest that names the file, None when none does.
    """
    hashed = row_hashes(wanted)[0]
    keys = _keys if handle is None else partial(_keys_of, handle)
    try:
        batches = keys(storage, name, arrow_schema(state.schema.select(state.key)))
        return sum(int(np.sum(row_hashes(batch) == hashed)) for batch in batches)
    except (FileNotFoundError, MissingFileError):
        return 0  # collected since it was listed
    except (DamagedFileError, pa.ArrowException, LookupError, ValueError):
        return None


def _keys_of(
    handle: Handle, storage: Storage, name: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of a file that is held against its handle."""
    with open_data(storage, name.removesuffix(f"/{handle.path}"), handle) as file:
        yield from file.batches(range(handle.row_groups), schema)


def _keys(storage: Storage, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of a file of which nothing is known."""
    with (
        named("read", f"{storage.url}/{name}"),
        closing(storage.open_read(name)) as opened,
        pq.ParquetFile(pa.PythonFile(opened, mode="r")) as file,
    ):
        for batch in file.iter_batches(columns=list(schema.names), use_threads=False):
            yield batch.select(schema.names).cast(schema)


def in_bytes(storage: Storage, name: str, needles: KeyNeedles) -> bool:
    """Return whether a file has the text of the key, of several columns that of each."""
    if not needles.texts:
        return False
    missing = list(needles.texts)
    longest = max(len(text) for texts in missing for text in texts)
    tail = b""
    for chunk in _chunks(storage, name):
        window = tail + chunk
        missing = [texts for texts in missing if not any(text in window for text in texts)]
        if not missing:
            return True
        tail = window[-longest:]
    return False


def in_delta_log(storage: Storage, name: str, needles: KeyNeedles) -> bool:
    """Return whether an entry of a Delta log, JSON or Parquet, has the key among its values."""
    missing = list(needles.values)
    for value in _bounds(_documents(storage, name)):
        missing = [values for values in missing if not any(_same(value, one) for one in values)]
        if not missing:
            return True
    return False


def _texts(value: str) -> tuple[bytes, ...]:
    if len(value.encode()) < SHORTEST_TEXT:
        return ()
    escaped = json.dumps(value)[1:-1]
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    forms = {value, escaped, plain, json.dumps(escaped)[1:-1], json.dumps(plain)[1:-1]}
    return tuple(form.encode() for form in sorted(forms))


def _bounds_of(value: Any) -> tuple[Any, ...]:
    """Return a key's value as statistics have it: a long text is cut, and what is nested left
    out.
    """
    if isinstance(value, str):
        return (value, value[:LONGEST_TEXT])
    return (value,) if isinstance(value, int) else ()


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _chunks(storage: Storage, name: str) -> Iterator[bytes]:
    try:
        with (
            named("read", f"{storage.url}/{name}"),
            closing(storage.open_read(name)) as file,
        ):
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except FileNotFoundError:
        return  # collected since it was listed


def _documents(storage: Storage, name: str) -> Iterator[Any]:
    """Yield what an entry of a log says: each line of JSON, or each row of Parquet."""
    raw = b"".join(_chunks(storage, name))
    if not name.endswith(".parquet"):
        yield from _lines(raw)
        return
    try:
        with pq.ParquetFile(pa.BufferReader(raw)) as file:
            for batch in file.iter_batches(use_threads=False):
                yield from batch.to_pylist()
    except (pa.ArrowException, LookupError, ValueError):
        return  # no whole file: its bytes are searched as well


def _lines(raw: bytes) -> Iterator[Any]:
    for line in raw.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # no JSON: its bytes are searched as well


def _bounds(values: Iterator[Any] | Sequence[Any]) -> Iterator[Any]:
    """Yield the least and greatest values that documents have, also as JSON within JSON."""
    for value in values:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name in ("minValues", "maxValues") and isinstance(inner, dict):
                    yield from inner.values()
                else:
                    yield from _bounds([inner])
        elif isinstance(value, list | tuple):
            yield from _bounds(value)
        elif isinstance(value, str) and value.startswith(("{", "[")):
            yield from _bounds([*_lines(value.encode())])
