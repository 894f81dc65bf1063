"""The base classes of all types and layouts: what they define, and what other packages call.

A type of Flink's serializers is a frozen dataclass with the type's parameters. It declares the
``snapshots`` of its serializer (:mod:`.serializer_snapshots`), and the ``_layout`` of its values
(:mod:`.layouts`). A type that no layout describes defines ``_arrow_type``, ``_skipper``, ``_read``
and ``_write`` itself, and raises an UnsupportedTypeError for what it cannot do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.snapshot_format import SnapshotForm
from statestore.interop.flink.types.byte_cursor import Cursor, Skip, make_fixed_skip
from statestore.interop.flink.types.key_hash import (
    GroupFunction,
    HashCodes,
    KeyHash,
    column_groups,
    hash_column,
)

T = TypeVar("T")


class Layout(ABC):
    """The bytes of values, and the column that holds the values."""

    __slots__ = ()

    @property
    def fixed_width(self) -> int | None:
        """The number of bytes of every value; None if it varies."""
        return self._fixed_width()

    @property
    def column_count(self) -> int:
        """The number of leaf columns of the values, without those of elements of lists and maps."""
        return self._column_count()

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of a column of values.

        BigDecimal and BigInteger become text in the notation of Java and Python, because the scale
        differs between values and an Arrow decimal has one scale. The fields of tuples and rows are
        ``f0``, ``f1``, …

        Raises UnsupportedTypeError for a type whose values cannot be read, or cannot be a column.
        """
        return self._arrow_type()

    def skipper(self) -> Skip:
        """Return a function that skips one value, whose end follows from its type.

        Raises UnsupportedTypeError for a type whose values have no recognizable end.
        """
        return _cached_skipper(self)

    def read(self, cursor: Cursor) -> pa.Array:
        """Return the column of the values that begin at the cursor, and advance past them.

        Raises:
            UnsupportedTypeError: for a type without a column type, or a value that its column
                cannot hold.
            DamagedFileError: if bytes do not match the type.
        """
        cursor.refuse_cells(_cached_column_count(self))
        return self._read(cursor)

    def write(self, array: pa.Array) -> pa.Array:
        """Return the bytes of each value of a column, as the type's serializer writes them.

        The column must have the type that ``arrow_type`` returns.

        Raises:
            InvalidArgumentError: for a null that the type cannot represent.
            UnsupportedTypeError: for a type whose values are read as bytes only.
        """
        return self._write(array)

    def _fixed_width(self) -> int | None:
        return None

    def _column_count(self) -> int:
        return 1

    @abstractmethod
    def _arrow_type(self) -> pa.DataType: ...

    @abstractmethod
    def _skipper(self) -> Skip:
        """Return the function for values whose width varies."""

    @abstractmethod
    def _read(self, cursor: Cursor) -> pa.Array: ...

    @abstractmethod
    def _write(self, array: pa.Array) -> pa.Array: ...


class FlinkType(Layout):
    """A type of Flink's serializers, with the byte layout and the column type of its values."""

    __slots__ = ()

    snapshots: ClassVar[tuple[SnapshotForm, ...]] = ()
    """The snapshots of the type's serializer; it is empty if Java has no serializer for it."""

    @property
    def java_name(self) -> str:
        """A short form of the Java type, such as ``Tuple2<String, Long>``."""
        return self._java_name()

    @property
    def layout(self) -> Layout:
        """The layout of the values; the type itself if no other layout describes it."""
        return _cached_layout(self)

    @property
    def serializer_length(self) -> int | None:
        """``getLength`` of the type's serializer; None if values differ in length.

        Length marks after a key and a namespace are needed only if both differ in length.
        """
        return self._serializer_length()

    @property
    def has_identity(self) -> bool:
        """Whether a Java map or set can have equal values: Java compares arrays by identity."""
        return self._has_identity()

    def key_hash(self) -> KeyHash:
        """Return how keys of this type are hashed.

        Raises UnsupportedTypeError for a type whose hash cannot be computed from its values.
        """
        key_hash = self._key_hash()
        if key_hash is None:
            raise UnsupportedTypeError(
                f"cannot compute key groups for keys of type {self.java_name}: their hash "
                "depends on the job's own class. If you know it, pass it with "
                "--key-hash (key_hash=)"
            )
        return key_hash

    @property
    def column_key_type(self) -> str | None:
        """The type with which a key column of a store is hashed like these keys, if any."""
        key_hash = self._key_hash()
        return key_hash.key_type if key_hash is not None and key_hash.is_column else None

    def hash_codes(self, column: pa.Array) -> HashCodes:
        """Return Java's ``hashCode`` of each value of a column; 0 for a null.

        For types of Scala this is the hash of a case class without a ``hashCode`` of its own.

        Raises UnsupportedTypeError for a type whose hash cannot be computed from its values.
        """
        return self._hash_codes(column)

    def scala_hash_codes(self, column: pa.Array) -> HashCodes:
        """Return Scala's ``##`` of each value, with which case classes hash their fields.

        Raises the errors of :meth:`hash_codes`.
        """
        return self._scala_hash_codes(column)

    def key_groups(self, cursor: Cursor) -> GroupFunction:
        """Return a function from max parallelism to the key groups of the keys at a cursor.

        The cursor advances past the keys.

        Raises:
            UnsupportedTypeError: for a type whose hash cannot be computed from its values.
            DamagedFileError: if the bytes do not match the type.
        """
        return self._key_groups(cursor)

    def snapshot(self) -> bytes:
        """Return the type's serializer snapshot as Flink 2 writes it, starting with the class name.

        Raises UnsupportedTypeError for a type without a serializer of its own.
        """
        for form in self.snapshots:
            if form.describes(self):
                return form.encode(self)
        raise UnsupportedTypeError(
            f"no serializer of Java writes values of {self.java_name}, so it has no snapshot"
        )

    def _java_name(self) -> str:
        return generic_name(type(self).__name__.removesuffix("Type"), *_find_parts(self))

    def _make_layout(self) -> Layout:
        return self

    def _arrow_type(self) -> pa.DataType:
        return self.layout.arrow_type()

    def _skipper(self) -> Skip:
        return self.layout.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.layout._read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return self.layout.write(array)

    def _has_identity(self) -> bool:
        return any(part.has_identity for part in _find_parts(self))

    def _serializer_length(self) -> int | None:
        return None

    def _fixed_width(self) -> int | None:
        return None if self.layout is self else self.layout.fixed_width

    def _column_count(self) -> int:
        return 1 if self.layout is self else self.layout.column_count

    def _key_hash(self) -> KeyHash | None:
        return None

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        return hash_column(self.key_hash(), column)

    def _scala_hash_codes(self, column: pa.Array) -> HashCodes:
        return self._hash_codes(column)

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return column_groups(self.key_hash(), self.read(cursor))


class OpaqueType(FlinkType):
    """A type whose values stay bytes."""

    __slots__ = ()

    @abstractmethod
    def _java_name(self) -> str: ...

    def _arrow_type(self) -> pa.DataType:
        raise UnsupportedTypeError(f"values of {self.java_name} can only be read as bytes")

    def _skipper(self) -> Skip:
        raise UnsupportedTypeError(
            f"the length of a value of {self.java_name} is unknown: take a canonical savepoint, "
            "which has the length of each value"
        )

    def _read(self, cursor: Cursor) -> pa.Array:
        raise UnsupportedTypeError(f"values of {self.java_name} can only be read as bytes")

    def _write(self, array: pa.Array) -> pa.Array:
        raise UnsupportedTypeError(f"values of {self.java_name} can only be written as bytes")


@lru_cache(maxsize=512)
def _cached_layout(flink_type: FlinkType) -> Layout:
    return flink_type._make_layout()


@lru_cache(maxsize=512)
def _cached_skipper(layout: Layout) -> Skip:
    width = layout.fixed_width
    return layout._skipper() if width is None else make_fixed_skip(width)


@lru_cache(maxsize=512)
def _cached_column_count(layout: Layout) -> int:
    return layout.column_count


def nested_hashes(parts: Sequence[Layout]) -> list[KeyHash] | None:
    """Return how the parts of a key are hashed; None if one of them cannot be hashed."""
    hashes = [part._key_hash() for part in parts if isinstance(part, FlinkType)]
    known = [key_hash for key_hash in hashes if key_hash is not None]
    return known if len(known) == len(parts) else None


def nested_types(part: object) -> Iterator[FlinkType]:
    """Yield a type and all types in it; ``part`` can also be a tuple, or a part of a type."""
    if isinstance(part, tuple):
        for item in part:
            yield from nested_types(item)
    if isinstance(part, FlinkType):
        yield part
    if is_dataclass(part):
        for member in fields(part):
            yield from nested_types(getattr(part, member.name))


def _find_parts(whole: Any) -> Iterator[FlinkType]:
    """Yield the types that are directly part of a type, not the types within them."""
    is_tuple = isinstance(whole, tuple)
    parts = whole if is_tuple else (getattr(whole, member.name) for member in fields(whole))
    for part in parts:
        if isinstance(part, FlinkType):
            yield part
        elif isinstance(part, tuple) or (is_dataclass(part) and not isinstance(part, type)):
            yield from _find_parts(part)


def replace_parts(part: T, change: Callable[[Any], Any]) -> T:
    """Return a type, or a part of one, with other parts.

    Args:
        part: a type, a tuple of parts, or a dataclass with parts, such as the field of a POJO.
        change: returns the replacement of a part, or None to visit the parts within it.

    Returns:
        The part itself if nothing is replaced.
    """
    replaced: T = _replace_within(part, change)
    return replaced


def _replace_within(part: Any, change: Callable[[Any], Any]) -> Any:
    replaced = change(part)
    if replaced is not None:
        return replaced
    if isinstance(part, tuple):
        items = tuple(_replace_within(item, change) for item in part)
        return part if all(new is old for new, old in zip(items, part, strict=True)) else items
    if isinstance(part, type) or not is_dataclass(part):
        return part
    members = ((member.name, getattr(part, member.name)) for member in fields(part))
    changed = {
        name: new for name, old in members if (new := _replace_within(old, change)) is not old
    }
    return replace(cast("Any", part), **changed) if changed else part


def total_width(widths: Iterable[int | None]) -> int | None:
    """Return the sum of the widths of a value's parts; None if one of them varies."""
    widths = list(widths)
    known = [width for width in widths if width is not None]
    return sum(known) if len(known) == len(widths) else None


def generic_name(name: str, *parts: FlinkType) -> str:
    """Return the name of a generic type, such as ``List<Long>``."""
    return f"{name}<{', '.join(part.java_name for part in parts)}>"


def short_name(class_name: str) -> str:
    """Return the name of a class without its package."""
    return class_name.rpartition(".")[2]
