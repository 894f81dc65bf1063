"""Open Parquet files and Delta tables, and read them without changing a value.

A Delta table is opened as its log says: column mapping, deletion vectors, types that were widened.
A feature that this module does not know, or would read wrongly, is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from statestore.delta.log_entry import missing_part
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.format.schema import DataType, schema_from_json
from statestore.interop.tables.source_table import QUERY_HINT, SourceTable, schema_text
from statestore.rows.column_types import arrow_schema, arrow_type
from statestore.rows.fit_columns import fit_table
from statestore.sources.table_files import (
    TableFiles,
    open_delta_table,
    parquet_bytes,
    reading_delta,
    unsupported_error,
)
from statestore.storage import Storage

_BATCH_ROWS = 8192
_BUFFER_BYTES = 2**20
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def open_parquet(place: str, files: TableFiles) -> SourceTable:
    """Open Parquet files, which must have the same columns, and columns of their folders."""
    storage, names = files.storage, files.names
    schema: pa.Schema | None = None
    rows = 0
    for name in names:
        parquet_bytes(storage, name)
        with _parquet_file(storage, name) as file:
            own = _with_folders(file.schema_arrow.remove_metadata(), name)
            rows += file.metadata.num_rows
        schema = schema or own
        if not own.equals(schema):
            raise InvalidArgumentError(
                f"{storage.url}/{name} has other columns than {names[0]}: ({schema_text(own)}) "
                f'instead of ({schema_text(schema)}). Read them with {QUERY_HINT}: "SELECT * '
                "FROM read_parquet('…', union_by_name = true)\""
            )
    assert schema is not None, "there is at least one file"

    def read() -> Iterator[pa.RecordBatch]:
        for name in names:
            for batch in read_parquet(storage, name):
                yield _add_folders(batch, name)

    return SourceTable(place, schema, read, rows, untyped=tuple(_folders(names[0])))


def read_parquet(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file.

    INT96 is read as microseconds, because nanoseconds would wrap around outside of 1677 to 2262. A
    second reader of nanoseconds, which may wrap around, shows if a value has more digits.

    Raises InvalidArgumentError for such a value.
    """
    with _parquet_file(storage, name) as file:
        batches = file.iter_batches(_BATCH_ROWS, use_threads=False)
        leaves = map(file.schema.column, range(len(file.schema)))
        if all(leaf.physical_type != "INT96" for leaf in leaves):
            yield from batches
            return
        with _parquet_file(storage, name, "ns") as exact:
            nanos = exact.iter_batches(_BATCH_ROWS, use_threads=False)
            for batch, other in zip(batches, nanos, strict=True):
                if not all(map(_is_exact, _times(batch), _times(other))):
                    raise InvalidArgumentError(
                        f"{storage.url}/{name} has times (INT96) that are not whole microseconds: "
                        f"round them in {QUERY_HINT}"
                    )
                yield batch


def _times(array: pa.Array | pa.RecordBatch) -> Iterator[pa.Array]:
    """Yield the columns of timestamps in rows, or in nested values."""
    types = pa.types
    if isinstance(array, pa.RecordBatch):
        children = array.columns
    elif types.is_map(array.type):
        children = [array.keys, array.items]
    elif types.is_nested(array.type):
        children = array.flatten() if types.is_struct(array.type) else [array.flatten()]
    else:
        children = []
        if types.is_timestamp(array.type):
            yield array
    for child in children:
        yield from _times(child)


def _is_exact(times: pa.Array, nanos: pa.Array) -> bool:
    """Return whether times in microseconds are equal to nanoseconds, modulo 2 to the power 64."""
    if times.type == nanos.type:  # no INT96
        return True
    micros = times.cast(pa.int64())
    return bool(pc.multiply(micros, 1000).equals(nanos.cast(pa.int64())))


@contextmanager
def _parquet_file(storage: Storage, name: str, int96_unit: str = "us") -> Iterator[pq.ParquetFile]:
    """Open a file whose row groups, which can have any size, are read through a buffer."""
    where = f"{storage.url}/{name}"
    try:
        with (
            storage.open_read(name) as source,
            pq.ParquetFile(
                source,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                coerce_int96_timestamp_unit=int96_unit,
            ) as file,
        ):
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{where} does not exist: it was deleted while it was read") from None
    except (pa.ArrowException, OSError) as error:
        if "crypt" in str(error):
            raise InvalidArgumentError(
                f"{where} is encrypted: decrypt it with Spark, and pass a DataFrame or a copy"
            ) from error
        raise CorruptionError(f"{where} cannot be read as a Parquet file: {error}") from error


def _folders(name: str) -> dict[str, str | None]:
    """Return the columns in the names of a file's folders, such as ``day=2026-01-02``."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return {
        unquote(column): None if value == _NULL_PARTITION else unquote(value)
        for column, _, value in pairs
    }


def _with_folders(schema: pa.Schema, name: str) -> pa.Schema:
    for column in _folders(name):
        schema = schema.append(pa.field(column, pa.string()))
    return schema


def _add_folders(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    schema = _with_folders(batch.schema.remove_metadata(), name)
    values = _folders(name).values()
    added = [pa.array([value] * batch.num_rows, pa.string()) for value in values]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


_READER_FEATURES = frozenset(
    (
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"),
        *("vacuumProtocolCheck", "variantType", "variantShredding"),
        *("typeWidening-preview", "variantType-preview", "variantShredding-preview"),
    )
)
"""The reader features of Delta that are read. A column of the type variant is refused."""
_CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"(?<!var)char\((\d+)\)")
"""Spark pads values of this type with spaces when it reads them."""


def open_delta(place: str, storage: Storage) -> SourceTable:
    """Open the newest version of a Delta table; only its log is read.

    Args:
        place: The table's name in messages.
        storage: The table's folder.

    Returns:
        The table. Its rows are found by the physical names or ids of the columns, as the protocol
        defines them in its section about column mapping.

    Raises:
        InvalidArgumentError: The table has a feature that cannot be read.
        CorruptionError: The log cannot be read.
    """
    table = open_delta_table(storage)
    with reading_delta(storage):
        features = {*(table.protocol().reader_features or ())}
        if unknown := features - _READER_FEATURES:
            raise unsupported_error(storage, ", ".join(sorted(unknown)))
        metadata = table.metadata()
        columns = json.loads(table.schema().to_json())
        _refuse_columns(storage, table, columns["fields"])
        files = _delta_files(storage, table, has_vectors="deletionVectors" in features)
    schema = schema_from_json(columns)
    own = [field for field in columns["fields"] if field["name"] not in metadata.partition_columns]
    mapping = metadata.configuration.get("delta.columnMapping.mode", "none")
    counts = [file.rows for file in files]

    def read() -> Iterator[pa.RecordBatch]:
        for file in files:
            where, position, rows = f"{storage.url}/{file.name}", 0, 0
            for whole in read_parquet(storage, file.name):
                batch = whole
                if file.kept is not None:  # it can end with the last deleted row
                    kept = file.kept.slice(position, len(whole))
                    rest = pa.repeat(True, len(whole) - len(kept))
                    batch = whole.filter(pa.concat_arrays([kept, rest]))
                values = _with_fields(batch.to_struct_array(), own, mapping, where)
                found = dict(zip(values.type.names, values.flatten(), strict=True))
                for name in metadata.partition_columns:
                    value = pa.scalar(file.partition.get(name), arrow_type(schema.type_of(name)))
                    found[name] = pa.repeat(value, len(batch))
                fitted = fit_table(pa.table(found), schema, where, nearest=False, first_row=rows)
                for index, field in enumerate(columns["fields"]):
                    if char := _CHAR.fullmatch(field["metadata"].get(_CHAR_TYPE, "")):
                        padded = pc.utf8_rpad(fitted.column(index), int(char[1]))
                        fitted = fitted.set_column(index, fitted.field(index), padded)
                yield from fitted.to_batches()
                position, rows = position + len(whole), rows + len(batch)

    known = None if None in counts else sum(count for count in counts if count is not None)
    return SourceTable(place, arrow_schema(schema), read, known, missing_part(metadata.description))


def _refuse_columns(
    storage: Storage, table: DeltaTable, fields: Iterable[Mapping[str, Any]]
) -> None:
    """Refuse columns whose values could be read wrongly."""
    partition_columns = table.metadata().partition_columns
    partitions = table.partitions() if partition_columns else []
    has_empty = any("" in partition.values() for partition in partitions)
    for field in fields:
        name, char = field["name"], field["metadata"].get(_CHAR_TYPE, "")
        if field["type"] == "binary" and name in partition_columns:
            raise unsupported_error(
                storage,
                f"the partition column {name!r} is binary, and writers encode such values in "
                "different ways",
            )
        if field["type"] == "string" and name in partition_columns and has_empty:
            raise unsupported_error(
                storage, f"the partition column {name!r} has empty texts, which can also mean null"
            )
        if _CHAR.search(char) and not _CHAR.fullmatch(char):
            raise unsupported_error(storage, f"the column {name!r} has the type {char}")


@dataclass(frozen=True)
class _DeltaFile:
    """A file of a Delta table, with the values of its partition columns.

    ``rows`` is the number of rows that are not deleted, None if the log does not have it. ``kept``
    is False for each deleted row, None if no row is deleted.
    """

    name: str
    partition: Mapping[str, Any]
    rows: int | None
    kept: pa.Array | None


def _delta_files(storage: Storage, table: DeltaTable, *, has_vectors: bool) -> list[_DeltaFile]:
    kept = {}
    if has_vectors:
        vectors = pa.table(table.deletion_vectors().read_all())
        kept = {
            unquote(uri).removeprefix(unquote(table.table_uri)): mask.values
            for uri, mask in zip(
                vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True
            )
        }
    files = []
    actions = pa.table(table.get_add_actions())
    wanted = {"path", "num_records", "partition"}.intersection(actions.column_names)
    for action in actions.select(sorted(wanted)).to_pylist():
        name, rows = unquote(action["path"]), action.get("num_records")
        if name.startswith("/") or ":" in name.partition("/")[0]:
            raise unsupported_error(storage, f"a shallow clone, whose file {name} is elsewhere")
        mask = kept.pop(name, None)
        if mask is not None and rows is not None:
            rows -= mask.false_count
        files.append(_DeltaFile(name, action.get("partition") or {}, rows, mask))
    if kept:
        raise CorruptionError(f"{storage.url} has deletion vectors of other files: {min(kept)}")
    return files


def _with_fields(
    array: pa.StructArray, wanted: Sequence[Mapping[str, Any]], mapping: str, where: str
) -> pa.StructArray:
    """Return structs of a file with the fields of the table; a field that they lack is null.

    Args:
        array: the structs.
        wanted: the fields of the table, as in its log.
        mapping: the mode of column mapping: whether the file has its own names or ids.
        where: the file.

    Returns:
        The structs. Values have the types of the file.

    Raises:
        InvalidArgumentError: for a missing field that cannot be null, or whose name has other
            case, and for a file without the ids that the table's columns have.
    """
    found: dict[Any, pa.Array] = {
        (field.metadata or {}).get(b"PARQUET:field_id") if mapping == "id" else field.name: values
        for field, values in zip(array.type, array.flatten(), strict=True)
    }
    if mapping == "id" and found and set(found) == {None}:
        raise InvalidArgumentError(
            f"{where} has no field ids, but the table uses column mapping by id: read it with Spark"
        )
    columns = []
    for field in wanted:
        key: Any = field["name"]
        if mapping == "id":
            key = str(field["metadata"]["delta.columnMapping.id"]).encode()
        elif mapping == "name":
            key = field["metadata"].get("delta.columnMapping.physicalName", key)
        if key in found:
            columns.append(_as_type(found[key], field["type"], mapping, where))
            continue
        similar = [name for name in found if str(name).lower() == str(key).lower()]
        if similar or not field["nullable"]:
            raise InvalidArgumentError(
                f"{where} lacks the column {key!r}, which "
                + (f"is named {similar[0]!r} there" if similar else "cannot be null")
                + ": read the table with Spark"
            )
        columns.append(pa.nulls(len(array), arrow_type(field["type"])))
    names = [field["name"] for field in wanted]
    return pa.StructArray.from_arrays(columns, names, mask=array.is_null())


def _as_type(array: pa.Array, data_type: DataType, mapping: str, where: str) -> pa.Array:
    """Return values of a file, in which structs have the fields of the table's type.

    The types of other values stay, except for times: Spark writes instants without a zone, and
    Delta permits that dates become times.
    """
    types, source = pa.types, array.type
    if isinstance(data_type, str):
        if data_type == "timestamp" and types.is_timestamp(source) and source.tz is None:
            return array.cast(pa.timestamp(source.unit, "UTC"))
        is_widened = data_type == "timestamp_ntz" and types.is_date32(source)
        return array.cast(pa.timestamp("us")) if is_widened else array
    if data_type["type"] == "struct" and types.is_struct(source):
        return _with_fields(array, data_type["fields"], mapping, where)
    if data_type["type"] == "array" and types.is_list(source):
        child = _as_type(array.values, data_type["elementType"], mapping, where)
        target = pa.list_(child.type)
    elif data_type["type"] == "map" and types.is_map(source):
        keys = _as_type(array.keys, data_type["keyType"], mapping, where)
        items = _as_type(array.items, data_type["valueType"], mapping, where)
        target = pa.map_(keys.type, items.type)
        child = pa.StructArray.from_arrays(
            [keys, items], fields=[target.key_field, target.item_field]
        )
    else:
        return array  # of another type, which is refused later
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )
