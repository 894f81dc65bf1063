"""Converts between struct fields in Spark's state and columns; finds each row's partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import count

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.format.names import RESERVED_COLUMNS
from statestore.spark.hashing import column_of

KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH = "key_bytes", "value_bytes", "shuffle_hash"
NO_KEY = "no_key"
# Names, in any case, that no field's column can have, because columns with them are added.
TAKEN = (*RESERVED_COLUMNS, KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH, NO_KEY)

_LEAVES = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType, T.CharType),
    *(T.VarcharType, T.StringType),
)


@dataclass(frozen=True)
class Leaf:
    """A column, and the position of its value in a struct.

    If ``says_set`` is True, the column has a boolean: whether the struct at that position is not
    null.
    """

    name: str
    place: tuple[int, ...]
    says_set: bool = False


def owner_of(fields: list[Column], partitions: int) -> Column:
    """Return the partition of ``HashPartitioning``; without fields all rows are in the first."""
    return F.pmod(F.hash(*fields), F.lit(partitions)) if fields else F.lit(0)


def fields_of(name: str, struct: T.StructType) -> list[Column]:
    """Return all fields of a struct column, whatever their names are."""
    whole = F.col(name).cast(number_fields(struct, deep=True))
    return [whole[f"f{index}"] for index in range(len(struct))]


def no_column_form(fields: Iterable[T.StructField], part: str) -> tuple[str, ...]:
    """Return a message for each field: that it has no column form."""
    return tuple(
        f"{field.name} of the {part} has type {field.dataType.simpleString()}, which has no "
        "column form"
        for field in fields
    )


def is_void(field: T.StructField) -> bool:
    """Return whether a field has the void type, whose only value is null."""
    return isinstance(field.dataType, T.NullType)


def _is_leaf(data_type: T.DataType) -> bool:
    # With another collation, different texts are equal and have the same hash.
    return (
        type(data_type) in _LEAVES
        and getattr(data_type, "collation", "UTF8_BINARY") == "UTF8_BINARY"
    )


def is_key(field: T.StructField) -> bool:
    """Return whether a key's field can be converted to columns that can all be keys."""
    data_type = field.dataType
    if isinstance(data_type, T.StructType):
        return (
            bool(data_type.fields)
            and all(map(is_key, data_type))
            and not any(map(is_void, data_type))
        )
    return _is_leaf(data_type) or is_void(field)


def is_column(data_type: T.DataType) -> bool:
    """Return whether a field of a value can be a column."""
    if isinstance(data_type, T.StructType):
        names = {name.lower() for name in data_type.names}
        return (
            bool(names)
            and len(names) == len(data_type.names)
            and all(is_column(field.dataType) for field in data_type)
        )
    if isinstance(data_type, T.ArrayType):
        return is_column(data_type.elementType)
    if isinstance(data_type, T.MapType):
        return is_column(data_type.keyType) and is_column(data_type.valueType)
    return _is_leaf(data_type)


def number_fields(struct: T.StructType, *, deep: bool = False) -> T.StructType:
    """Return the same types with the fields' numbers as distinct names.

    With ``deep``, fields of nested structs are numbered too.
    """
    kinds = (
        number_fields(field.dataType, deep=True)
        if deep and isinstance(field.dataType, T.StructType)
        else field.dataType
        for field in struct
    )
    return T.StructType(
        [T.StructField(f"f{index}", data_type) for index, data_type in enumerate(kinds)]
    )


def key_leaves(
    struct: T.StructType, place: tuple[int, ...] = (), prefix: str = ""
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield name and position of each column of a key; nested structs are flattened."""
    for index, field in enumerate(struct):
        name, here = f"{prefix}{field.name}", (*place, index)
        if isinstance(field.dataType, T.StructType):
            if field.nullable:
                yield f"{name}_is_set", here, True
            yield from key_leaves(field.dataType, here, f"{name}_")
        elif not is_void(field):
            yield name, here, False


def name_leaves(
    leaves: Iterator[tuple[str, tuple[int, ...], bool]], taken: tuple[str, ...]
) -> Iterator[Leaf]:
    """Give each leaf a unique, case-insensitive name: ``sum``, ``sum_2``."""
    names = [*taken]
    for wanted, place, says_set in leaves:
        names.append(first_free(wanted, names))
        yield Leaf(names[-1], place, says_set)


def first_free(wanted: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken yet, ignoring case: ``sum``, ``sum_2``."""
    names = {name.lower() for name in taken}
    tries = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
    return next(name for name in tries if name.lower() not in names)


def leaf_value(struct: Column, leaf: Leaf) -> Column:
    """Return the value of a leaf's column, from a struct with numbered fields."""
    leaf_column = reduce(lambda within, index: within[f"f{index}"], leaf.place, struct)
    return leaf_column.isNotNull() if leaf.says_set else leaf_column


def leaf_field(struct: T.StructType, leaf: Leaf) -> T.StructField:
    """Return the name and type of a leaf's column; it is nullable if a struct around it is."""
    data_type: T.DataType = struct
    nullable = False
    for index in leaf.place:
        assert isinstance(data_type, T.StructType)
        field = data_type[index]
        data_type, nullable = field.dataType, nullable or field.nullable
    if leaf.says_set:
        return T.StructField(leaf.name, T.BooleanType(), nullable=False)
    return T.StructField(leaf.name, data_type, nullable)


def rebuild_fields(
    struct: T.StructType, place: tuple[int, ...], leaves: tuple[Leaf, ...]
) -> list[Column]:
    """Rebuild the fields of a struct from a state's columns, with numbers as names."""
    columns = {(leaf.place, leaf.says_set): leaf.name for leaf in leaves}
    fields = []
    for index, field in enumerate(struct):
        here = (*place, index)
        if is_void(field):
            column = F.lit(None)
        elif (here, False) in columns:
            column = column_of(columns[here, False])
        else:
            assert isinstance(field.dataType, T.StructType)
            column = F.struct(*rebuild_fields(field.dataType, here, leaves))
            if (here, True) in columns:
                column = F.when(column_of(columns[here, True]), column)
        fields.append(column.alias(f"f{index}"))
    return fields
