"""The files that hold a subject's rows, and the same files without them.

Base and layers of changes are searched as stored: a layer may have rows or deletes of the subject,
even ones that newer changes override. Checkpoints whose layers share one base share most of their
files. So each file is read once and written once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    UnsupportedTypeError,
)
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.layers import are_changes
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import Field, Schema, common_type
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import read_pieces
from statestore.layers.rewrite import rewrite_spans, with_new_files
from statestore.maintenance.erase_subject import Selection
from statestore.parquet.file_checks import name_file_in_errors
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.reader import open_data
from statestore.restore.lookup import key_group_of, rows_of_key
from statestore.rows.column_types import arrow_schema, schema_of_arrow
from statestore.rows.delete_markers import clear_deletes
from statestore.rows.equality import matching_positions
from statestore.storage import Storage

File = tuple[str, KeyedStateHandle]

SelectionsOf = Callable[[Schema], "tuple[Selection, ...] | None"]
"""Returns what selects a subject's rows in a file with these columns; None if nothing can."""


def matching(rows: pa.Table, selections: Iterable[Selection]) -> np.ndarray:
    """Return which rows are selected, as one flag per row."""
    flags = np.zeros(rows.num_rows, np.bool_)
    for selection in selections:
        own, wanted = rows.select(selection.schema.names), pa.Table.from_batches([selection])
        if not own.schema.equals(wanted.schema):
            columns = _common_columns(schema_of_arrow(own.schema), schema_of_arrow(wanted.schema))
            own, wanted = own.cast(columns), wanted.cast(columns)
        places, _ = matching_positions(own, wanted)
        flags[places] = True
    return flags


def _common_columns(left: Schema, right: Schema) -> pa.Schema:
    """Return the common columns, each with a type that can hold the values of both sides."""
    fields = []
    for field in left.fields:
        column_type = common_type(field.type, right.type_of(field.name))
        assert column_type is not None, "a selection that does not apply was used"
        fields.append(Field(field.name, column_type))
    return arrow_schema(Schema(tuple(fields)))


@dataclass(frozen=True)
class Hit:
    """A state of a checkpoint that has rows of the subject: how many, and in which files.

    ``key_group`` is None if they may be in several key groups.
    """

    entry: KeyedEntry
    selections: tuple[Selection, ...]
    key_group: int | None
    rows: int
    files: frozenset[File]


class RowFinder:
    """Finds rows in the files of many checkpoints, and reads each file once."""

    def __init__(self, storage: Storage) -> None:
        """Start with an empty cache."""
        self._storage = storage
        self._known: dict[tuple[File, tuple[bytes, ...]], int] = {}

    def hit(self, entry: KeyedEntry, selections: tuple[Selection, ...]) -> Hit | None:
        """Return the selected rows of a state; None if no row is selected.

        Raises CorruptionError for a damaged file.
        """
        key = _single_key(entry, selections)
        group = None if key is None else key_group_of(entry.state, key)
        files = {
            (part.table.path, handle): rows
            for part in entry.parts
            for handle in part.handles
            if selections
            and (group is None or group in handle.key_groups)
            and (rows := self._rows(part, handle, selections))
        }
        if not files:
            return None
        return Hit(entry, selections, group, sum(files.values()), frozenset(files))

    def _rows(
        self, part: KeyedEntry, handle: KeyedStateHandle, selections: tuple[Selection, ...]
    ) -> int:
        selection_bytes = tuple(selection.serialize().to_pybytes() for selection in selections)
        place = (part.table.path, handle), selection_bytes
        if place not in self._known:
            self._known[place] = self._count(part, handle, selections)
        return self._known[place]

    def _count(
        self, part: KeyedEntry, handle: KeyedStateHandle, selections: tuple[Selection, ...]
    ) -> int:
        key = _single_key(part, selections)
        if key is not None:  # reads only the row groups whose bounds admit the key
            alone = replace(part, handles=(handle,))
            rows: int = rows_of_key(self._storage, alone, key).num_rows
            return rows
        with open_data(self._storage, part.table.path, handle) as file:
            names = _columns_of(selections, part.state.schema.names)
            schema = arrow_schema(part.state.schema.select(names))
            batches = file.batches(range(handle.row_groups), schema)
            return _count_in(batches, selections)


def _single_key(entry: KeyedEntry, selections: Sequence[Selection]) -> Selection | None:
    """Return the key of the state if the selection is exactly one key, or None."""
    if len(selections) != 1:
        return None
    (selection,) = selections
    key = arrow_schema(entry.state.schema.select(entry.state.key))
    return selection if selection.schema.equals(key) else None


def _columns_of(selections: Iterable[Selection], names: Sequence[str]) -> list[str]:
    wanted = {name for selection in selections for name in selection.schema.names}
    return [name for name in names if name in wanted]


def _count_in(batches: Iterable[pa.RecordBatch], selections: Sequence[Selection]) -> int:
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    return sum(int(matching(table, selections).sum()) for table in tables)


class RowRemover:
    """Rewrites files without the selected rows, and remembers which files replaced which."""

    def __init__(self, storage: Storage) -> None:
        """Start with no files written."""
        self._storage = storage
        self._done: dict[File, tuple[KeyedStateHandle, ...]] = {}

    def without_rows(self, hit: Hit, new: CheckpointFiles) -> KeyedEntry:
        """Return the state without the rows, and write the ``new`` files that it needs.

        A layer that becomes empty is removed. If rows are selected by a column that does not
        identify them, the layers are merged. Otherwise the removal of a layer's row would bring
        back the older row that it replaced.

        Raises MissingFileError, DamagedFileError or StorageError.
        """
        entry = hit.entry
        chosen = {name for selection in hit.selections for name in selection.schema.names}
        if entry.layers and not chosen.issubset(entry.state.identity):
            every = KeyGroupRange.every(entry.state.max_parallelism)
            rows = [(every, self._other_rows(entry, every, hit))]
            return rewrite_spans(entry, rows, new.write).entry
        base, *changes = [self._without_files(part, hit, new) for part in entry.parts]
        layers = zip(entry.layers, changes, strict=True)
        left = tuple(replace(layer, entry=part) for layer, part in layers if part.handles)
        return replace(base, layers=left)

    def _without_files(self, part: KeyedEntry, hit: Hit, new: CheckpointFiles) -> KeyedEntry:
        """Return the base or a layer with new files for the ones that have selected rows."""
        spans, handles = list[KeyGroupRange](), list[KeyedStateHandle]()
        for handle in part.handles:
            file = part.table.path, handle
            if file not in hit.files:
                continue
            if file not in self._done:
                alone = replace(part, handles=(handle,))
                self._done[file] = new.write(alone, self._other_rows(alone, handle.key_groups, hit))
            spans.append(handle.key_groups)
            handles += self._done[file]
        return with_new_files(part, spans, handles).entry if spans else part

    def _other_rows(self, entry: KeyedEntry, span: KeyGroupRange, hit: Hit) -> Iterator[pa.Table]:
        """Yield the stored rows of some key groups that are not selected."""
        for piece in read_pieces(self._storage, entry, reads_of(entry, span)):
            kept = _drop_selected(piece, hit.selections)
            yield clear_deletes(kept) if are_changes(entry.state) else kept


def _drop_selected(rows: pa.Table, selections: tuple[Selection, ...]) -> pa.Table:
    selected = matching(rows, selections)
    return rows.filter(pa.array(~selected)) if selected.any() else rows


class FileRows(NamedTuple):
    """The number of selected rows in a file; None, with the reason, if it was not searched."""

    rows: int | None
    reason: str = ""


def count_selected(
    storage: Storage, name: str, handle: Handle | None, selections_of: SelectionsOf
) -> FileRows:
    """Return how many rows of a data file are selected.

    Args:
        storage: The store.
        name: The file's name in the store.
        handle: The handle from a manifest that names the file; None if no manifest names it.
        selections_of: Returns the selections for the file's columns.

    Returns:
        The number of rows. None if the file cannot be read, or if its columns do not determine the
        selection.

    Raises:
        FileNotFoundError: The file does not exist.
        StorageError: The file system failed.
    """
    try:
        if handle is None:
            return _search_unnamed_file(storage, name, selections_of)
        with open_data(storage, name.removesuffix(f"/{handle.path}"), handle) as file:
            schema = _stored_columns(file.parquet.schema_arrow)
            selections = selections_of(schema)
            if selections is None:
                return _unsearched_file(schema)
            names = _columns_of(selections, schema.names)
            columns = arrow_schema(schema.select(names))
            batches = file.batches(range(handle.row_groups), columns) if names else ()
            return FileRows(_count_in(batches, selections))
    except MissingFileError as error:
        raise FileNotFoundError(name) from error
    except (DamagedFileError, pa.ArrowException, LookupError, ValueError) as error:
        return FileRows(None, f"the file is not a complete Parquet file: {error}")


def _search_unnamed_file(storage: Storage, name: str, selections_of: SelectionsOf) -> FileRows:
    with (
        name_file_in_errors(f"{storage.url}/{name}"),
        closing(storage.open_read(name)) as opened,
        pq.ParquetFile(pa.PythonFile(opened, mode="r")) as file,
    ):
        schema = _stored_columns(file.schema_arrow)
        selections = selections_of(schema)
        if selections is None:
            return _unsearched_file(schema)
        names = _columns_of(selections, schema.names)
        if not names:
            return FileRows(0)
        columns = arrow_schema(schema.select(names))
        batches = file.iter_batches(columns=names, use_threads=False)
        return FileRows(
            _count_in((batch.select(names).cast(columns) for batch in batches), selections)
        )


@lru_cache(maxsize=64)  # the files of a state have the same columns
def _stored_columns(schema: pa.Schema) -> Schema:
    """Return the columns of a file that can be columns of a state."""
    fields: list[Field] = []
    for field in schema:
        try:
            fields += schema_of_arrow(pa.schema([field])).fields
        except (UnsupportedTypeError, InvalidArgumentError):
            continue  # a selection never has such a type
    return Schema(tuple(fields))


def _unsearched_file(schema: Schema) -> FileRows:
    return FileRows(None, f"its columns ({schema}) do not match any key that the state had")
