"""If Kryo wrote a part of a value, such as a field of a POJO, only that part stays bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import UnsupportedTypeError
from statestore.interop.flink import export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.importing.probes import find_kryo_parts
from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.options import FlinkTarget, SavepointHints
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import TupleType
from statestore.interop.flink.types.kryo import KryoType
from statestore.jobgraph.operators import operator_id
from tests.interop.flink.goldens import Golden
from tests.interop.flink.importing.test_kryo_values import LONG, NO_CLASSES, entries
from tests.interop.flink.written import written_savepoint

KRYO = KryoType("java.lang.Object", NO_CLASSES)
PAIR = TupleType("org.apache.flink.api.java.tuple.Tuple2", (KRYO, LONG))
LIST = b"\1\0java.util.ArrayLis\xf4\1"
TWO_LONGS = {2: LIST + b"\2\x09\2\x09\4", 5: LIST + b"\x83\x09\0\2\4"}
EMPTY = {2: LIST + b"\0", 5: LIST + b"\x01"}
OF_A_JOB = b"\1\0a.\xc2\1\7\7"
BYTES = pa.binary()


def written(folder: Path, parts: list[bytes], value_type: FlinkType = PAIR, number: int = 1) -> str:
    """Write a state of pairs of ``parts`` and their numbers."""
    numbers = pa.array(range(len(parts)), pa.int64())
    arrow_type = value_type.arrow_type()
    values = pa.StructArray.from_arrays([pa.array(parts, BYTES), numbers], fields=list(arrow_type))
    place = written_savepoint(folder, LONG, numbers, values, value_type=value_type, number=number)
    return str(place)


def open_store(tmp_path: Path, name: str = "store") -> StateStore:
    return StateStore.open(str(tmp_path / name), table_format="parquet")


@pytest.mark.parametrize("kryo", [2, 5])
def test_the_version_that_fits_all_values_is_found(kryo: int, tmp_path: Path) -> None:
    """The metadata of this savepoint have version 3, which Flink 1 and an export write."""
    parts = [TWO_LONGS[kryo], EMPTY[kryo], b"\0", b"\x09\2"]
    place = written(tmp_path / "from", parts)
    store = open_store(tmp_path)
    (state,) = import_savepoint(place, store).record.states
    assert (state.form, state.value_class) == (EntryForm.COLUMNS, f"parts of Kryo {kryo}")
    rows = store.restore(parallelism=1).keyed(state.operator, "count").to_arrow(0).to_pylist()
    assert {row["f1"]: row["f0"] for row in rows} == dict(enumerate(parts))
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(place)


def test_values_of_both_versions_are_of_the_older(tmp_path: Path) -> None:
    place = written(tmp_path / "from", [b"\0", b"\x09\2"])
    (state,) = import_savepoint(place, open_store(tmp_path)).record.states
    assert state.value_class == "parts of Kryo 2"


@pytest.mark.parametrize(
    "parts",
    [
        [TWO_LONGS[2], OF_A_JOB],
        [TWO_LONGS[2], TWO_LONGS[5]],
        [TWO_LONGS[2][:-2] + b"\x55\1\7"],
    ],
    ids=["a class of the job", "two versions", "a number without a class"],
)
def test_without_a_known_end_all_of_the_value_stays_bytes(
    parts: list[bytes], tmp_path: Path
) -> None:
    place = written(tmp_path / "from", parts)
    store = open_store(tmp_path)
    (state,) = import_savepoint(place, store).record.states
    assert (state.form, state.value_class) == (EntryForm.VALUE_BYTES, None)
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(place)


@pytest.mark.parametrize("member", [0, 1, 2], ids=["registered", "as an object", "as a class"])
def test_a_class_with_a_serializer_of_the_job_has_no_known_end(member: int, tmp_path: Path) -> None:
    """Its bytes may look like those of Kryo's own serializer, but with other contents."""
    name = "java.util.ArrayList"
    registration = utf(name) + i32(1) + utf("a.MyListSerializer")
    frame = b"\1" + i32(len(registration)) + registration
    own = NO_CLASSES[:8] + i32(1) + utf(name) + b"\0" + frame
    maps = [NO_CLASSES[:12]] * 3
    maps[member] = own
    kryo = KryoType("java.lang.Object", b"".join(maps))
    pair = TupleType(PAIR.class_name, (kryo, LONG))
    place = written(tmp_path / "from", [TWO_LONGS[2]], pair)
    (state,) = import_savepoint(place, open_store(tmp_path)).record.states
    assert state.form is EntryForm.VALUE_BYTES


@pytest.mark.parametrize(
    ("metadata_version", "kryo"), [(4, 2), (5, 5), (3, 2)], ids=["Flink 1", "Flink 2", "unknown"]
)
def test_the_metadata_say_which_kryo_wrote_parts(
    metadata_version: int, kryo: int, tmp_path: Path
) -> None:
    place = written(tmp_path / "from", [TWO_LONGS[2]])
    (operator,) = open_savepoint(place).operators
    state = find_kryo_parts(operator, operator.states[0], metadata_version)
    assert state is not None
    assert state.value == TupleType(
        PAIR.class_name, (KryoType("java.lang.Object", NO_CLASSES, kryo), LONG)
    )


def test_a_later_savepoint_is_read_by_the_kryo_that_wrote_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    import_savepoint(written(tmp_path / "one", [TWO_LONGS[2], EMPTY[2]]), store)
    later = written(tmp_path / "two", [TWO_LONGS[5], EMPTY[5], EMPTY[5]], number=2)
    imported = import_savepoint(later, store)
    assert imported.is_incremental
    assert imported.record.states[0].value_class == "parts of Kryo 5"
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(later)


def test_a_later_savepoint_of_a_class_without_an_end_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    import_savepoint(written(tmp_path / "one", [TWO_LONGS[2]]), store)
    later = written(tmp_path / "two", [TWO_LONGS[2], OF_A_JOB], number=2)
    with pytest.raises(UnsupportedTypeError, match=r"a value of a\.B, which") as raised:
        import_savepoint(later, store)
    assert "import the savepoint into a separate store" in raised.value.__notes__[-1]
    assert store.restore().checkpoint_id == 1


def test_parts_are_written_for_flink_2(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    import_savepoint(written(tmp_path / "from", [TWO_LONGS[2], EMPTY[2]]), store)
    target = FlinkTarget(version="2.3", written_by="1.20")
    export_savepoint(store, str(tmp_path / "two"), target=target)
    expected = written(tmp_path / "expected", [TWO_LONGS[5], EMPTY[5]])
    assert entries(str(tmp_path / "two")) == entries(expected)


def test_values_have_columns_beside_keys_that_kryo_wrote(tmp_path: Path) -> None:
    """The keys are lists, whose end is known, but not their hash."""
    keys = pa.array([TWO_LONGS[2], EMPTY[2]], BYTES)
    place = written_savepoint(tmp_path / "from", KRYO, keys, [7, 8], groups=[3, 4])
    store = open_store(tmp_path)
    (state,) = import_savepoint(str(place), store).record.states
    assert (state.form, state.value_class) == (EntryForm.KEY_BYTES, "parts of Kryo 2")
    rows = store.restore(parallelism=1).keyed(state.operator, "count").to_arrow(0).to_pylist()
    assert {row["value"]: row["key_bytes"] for row in rows} == {7: TWO_LONGS[2], 8: EMPTY[2]}
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(str(place))


def test_states_of_an_operator_may_differ_in_what_is_known_of_their_keys(tmp_path: Path) -> None:
    """The values of the second state have no known end, so its keys are bytes as well."""
    keys = pa.array([TWO_LONGS[2], EMPTY[2]], BYTES)
    others = pa.StructArray.from_arrays(
        [pa.array([OF_A_JOB, OF_A_JOB], BYTES), pa.array([1, 2])], fields=list(PAIR.arrow_type())
    )
    place = written_savepoint(
        tmp_path / "from", KRYO, keys, [7, 8], groups=[3, 4], other=(PAIR, others)
    )
    store = open_store(tmp_path)
    states = import_savepoint(str(place), store).record.states
    assert [(state.form, state.value_class) for state in states] == [
        (EntryForm.KEY_BYTES, "parts of Kryo 2"),
        (EntryForm.BYTES, None),
    ]
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(str(place))


@pytest.mark.long
@pytest.mark.slow
def test_fields_of_a_real_job_have_columns(tmp_path: Path) -> None:
    """The POJO has a ``List<String>`` and a ``Map<String, Integer>``, in values and in lists."""
    source = str(Golden("1.20_rocksdb_canonical").unpack(tmp_path / "from"))
    store = open_store(tmp_path)
    hints = SavepointHints(uids={operator_id("kinds"): "kinds"})
    record = import_savepoint(source, store, hints=hints).record
    forms = {state.state: state.form for state in record.states}
    assert forms["person"] is forms["list_person"] is EntryForm.COLUMNS
    rows = store.restore(parallelism=1).keyed("kinds", "person").to_arrow(0)
    types = {field.name: field.type for field in rows.schema}
    assert types["tags"] == types["marks"] == BYTES
    assert {types[name] for name in types if name not in ("tags", "marks")} > {pa.string()}
    export_savepoint(store, str(tmp_path / "same"))
    assert entries(str(tmp_path / "same")) == entries(source)
