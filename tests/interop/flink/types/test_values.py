"""Values from Flink's serializers are read, and written again byte for byte."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.java_binary import Reader, string_value
from statestore.interop.flink.read.keyed_states import check_key_groups, flink_state
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Cursor, Spans
from statestore.interop.flink.types.column_bytes import (
    decode_list,
    decode_map_values,
    decode_values,
    encode_list,
)
from statestore.interop.flink.types.java_types import ListType, Scalar
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from tests.interop.flink.goldens import serializers
from tests.interop.flink.shown import as_text, shown
from tests.support.examples import examples

NAMED = {
    f"{version} {case['name']}": case for version, cases in serializers().items() for case in cases
}


def kind_of(case: dict[str, Any]) -> FlinkType:
    reader = Reader(bytes.fromhex(case["snapshot"]), case["name"])
    found = read_snapshot(reader)
    reader.end("the snapshot")
    return found.flink_type


def is_column(kind: FlinkType) -> bool:
    try:
        kind.arrow_type()
    except UnsupportedTypeError:
        return False
    return True


def has_kryo(case: dict[str, Any]) -> bool:
    """Return whether values have parts of the job's own classes, which Kryo wrote."""
    return "Kryo" in kind_of(case).java_name


DECODED = [pytest.param(case, id=name) for name, case in NAMED.items() if is_column(kind_of(case))]
COLUMNS = [case for case in NAMED.values() if is_column(kind_of(case)) and not has_kryo(case)]


PIECES = st.lists(
    st.tuples(st.integers(0, 1_000), st.sampled_from(range(4)), st.binary(max_size=9))
)


def mutated(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """Return bytes with pieces overwritten, inserted, removed and repeated."""
    for place, how, piece in changes:
        at = place % (len(data) + 1)
        kept = data[at + len(piece) :] if how in (0, 2) else data[at:]
        new = b"" if how == 2 else data[: len(piece)] if how == 3 else piece
        data = data[:at] + new + kept
    return data


@pytest.mark.slow
@settings(max_examples=200)
@given(case=st.sampled_from([*NAMED.values()]), types=PIECES, pieces=PIECES, data=st.data())
def test_changed_bytes_give_a_valid_column_or_a_typed_error(
    case: dict[str, Any], types: Any, pieces: Any, data: st.DataObject
) -> None:
    values = [raw for raw, _ in whole(case)] or [b""]
    raw = mutated(data.draw(st.sampled_from(values)), pieces)
    snapshot = bytes.fromhex(case["snapshot"])
    if data.draw(st.booleans()):
        snapshot = mutated(snapshot, types)
    with suppress(StateStoreError):
        kind = read_snapshot(Reader(snapshot, "s")).flink_type
        spans = Spans.from_values([raw], "v")
        for read in (decode_values, decode_list, decode_map_values):
            with suppress(StateStoreError):
                read(kind, spans).validate(full=True)
        with suppress(StateStoreError):
            kind.skipper()(Reader(raw, "v"))
        state = flink_state("s", "value", kind, Scalar("VoidNamespace"), kind)
        check_key_groups(state, Cursor(spans, spans.starts, spans.ends), 1, 128, "state 's'")


def has_half_pair(value: object) -> bool:
    return any(0xD800 <= ord(dump) < 0xE000 for dump in json.dumps(value, ensure_ascii=False))


def whole(case: dict[str, Any]) -> list[tuple[bytes, Any]]:
    """Return bytes and values, except texts that no text column can hold."""
    is_text = case["name"] not in ("char", "char[]")
    pairs = ((bytes.fromhex(raw), value) for raw, value in case["values"])
    return [(raw, value) for raw, value in pairs if not (is_text and has_half_pair(value))]


def test_a_flink_snapshot_is_generated_byte_for_byte() -> None:
    for case in NAMED.values():
        kind = kind_of(case)
        assert kind.snapshot().hex() == case["snapshot"][8:]
        assert (-1 if kind.serializer_length is None else kind.serializer_length) == case["length"]


def test_flink_values_are_read() -> None:
    for case in NAMED.values():
        kind, pairs = kind_of(case), whole(case)
        spans = Spans.from_values([raw for raw, _ in pairs], case["name"])
        if not is_column(kind):
            with pytest.raises(UnsupportedTypeError, match="only be read as bytes"):
                decode_values(kind, spans)
            continue
        if has_kryo(case):
            with pytest.raises(UnsupportedTypeError, match="so its end is unknown"):
                decode_values(kind, spans)
            continue
        array = decode_values(kind, spans)
        assert array.type == kind.arrow_type()
        array.validate(full=True)
        assert list(map(as_text, shown(array, kind))) == [as_text(value) for _, value in pairs]


def test_flink_values_are_written_byte_for_byte() -> None:
    for case in COLUMNS:
        kind, pairs = kind_of(case), whole(case)
        array = decode_values(kind, Spans.from_values([raw for raw, _ in pairs], case["name"]))
        assert [raw.hex() for raw in kind.write(array).to_pylist()] == [
            raw.hex() for raw, _ in pairs
        ]
        for start in range(len(pairs)):  # an array that is a slice of another one
            assert kind.write(array.slice(start, 2)).to_pylist() == [
                raw for raw, _ in pairs[start : start + 2]
            ]


@pytest.mark.slow
def test_the_end_of_a_flink_value_is_found() -> None:
    for case in NAMED.values():
        kind = kind_of(case)
        if has_kryo(case):
            readers = [Reader(bytes.fromhex(raw), case["name"]) for raw, _ in case["values"]]
            with pytest.raises(UnsupportedTypeError, match="so its end is unknown"):
                [*map(kind.skipper(), readers)]
            continue
        for raw, _ in case["values"]:
            reader = Reader(bytes.fromhex(raw) + b"more", case["name"])
            kind.skipper()(reader)
            assert reader.remaining == 4


def test_a_truncated_value_is_a_typed_error() -> None:
    for case in COLUMNS:
        kind = kind_of(case)
        for raw, _ in whole(case):
            for cut in {0, len(raw) // 2, len(raw) - 1}:
                with pytest.raises((DamagedFileError, UnsupportedTypeError)):
                    decode_values(kind, Spans.from_values([raw[:cut]], case["name"]))


@pytest.mark.slow
@pytest.mark.parametrize("case", DECODED)
@examples(100, share=20)
@given(data=st.data())
def test_a_flipped_byte_gives_a_value_or_a_typed_error(
    case: dict[str, Any], data: st.DataObject
) -> None:
    kind = kind_of(case)
    raws = [raw for raw, _ in whole(case) if raw]
    raw = bytearray(data.draw(st.sampled_from(raws)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_values(kind, Spans.from_values([bytes(raw)], case["name"]))
    except (DamagedFileError, UnsupportedTypeError):
        return
    assert len(found) == 1


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(st.lists(st.none() | texts, max_size=30))
def test_texts_are_read_and_written(values: list[str | None]) -> None:
    raw = [string_value(text) for text in values]
    array = decode_values(Scalar("String"), Spans.from_values(raw, "t"))
    assert array.to_pylist() == values
    assert Scalar("String").write(array).to_pylist() == raw


@pytest.mark.parametrize("length", [0, 126, 127, 128, 16382, 16383, 70000])
def test_a_text_length_is_encoded_in_the_fewest_bytes(length: int) -> None:
    values = ["a" * length, "ä" * length, "b"]
    raw = [string_value(text) for text in values]
    array = decode_values(Scalar("String"), Spans.from_values(raw, "t"))
    assert array.to_pylist() == values
    assert Scalar("String").write(array).to_pylist() == raw


@given(st.lists(st.lists(texts, max_size=4), max_size=6))
def test_lists_of_texts_are_read_and_written(values: list[list[str]]) -> None:
    array = pa.array(values, pa.list_(pa.string()))
    joined = encode_list(array, Scalar("String"))
    assert joined.to_pylist() == [b",".join(map(string_value, value)) for value in values]
    assert (
        decode_list(Scalar("String"), Spans.from_values(joined.to_pylist(), "l")).to_pylist()
        == values
    )
    kind = ListType(Scalar("String"))
    assert (
        decode_values(kind, Spans.from_values(kind.write(array).to_pylist(), "l")).to_pylist()
        == values
    )


@given(st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), max_size=6))
def test_lists_of_numbers_are_read_and_written(values: list[list[int]]) -> None:
    array = pa.array(values, pa.list_(pa.int64()))
    joined = encode_list(array, Scalar("Long")).to_pylist()
    assert decode_list(Scalar("Long"), Spans.from_values(joined, "l")).to_pylist() == values


@pytest.mark.parametrize("kind", [Scalar("Long"), Scalar("String")])
@pytest.mark.parametrize("change", [lambda raw: raw + b",", lambda raw: raw.replace(b",", b";", 1)])
def test_a_list_without_its_commas_is_damaged(kind: FlinkType, change: Any) -> None:
    array = pa.array([[1, 2]]) if kind == Scalar("Long") else pa.array([["a", "b"]])
    (raw,) = encode_list(array, kind).to_pylist()
    with pytest.raises(DamagedFileError):
        decode_list(kind, Spans.from_values([change(raw)], "l"))


def test_half_a_surrogate_pair_is_named() -> None:
    with pytest.raises(UnsupportedTypeError, match="an unpaired surrogate"):
        decode_values(Scalar("String"), Spans.from_values([string_value("a\ud800")], "t"))


def test_a_null_without_an_encoding_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="a value is null, which Flink's serializer"):
        Scalar("Long").write(pa.array([1, None]))


def test_bytes_after_a_value_are_refused() -> None:
    with pytest.raises(DamagedFileError, match="v is damaged at byte 8: unexpected bytes follow"):
        decode_values(Scalar("Long"), Spans.from_values([bytes(8), bytes(9)][1:], "v"))
