"""What an export for another version of Flink converts, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.exporting.flink_versions import is_converted
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.options import ExportSelection, FlinkTarget
from statestore.interop.flink.types.internal_types import CepType
from statestore.interop.flink.types.java_types import ListType, Scalar
from statestore.interop.flink.types.serializer_snapshots import TYPES
from statestore.store import StateStore
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import NEWEST, OLDER
from tests.interop.flink.written import written_savepoint
from tests.servers.flink import Flink
from tests.servers.published import FLINK_1_20

CEP_BUFFER = (
    "org.apache.flink.cep.nfa.sharedbuffer.SharedBufferNode$SharedBufferNodeSerializer"
    "$SharedBufferNodeSerializerSnapshot"
)
RECORD = SavepointRecord("/savepoint", 1, 4, "", (), ())


@pytest.mark.parametrize(
    ("metadata_version", "target", "migrates"),
    [
        (4, FlinkTarget(), False),
        (4, FlinkTarget(version="1.20"), False),
        (4, FlinkTarget(version="2.3"), True),
        (4, FlinkTarget(version="2", written_by="2.0.1"), False),
        (5, FlinkTarget(version="2.3"), False),
        (6, FlinkTarget(version="2.3"), False),
        (3, FlinkTarget(version="2.3", written_by="1.15.4"), True),
        (3, FlinkTarget(version="2.3", written_by="2.3"), False),
        (3, FlinkTarget(), False),
    ],
)
def test_state_of_flink_1_is_migrated(
    metadata_version: int, target: FlinkTarget, migrates: bool
) -> None:
    record = replace(RECORD, metadata_version=metadata_version)
    assert is_converted(record, target, ()) is migrates
    assert is_converted(None, target, ()) is False


@pytest.mark.parametrize(
    ("metadata_version", "target", "message"),
    [
        (3, FlinkTarget(version="2.3"), "whether Flink 1 or 2 wrote .*: pass --written-by"),
        (6, FlinkTarget(version="1.20"), "Flink 2 wrote .*it cannot be written for Flink 1"),
        (4, FlinkTarget(version="3.0"), "'3.0', which is not a version of Flink 1 or 2"),
        (4, FlinkTarget(version="newest"), "'newest', which is not a version"),
        (4, FlinkTarget(version="2.3", written_by="0.9"), "written_by is '0.9'"),
    ],
)
def test_a_wrong_version_is_refused(
    metadata_version: int, target: FlinkTarget, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        is_converted(replace(RECORD, metadata_version=metadata_version), target, ())


@pytest.mark.slow
def test_all_states_that_cannot_be_written_are_named_at_once(tmp_path: Path) -> None:
    """The published savepoint is of a job in Scala, with ten states of its classes."""
    source = FLINK_1_20.unpack(
        "stateful-scala-udf-migration-itcase-flink1.19-rocksdb-savepoint", tmp_path
    )
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(source), store)
    with pytest.raises(UnsupportedTypeError, match=r"^12 states cannot be written; ") as error:
        export_savepoint(store, str(tmp_path / "to"), target=FlinkTarget(version="2.3"))
    assert str(error.value).count("--leave-out d1392353922252257afa15351a98bae9/") == 11
    assert all("Scala" in note or "no type of Java" in note for note in error.value.__notes__)


@pytest.mark.long
@pytest.mark.slow
def test_a_class_of_the_job_is_refused_before_the_savepoint_exists(tmp_path: Path) -> None:
    """The job's class ``Opaque`` has a Kryo serializer; without its state, the rest is written."""
    store = StateStore.open(str(tmp_path / "store"))
    golden = Golden("1.20_heap_snappy").unpack(tmp_path / "from")
    record = import_savepoint(str(golden), store).record
    opaque = next(state for state in record.states if state.name == "opaque")
    place, target = tmp_path / "to", FlinkTarget(version="2.3")
    with pytest.raises(UnsupportedTypeError, match="converted to Kryo 5"):
        export_savepoint(store, str(place), target=target)
    assert not [*place.glob("*")]
    names = ("opaque", "person", "list_person")
    left_out = [f"{opaque.operator}/{name}" for name in names]
    done = export_savepoint(
        store, str(place), target=target, selection=ExportSelection(leave_out=left_out)
    )
    assert (place / "_metadata").exists()
    assert {state.state for state in done.left_out} >= set(names)


@pytest.mark.long
@pytest.mark.flink
def test_all_serializers_that_flink_2_does_not_have_are_known() -> None:
    """Those of Scala are replaced or refused, and that of CEP is refused."""
    known = {form.class_name for flink_type in TYPES for form in flink_type.snapshots}
    older, newer = (
        {
            entry.removesuffix(".class").replace("/", ".")
            for jar in Flink(version).libraries()
            for entry in ZipFile(jar).namelist()
        }
        for version in (OLDER, NEWEST)
    )
    removed = (known & older) - newer
    assert {name for name in removed if ".scala." not in name} == {CEP_BUFFER}
    assert len(removed) == 7


def test_a_buffer_of_cep_of_flink_1_13_is_refused(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    keys = pa.array([1, 2], pa.int64())
    node = CepType("NodeV1", (ListType(Scalar("Long")),))
    values = pa.array([None, None], node.arrow_type()).fill_null([])
    place = written_savepoint(tmp_path / "from", Scalar("Long"), keys, values, value_type=node)
    import_savepoint(str(place), store)
    target = FlinkTarget(version="2.3", written_by="1.13")
    with pytest.raises(UnsupportedTypeError, match=r"CEP's buffer of Flink 1\.13 .* 1\.20"):
        export_savepoint(store, str(tmp_path / "to"), target=target)
