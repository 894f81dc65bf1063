"""DuckDB as this project uses it: shut in, given batches that it reads right, its errors put well.

A statement sees what it is given and nothing else: no file, no URL, no variable of the program. It
loads no extension, and writes nothing but what DuckDB itself puts into its own database.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa

from statestore.errors import MissingDependencyError

__all__ = ["duckdb", "said", "shut_in", "unsliced"]

_SETTINGS = (
    # Times with a zone are moments: whatever the host's zone, they are read and shown as UTC.
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def duckdb() -> ModuleType:
    """Return the library; MissingDependencyError without it."""
    try:
        return importlib.import_module("duckdb")
    except ImportError as error:
        raise MissingDependencyError(
            "SQL is answered by DuckDB, which is not installed: pip install 'statestore[query]'"
        ) from error


def shut_in(connection: Any) -> None:
    """Shut a connection in, once it has what it needs."""
    # In a notebook without ipywidgets there is none, and DuckDB refuses to be told so.
    [(is_on,)] = connection.sql("SELECT current_setting('enable_progress_bar')").fetchall()
    if is_on:
        connection.execute("SET enable_progress_bar = false")
    for setting in _SETTINGS:
        connection.execute(setting)


def unsliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of which no array, on whatever level, begins behind the start of its memory.

    DuckDB passes over where a struct within a struct begins, or refuses it. What is a slice is
    copied; all else stays where it is.
    """
    for batch in batches:
        columns = [_copied(column) if _is_sliced(column) else column for column in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def said(error: Exception) -> str:
    """Return what an error of DuckDB says, on one line, without the statement that it quotes."""
    text = str(error).partition("\nLINE ")[0]
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _is_sliced(array: pa.Array) -> bool:
    kind = array.type
    if array.offset:
        return True
    if pa.types.is_struct(kind):
        return any(_is_sliced(array.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_sliced(array.keys) or _is_sliced(array.items)
    if pa.types.is_nested(kind):
        return _is_sliced(array.values)
    return False


def _copied(array: pa.Array) -> pa.Array:
    """Return the array in memory of its own: Arrow copies what it puts together."""
    return pa.concat_arrays([array, array.slice(0, 0)])
