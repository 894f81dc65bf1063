"""Types of Flink's Java API: those without parameters, tuples, rows, collections and enums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, utf
from statestore.interop.flink.metadata.snapshot_format import (
    BASE,
    DATAVIEW,
    FIELDS,
    FLINK,
    JAVA_OBJECT,
    RUNTIME,
    SCALA,
    TABLE,
    TEXT,
    Member,
    SnapshotForm,
    composite,
    counted_member,
    encode_parts,
    flag_since,
    inner_class,
    plain,
    simple,
)
from statestore.interop.flink.types.base import (
    FlinkType,
    Layout,
    generic_name,
    nested_hashes,
    short_name,
    total_width,
)
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Skip,
    join_parts,
    list_offsets,
    scatter,
)
from statestore.interop.flink.types.column_bytes import (
    find_valid,
    join_runs,
    list_lengths,
    refuse_nulls,
    write_numbers,
    write_where,
)
from statestore.interop.flink.types.key_hash import (
    SCALA_NUMBERS,
    GroupFunction,
    HashCodes,
    KeyHash,
    column_groups,
    groups_of_hashes,
    hash_column,
    hash_product,
    hash_valid,
    struct_hash,
)
from statestore.interop.flink.types.layouts import (
    FLAG,
    Choice,
    Counted,
    Entries,
    Flagged,
    Leaf,
    Masked,
    Tagged,
    Tags,
    number_names,
    numbered_struct,
)
from statestore.interop.flink.types.scalar_times import TIMES
from statestore.interop.flink.types.scalar_values import (
    ARRAYS,
    BIG_NUMBERS,
    NUMBERS,
    PYTHON_SCALARS,
    TEXTS,
    WINDOWS,
    ScalarForm,
)

_FORMS = (*NUMBERS, *BIG_NUMBERS, *TEXTS, *TIMES, *WINDOWS, *ARRAYS, *PYTHON_SCALARS)

SCALARS: dict[str, ScalarForm] = {form.name: form for form in _FORMS}
"""The registry of types without parameters."""


@dataclass(frozen=True, slots=True)
class Scalar(FlinkType):
    """A type whose snapshot has no body, by its short name: ``Long``, ``String``, ``long[]``."""

    name: str

    snapshots = tuple(
        simple(form.snapshot, name=form.name) for form in _FORMS if form.snapshot is not None
    )

    @property
    def form(self) -> ScalarForm:
        """The definition of the type."""
        return SCALARS[self.name]

    def _java_name(self) -> str:
        return self.name

    def _has_identity(self) -> bool:
        return self.name.endswith("[]")

    def _serializer_length(self) -> int | None:
        return self.fixed_width if self.form.length is None else self.form.length

    def _make_layout(self) -> Layout:
        return self.form.layout

    def _key_hash(self) -> KeyHash | None:
        return self.form.key_hash

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        if self.form.single_key_hashes is not None:
            return groups_of_hashes(self._hash_codes(self.read(cursor)))
        return column_groups(self.key_hash(), self.read(cursor))

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        single = self.form.single_key_hashes
        if single is None:
            return hash_column(self.key_hash(), column)
        return hash_valid(column, lambda known: np.array(single(known), np.int32))

    def _scala_hash_codes(self, column: pa.Array) -> HashCodes:
        hash_number = SCALA_NUMBERS.get(self.name)
        return self._hash_codes(column) if hash_number is None else hash_valid(column, hash_number)


_JOIN = f"{FLINK}streaming.api.operators.co.IntervalJoinOperator$BufferEntry"
_JOIN_FIELDS = Member(
    lambda snapshot: (Scalar("Boolean"), *snapshot.parts(1)),
    lambda fields: encode_parts(fields[1:]),
)
"""The fields of ``IntervalJoinOperator.BufferEntry``: a flag that it was joined, and an element."""


@dataclass(frozen=True, slots=True)
class TupleType(FlinkType):
    """A ``Tuple1`` to ``Tuple25``, or a Scala-free subclass of one."""

    class_name: str
    fields: tuple[FlinkType, ...]

    snapshots = (
        composite(f"{_JOIN}SerializerSnapshot", 1, {"fields": _JOIN_FIELDS}, class_name=_JOIN),
        composite(f"{RUNTIME}TupleSerializerSnapshot", 2, {"class_name": TEXT, "fields": FIELDS}),
    )

    def _java_name(self) -> str:
        return generic_name(short_name(self.class_name), *self.fields)

    def _make_layout(self) -> Layout:
        return numbered_struct(self.fields)

    def _serializer_length(self) -> int | None:
        return total_width(field.serializer_length for field in self.fields)

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes(self.fields)
        return None if parts is None else struct_hash(f"Tuple{len(self.fields)}", parts)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        parts = zip(self.fields, column.flatten(), strict=True)
        first, *others = (field.hash_codes(values) for field, values in parts)
        for codes in others:
            first = first * np.int32(31) + codes
        return first


@dataclass(frozen=True, slots=True)
class RowType(FlinkType):
    """A ``Row``; ``has_kind`` is true if the ``RowKind`` precedes the null bits of its values."""

    fields: tuple[FlinkType, ...]
    has_kind: bool = True

    snapshots = (
        composite(
            inner_class(RUNTIME, "RowSerializer"),
            4,
            {"has_kind": flag_since(4, implied=3), "fields": FIELDS},
        ),
    )

    def _make_layout(self) -> Layout:
        return Masked(number_names(self.fields), self.fields, self.has_kind)

    def _has_identity(self) -> bool:
        return False  # its equals compares the elements of arrays

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes(self.fields)
        return None if parts is None else struct_hash("Row", parts)


@dataclass(frozen=True, slots=True)
class NullableType(FlinkType):
    """A nullable value; a null is followed by ``padding`` bytes."""

    value: FlinkType
    padding: int = 0

    snapshots = (
        composite(
            inner_class(RUNTIME, "NullableSerializer"),
            2,
            {"padding": Member(lambda snapshot: _read_padding(snapshot.reader), i32)},
            ("value",),
        ),
    )

    def _make_layout(self) -> Layout:
        return Flagged(self.value, present=0, padding=self.padding)

    def _serializer_length(self) -> int | None:
        inner = self.value.serializer_length if self.padding else None
        return None if inner is None else 1 + inner


_LONGEST_PADDING = 1 << 16  # a null takes as many bytes as a value of a fixed length


def _read_padding(reader: Reader) -> int:
    begin = reader.position
    padding = reader.i32()
    if not 0 <= padding <= _LONGEST_PADDING:
        raise reader.error(
            f"a null is followed by {padding} bytes, which are fewer than 0 or more than "
            f"{_LONGEST_PADDING}",
            position=begin,
        )
    return padding


def present(value: Layout) -> Layout:
    """Return the layout of a value after a flag that it is not null."""
    return Flagged(value, present=1)


_HAS_MASK = flag_since(3, implied=2)


def _list_form(class_name: str, form: str) -> SnapshotForm:
    return composite(class_name, 1, parts=("element",), form=form)


def _view_form(view: str) -> SnapshotForm:
    """Return the snapshot of a view, which has the layout of the list or map in it."""
    name = f"{DATAVIEW}{view}SerializerSnapshot"
    return composite(name, 1, parts=("element",), make=lambda element: element)


@dataclass(frozen=True, slots=True)
class MaskedList(Layout):
    """A number of elements, a bit for each, set for a null, then the others (``MaskUtils``)."""

    element: Layout

    def _arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def _skipper(self) -> Skip:
        skip_element = self.element.skipper()

        def skip(reader: Reader) -> None:
            for is_null in _read_null_mask(reader):
                if not is_null:
                    skip_element(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        skip = self.element.skipper()
        starts: list[int] = []
        limits: list[int] = []
        nulls: list[bool] = []
        counts, ends = np.zeros(len(cursor), np.int64), cursor.position.copy()
        for row in range(len(cursor)):
            reader, begin = cursor.reader(row), int(cursor.position[row])
            mask = _read_null_mask(reader)
            nulls += mask
            counts[row] = len(mask)
            for _ in range(mask.count(False)):
                starts.append(begin + reader.position)
                limits.append(int(cursor.end[row]))
                skip(reader)
            ends[row] = begin + reader.position
        cursor.position = ends
        present = Cursor(cursor.spans, np.array(starts, np.int64), np.array(limits, np.int64))
        values = scatter(self.element.read(present), ~np.array(nulls, np.bool_))
        return pa.ListArray.from_arrays(list_offsets(counts), values)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        counts, flat = list_lengths(array), array.flatten()
        valid = find_valid(flat)
        masks, start = [], 0
        for count in counts.tolist():
            masks.append(i32(count) + np.packbits(~valid[start : start + count]).tobytes())
            start += count
        elements = join_runs(write_where(flat, valid, self.element), counts)
        return join_parts(pa.array(masks, BYTES), elements)


def _read_null_mask(reader: Reader) -> list[bool]:
    """Return which elements are null in the list that begins here."""
    count = reader.i32()
    if count < 0 or (count + 7) // 8 > reader.remaining:
        raise reader.error(f"the list length {count} is invalid", position=reader.position - 4)
    mask = bytes(reader.take((count + 7) // 8))
    return [bool(mask[index // 8] >> (7 - index % 8) & 1) for index in range(count)]


@dataclass(frozen=True, slots=True)
class ListType(FlinkType):
    """A ``List`` or ``Set``; the hashmap backend stores a list state as an ``ArrayList``.

    The ``LinkedList`` of Flink SQL has a null bit for each element.
    """

    element: FlinkType
    form: Literal["List", "ArrayList", "Set", "LinkedList"] = "List"

    snapshots = (
        _list_form(f"{BASE}ListSerializerSnapshot", "List"),
        _list_form(f"{FLINK}runtime.state.ArrayListSerializerSnapshot", "ArrayList"),
        _list_form(f"{BASE}SetSerializerSnapshot", "Set"),
        composite(
            inner_class(TABLE, "LinkedListSerializer"),
            3,
            {
                "form": Member(
                    lambda snapshot: "LinkedList" if _HAS_MASK.read(snapshot) else "List",
                    lambda _: i8(True),
                )
            },
            ("element",),
            form="LinkedList",
        ),
        _view_form("ListView"),
        _view_form("MapView"),
    )

    def _java_name(self) -> str:
        return generic_name("List" if self.form == "ArrayList" else self.form, self.element)

    def _make_layout(self) -> Layout:
        if self.form == "LinkedList":
            return MaskedList(self.element)
        if self.form != "Set":
            return Counted(self.element)
        nullable = NullableType(self.element)
        return Counted(nullable, unique="" if self.element.has_identity else "element")

    def _key_hash(self) -> KeyHash | None:
        element = self.element._key_hash()
        if element is None:
            return None

        def convert(column: pa.Array) -> pa.Array:
            return pa.ListArray.from_arrays(column.offsets, element.convert(column.values))

        is_column = self.form == "List" and element.is_column
        return KeyHash(f"List<{element.key_type}>", convert, is_column=is_column)


@dataclass(frozen=True, slots=True)
class ArrayType(FlinkType):
    """An array of objects, each after a flag that it is not null."""

    class_name: str
    element: FlinkType

    snapshots = (
        composite(f"{BASE}GenericArraySerializerSnapshot", 1, {"class_name": TEXT}, ("element",)),
    )

    def _java_name(self) -> str:
        return f"{self.element.java_name}[]"

    def _make_layout(self) -> Layout:
        return Counted(present(self.element))

    def _has_identity(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class MapType(FlinkType):
    """A ``Map``.

    For the ``SortedMap`` of Flink SQL, ``outer`` is its comparator as Java serialized it. The
    ``NullAwareMap`` of Flink SQL can have a null key.
    """

    key: FlinkType
    value: FlinkType
    form: Literal["Map", "SortedMap", "NullAwareMap"] = "Map"
    outer: bytes = b""

    snapshots = (
        composite(f"{BASE}MapSerializerSnapshot", 1, parts=("key", "value"), form="Map"),
        plain(
            f"{TABLE}SortedMapSerializerSnapshot",
            3,
            {"outer": JAVA_OBJECT},
            ("key", "value"),
            form="SortedMap",
        ),
        composite(
            f"{DATAVIEW}NullAwareMapSerializerSnapshot",
            1,
            parts=("key", "value"),
            form="NullAwareMap",
        ),
    )

    def _java_name(self) -> str:
        return generic_name(self.form, self.key, self.value)

    def _make_layout(self) -> Layout:
        key = NullableType(self.key) if self.form == "NullAwareMap" else self.key
        entry = numbered_struct((key, NullableType(self.value)))
        return Entries(Counted(entry, least=2, unique="" if self.key.has_identity else "key"))

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes((self.key, self.value))
        if parts is None or not all(part.is_plain for part in parts):
            return None
        names = ", ".join(part.key_type for part in parts)
        return KeyHash(f"Map<{names}>", lambda column: column, is_column=False)


def _either_form(class_name: str, form: str) -> SnapshotForm:
    return composite(class_name, 1, parts=("left", "right"), form=form)


@dataclass(frozen=True, slots=True)
class EitherType(FlinkType):
    """An ``Either`` of two types; ``TaggedUnion`` is the form of a window join of two streams."""

    left: FlinkType
    right: FlinkType
    form: Literal["Either", "ScalaEither", "TaggedUnion"] = "Either"

    snapshots = (
        _either_form(f"{RUNTIME}JavaEitherSerializerSnapshot", "Either"),
        _either_form(f"{SCALA}ScalaEitherSerializerSnapshot", "ScalaEither"),
        _either_form(
            f"{FLINK}streaming.api.datastream.CoGroupedStreams$UnionSerializerSnapshot",
            "TaggedUnion",
        ),
    )

    def _java_name(self) -> str:
        return generic_name(self.form.removeprefix("Scala"), self.left, self.right)

    def _make_layout(self) -> Layout:
        is_union = self.form == "TaggedUnion"
        sides = Choice("left", self.left, (1,)), Choice("right", self.right, (2 * is_union,))
        return Tagged(_SIDES if is_union else FLAG, sides, pa.field("is_left", pa.bool_()))

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        if self.form != "ScalaEither":
            return hash_column(self.key_hash(), column)  # whose error names the type
        is_left, left, right = column.flatten()
        rows = is_left.to_numpy(zero_copy_only=False)
        sides = self.left.scala_hash_codes(left), self.right.scala_hash_codes(right)
        return hash_product([np.where(rows, *sides)])


_SIDES = Tags(1, 2, problem="a value belongs to neither of the two streams")


def constants_layout(title: str, names: Sequence[str], numbers: Iterable[int]) -> Leaf:
    """Return the layout of the constants of an enum, each of which is written as a number."""
    texts, known = pa.array(names, pa.string()), pa.array(numbers, pa.int32())

    def read(cursor: Cursor) -> pa.Array:
        places = pc.index_in(pa.array(cursor.numbers(">i4")), known)
        unknown = places.is_null().to_numpy(zero_copy_only=False)
        cursor.refuse(unknown, f"{title} has no such constant")
        return texts.take(places)

    def write(array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        places = pc.index_in(array, texts)
        if places.null_count:
            example = array.filter(places.is_null())[0]
            raise InvalidArgumentError(
                f"{title} has no constant {str(example)!r}; the constants are {', '.join(names)}"
            )
        return write_numbers(known.take(places), ">i4")

    return Leaf(texts.type, 4, read, write)


@dataclass(frozen=True, slots=True)
class EnumType(FlinkType):
    """An enum; a value is the index of its constant."""

    class_name: str
    constants: tuple[str, ...]

    snapshots = (
        plain(
            inner_class(BASE, "EnumSerializer"),
            3,
            {"class_name": TEXT, "constants": counted_member(Reader.utf, utf, 2, "constants")},
        ),
    )

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def _make_layout(self) -> Layout:
        return constants_layout(self.class_name, self.constants, range(len(self.constants)))

    def _serializer_length(self) -> int | None:
        return self.fixed_width

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        raise UnsupportedTypeError(
            f"the hashes of the constants of the enum {self.java_name} differ in every Java "
            "process, so no recipe can compute them"
        )
