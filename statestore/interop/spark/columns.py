"""How the rows of one of Spark's stores are the rows of a keyed state, and back.

Spark's row is a struct ``key`` and a struct ``value``. Their fields become columns: those of the
shuffle key are the key, structs among them field by field; the one that tells rows of a shuffle key
apart is the entry; the value's are columns as they are. Names that a table cannot have twice get a
number. A store with a field that has no column form (an interval, a variant, an array as a key) is
kept as Spark's own bytes, beside the hash that says whose row each is: it can be moved and rescaled
as any other, and not be edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.interop.spark.rows import encoded
from statestore.spark.hashing import column_of

__all__ = ["KEY_BYTES", "SHUFFLE_HASH", "VALUE_BYTES", "StoreColumns"]

KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH = "key_bytes", "value_bytes", "shuffle_hash"
NO_KEY = "no_key"
# Names that no field can have as a column, in any case: those that are added.
_TAKEN = ("key_group", KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH, NO_KEY)
_LEAVES = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType, T.CharType),
    *(T.VarcharType, T.StringType),
)


@dataclass(frozen=True)
class _Leaf:
    """A column, and the place of what it holds in a struct; with ``says_set`` it holds whether the
    struct at that place is there.
    """

    name: str
    place: tuple[int, ...]
    says_set: bool = False


@dataclass(frozen=True)
class StoreColumns:
    """The columns of one store. ``entry`` is the field of its key that is not shuffled by."""

    key: T.StructType
    value: T.StructType
    entry: str | None = None

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why the rows are kept as Spark's bytes; empty where they have columns."""
        unfit = [
            *((one, "key") for one in self.key if not _is_key(one)),
            *(
                (one, "value")
                for one in self.value
                if not (_is_column(one.dataType) or _is_void(one))
            ),
        ]
        return tuple(
            f"{one.name} of the {part} is of type {one.dataType.simpleString()}, which has no "
            "column form"
            for one, part in unfit
        )

    @property
    def is_typed(self) -> bool:
        """Whether the rows have columns, and not Spark's bytes."""
        return not self.problems

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns that rows are hashed and found by."""
        if not self.is_typed:
            return [KEY_BYTES]
        return [leaf.name for leaf in self._key if leaf.place[0] != self._entry] or [NO_KEY]

    @cached_property
    def entry_columns(self) -> list[str]:
        """The columns that tell rows of one key apart; none where there is one row a key."""
        return [leaf.name for leaf in self._key if self.is_typed and leaf.place[0] == self._entry]

    def to_state(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Return ``others`` and the columns of a state, of rows with ``key`` and ``value``."""
        if not self.is_typed:
            shuffled = self._shuffled()
            hashed = F.hash(*shuffled) if shuffled else F.lit(0)
            return encoded(rows.select(*others, hashed.alias(SHUFFLE_HASH), "key", "value"))
        key = F.col("key").cast(_numbered(self.key, deep=True))
        value = F.col("value").cast(_numbered(self.value))
        return rows.select(
            *others,
            *([F.lit(0).alias(NO_KEY)] if NO_KEY in self.key_columns else []),
            *(_at(key, leaf).alias(leaf.name) for leaf in self._key),
            *(_at(value, leaf).alias(leaf.name) for leaf in self._value),
        )

    def to_bytes(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Return a state's rows as Spark's bytes, in as many Spark partitions as Spark's state has.

        The columns are ``key_bytes`` and ``value_bytes``; Spark partition i has the rows of state
        partition i, where Spark looks for them. Rows without a key have one partition.
        """
        partitions = self.partitions(partitions)
        if not self.is_typed:
            return rows.repartitionById(partitions, self.owner(partitions)).select(
                KEY_BYTES, VALUE_BYTES
            )
        key = F.struct(*_rebuilt(self.key, (), self._key))
        value = F.struct(*_rebuilt(self.value, (), self._value))
        structs = rows.select(
            self.owner(partitions).alias("owner"), key.alias("key"), value.alias("value")
        )
        return encoded(structs.repartitionById(partitions, "owner")).select(KEY_BYTES, VALUE_BYTES)

    def partitions(self, shuffled: int) -> int:
        """Return how many partitions Spark's state has where a shuffle has so many."""
        return 1 if all(map(_is_void, self.key)) else shuffled

    def owner(self, partitions: int) -> Column:
        """Return the state partition that a row of the state belongs to."""
        partitions = self.partitions(partitions)
        if not self.is_typed:
            return F.pmod(F.col(SHUFFLE_HASH), F.lit(partitions))
        fields = _rebuilt(self.key, (), self._key)
        return _owner([one for at, one in enumerate(fields) if at != self._entry], partitions)

    def owner_in_spark(self, partitions: int) -> Column:
        """Return the same of a row as Spark's reader has it."""
        return _owner(self._shuffled(), self.partitions(partitions))

    def _shuffled(self) -> list[Column]:
        key = F.col("key").cast(_numbered(self.key, deep=True))
        return [key[f"f{at}"] for at in range(len(self.key)) if at != self._entry]

    @cached_property
    def _entry(self) -> int | None:
        return None if self.entry is None else self.key.names.index(self.entry)

    @cached_property
    def _key(self) -> tuple[_Leaf, ...]:
        return tuple(_named(_key_leaves(self.key, ()), taken=_TAKEN))

    @cached_property
    def _value(self) -> tuple[_Leaf, ...]:
        fields = (
            (one.name, (at,), False) for at, one in enumerate(self.value) if not _is_void(one)
        )
        return tuple(_named(fields, taken=(*_TAKEN, *(leaf.name for leaf in self._key))))


def _owner(fields: list[Column], partitions: int) -> Column:
    """Return ``HashPartitioning``'s partition; without fields all rows are in the first."""
    return F.pmod(F.hash(*fields), F.lit(partitions)) if fields else F.lit(0)


def _is_void(field: T.StructField) -> bool:
    return isinstance(field.dataType, T.NullType)


def _is_leaf(kind: T.DataType) -> bool:
    # Of a collation text that differs is equal, and hashed so.
    return type(kind) in _LEAVES and getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def _is_key(field: T.StructField) -> bool:
    """Return whether a field of a key can be columns, each of which can be a key."""
    kind = field.dataType
    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(map(_is_key, kind)) and not any(map(_is_void, kind))
    return _is_leaf(kind) or _is_void(field)


def _is_column(kind: T.DataType) -> bool:
    """Return whether a field of a value can be a column."""
    if isinstance(kind, T.StructType):
        names = {name.lower() for name in kind.names}
        return (
            bool(names)
            and len(names) == len(kind.names)
            and all(_is_column(one.dataType) for one in kind)
        )
    if isinstance(kind, T.ArrayType):
        return _is_column(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_column(kind.keyType) and _is_column(kind.valueType)
    return _is_leaf(kind)


def _numbered(struct: T.StructType, *, deep: bool = False) -> T.StructType:
    """Return the same types with names that differ: fields are found by their numbers. ``deep`` is
    also within structs.
    """
    kinds = (
        _numbered(one.dataType, deep=True)
        if deep and isinstance(one.dataType, T.StructType)
        else one.dataType
        for one in struct
    )
    return T.StructType([T.StructField(f"f{at}", kind) for at, kind in enumerate(kinds)])


def _key_leaves(
    struct: T.StructType, place: tuple[int, ...], prefix: str = ""
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    for at, field in enumerate(struct):
        name, here = f"{prefix}{field.name}", (*place, at)
        if isinstance(field.dataType, T.StructType):
            if field.nullable:
                yield f"{name}_is_set", here, True
            yield from _key_leaves(field.dataType, here, f"{name}_")
        elif not _is_void(field):
            yield name, here, False


def _named(
    leaves: Iterator[tuple[str, tuple[int, ...], bool]], taken: tuple[str, ...]
) -> Iterator[_Leaf]:
    """Give each a name that no other has, in any case: ``sum``, ``sum_2``."""
    names = {name.lower() for name in taken}
    for wanted, place, says_set in leaves:
        tries = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
        name = next(name for name in tries if name.lower() not in names)
        names.add(name.lower())
        yield _Leaf(name, place, says_set)


def _at(struct: Column, leaf: _Leaf) -> Column:
    """Return what a leaf's column holds, of a struct with numbered fields."""
    found = reduce(lambda within, at: within[f"f{at}"], leaf.place, struct)
    return found.isNotNull() if leaf.says_set else found


def _rebuilt(
    struct: T.StructType, place: tuple[int, ...], leaves: tuple[_Leaf, ...]
) -> list[Column]:
    """Return the fields of a struct, of a state's columns, with numbers as names."""
    columns = {(leaf.place, leaf.says_set): leaf.name for leaf in leaves}
    found = []
    for at, field in enumerate(struct):
        here = (*place, at)
        if _is_void(field):
            column = F.lit(None)
        elif (here, False) in columns:
            column = column_of(columns[here, False])
        else:
            assert isinstance(field.dataType, T.StructType)
            column = F.struct(*_rebuilt(field.dataType, here, leaves))
            if (here, True) in columns:
                column = F.when(column_of(columns[here, True]), column)
        found.append(column.alias(f"f{at}"))
    return found
