"""Open a Delta table as its log says: column mapping, deletion vectors, types that were widened.

A feature that this module does not know, or would read wrongly, is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from statestore.delta.log_entry import missing_part
from statestore.errors import CorruptionError, InvalidArgumentError
from statestore.format.schema import DataType, schema_from_json
from statestore.interop.tables.parquet_files import read_parquet
from statestore.interop.tables.source_table import SourceTable
from statestore.rows.column_types import arrow_schema, arrow_type
from statestore.rows.fit_columns import fit_table
from statestore.sources.table_files import open_delta_table, reading_delta, unsupported_error
from statestore.storage import Storage

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
