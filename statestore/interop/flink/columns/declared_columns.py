"""Fit columns of a store to the types that a job declares, and convert the values.

A column fits a type if the type holds all of its values without a change: an ``integer`` fits
``Long``, and a ``long`` does not fit ``Integer``. Fields of tuples and rows are matched by their
position, or by name if the type names them. Fields of classes are matched by name.

Flink finds the serializers of a class's fields by reflection. It then writes some types with Kryo
that have a serializer elsewhere, such as ``LocalDate``. Such a field is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.format.schema import type_text
from statestore.interop.flink.columns.declared_types import BOXES, SIMPLE_TYPES, DeclaredType
from statestore.interop.flink.columns.store_types import (
    Part,
    as_millis,
    cast_column,
    cast_to,
    from_millis,
    identity_column,
    key_column,
    list_column,
    map_column,
    no_columns,
    null_mask,
    row_column,
    struct_part,
    tuple_column,
    value_column,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import (
    ArrayType,
    EnumType,
    ListType,
    MapType,
    NullableType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.keys.key_types import JavaType
from statestore.rows.column_types import schema_of_arrow

_INTEGERS = {
    "Byte": pa.int8(), "Short": pa.int16(), "Integer": pa.int32(), "Long": pa.int64(),
}  # fmt: skip
_REALS = {"Float": pa.float32(), "Double": pa.float64()}
_BY_REFLECTION_KRYO = ("LocalDate", "LocalTime", "LocalDateTime", "Row")
_NOT_OF_THE_JOB = ("java.", "javax.", "scala.", "org.apache.flink.")
_MILLIS = pa.timestamp("ms", "UTC")
_NANOS_OF_DAY = 86_400 * 1_000_000_000


@dataclass(frozen=True)
class JobClass:
    """A class of the job: an enum with its constants, or a POJO with its fields."""

    fields: Mapping[str, DeclaredType] = field(default_factory=dict)
    constants: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnFitter:
    """Fits the columns of one state, and collects all differences.

    Attributes:
        subject: the state, for messages.
        classes: the classes of the job that the user describes, by name. Another
            class has the fields of its column.
        flink_major: 1 or 2, the version of Flink that reads the state, or None if it is unknown.
        differences: receives a sentence for each column that does not fit.
    """

    subject: str
    classes: Mapping[str, JobClass]
    flink_major: int | None
    differences: list[str]

    def fit_columns(
        self, declared: DeclaredType, names: Sequence[str], stored: Sequence[pa.DataType]
    ) -> Part:
        """Return the columns of a part of a state as one value of the declared type.

        A single column is the value itself, unless the type has fields and the column has none.

        Raises:
            UnsupportedTypeError: for a type that Flink writes with Kryo.
        """
        is_enum = bool(self.classes.get(declared.name, JobClass()).constants)
        is_value = is_enum or not declared.is_composite or pa.types.is_struct(stored[0])
        if len(names) == 1 and is_value:
            return replace(self._fit(declared, stored[0], names[0]), names=tuple(names))
        whole = pa.struct([pa.field(*column) for column in zip(names, stored, strict=True)])
        return replace(self._fit(declared, whole, ""), names=tuple(names), is_flat=True)

    def add_difference(self, text: str) -> Part:
        """Record a difference; return a placeholder for the column that does not fit."""
        self.differences.append(f"{self.subject}: {text}")
        return no_columns()

    def _fit(
        self, declared: DeclaredType, stored: pa.DataType, path: str, inside: str = ""
    ) -> Part:
        """Fit a column at a path.

        ``inside`` is the place of a serializer by reflection: ``class`` for the field of a
        class, ``part`` for a part of such a field, and nothing outside of classes.
        """
        name = declared.name
        if inside and name in _BY_REFLECTION_KRYO:
            raise self._kryo_error(declared, path)
        if name in SIMPLE_TYPES or name in BOXES:
            fitted = _fit_simple(BOXES.get(name, name), stored, f"{self.subject}: {_place(path)}")
            return fitted or self._differ(declared, stored, path)
        if name in ("List", "Set", "Map"):
            return self._fit_collection(declared, stored, path, inside)
        if name == "[]":
            return self._fit_array(declared, stored, path, inside)
        if declared.is_class:
            return self._fit_class(declared, stored, path)
        return self._fit_fields(declared, stored, path, inside)

    def _fit_fields(
        self, declared: DeclaredType, stored: pa.DataType, path: str, inside: str
    ) -> Part:
        """Fit a tuple or a row."""
        if not pa.types.is_struct(stored):
            return self._differ(declared, stored, path)
        if declared.names:
            types = dict(zip(declared.names, declared.parts, strict=True))
            return self._fit_named(types, stored, path, inside, row_column)
        parts = declared.parts or tuple(_infer_type(member.type) for member in stored)
        if len(parts) != stored.num_fields:
            return self.add_difference(
                f"{_place(path)} {stored.num_fields} fields, but {declared} has {len(parts)}"
                if path
                else f"it has {stored.num_fields} columns ({', '.join(_names(stored))}), but "
                f"{declared} has {len(parts)} fields"
            )
        fitted = [
            self._fit(part, member.type, _join(path, member.name), "part" * bool(inside))
            for part, member in zip(parts, stored, strict=True)
        ]
        try:
            return (tuple_column if declared.name == "Tuple" else row_column)(stored, fitted)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(f"{self.subject}: {error}") from error

    def _fit_class(self, declared: DeclaredType, stored: pa.DataType, path: str) -> Part:
        """Fit a POJO or an enum of the job."""
        name = declared.name
        known = self.classes.get(name)
        if known is None and ("." not in name or name.startswith(_NOT_OF_THE_JOB)):
            raise self._kryo_error(declared, path)
        if known is not None and known.constants:
            if not pa.types.is_string(stored):
                return self._differ(declared, stored, path)
            return _enum_column(EnumType(name, known.constants), f"{self.subject}: {_place(path)}")
        if not pa.types.is_struct(stored):
            return self._differ(declared, stored, path)
        types = (
            {member.name: _infer_type(member.type) for member in stored}
            if known is None
            else dict(known.fields)
        )
        in_order = {member: types[member] for member in sorted(types, key=_java_order)}
        primitives = [member for member, declared in types.items() if declared.name in BOXES]
        where = f"{self.subject}: a field of {name}"

        def build(struct: pa.StructType, parts: Sequence[Part]) -> Part:
            return _pojo_column(name, struct, parts, primitives, where)

        return self._fit_named(in_order, stored, path, "class", build)

    def _fit_named(
        self,
        types: Mapping[str, DeclaredType],
        stored: pa.StructType,
        path: str,
        inside: str,
        build: Callable[[pa.StructType, Sequence[Part]], Part],
    ) -> Part:
        """Fit fields by name, in the order of ``types``."""
        names = _names(stored)
        for missing in [name for name in types if name not in names]:
            self.add_difference(
                f"the column {_join(path, missing)!r} of {types[missing]} is missing"
            )
        for surplus in [name for name in names if name not in types]:
            self.add_difference(
                f"the column {_join(path, surplus)!r} is no field; the fields are "
                f"{', '.join(types)}"
            )
        fields = [name for name in types if name in names]
        ordered = pa.struct([stored.field(name) for name in fields])
        parts = [
            self._fit(types[name], stored.field(name).type, _join(path, name), inside)
            for name in fields
        ]
        return _reorder(stored, build(ordered, parts))

    def _fit_collection(
        self, declared: DeclaredType, stored: pa.DataType, path: str, inside: str
    ) -> Part:
        """Fit a list, set or map; as the field of a class only Flink 2 has a serializer for it."""
        if not (pa.types.is_map if declared.name == "Map" else pa.types.is_list)(stored):
            return self._differ(declared, stored, path)
        given = declared.parts or _infer_type(stored).parts
        is_nested = any(part.name in ("List", "Set", "Map", "Tuple") for part in given)
        if inside and (self.flink_major != 2 or inside == "part" or is_nested):
            raise self._kryo_error(declared, path)
        inner = "part" * bool(inside)
        if declared.name == "Map":
            key = self._fit(given[0], stored.key_type, _join(path, "key"), inner)
            value = self._fit(given[1], stored.item_type, _join(path, "value"), inner)
            fitted = map_column(stored, key, value)
        else:
            element = self._fit(given[0], stored.value_type, _join(path, "element"), inner)
            fitted = list_column(stored, element)
        if declared.name == "Set":
            fitted = replace(fitted, flink_type=ListType(element.flink_type, "Set"))
        return replace(fitted, flink_type=_by_reflection(fitted.flink_type)) if inside else fitted

    def _fit_array(
        self, declared: DeclaredType, stored: pa.DataType, path: str, inside: str
    ) -> Part:
        (element,) = declared.parts
        if element.name == "byte":
            is_fit = pa.types.is_binary(stored)
            return (
                identity_column(stored, "byte[]")
                if is_fit
                else self._differ(declared, stored, path)
            )
        if element.name == "[]" or element.name in ("List", "Set", "Map", "Row", "char"):
            raise UnsupportedTypeError(
                f"{self.subject}: {_place(path)} {declared}, an array that cannot be written: use "
                "a List, or an array of numbers, text, tuples or classes"
            )
        if not pa.types.is_list(stored):
            return self._differ(declared, stored, path)
        inner = self._fit(element, stored.value_type, _join(path, "element"), "part" * bool(inside))
        fitted = list_column(stored, inner)
        if element.name in BOXES or element.name == "String":
            return replace(fitted, flink_type=Scalar(str(declared)))
        array_type = ArrayType(_class_name(element, inner.flink_type), inner.flink_type)
        return replace(fitted, flink_type=array_type)

    def _differ(self, declared: DeclaredType, stored: pa.DataType, path: str) -> Part:
        return self.add_difference(f"{_place(path)} {_text(stored)}, but the job has {declared}")

    def _kryo_error(self, declared: DeclaredType, path: str) -> UnsupportedTypeError:
        if declared.is_class:
            return UnsupportedTypeError(
                f"{self.subject}: {_place(path)} {declared}, which Flink writes with Kryo if it is "
                "a class of Java; for a class of the job write its package, or describe it with "
                "--classes FILE (classes= in Python)"
            )
        hint = "use Instant, java.sql.Timestamp or a class of the job"
        if declared.name in ("List", "Set", "Map"):
            hint = (
                "Flink 2 alone has a serializer for it, if its parts have no types in brackets: "
                "say --flink 2.3 if the job has it, or use an array"
            )
        return UnsupportedTypeError(
            f"{self.subject}: {_place(path)} {declared} in a class, which Flink writes with Kryo: "
            f"{hint}"
        )


def _by_reflection(collection: FlinkType) -> FlinkType:
    """Return a collection as Flink 2 has it in a class: it can be null, and so can parts of it."""
    if isinstance(collection, MapType):
        return NullableType(replace(collection, key=NullableType(collection.key)))
    if isinstance(collection, ListType) and collection.form == "List":
        return NullableType(replace(collection, element=NullableType(collection.element)))
    return NullableType(collection)


def _place(path: str) -> str:
    return f"the column {path!r} is" if path else "the value is"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names(struct: pa.StructType) -> list[str]:
    return [member.name for member in struct]


def _text(stored: pa.DataType) -> str:
    """Return a column type as the store shows it."""
    (column,) = schema_of_arrow(pa.schema([pa.field("column", stored)])).fields
    return type_text(column.type)


def _java_order(name: str) -> bytes:
    """Return the UTF-16 code units of a name, by which Java sorts."""
    return name.encode("utf-16-be", "surrogatepass")


def _infer_type(stored: pa.DataType) -> DeclaredType:
    """Return the type that a column has if none is declared."""
    types = pa.types
    if types.is_struct(stored):
        return DeclaredType("Row", tuple(_infer_type(member.type) for member in stored))
    if types.is_list(stored):
        return DeclaredType("List", (_infer_type(stored.value_type),))
    if types.is_map(stored):
        return DeclaredType("Map", (_infer_type(stored.key_type), _infer_type(stored.item_type)))
    if types.is_binary(stored):
        return DeclaredType("[]", (DeclaredType("byte"),))
    flink_type = value_column(stored).flink_type
    assert isinstance(flink_type, Scalar), "all other columns are simple"
    return DeclaredType(flink_type.name)


def _class_name(element: DeclaredType, flink_type: FlinkType) -> str:
    """Return the name of the class of an array's elements."""
    if isinstance(flink_type, TupleType):
        return flink_type.class_name
    if element.is_class or "." in element.name:
        return element.name
    package = {"BigDecimal": "math", "BigInteger": "math"}.get(element.name, "lang")
    is_time = element.name == "Instant" or element.name.startswith("Local")
    return f"java.{'time' if is_time else package}.{element.name}"


def _fit_simple(box: str, stored: pa.DataType, where: str) -> Part | None:
    """Return a column as a class without parameters; None if it does not fit."""
    types = pa.types
    if box in _INTEGERS:
        is_fit = types.is_signed_integer(stored) and stored.bit_width <= _INTEGERS[box].bit_width
        return cast_column(stored, box, _INTEGERS[box]) if is_fit else None
    if box in _REALS:
        is_fit = types.is_floating(stored) and stored.bit_width <= _REALS[box].bit_width
        return cast_column(stored, box, _REALS[box]) if is_fit else None
    if box == "Character":
        return _character_column(stored, where) if types.is_string(stored) else None
    if box == "BigInteger":
        is_fit = types.is_signed_integer(stored) or (types.is_decimal(stored) and not stored.scale)
        return key_column(stored, JavaType(box)) if is_fit else None
    if box == "LocalTime":
        return _time_column(stored, where) if types.is_int64(stored) else None
    if box in ("java.util.Date", "java.sql.Date", "java.sql.Time"):
        is_fit = types.is_int64(stored) or (types.is_timestamp(stored) and stored.tz is not None)
        return _millis_column(stored, SIMPLE_TYPES[box], where) if is_fit else None
    own = _own_class(stored)
    if box == "java.sql.Timestamp" and own == "Instant":
        return replace(value_column(stored), flink_type=Scalar(SIMPLE_TYPES[box]))
    return value_column(stored) if own == box else None


def _own_class(stored: pa.DataType) -> str | None:
    """Return the class of a column's values if none is declared; None for composite columns."""
    if pa.types.is_nested(stored):
        return None
    flink_type = value_column(stored).flink_type
    return flink_type.name if isinstance(flink_type, Scalar) else None


def _character_column(stored: pa.DataType, where: str) -> Part:
    def to_flink(array: pa.Array) -> pa.Array:
        units = [None if text is None else text.encode("utf-16-be") for text in array.to_pylist()]
        wrong = next((unit for unit in units if unit is not None and len(unit) != 2), None)
        if wrong is not None:
            raise UnsupportedTypeError(
                f"{where} Character, but it has the text {wrong.decode('utf-16-be')[:20]!r}: a "
                "char of Java is one UTF-16 unit"
            )
        codes = [None if unit is None else int.from_bytes(unit, "big") for unit in units]
        return pa.array(codes, pa.uint16())

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        return pa.array([None if code is None else chr(code) for code in array.to_pylist()], stored)

    return Part(stored, Scalar("Character"), to_flink, from_flink)


def _time_column(stored: pa.DataType, where: str) -> Part:
    def to_flink(array: pa.Array) -> pa.Array:
        outside = pc.or_(pc.less(array, 0), pc.greater_equal(array, _NANOS_OF_DAY))
        if pc.any(outside).as_py():
            example = array.filter(outside)[0]
            raise UnsupportedTypeError(
                f"{where} LocalTime, but no day has the nanosecond {example}"
            )
        return array.cast(pa.time64("ns"))

    return Part(stored, Scalar("LocalTime"), to_flink, cast_to)


def _millis_column(stored: pa.DataType, name: str, where: str) -> Part:
    def to_flink(array: pa.Array) -> pa.Array:
        try:
            return as_millis(array).cast(_MILLIS)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(f"{where} {name}: {error}") from error

    return Part(
        stored,
        Scalar(name),
        to_flink,
        lambda array, stored: from_millis(array.cast(pa.int64()), stored),
    )


def _enum_column(enum: EnumType, where: str) -> Part:
    def to_flink(array: pa.Array) -> pa.Array:
        known = pc.is_in(array, pa.array([*enum.constants, None], pa.string()))
        if not pc.all(known).as_py():
            example = array.filter(pc.invert(known))[0]
            raise UnsupportedTypeError(
                f"{where} {enum.java_name}, which has no constant {str(example)!r}; the constants "
                f"are {', '.join(enum.constants)}"
            )
        return array

    return Part(pa.string(), enum, to_flink, cast_to)


def _pojo_column(
    class_name: str,
    stored: pa.StructType,
    parts: Sequence[Part],
    primitives: Sequence[str],
    where: str,
) -> Part:
    """Return a struct, whose fields have Java's order, as a POJO."""
    fields = zip(_names(stored), parts, strict=True)
    pojo = PojoType(
        class_name,
        tuple(PojoField(name, class_name, part.flink_type) for name, part in fields),
    )
    whole = struct_part(stored, pojo, parts)

    def to_flink(array: pa.Array) -> pa.Array:
        is_set = array.is_valid()
        for name in primitives:
            nulls = pc.and_(is_set, array.field(name).is_null())
            if pc.any(nulls).as_py():
                raise UnsupportedTypeError(
                    f"{where}, {name!r}, is a primitive of Java, but {pc.sum(nulls)} rows have a "
                    "null there: fill it in the table, or declare the box, such as Long"
                )
        return whole.to_flink(array)

    return replace(whole, to_flink=to_flink)


def _reorder(stored: pa.StructType, inner: Part) -> Part:
    """Return the column of a struct whose fields have another order in the store."""
    order = [stored.get_field_index(member.name) for member in inner.stored]
    back = np.argsort(order).tolist()

    def pick(array: pa.Array, indexes: Sequence[int], target: pa.StructType) -> pa.Array:
        columns = array.flatten()
        picked = [columns[index] for index in indexes]
        return pa.StructArray.from_arrays(picked, fields=list(target), mask=null_mask(array))

    return Part(
        stored,
        inner.flink_type,
        lambda array: inner.to_flink(pick(array, order, inner.stored)),
        lambda array, stored: pick(inner.from_flink(array, inner.stored), back, stored),
    )
