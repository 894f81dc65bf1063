"""Keys that Kryo writes with their class are numbers or text if all are of one simple class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import SchemaMismatchError, UnsupportedTypeError
from statestore.interop.flink import ImportedSavepoint, export_savepoint, import_savepoint
from statestore.interop.flink.columns.state_columns import FLINK_KEY_GROUP, EntryForm
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.kryo import KryoType
from statestore.jobgraph.operators import operator_id
from statestore.keys.hashing import key_group_of
from tests.interop.flink.entries import entries_in
from tests.interop.flink.written import written_savepoint

OBJECT = "java.lang.Object"
NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")
ANY = KryoType(OBJECT, NO_CLASSES)


def keys_of(simple: str, kryo: int) -> KryoType:
    return KryoType(OBJECT, NO_CLASSES, kryo, Scalar(simple))


BOTH = {
    ("Integer", 0): "0200",
    ("Integer", -1): "0201",
    ("Integer", 300): "02d804",
    ("Integer", 2**31 - 1): "02feffffff0f",
    ("Integer", -(2**31)): "02ffffffff0f",
    ("Long", 0): "0900",
    ("Long", -1): "0901",
    ("Long", 1 << 40): "09808080808040",
    ("Long", 2**63 - 1): "09feffffffffffffffff",
    ("Long", -(2**63)): "09ffffffffffffffffff",
    ("Byte", -3): "06fd",
    ("Boolean", True): "0501",
    ("Boolean", False): "0500",
    ("String", ""): "030181",
    ("String", "a"): "03018261",
    ("String", "ab"): "030161e2",
    ("String", "ü\0x"): "030184c3bc0078",
    ("String", "😀"): "030183eda0bdedb880",
    ("String", "x" * 32): "0301" + "78" * 31 + "f8",
    ("String", "y" * 64): "0301c101" + "79" * 64,
    ("String", "z" * 300): "0301ed04" + "7a" * 300,
}
KRYO_2 = {
    ("Short", 1): "080001",
    ("Short", -2): "08fffe",
    ("Character", ord("a")): "070061",
    ("Character", ord("€")): "0720ac",
    ("Float", 1.5): "043fc00000",
    ("Double", -2.5): "0ac004000000000000",
    ("String", "x" * 33): "0301" + "78" * 32 + "f8",
    ("String", "y" * 63): "0301" + "79" * 62 + "f9",
}
KRYO_5 = {
    ("Short", 1): "080100",
    ("Short", -2): "08feff",
    ("Character", ord("a")): "076100",
    ("Character", ord("€")): "07ac20",
    ("Float", 1.5): "040000c03f",
    ("Double", -2.5): "0a00000000000004c0",
    ("String", "x" * 33): "0301a2" + "78" * 33,
    ("String", "y" * 63): "0301c001" + "79" * 63,
}
"""Bytes that Kryo 2.24 of Flink 1.20 and Kryo 5.6 of Flink 2.3 wrote, and both of them."""

VECTORS = [
    pytest.param(keys_of(simple, kryo), value, bytes.fromhex(data), id=f"{kryo}-{simple}-{data:.9}")
    for kryo, vectors in ((2, BOTH | KRYO_2), (5, BOTH | KRYO_5))
    for (simple, value), data in vectors.items()
]


@pytest.mark.parametrize(("key", "value", "data"), VECTORS)
def test_a_key_has_the_bytes_that_kryo_writes(key: KryoType, value: Any, data: bytes) -> None:
    column = pa.array([value], key.arrow_type())
    assert key.write(column).to_pylist() == [data]
    assert decode_values(key, Spans.from_values([data], "f")).equals(column)
    assert key.snapshot() == ANY.snapshot()
    assert ANY.with_class(key.text) == key


@given(st.sampled_from((2, 5)), st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.text()))
def test_keys_survive_a_round_trip(kryo: int, numbers: list[int], texts: list[str]) -> None:
    for simple, values in (("Long", numbers), ("String", texts)):
        key = keys_of(simple, kryo)
        column = pa.array(values, key.arrow_type())
        spans = Spans.from_array(key.write(column), "f")
        assert decode_values(key, spans).equals(column)


@pytest.mark.parametrize(
    ("simple", "data", "said"),
    [
        ("Long", b"\x02\x00", "a key is not a Long: its class has the number 0"),
        (
            "Long",
            b"\x09\x80\x00",
            "a key is a Long, but not in the bytes that Kryo writes",
        ),  # a longer zero
        ("Integer", b"\x02\xff\xff\xff\xff\x7f", "a key is not a Integer"),  # above 32 bits
        ("Boolean", b"\x05\x02", "a key is a Boolean, but not in the bytes that Kryo writes"),
        ("String", b"\x03\x01\x82\x80", "a key is not a String"),
        ("String", b"\x03\x01\x82\xed\xa0\xbd", "a key is not a String"),  # half a character
    ],
)
def test_bytes_that_kryo_does_not_write_are_not_guessed(
    simple: str, data: bytes, said: str
) -> None:
    with pytest.raises(UnsupportedTypeError, match=said):
        decode_values(keys_of(simple, 2), Spans.from_values([data], "f"))


def imported(place: Path, store: StateStore, *, strict: bool = False) -> ImportedSavepoint:
    hints = SavepointHints(uids={operator_id("big"): "big"})
    return import_savepoint(str(place), store, hints=hints, strict=strict)


KEYS: dict[str, list[Any]] = {
    "Integer": [1, -7, 300],
    "String": ["a", "ab", "x" * 50],
    "Float": [1.5, -0.25],
    "Boolean": [True, False],
    "Byte": [1, -3],
    "Character": [97, 0x20AC],
    "Short": [1, -2, 500],
    "Long": [1, 2**40, -5],
    "Double": [1.5, -0.25],
}
"""Keys that tell the byte orders of Kryo's versions apart."""


@pytest.mark.long_cases(
    "Integer-5", "Float-5", "Boolean-5", "Byte-5", "Character-5", "Short-5", "Long-5", "Double-5"
)
@pytest.mark.parametrize("kryo", [2, 5])
@pytest.mark.parametrize("simple", KEYS)
def test_keys_of_one_class_have_a_column_and_flinks_key_groups(
    simple: str, kryo: int, tmp_path: Path
) -> None:
    key, keys = keys_of(simple, kryo), KEYS[simple]
    place = written_savepoint(
        tmp_path / "s", key, pa.array(keys, key.arrow_type()), list(range(len(keys)))
    )
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    (state,) = imported(place, store, strict=True).record.states
    is_either = simple in ("Integer", "Long", "Byte", "Boolean")
    text = simple if kryo == 2 or is_either else f"{simple} of Kryo 5"
    assert (state.form, state.key_class, state.why) == (EntryForm.COLUMNS, text, None)
    rows = store.restore(parallelism=1).keyed("big", "count").to_arrow(0)
    found = dict(zip(rows.column("value").to_pylist(), rows.column("key").to_pylist(), strict=True))
    assert found == dict(enumerate(keys))
    before = entries_in(place)
    export_savepoint(store, str(tmp_path / "to"))
    assert entries_in(tmp_path / "to") == before
    export_savepoint(store, str(tmp_path / "more"), max_parallelism=128 * 3)
    more = entries_in(tmp_path / "more")
    assert {(key[2:], value) for _, key, value in more} == {
        (key[1:], value) for _, key, value in before
    }


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        pytest.param([b"\x09\x02", b"\x02\x02"], None, id="two classes"),
        pytest.param([b"\x09\x02", b"\x09\x04"], [5, 99], id="another hash"),
        pytest.param([b"\x08\x01\x01"], [key_group_of(257, max_parallelism=128)], id="byte order"),
        pytest.param([b"\x09\x80\x00"], [key_group_of(0, max_parallelism=128)], id="another form"),
    ],
)
def test_other_keys_stay_bytes_with_their_key_group(
    keys: list[bytes], groups: list[int] | None, tmp_path: Path
) -> None:
    groups = groups or [key_group_of(1, max_parallelism=128)] * len(keys)
    place = written_savepoint(
        tmp_path / "s", ANY, pa.array(keys, pa.binary()), list(range(len(keys))), groups=groups
    )
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    (state,) = imported(place, store).record.states
    assert (state.form, state.key_class) == (EntryForm.KEY_BYTES, None)
    rows = store.restore(parallelism=1).keyed("big", "count").to_arrow(0)
    columns = (rows.column(name).to_pylist() for name in ("key_bytes", FLINK_KEY_GROUP))
    assert set(zip(*columns, strict=True)) == set(zip(keys, groups, strict=True))
    export_savepoint(store, str(tmp_path / "to"))
    assert entries_in(tmp_path / "to") == entries_in(place)


def test_a_later_savepoint_has_keys_of_the_same_class(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    key = keys_of("Long", 2)
    for number in (1, 2):
        place = written_savepoint(
            tmp_path / f"s{number}", key, pa.array([1, 2]), [0, number], number=number
        )
        done = imported(place, store)
    assert done.is_incremental
    assert store.restore().keyed("big", "count").get(2)[0]["value"] == 2
    place = written_savepoint(tmp_path / "s3", key, pa.array([], pa.int64()), [], number=3)
    imported(place, store)
    assert store.restore().keyed("big", "count").to_arrow().num_rows == 0
    place = written_savepoint(tmp_path / "s4", keys_of("String", 2), pa.array(["a"]), [1], number=4)
    with pytest.raises(SchemaMismatchError, match="state 'count' of operator big has other types"):
        imported(place, store)
    mixed = pa.array([b"\x09\x02", b"\x02\x02"], pa.binary())
    groups = [key_group_of(1, max_parallelism=128)] * 2
    place = written_savepoint(tmp_path / "s5", ANY, mixed, [1, 2], groups=groups, number=5)
    with pytest.raises(UnsupportedTypeError, match="a key is not a Long: its class has the number"):
        imported(place, store)
    assert store.checkpoints() == (1, 2, 3)
