"""The columns of an Iceberg table that shows a state, and their changes between checkpoints.

Every stored type has an Iceberg type. ``byte`` and ``short`` become ``int``, because Iceberg has no
smaller integers. A table begins with the columns that the store adds to each row: ``key_group``, or
``subtask`` and ``position``.

A data file has no field ids. The table's name mapping assigns them by name, so a name has one id at
a time. A change that Iceberg's rules allow keeps all ids. Any other change gives new ids to all
columns except the store's own, and older snapshots of the table can no longer be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from statestore.delta.log_entry import partition_columns, table_schema
from statestore.errors import IncompatibleStateError, UnsupportedTypeError
from statestore.extras import needs_extra
from statestore.format.manifest import Entry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType, Field, decimal_parts

with needs_extra("iceberg", "an Iceberg table"):
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.schema import assign_fresh_schema_ids, promote
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import (
        BinaryType,
        BooleanType,
        DateType,
        DecimalType,
        DoubleType,
        FloatType,
        IcebergType,
        IntegerType,
        ListType,
        LongType,
        MapType,
        NestedField,
        PrimitiveType,
        StringType,
        StructType,
        TimestampType,
        TimestamptzType,
    )

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

_PRIMITIVES: dict[str, PrimitiveType] = {
    "string": StringType(),
    "long": LongType(),
    "integer": IntegerType(),
    "short": IntegerType(),
    "byte": IntegerType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
# Columns that Iceberg's readers add to each row (Iceberg specification, "Reserved Field IDs").
_RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"}
    | {"_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id"}
)


def _own_columns(entry: Entry) -> tuple[str, ...]:
    """Return the names of the columns that the store adds to the state's rows."""
    added = len(table_schema(entry).fields) - len(entry.state.schema.fields)
    return table_schema(entry).names[:added]


def iceberg_schema(entry: Entry) -> IcebergSchema:
    """Return the columns of a state's table, all nullable, with ids from 1 on.

    Raises:
        UnsupportedTypeError: A name is reserved by Iceberg, or Iceberg could confuse two names.
    """
    fields = table_schema(entry).fields
    _refuse_names(entry, fields)
    ids = count(1)
    columns = [
        NestedField(next(ids), field.name, _iceberg_type(field.type, ids), required=False)
        for field in fields
    ]
    return assign_fresh_schema_ids(IcebergSchema(*columns))


def partition_spec(entry: Entry, schema: IcebergSchema) -> PartitionSpec:
    """Return the partitioning of a state's table: by key group if each file has only one."""
    if not partition_columns(entry):
        return PartitionSpec()
    source = schema.find_field(KEY_GROUP).field_id
    return PartitionSpec(
        PartitionField(source, PARTITION_FIELD_ID_START, IdentityTransform(), KEY_GROUP)
    )


def change_columns(transaction: Transaction, entry: Entry) -> bool:
    """Stage the change of a table's columns to those of a state's entry.

    Returns:
        Whether older snapshots can still be read afterwards.

    Raises:
        IncompatibleStateError: The table shows the other kind of state, keyed or operator.
        UnsupportedTypeError: As for :func:`iceberg_schema`.
    """
    wanted, existing = iceberg_schema(entry), transaction.table_metadata.schema()
    own = _own_columns(entry)
    if tuple(_names(existing)[: len(own)]) != own:
        raise IncompatibleStateError(
            f"the table begins with the column {_names(existing)[0]!r}, so it shows another "
            f"kind of state than {entry.state}; publish this state as another table"
        )
    if _types_of(existing) == _types_of(wanted) and _names(existing) == _names(wanted):
        return True
    if _is_compatible(existing, wanted):
        _change_in_place(transaction, wanted)
        return True
    # Added at the end in their order, so that no column has to be moved.
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for name in _names(existing)[len(own) :]:
            update.delete_column((name,))
        for field in wanted.fields[len(own) :]:
            update.add_column((field.name,), field.field_type)
    return False


def change_partitioning(transaction: Transaction, entry: Entry) -> None:
    """Stage the partitioning of the files that the transaction adds."""
    is_partitioned = not transaction.table_metadata.spec().is_unpartitioned()
    if is_partitioned == bool(partition_columns(entry)):
        return
    with transaction.update_spec() as update:
        if is_partitioned:
            update.remove_field(KEY_GROUP)
        else:
            update.add_identity(KEY_GROUP)


def _change_in_place(transaction: Transaction, wanted: IcebergSchema) -> None:
    existing = _types_of(transaction.table_metadata.schema())
    types = {field.name: field.field_type for field in wanted.fields}
    texts = _types_of(wanted)
    with transaction.update_schema() as update:
        for name in existing:
            if name not in types:
                update.delete_column((name,))
            elif existing[name] != texts[name]:
                update.update_column((name,), types[name])
        for field in wanted.fields:
            if field.name not in existing:
                update.add_column((field.name,), field.field_type)


def _is_compatible(existing: IcebergSchema, wanted: IcebergSchema) -> bool:
    """Return whether existing columns keep their order and may keep their ids."""
    kept = [name for name in _names(existing) if name in _names(wanted)]
    if _names(wanted)[: len(kept)] != kept:
        return False
    return all(
        _may_become(existing.find_field(name).field_type, wanted.find_field(name).field_type)
        for name in kept
    )


def _may_become(old: IcebergType, new: IcebergType) -> bool:
    if _type_text(old) == _type_text(new):
        return True
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        return False
    try:
        promote(old, new)
    except ResolveError:
        return False
    return True


def _names(schema: IcebergSchema) -> list[str]:
    return [field.name for field in schema.fields]


def _types_of(schema: IcebergSchema) -> dict[str, str]:
    return {field.name: _type_text(field.field_type) for field in schema.fields}


def _type_text(data_type: IcebergType) -> str:
    """Return a type as text without field ids."""
    match data_type:
        case StructType():
            inner = (f"{f.name!r}: {_type_text(f.field_type)}" for f in data_type.fields)
            return f"struct<{', '.join(inner)}>"
        case ListType():
            return f"list<{_type_text(data_type.element_type)}>"
        case MapType():
            return f"map<{_type_text(data_type.key_type)}, {_type_text(data_type.value_type)}>"
    return str(data_type)


def _iceberg_type(data_type: DataType, ids: Iterator[int]) -> IcebergType:
    if isinstance(data_type, str):
        parts = decimal_parts(data_type)
        return DecimalType(*parts) if parts else _PRIMITIVES[data_type]
    match data_type["type"]:
        case "struct":
            return StructType(*(_struct_field(field, ids) for field in data_type["fields"]))
        case "array":
            element = data_type["elementType"]
            return ListType(next(ids), _iceberg_type(element, ids), element_required=False)
        case _:
            return MapType(
                next(ids),
                _iceberg_type(data_type["keyType"], ids),
                next(ids),
                _iceberg_type(data_type["valueType"], ids),
                value_required=False,
            )


def _struct_field(field: Mapping[str, Any], ids: Iterator[int]) -> NestedField:
    number = next(ids)
    return NestedField(number, field["name"], _iceberg_type(field["type"], ids), required=False)


def _refuse_names(entry: Entry, fields: tuple[Field, ...]) -> None:
    for field in fields:
        if field.name.lower() in _RESERVED:
            raise UnsupportedTypeError(
                f"{entry.state}: the column {field.name!r} has a name that Iceberg reserves; "
                "rename the column with renamed={…} in the next snapshot"
            )
    paths = [path for field in fields for path in _paths(field.name, field.type)]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise UnsupportedTypeError(
            f"{entry.state}: two columns or fields have the path {twice[0]!r}, which Iceberg "
            "cannot distinguish; rename the column with a dot in its name"
        )


def _paths(path: str, data_type: DataType) -> Iterator[str]:
    """Yield the paths of a column and of the parts of its type, as Iceberg builds them."""
    yield path
    if isinstance(data_type, str):
        return
    match data_type["type"]:
        case "struct":
            children = [(field["name"], field["type"]) for field in data_type["fields"]]
        case "array":
            children = [("element", data_type["elementType"])]
        case _:
            children = [("key", data_type["keyType"]), ("value", data_type["valueType"])]
    for name, child in children:
        yield from _paths(f"{path}.{name}", child)
