"""Values of Kryo 2 become the bytes that Kryo 5 of real Flink 2 writes for them."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.snapshot_format import encode_optional_map
from statestore.interop.flink.metadata.versions import KRYO_2, KRYO_5
from statestore.interop.flink.types.kryo import KryoType, convert_kryo_value
from statestore.interop.flink.types.kryo_objects import KryoClasses
from tests.interop.flink.goldens import FOLDER

CLASSES = KryoClasses(("java.lang.Object", "org.apache.avro.generic.GenericData$Array"))
BODY = encode_optional_map([(name, b"", b"\0\0" + i32(0)) for name in CLASSES.registered])
BODY += 2 * encode_optional_map([])
OLD, NEW = "1.20.3", "2.3.0"
RECORDED = json.loads(lzma.decompress((Path(FOLDER) / "kryo_values.json.xz").read_bytes()))
OLD_BYTES = [bytes.fromhex(value[OLD]) for value in RECORDED]


def convert(data: bytes) -> bytes:
    return convert_kryo_value(data, CLASSES, "a value")


def test_values_have_the_bytes_of_kryo_5() -> None:
    assert [convert(data).hex() for data in OLD_BYTES] == [value[NEW] for value in RECORDED]


def test_most_values_differ() -> None:
    """Flink 2 reads these bytes as other values, or fails."""
    assert sum(value[OLD] != value[NEW] for value in RECORDED) > len(RECORDED) // 2


@pytest.mark.parametrize(("flink", "kryo"), [(OLD, KRYO_2), (NEW, KRYO_5)])
def test_the_end_of_a_value_follows_from_its_bytes(flink: str, kryo: int) -> None:
    for value in RECORDED:
        data = bytes.fromhex(value[flink])
        reader = Reader(data + b"\1\0rest", f"the value {value}")
        KryoType("java.lang.Object", BODY, kryo).skipper()(reader)
        assert reader.position == len(data), value


def test_a_value_that_is_cut_off_is_refused() -> None:
    for data in OLD_BYTES:
        for length in {0, len(data) // 2, len(data) - 1}:
            with pytest.raises((DamagedFileError, UnsupportedTypeError)):
                convert(data[:length])


@given(
    st.binary(max_size=60)
    | st.tuples(st.sampled_from(OLD_BYTES), st.binary(max_size=4)).map(
        lambda pair: pair[0] + pair[1]
    )
    | st.builds(
        lambda data, at, byte: data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :],
        st.sampled_from(OLD_BYTES),
        st.integers(0, 9000),
        st.integers(0, 255),
    )
)
def test_any_bytes_are_converted_or_refused(data: bytes) -> None:
    with suppress(DamagedFileError, UnsupportedTypeError):
        convert(data)


def test_a_class_of_the_job_is_refused_by_name() -> None:
    named = b"\1\0" + b"com.acme.Order"[:-1] + bytes([ord("r") | 0x80]) + b"\1\2"
    with pytest.raises(UnsupportedTypeError, match=r"a value of com\.acme\.Order, .* converted"):
        convert(named)
    with pytest.raises(UnsupportedTypeError, match=r"a value of com\.acme\.Item, which"):
        convert_kryo_value(b"\x57\1\2", KryoClasses(("com.acme.Item",)), "a value")


def named(name: str) -> bytes:
    """Return the beginning of a new object of a class."""
    return b"\1\0" + name[:-1].encode() + bytes([ord(name[-1]) | 0x80]) + b"\1"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (named("java.time.Instant") + b"\1\2", "a time has -1 nanoseconds"),
        (named("java.time.Duration") + b"\x80\xa8\xd6\xb9\7\0", "a time has 1000000000 nano"),
        (named("java.time.LocalTime") + b"\1\1\1\1", "a time has -1 nanoseconds"),
        (named("java.time.LocalDate") + b"\0\1\1\0\0", "a date has month 256 and day 1"),
        (named("java.time.LocalDate") + b"\0\0\0\1\0", "a date has month 1 and day 0"),
        (named("java.time.LocalDateTime") + b"\2", "refers to another object"),
        (named("[Ljava.lang.String;") + b"\2", "1 bytes are required"),
    ],
)
def test_bytes_that_kryo_does_not_write_are_damaged(data: bytes, message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        convert(data)


def test_a_time_that_two_values_share_is_written_for_each() -> None:
    """Kryo 2 refers to the date and the time of the first value, which Kryo 5 does not have."""
    date_time = b"\1\0\2\0\1\xc8\x1f" + b"\1\5\6\0\7"  # new objects with their content
    values = (
        named("java.util.ArrayList")
        + b"\2"
        + named("java.time.LocalDateTime").replace(b"\1\0", b"\1\1", 1)
        + date_time
        + b"\1\1\1"
        + b"\4\5"
    )
    assert convert(values).endswith(2 * (b"\1" + b"\xe4\x0f\1\2" + b"\5\6\xf8"))


def test_lists_in_lists_are_limited() -> None:
    """The class of the first list is written by name, and those of the others by its number."""
    head = b"\1\0" + b"java.util.LinkedList"[:-1] + bytes([ord("t") | 0x80]) + b"\1\1"
    with pytest.raises(UnsupportedTypeError, match="nested too deeply"):
        convert(head + b"\1\0\1\1" * 100_000)


def test_a_huge_count_takes_no_time() -> None:
    head = b"\1\0" + b"[I"[:-1] + bytes([ord("I") | 0x80]) + b"\1"
    with pytest.raises(DamagedFileError):
        convert(head + b"\xff\xff\xff\xff\x07")
