"""Skip values: values have no length prefix, so the end of each follows from its type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import Reader
from statestore.interop.flink_savepoints.types.flink_types import (
    WIDTHS,
    ArrayType,
    BinaryRowType,
    EitherType,
    EnumType,
    ExternalType,
    FlinkType,
    KryoType,
    ListType,
    MapType,
    NullableType,
    PojoType,
    PresentType,
    PythonType,
    RawType,
    RowDataType,
    RowType,
    Scalar,
    SqlScalar,
    Subclass,
    TimerType,
    TtlAwareType,
    TtlType,
    TupleType,
    UnknownType,
    java_type_name,
)

__all__ = ["ELEMENT_WIDTHS", "KIND_BITS", "Skip", "fixed_width", "null_mask", "skipper"]

Skip = Callable[[Reader], None]

ELEMENT_WIDTHS = {
    "boolean[]": 1, "byte[]": 1, "short[]": 2, "int[]": 4, "long[]": 8, "float[]": 4,
    "double[]": 8, "char[]": 2,
}  # fmt: skip
"""Bytes per element of an array of primitives."""

KIND_BITS = 2
"""The number of bits of a ``RowKind``, which precede the null bits of a row's fields."""

_BIG_CONSTANTS = 4  # BigIntSerializer: 0 to 3 mean null, 0, 1 and 10; otherwise 4 + length


def fixed_width(flink_type: FlinkType) -> int | None:
    """Return the number of bytes of every value of a type, or None if it varies."""
    parts: tuple[FlinkType, ...]
    match flink_type:
        case Scalar("VoidNamespace"):
            return 1
        case Scalar(name):
            return WIDTHS.get(name)
        case EnumType():
            return 4
        case TupleType(_, parts):
            pass
        case TtlType(value):
            parts = (Scalar("Long"), value)
        case TtlAwareType(value):
            parts = (value,)
        case TimerType(key, namespace):
            parts = (Scalar("Long"), key, namespace)
        case _:
            return None
    widths = [fixed_width(part) for part in parts]
    known = [width for width in widths if width is not None]
    return sum(known) if len(known) == len(widths) else None


@lru_cache(maxsize=512)
def skipper(flink_type: FlinkType) -> Skip:
    """Return a function that skips one value of a type.

    Raises:
        UnsupportedTypeError: for a type whose values have no recognizable end.
    """
    width = fixed_width(flink_type)
    if width is not None:
        return _make_fixed_skip(width)
    match flink_type:
        case Scalar(name):
            return _make_scalar_skip(name)
        case TupleType(_, fields):
            return _make_sequence_skip(fields)
        case RowType(fields, has_kind):
            return _make_row_skip(fields, has_kind)
        case ListType(element, form):
            if form == "LinkedList":
                return _make_masked_skip(skipper(element))
            return _make_counted_skip(skipper(NullableType(element) if form == "Set" else element))
        case MapType(key, value, map_form):
            key_type = NullableType(key) if map_form == "NullAwareMap" else key
            return _make_counted_skip(_make_sequence_skip((key_type, NullableType(value))))
        case ArrayType(_, element):
            return _make_counted_skip(skipper(PresentType(element)))
        case PresentType(value):
            return _make_flagged_skip(skipper(value), skips_if=True)
        case EitherType(left, right, either_form):
            return _make_either_skip(
                skipper(left), skipper(right), is_tagged=either_form == "TaggedUnion"
            )
        case NullableType(value, padding):
            return _make_nullable_skip(skipper(value), padding)
        case TtlType(value):
            return _make_sequence_skip((Scalar("Long"), value))
        case TtlAwareType(value) | ExternalType(_, value):
            return skipper(value)
        case TimerType(key, namespace):
            return _make_sequence_skip((Scalar("Long"), key, namespace))
        case PojoType():
            return _make_pojo_skip(flink_type)
        case RowDataType() | BinaryRowType() | RawType() | PythonType():
            return _skip_sized
        case KryoType() | SqlScalar() | UnknownType():
            raise UnsupportedTypeError(
                f"the length of a value of {java_type_name(flink_type)} is unknown: take a "
                "canonical savepoint, which has the length of each value"
            )
    raise AssertionError(flink_type)


def _make_fixed_skip(width: int) -> Skip:
    def skip(reader: Reader) -> None:
        reader.take(width)

    return skip


def _skip_sized(reader: Reader) -> None:
    reader.take(reader.i32())


def _skip_string(reader: Reader) -> None:
    length = reader.varint() - 1
    if length <= 0:
        return
    if (
        length <= reader.remaining
        and bytes(reader.data[reader.position : reader.position + length]).isascii()
    ):
        reader.position += length
        return
    for _ in range(length):
        reader.varint()


def _skip_big(reader: Reader) -> int:
    length = reader.i32()
    if length < 0:
        raise reader.error(f"the length {length} is negative", position=reader.position - 4)
    reader.take(max(length - _BIG_CONSTANTS, 0))
    return length


def _skip_big_integer(reader: Reader) -> None:
    _skip_big(reader)


def _skip_big_decimal(reader: Reader) -> None:
    if _skip_big(reader):  # a null has no scale
        reader.take(4)


def _make_scalar_skip(name: str) -> Skip:
    known: dict[str, Skip] = {
        "String": _skip_string,
        "BigInteger": _skip_big_integer,
        "BigDecimal": _skip_big_decimal,
        "StringData": _skip_sized,
        "ByteArrayWrapper": _skip_sized,
        "String[]": _make_counted_skip(_skip_string),
        "Tuple0": _make_fixed_skip(1),
    }
    if name in known:
        return known[name]
    width = ELEMENT_WIDTHS[name]

    def skip(reader: Reader) -> None:
        reader.take(reader.i32() * width)

    return skip


def _make_sequence_skip(parts: tuple[FlinkType, ...]) -> Skip:
    skips = tuple(map(skipper, parts))

    def skip(reader: Reader) -> None:
        for skip_part in skips:
            skip_part(reader)

    return skip


def _make_counted_skip(element: Skip) -> Skip:
    def skip(reader: Reader) -> None:
        for _ in range(reader.count(1, "elements")):
            element(reader)

    return skip


def _make_masked_skip(element: Skip) -> Skip:
    """Skip a ``LinkedList``: its length, a null bit for each element, and the other elements."""

    def skip(reader: Reader) -> None:
        for is_null in null_mask(reader):
            if not is_null:
                element(reader)

    return skip


def null_mask(reader: Reader) -> list[bool]:
    """Return the null mask of the ``LinkedList`` that begins here (``MaskUtils``)."""
    count = reader.i32()
    if count < 0 or (count + 7) // 8 > reader.remaining:
        raise reader.error(f"the list length {count} is invalid", position=reader.position - 4)
    mask = bytes(reader.take((count + 7) // 8))
    return [bool(mask[index // 8] >> (7 - index % 8) & 1) for index in range(count)]


def _make_flagged_skip(value: Skip, *, skips_if: bool) -> Skip:
    def skip(reader: Reader) -> None:
        if reader.bool() is skips_if:
            value(reader)

    return skip


def _make_nullable_skip(value: Skip, padding: int) -> Skip:
    def skip(reader: Reader) -> None:
        if reader.bool():
            reader.take(padding)
        else:
            value(reader)

    return skip


def _make_either_skip(left: Skip, right: Skip, *, is_tagged: bool) -> Skip:
    def skip(reader: Reader) -> None:
        is_left = reader.u8() == 1 if is_tagged else reader.bool()
        (left if is_left else right)(reader)

    return skip


def _make_row_skip(fields: tuple[FlinkType, ...], has_kind: bool) -> Skip:
    skips = tuple(map(skipper, fields))
    first = KIND_BITS if has_kind else 0
    width = (len(fields) + first + 7) // 8

    def skip(reader: Reader) -> None:
        mask = int.from_bytes(reader.take(width), "big")
        for number, skip_field in enumerate(skips, first):
            if not mask >> (8 * width - 1 - number) & 1:
                skip_field(reader)

    return skip


def _make_pojo_skip(pojo: PojoType) -> Skip:
    """Skip a POJO according to its flags (``PojoSerializer``): null, the class, or a subclass."""
    fields = tuple(
        _make_flagged_skip(skipper(field.value), skips_if=False) for field in pojo.fields
    )

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
        skipper(known_subclass.value)(reader)

    return skip
