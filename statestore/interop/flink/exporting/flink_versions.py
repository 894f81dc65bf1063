"""Convert state of Flink 1 for Flink 2, which would silently read some of it differently.

The difference is Kryo: Flink 1 has version 2 and Flink 2 has version 5, with the same serializer
snapshots. Flink 2 has no serializers of Flink's Scala API, which ``job_types`` replaces. All other
serializers that this package writes are the same in both.

A collection in a field of a POJO was written by Kryo in Flink 1, and has a serializer in Flink 2,
which derives it from the field's declared type, such as ``List<String>``. The savepoint of Flink 1
does not have this type, so the user declares it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    UnsupportedTypeError,
)
from statestore.format.left_out import LeftOutState
from statestore.interop.flink.columns.declared_types import DeclaredType, parse_type_tree
from statestore.interop.flink.columns.part_columns import with_type
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.columns.store_types import Part
from statestore.interop.flink.exporting.export_types import KeyedExport, OperatorStatePlan
from statestore.interop.flink.importing.import_record import ImportedState, SavepointRecord
from statestore.interop.flink.metadata.versions import (
    KRYO_2,
    REMOVED_IN_FLINK_2,
    find_flink_major,
    parse_flink_major,
)
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.types.base import FlinkType, nested_types, replace_parts
from statestore.interop.flink.types.byte_cursor import BYTES, Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import ListType, MapType, NullableType, Scalar
from statestore.interop.flink.types.kryo import (
    KryoType,
    is_kryo_bytes,
    migrate_kryo,
    write_for_kryo_5,
)
from statestore.interop.flink.types.kryo_codecs import SIMPLE
from statestore.interop.flink.types.pojos import PojoField


def is_converted(
    record: SavepointRecord | None, target: FlinkTarget, carried: Sequence[LeftOutState]
) -> bool:
    """Return whether states of Flink 1 are converted for Flink 2, and so change their serializers.

    Args:
        record: the savepoint from which the state was imported; None if there is none.
        target: the job that restores the savepoint.
        carried: the operators that are copied with their serializers.

    Raises:
        InvalidArgumentError: for a text that is no version of Flink 1 or 2, for state of Flink 2
            and a job of Flink 1, and if nothing says which Flink wrote the savepoint.
        IncompatibleStateError: for an operator that would keep its serializers.
    """
    written_by = parse_flink_major(target.written_by, "written_by")
    wanted = parse_flink_major(target.version, "the version of the target")
    if wanted is None or record is None:
        return False
    if written_by is None:
        written_by = find_flink_major(record.metadata_version)
    if written_by is None:
        raise InvalidArgumentError(
            f"nothing says whether Flink 1 or 2 wrote the state of {record.place}, whose "
            f"metadata have version {record.metadata_version}: pass --written-by with the "
            "version of Flink, or FlinkTarget(written_by=…) in Python"
        )
    if written_by > wanted:
        raise InvalidArgumentError(
            f"Flink {written_by} wrote the state of {record.place}, and it cannot be written for "
            f"Flink {wanted}: choose version 2 as the target"
        )
    if carried and written_by < wanted:
        raise IncompatibleStateError(
            f"operator {carried[0].operator!r} cannot be carried to Flink 2: its state is copied "
            "with the serializers of Flink 1. Leave it out (--leave-out)"
        )
    return written_by < wanted


def migrate_keyed(plan: KeyedExport, collections: Collections) -> KeyedExport:
    """Return the plan of a keyed state of Flink 1 for Flink 2.

    Fields of POJOs in ``collections`` get the serializers that Flink 2 has for their types. Raises
    UnsupportedTypeError for a type that Flink 2 does not have, or whose bytes are unknown.
    """
    if plan.imported is None:
        return plan
    _refuse_removed(plan)
    plan = _migrate_collections(plan, plan.imported, collections)
    columns = plan.columns
    key = replace(columns.key, flink_type=write_for_kryo_5(columns.key.flink_type))
    plan = replace(plan, columns=replace(columns, state=write_for_kryo_5(columns.state), key=key))
    kept = (
        "keys"
        if _has_kryo(plan.flink.key)
        else "namespaces"
        if _has_kryo(plan.flink.namespace)
        else ""
    )
    is_bytes = plan.is_bytes and _has_kryo(plan.flink.value)
    if kept or is_bytes:
        raise UnsupportedTypeError(
            f"{plan.state} cannot be written for Flink 2: its {kept or 'values'} are bytes that "
            f"Kryo 2 wrote, and Flink 2 has Kryo 5. Leave it out with --leave-out {plan.state.uid}"
        )
    return replace(plan, is_migrated=plan.is_migrated or _has_kryo(plan.flink.value))


def _migrate_collections(
    plan: KeyedExport, known: ImportedState, collections: Collections
) -> KeyedExport:
    columns, before = plan.columns, plan.flink.value
    after: FlinkType = write_collections(before, collections)
    if after == before or plan.is_bytes or columns.value is None:
        return plan
    changed = replace(
        plan,
        columns=replace(columns, state=replace(columns.state, value=after)),
        imported=replace(known, value_serializer=after.snapshot()),
        is_migrated=True,
    )
    if columns.form.has_value_bytes:
        return replace(changed, read_value=read_collections(before, collections))
    part = columns.value.flink_type
    value = with_type(columns.value, write_collections(part, collections))
    return replace(
        changed,
        columns=changed.columns.with_value(value),
        read_value=read_collections(part, collections),
        stored_value=columns.value,
    )


def migrate_operator(plan: OperatorStatePlan) -> OperatorStatePlan:
    """Return the plan of an operator state of Flink 1 for Flink 2.

    Raises UnsupportedTypeError for a type that Flink 2 does not have.
    """
    if plan.imported is None:
        return plan
    _refuse_removed(plan)
    serializers = plan.imported.info.serializers.values()
    return replace(plan, is_migrated=any(_has_kryo(s.flink_type) for s in serializers))


def _refuse_removed(plan: KeyedExport | OperatorStatePlan) -> None:
    """Refuse a state with a serializer that Flink 2 no longer has."""
    known = plan.imported
    assert known is not None, "only imported state has serializers"
    raw = (known.key_serializer, known.namespace_serializer, known.value_serializer)
    for removed, (what, advice) in REMOVED_IN_FLINK_2.items():
        if any(removed in snapshot for snapshot in raw if snapshot is not None):
            raise UnsupportedTypeError(
                f"{plan.state} cannot be written for Flink 2: it has {what}, which Flink 2 does "
                f"not have. {advice}, or leave it out with --leave-out "
                f"{plan.state.uid}/{plan.state.name}"
            )


def _has_kryo(flink_type: FlinkType) -> bool:
    return any(is_kryo_bytes(nested) for nested in nested_types(flink_type))


def migrate_rows(rows: pa.Table, plan: KeyedExport) -> pa.Table:
    """Return rows of a keyed state with the values of Kryo 2 in the form of Kryo 5.

    Raises UnsupportedTypeError for a value that cannot be converted.
    """
    columns, title = plan.columns, f"a value of {plan.state}"
    if columns.map_key is not None and _has_kryo(columns.map_key.flink_type):
        keys = columns.map_key.values(rows)
        rows = _set_columns(rows, _migrate_values(keys, columns.map_key, title))
    value = columns.value
    if value is not None and (plan.stored_value is not None or _has_kryo(value.flink_type)):
        values = _read_values(rows, plan, value, title)
        rows = _set_columns(rows, _migrate_values(values, value, title))
    if value is not None and columns.form.has_value_bytes:
        (name,) = value.names
        raw = Spans.from_array(_column(rows, name), title)
        rows = _set_columns(rows, {name: _migrate_entries(raw, plan)})
    return rows


def _read_values(rows: pa.Table, plan: KeyedExport, value: Part, title: str) -> pa.Array:
    """Return values from their columns, with the collections that Kryo 2 wrote into POJOs."""
    stored = plan.stored_value
    if stored is None or plan.read_value is None:
        return value.values(rows)
    raw = Spans.from_array(stored.flink_type.write(stored.values(rows)), title)
    return decode_values(migrate_kryo(plan.read_value), raw)


def _migrate_entries(raw: Spans, plan: KeyedExport) -> pa.Array:
    """Migrate undecoded values of a keyed state's entries."""
    value = migrate_kryo(plan.flink.value)
    before = value if plan.read_value is None else migrate_kryo(plan.read_value)
    values = replace(plan.flink, value=before).decode(raw)
    return replace(plan.flink, value=value).encode_values(values, len(raw))


def migrate_elements(rows: pa.Table, plan: OperatorStatePlan) -> pa.Table:
    """Return elements of an operator state with the values of Kryo 2 in the form of Kryo 5.

    Raises UnsupportedTypeError for a value that cannot be converted.
    """
    known = plan.imported
    assert known is not None, "the state was imported"
    if known.form is not EntryForm.BYTES:
        for part in (plan.value, plan.key):
            if part is not None and _has_kryo(part.flink_type):
                values, title = part.values(rows), f"a value of {plan.state}"
                rows = _set_columns(rows, _migrate_values(values, part, title))
        return rows
    serializers = known.info.serializers
    if plan.mode == "broadcast":
        raise UnsupportedTypeError(
            f"{plan.state} cannot be written for Flink 2: its entries are bytes that Kryo 2 wrote. "
            f"Leave it out with --leave-out {plan.state.uid}/{plan.state.name}"
        )
    element = migrate_kryo(serializers["VALUE_SERIALIZER"].flink_type)
    (name,) = plan.value.names
    raw = Spans.from_array(_column(rows, name), f"an element of {plan.state}")
    return _set_columns(rows, {name: element.write(decode_values(element, raw))})


def _migrate_values(values: pa.Array, part: Part, title: str) -> dict[str, pa.Array]:
    """Encode the values of a part for Flink 2, and return them in columns, with bytes of Kryo 5."""
    spans = Spans.from_array(migrate_kryo(part.flink_type).write(values), title)
    return part.columns(decode_values(write_for_kryo_5(part.flink_type), spans))


def _column(rows: pa.Table, name: str) -> pa.Array:
    """Return a column of bytes."""
    return rows.column(name).combine_chunks().cast(BYTES)


def _set_columns(rows: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    """Return rows with other columns in place of those with the same names."""
    for name, column in columns.items():
        index = rows.schema.get_field_index(name)
        field = rows.schema.field(index)
        if pa.types.is_large_binary(column.type):  # bytes of Flink
            column = column.cast(field.type)
        rows = rows.set_column(index, field.with_type(column.type), column)
    return rows


Collections = Mapping[tuple[str, str], FlinkType]
"""The types of fields, by the class that declares the field, and the field's name."""


def read_collections(flink_type: FlinkType, collections: Collections) -> FlinkType:
    """Return a type that reads the declared fields as Kryo 2 wrote them."""
    return _replace_fields(
        flink_type, collections, lambda kryo, content: replace(kryo, kryo=KRYO_2, content=content)
    )


def write_collections(flink_type: FlinkType, collections: Collections) -> FlinkType:
    """Return a type whose declared fields have the serializers of Flink 2."""
    return _replace_fields(flink_type, collections, lambda _, content: _make_nullable(content))


def _replace_fields(
    flink_type: FlinkType,
    collections: Collections,
    convert: Callable[[KryoType, FlinkType], FlinkType],
) -> FlinkType:
    def change(part: object) -> PojoField | None:
        if not isinstance(part, PojoField) or not isinstance(part.value, KryoType):
            return None
        content = collections.get((part.declared_by, part.name))
        return None if content is None else replace(part, value=convert(part.value, content))

    return replace_parts(flink_type, change)


def _make_nullable(content: FlinkType) -> FlinkType:
    """Return a type as Flink 2 derives it from a class: collections and their keys can be null."""
    if isinstance(content, ListType):
        is_set = content.form == "Set"  # whose elements have flags of their own
        element = _make_nested(content.element) if is_set else _make_nullable(content.element)
        return NullableType(replace(content, element=element))
    if isinstance(content, MapType):
        key, value = _make_nullable(content.key), _make_nested(content.value)
        return NullableType(replace(content, key=key, value=value))
    return NullableType(content)


def _make_nested(content: FlinkType) -> FlinkType:
    return content if isinstance(content, Scalar) else _make_nullable(content)


def parse_collection(text: object, name: str) -> FlinkType:
    """Return the type of a field, such as ``Map<String, List<Long>>``.

    Args:
        text: the type, as it is declared in Java.
        name: the field, for messages.

    Raises:
        InvalidArgumentError: for anything but a ``List``, ``Set`` or ``Map`` of simple types.
    """
    try:
        tree = parse_type_tree(text) if isinstance(text, str) else DeclaredType("")
        content = _build_collection(tree)
        if isinstance(content, Scalar):
            raise ValueError(text)
    except ValueError:
        raise InvalidArgumentError(
            f"the field {name} is declared as {text!r}: declare List<…>, Set<…> or Map<…, …> of "
            f"these or of {', '.join(SIMPLE)}"
        ) from None
    return content


def _build_collection(tree: DeclaredType) -> FlinkType:
    """Return the type of a simple class or of a collection; ValueError for another one."""
    inner = [_build_collection(part) for part in tree.parts]
    match tree.name, inner:
        case name, [] if name in SIMPLE:
            return Scalar(name)
        case "Map", [key, value] if not tree.names:
            return MapType(key, value)
        case ("List" | "Set") as form, [element] if not tree.names:
            return ListType(element, form)
        case _:
            raise ValueError(tree)
