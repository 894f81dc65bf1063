"""POJOs: flags for null, the class itself or a subclass, then nullable fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, utf
from statestore.interop.flink.metadata.snapshot_format import (
    RUNTIME,
    TEXT,
    Member,
    SnapshotReader,
    encode_optional_map,
    plain,
    read_optional_map,
)
from statestore.interop.flink.types.base import FlinkType, short_name
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Places,
    Rows,
    Skip,
    join_parts,
    scatter,
)
from statestore.interop.flink.types.column_bytes import (
    EMPTY,
    build_struct,
    choose_bytes,
    find_valid,
    read_non_null,
)
from statestore.interop.flink.types.java_types import NullableType

_NULL, _ITSELF, _SUBCLASS, _TAGGED = 1, 2, 4, 8
_CLASS = "class"


@dataclass(frozen=True, slots=True)
class PojoField:
    """A field of a POJO, and the class that declares it."""

    name: str
    declared_by: str
    value: FlinkType


@dataclass(frozen=True, slots=True)
class Subclass:
    """A subclass of a POJO; the type is None if the job had no serializer for it."""

    class_name: str
    value: FlinkType | None


def _encode_fields(fields: tuple[PojoField, ...]) -> bytes:
    return encode_optional_map(
        [
            (field.name, utf(field.declared_by) + utf(field.name), field.value.snapshot())
            for field in fields
        ]
    )


def _read_fields(snapshot: SnapshotReader) -> tuple[PojoField, ...]:
    reader, class_name = snapshot.reader, snapshot.members["class_name"]
    fields = []
    for name, key, value in read_optional_map(reader):
        if key is None or value is None:
            raise UnsupportedTypeError(
                f"{reader.name} has the POJO {class_name}, whose field {name!r} its job did "
                "not find, so its values cannot be read"
            )
        declared_by = key.utf()
        key.utf()
        fields.append(PojoField(name, declared_by, snapshot.framed(value)))
    return tuple(fields)


def _encode_subclasses(subclasses: tuple[Subclass, ...]) -> bytes:
    return encode_optional_map(
        [
            (part.class_name, b"", None if part.value is None else part.value.snapshot())
            for part in subclasses
        ]
    )


def _read_subclasses(snapshot: SnapshotReader) -> tuple[Subclass, ...]:
    return tuple(
        Subclass(name, None if value is None else snapshot.framed(value))
        for name, _, value in read_optional_map(snapshot.reader)
    )


_SUBCLASSES = Member(_read_subclasses, _encode_subclasses)


@dataclass(frozen=True, slots=True)
class PojoType(FlinkType):
    """A POJO: its fields, its registered subclasses, and other subclasses that the job wrote."""

    class_name: str
    fields: tuple[PojoField, ...]
    registered: tuple[Subclass, ...] = ()
    others: tuple[Subclass, ...] = ()

    snapshots = (
        plain(
            f"{RUNTIME}PojoSerializerSnapshot",
            2,
            {
                "class_name": TEXT,
                "fields": Member(_read_fields, _encode_fields),
                "registered": _SUBCLASSES,
                "others": _SUBCLASSES,
            },
        ),
    )

    @property
    def _subclasses(self) -> tuple[Subclass, ...]:
        return (*self.registered, *self.others)

    def _java_name(self) -> str:
        inner = ", ".join(f"{field.name} {field.value.java_name}" for field in self.fields)
        return f"{short_name(self.class_name)}({inner})"

    def _column_count(self) -> int:
        classes = (self, *(subclass.value for subclass in self._subclasses))
        fields = (
            field
            for pojo_class in classes
            if isinstance(pojo_class, PojoType)
            for field in pojo_class.fields
        )
        return 1 + sum(field.value.column_count for field in fields)

    def _arrow_type(self) -> pa.DataType:
        return pa.struct(_list_fields(self))

    def _skipper(self) -> Skip:
        return _make_pojo_skip(self)

    def _read(self, cursor: Cursor) -> pa.Array:
        return _read_pojo(self, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return _write_pojo(array, self)


def _list_fields(pojo: PojoType) -> list[pa.Field]:
    """Return the fields of a POJO's column.

    If it has subclasses, the column has the fields of all of them. The first field, ``class``,
    then names the class, and with it the fields that are set.
    """
    field_types = {pojo_field.name: pojo_field.value.arrow_type() for pojo_field in pojo.fields}
    subclasses = (*pojo.registered, *pojo.others)
    if not subclasses:
        return [pa.field(name, data_type) for name, data_type in field_types.items()]
    if _CLASS in field_types:
        raise UnsupportedTypeError(
            f"{pojo.class_name} has subclasses and a field named 'class', which is also the "
            "name of the column with the subclass"
        )
    for subclass in subclasses:
        if not isinstance(subclass.value, PojoType):
            raise UnsupportedTypeError(
                f"{subclass.class_name}, a subclass of {pojo.class_name}, is not a POJO"
            )
        if subclass.value.registered or subclass.value.others:
            raise UnsupportedTypeError(
                f"{subclass.class_name}, a subclass of {pojo.class_name}, has subclasses of its "
                "own, which are not supported"
            )
        for field in subclass.value.fields:
            data_type = field.value.arrow_type()
            if field_types.setdefault(field.name, data_type) != data_type:
                raise UnsupportedTypeError(
                    f"subclasses of {pojo.class_name} have fields {field.name!r} of different types"
                )
    return [pa.field(_CLASS, pa.string()), *(pa.field(*item) for item in field_types.items())]


def _make_pojo_skip(pojo: PojoType) -> Skip:
    """Skip a POJO according to its flags (``PojoSerializer``): null, the class, or a subclass."""
    fields = tuple(NullableType(field.value).skipper() for field in pojo.fields)

    def find_subclass(reader: Reader, flags: int) -> Subclass | None:
        if flags == 4:
            name = reader.utf()
            return next((other for other in pojo.others if other.class_name == name), None)
        if flags == 8:
            number = reader.u8()
            return pojo.registered[number] if number < len(pojo.registered) else None
        raise reader.error(
            f"a POJO begins with the invalid flags {flags}", position=reader.position - 1
        )

    def skip(reader: Reader) -> None:
        flags = reader.u8()
        if flags == 1:
            return
        if flags == 2:
            for field in fields:
                field(reader)
            return
        known_subclass = find_subclass(reader, flags)
        if known_subclass is None or known_subclass.value is None:
            raise UnsupportedTypeError(
                f"{reader.name} has a value of a subclass of {pojo.class_name} that its "
                "header does not describe: take a canonical savepoint, or register the "
                "subclass in the job"
            )
        known_subclass.value.skipper()(reader)

    return skip


def _read_pojo(pojo: PojoType, cursor: Cursor) -> pa.Array:
    """Read ``PojoSerializer``: flags for null, the class itself or a subclass; then the fields."""
    flags = cursor.take(1)[:, 0]
    known = np.isin(flags, (_NULL, _ITSELF, _SUBCLASS, _TAGGED))
    if not bool(known.all()):
        cursor.position = cursor.position - 1
        cursor.refuse(~known, f"a value of {pojo.class_name} has flags that a POJO cannot have")
    class_numbers = np.full(len(cursor), -1, np.int64)
    class_numbers[flags == _ITSELF] = 0
    subclasses = (*pojo.registered, *pojo.others)
    _name_subclasses(pojo, cursor, flags, class_numbers)
    fields = _list_fields(pojo)
    classes = [pojo, *(subclass.value for subclass in subclasses)]
    columns: dict[str, list[tuple[Rows, pa.Array]]] = {field.name: [] for field in fields}
    for number, pojo_class in enumerate(classes):
        rows = class_numbers == number
        if not bool(rows.any()):
            continue
        if not isinstance(pojo_class, PojoType):
            raise UnsupportedTypeError(f"a subclass of {pojo.class_name} is not a POJO")
        selected = cursor.select(rows)
        if number:  # a subclass is written as a complete POJO, with its own flags
            selected.refuse(
                selected.take(1)[:, 0] != _ITSELF, "a value of a subclass has invalid flags"
            )
        for field in pojo_class.fields:
            values = read_non_null(selected.flags(), field.value, 0, selected)
            columns[field.name].append((rows, values))
        cursor.move_rows(rows, selected)
    if subclasses:
        names = pa.array(
            [pojo_class.class_name for pojo_class in classes if isinstance(pojo_class, PojoType)]
        )
        is_known = class_numbers >= 0
        named = names.take(pa.array(class_numbers[is_known]))
        columns[fields[0].name].append((is_known, named))
    merged = [_merge_columns(columns[field.name], field.type, len(cursor)) for field in fields]
    return build_struct(merged, pojo.arrow_type(), class_numbers < 0)


def _name_subclasses(pojo: PojoType, cursor: Cursor, flags: Any, class_numbers: Places) -> None:
    """Store in ``class_numbers`` each row's subclass number, found by its number or its name."""
    tagged = flags == _TAGGED
    if bool(tagged.any()):
        selected = cursor.select(tagged)
        numbers = selected.take(1)[:, 0].astype(np.int64)
        selected.refuse(numbers >= len(pojo.registered), "a subclass has an invalid number")
        class_numbers[tagged] = numbers + 1
        cursor.move_rows(tagged, selected)
    named = {
        subclass.class_name: number
        for number, subclass in enumerate(pojo.others, len(pojo.registered) + 1)
    }
    cursor.position = cursor.position.copy()
    for row in np.flatnonzero(flags == _SUBCLASS).tolist():
        reader = cursor.reader(row)
        name = reader.utf()
        if name not in named:
            raise UnsupportedTypeError(
                f"{cursor.spans.name} has a value of {name}, a subclass of {pojo.class_name} "
                "that its header does not describe because the job first used it after the "
                "header was written"
            )
        class_numbers[row] = named[name]
        cursor.position[row] += reader.position


def _merge_columns(
    parts: list[tuple[Rows, pa.Array]], data_type: pa.DataType, count: int
) -> pa.Array:
    """Merge the values of several sets of rows into one column; other rows are null."""
    if len(parts) == 1:
        return scatter(parts[0][1], parts[0][0])
    places, is_set, upto = np.zeros(count, np.int64), np.zeros(count, np.bool_), 0
    for rows, values in parts:
        places[rows] = upto + np.arange(len(values))
        is_set |= rows
        upto += len(values)
    whole = pa.concat_arrays([values for _, values in parts] or [pa.nulls(0, data_type)])
    return whole.take(pa.array(places, mask=~is_set))


def _write_pojo(array: pa.Array, pojo: PojoType) -> pa.Array:
    """Encode POJOs like ``PojoSerializer``: flags, the subclass if needed, nullable fields."""
    valid = find_valid(array)
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = dict(zip(names, array.flatten(), strict=True))
    result = choose_bytes(valid, b"", bytes([_NULL]))
    itself = bytes([_ITSELF])
    if not pojo._subclasses:
        return join_parts(result, _write_pojo_rows(columns, valid, pojo, itself))
    for head, pojo_class in _list_heads(pojo):
        if not isinstance(pojo_class, PojoType):
            raise UnsupportedTypeError(f"a subclass of {pojo.class_name} is not a POJO")
        rows = pc.equal(columns[_CLASS], pojo_class.class_name).fill_null(False)
        part = rows.to_numpy(zero_copy_only=False) & valid
        result = join_parts(result, _write_pojo_rows(columns, part, pojo_class, head + itself))
    return result


def _list_heads(pojo: PojoType) -> list[tuple[bytes, FlinkType | None]]:
    """Return the class and its subclasses, with the bytes that identify a subclass."""
    return [
        (b"", pojo),
        *(
            (bytes([_TAGGED, number]), subclass.value)
            for number, subclass in enumerate(pojo.registered)
        ),
        *(
            (bytes([_SUBCLASS]) + utf(subclass.class_name), subclass.value)
            for subclass in pojo.others
        ),
    ]


def _write_pojo_rows(
    columns: dict[str, pa.Array], rows: Rows, pojo: PojoType, head: bytes
) -> pa.Array:
    parts: list[pa.Array] = []
    for field in pojo.fields:
        selected = columns[field.name].filter(pa.array(rows))
        parts.append(NullableType(field.value).write(selected))
    heads = pa.array([head] * int(rows.sum()), BYTES)
    return scatter(join_parts(heads, *parts), rows).fill_null(EMPTY)
