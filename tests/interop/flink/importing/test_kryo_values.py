"""Values that Kryo writes have columns if all of a state are of one simple class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import SchemaMismatchError
from statestore.interop.flink import export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.importing.probes import find_value_types, set_value_class
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.keyed_states import flink_state
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.kryo import KryoType
from tests.interop.flink.written import written_savepoint

LONG = Scalar("Long")
NO_CLASSES = 3 * bytes.fromhex("000004f2c69a3d70 00000000")
KRYO = KryoType("java.lang.Object", NO_CLASSES)


def simple(name: str, kryo: int = 2) -> KryoType:
    return replace(KRYO, content=Scalar(name), kryo=kryo)


def raw(value_type: FlinkType, values: list[Any]) -> list[bytes]:
    written: list[bytes] = value_type.write(pa.array(values, value_type.arrow_type())).to_pylist()
    return written


def with_values(folder: Path, values: list[bytes]) -> Path:
    column = pa.array(values, pa.binary())
    return written_savepoint(folder, LONG, pa.array(range(len(values))), column, value_type=KRYO)


def entries(place: str) -> set[tuple[int, bytes, bytes]]:
    return {
        (part.key_group, key, value)
        for operator in open_savepoint(place).operators
        for part in operator.entries()
        for key, value in zip(
            part.keys.arrow().to_pylist(), part.values.arrow().to_pylist(), strict=True
        )
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Long", [1, -5, 1 << 62, -(1 << 63)]),
        ("Integer", [0, 300, -(1 << 31)]),
        ("Boolean", [True, False]),
        ("String", ["", "a", "x" * 40, "é", "🦊"]),
    ],
)
def test_values_of_one_class_have_a_column(name: str, values: list[Any], tmp_path: Path) -> None:
    place = with_values(tmp_path / "from", raw(simple(name), values))
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    (state,) = import_savepoint(str(place), store).record.states
    assert (state.form, state.value_class) == (EntryForm.COLUMNS, name)
    rows = store.restore(parallelism=1).keyed(state.operator, "count").to_arrow(0).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == dict(enumerate(values))
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(str(place))
    (again,) = import_savepoint(str(tmp_path / "same"), store).record.states
    assert again.value_class == name
    target = FlinkTarget(version="2.3", written_by="1.20")
    export_savepoint(store, str(tmp_path / "two"), target=target)
    assert {value for _, _, value in entries(str(tmp_path / "two"))} == set(
        raw(simple(name, kryo=5), values)
    )


@pytest.mark.parametrize(
    ("metadata_version", "kryo"), [(4, 2), (6, 5), (3, None)], ids=["Flink 1", "Flink 2", "unknown"]
)
def test_a_later_savepoint_is_read_by_the_kryo_that_wrote_it(
    metadata_version: int, kryo: int | None
) -> None:
    """A store of Flink 1 continues with a savepoint of Flink 2, which has another byte order."""
    state = flink_state("s", "value", LONG, Scalar("VoidNamespace"), KRYO)
    if kryo is None:
        with pytest.raises(SchemaMismatchError, match=r"'s'.*version 3.*separate store"):
            set_value_class(state, "Double", metadata_version)
    else:
        later = set_value_class(state, "Double", metadata_version)
        assert later.value == simple("Double", kryo)
    assert set_value_class(state, "Double").value == simple("Double")
    assert set_value_class(state, "Long", 3).value == simple("Long")


@pytest.mark.parametrize(
    "values",
    [
        [*raw(simple("Long"), [1]), *raw(simple("Integer"), [1])],
        [*raw(simple("Long"), [1]), b"\0"],
        [b"\0", *raw(simple("Long"), [1])],
        raw(simple("Double"), [1.5]),  # nothing says which Kryo wrote it
        [b"\x4b\1\0\x57"],
    ],
    ids=["two classes", "a null", "a null first", "unknown order", "a list"],
)
def test_other_values_stay_bytes(values: list[bytes], tmp_path: Path) -> None:
    place = with_values(tmp_path / "from", values)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    (state,) = import_savepoint(str(place), store).record.states
    assert (state.form, state.value_class) == (EntryForm.VALUE_BYTES, None)
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(str(place))


@pytest.mark.parametrize(
    ("metadata_version", "versions"), [(2, []), (3, []), (4, [2]), (5, [5]), (6, [5])]
)
def test_the_metadata_say_which_kryo_wrote_a_double(
    metadata_version: int, versions: list[int], tmp_path: Path
) -> None:
    place = with_values(tmp_path / "from", raw(simple("Double"), [1.5]))
    (operator,) = open_savepoint(str(place)).operators
    states = find_value_types(operator, operator.states[0], metadata_version)
    assert [state.value for state in states] == [simple("Double", kryo) for kryo in versions]
