"""The contract of a Flink job is the same from its savepoint, its import and its plan."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.contract import compare
from statestore.contract.flink_rules import BACKEND, UNREADABLE
from statestore.contract.flink_side import (
    contract_of_import,
    contract_of_plan,
    contract_of_savepoint,
)
from statestore.contract.lock import lock_text, parse_lock
from statestore.contract.model import JobContract, OperatorContract, Verdict
from statestore.errors import DamagedFileError, InvalidArgumentError, MissingFileError
from statestore.interop.flink import import_savepoint
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    OperatorHandles,
    SavepointMetadata,
)
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.types.base import replace_parts
from statestore.store import StateStore
from tests.interop.flink.goldens import FOLDER, Golden
from tests.interop.flink.importing.test_refusals import without_map_key, written


def by_uid(contract: JobContract) -> dict[str | None, OperatorContract]:
    return {operator.uid: operator for operator in contract.operators}


def without_rows(contract: JobContract) -> set[tuple[str, str, str]]:
    """Return what rules compare, by operator and state."""
    return {
        (operator.id, state.name, f"{state.kind} {dict(state.form)}")
        for operator in contract.operators
        for state in operator.states
    }


@pytest.mark.parametrize("name", ["2.3_heap_canonical", "1.20_heap_snappy", "2.3_sql", "2.3_kafka"])
def test_a_contract_fits_itself_and_goes_into_a_lock(name: str, tmp_path: Path) -> None:
    place = Golden(name).unpack(tmp_path)
    contract = contract_of_savepoint(str(place))
    assert contract.version == name[0]
    assert contract.partitions == 128
    text = lock_text(contract)
    assert str(tmp_path) not in text
    assert "Base64" not in text
    assert lock_text(parse_lock(text, "lock")) == text
    verdicts = {finding.verdict for finding in compare(contract, contract)}
    assert verdicts <= {Verdict.SAME, Verdict.CONVERTS, Verdict.UNKNOWN}


def test_all_kinds_of_states_are_described(tmp_path: Path) -> None:
    contract = contract_of_savepoint(str(Golden("2.3_heap_canonical").unpack(tmp_path)))
    operators = by_uid(contract)
    kinds = {state.kind for operator in contract.operators for state in operator.states}
    assert kinds == {
        *("value", "list", "map", "reducing", "aggregating", "timers"),
        *("split", "union", "broadcast", "coordinator"),
    }
    person = {state.name: state for state in operators["kinds"].states}["person"]
    assert person.form["key"] == "String"
    assert person.form["value"]["serializer"] == "PojoSerializer"
    assert person.form["value"]["class"] == "golden.Shapes$Person"
    assert {"name": "age", "type": "Integer"} in person.form["value"]["fields"]
    assert "300" in contract.settings[f"max parallelism of {operators['by_long'].id}"]


def test_a_small_savepoint_has_the_figures_of_its_states(tmp_path: Path) -> None:
    golden = Golden("2.3_heap_canonical")
    operators = by_uid(contract_of_savepoint(str(golden.unpack(tmp_path))))
    found = Counter(
        (row["operator"], row.get("state"))
        for row in golden.rows()
        if row.get("namespace", 0) is None
    )
    for uid in ("kinds", "by_long", "by_tuple"):
        for state in operators[uid].states:
            if state.kind in ("value", "list", "reducing", "aggregating"):
                assert state.rows == found[uid, state.name], state.name
                assert state.bytes
    parts = {state.name: state for state in operators["parts"].states}
    (rules,) = (row for row in golden.rows() if row.get("state") == "rules" and not row["subtask"])
    assert parts["rules"].rows == len(rules["values"])


def test_backends_write_the_same_contract(tmp_path: Path) -> None:
    names = ("2.3_heap_canonical", "2.3_heap_native", "2.3_rocksdb_canonical", "2.3_rocksdb_native")
    contracts = [contract_of_savepoint(str(Golden(name).unpack(tmp_path / name))) for name in names]
    backends = [contract.settings.get(BACKEND) for contract in contracts]
    assert backends == [None, "hashmap", None, "rocksdb"]
    heap = {(operator, state) for operator, state, _ in without_rows(contracts[0])}
    for contract in contracts[1:]:
        assert {(operator, state) for operator, state, _ in without_rows(contract)} == heap
        assert Verdict.UNFIT not in {each.verdict for each in compare(contracts[0], contract)}


def test_an_import_has_the_contract_of_its_savepoint(tmp_path: Path) -> None:
    place = str(Golden("2.3_heap_canonical").unpack(tmp_path / "savepoint"))
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    import_savepoint(place, store)
    contract = contract_of_import(store.restore(parallelism=1))
    savepoint = contract_of_savepoint(place)
    assert without_rows(contract) == without_rows(savepoint)
    assert (contract.version, contract.settings) == (savepoint.version, savepoint.settings)
    states = [state for operator in contract.operators for state in operator.states]
    assert all(state.rows for state in states if state.name in ("person", "split", "rules"))


def test_a_plan_names_the_states_of_its_operators() -> None:
    contract = contract_of_plan(str(FOLDER / "2.3_plan.json"))
    assert contract.version == "2.3"
    states = {state.name for operator in contract.operators for state in operator.states}
    assert {"accState", "left-records", "right-records"} <= states
    unread = [
        state.form["problem"]
        for operator in contract.operators
        for state in operator.states
        if state.kind == UNREADABLE
    ]
    assert all(unread)


def test_a_map_of_forst_without_the_type_of_its_keys_is_named_but_not_described(
    tmp_path: Path,
) -> None:
    place = written(tmp_path, without_map_key)
    contract = contract_of_savepoint(place)
    unread = [
        state
        for operator in contract.operators
        for state in operator.states
        if state.kind == UNREADABLE
    ]
    assert unread
    assert all("asynchronous API (V2)" in state.form["problem"] for state in unread)
    findings = [each for each in compare(contract, contract) if each.verdict == Verdict.UNKNOWN]
    assert len(findings) == len(unread)


def test_a_damaged_operator_is_an_error(tmp_path: Path) -> None:
    def with_other_key_groups(operator: OperatorHandles) -> OperatorHandles:
        return replace(operator, max_parallelism=64)

    with pytest.raises(DamagedFileError, match="subtask 0"):
        contract_of_savepoint(written(tmp_path, with_other_key_groups))


def test_a_folder_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="it has no file '_metadata'"):
        contract_of_savepoint(str(tmp_path))


def test_a_checkpoint_may_use_the_files_of_its_job(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = golden.unpack(tmp_path)
    metadata = read_metadata((place / "_metadata").read_bytes(), "m")
    before = str(golden.about["written_at"])

    def moved(part: object) -> object:
        if isinstance(part, FileHandle):
            return replace(part, path=part.path.replace(before, str(tmp_path)))
        return None

    operators = replace_parts(metadata.operators, moved)
    (place / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 1, operators)))
    assert place.name.startswith("chk-")
    for each in (place, place / "_metadata"):
        assert contract_of_savepoint(str(each)).settings[BACKEND] == "rocksdb"


def test_files_elsewhere_must_be_allowed(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = golden.unpack(tmp_path)
    with pytest.raises(InvalidArgumentError, match="--allow"):
        contract_of_savepoint(str(place))
    access = SavepointAccess(moved={str(golden.about["written_at"]): str(tmp_path)})
    assert contract_of_savepoint(str(place), access=access).settings[BACKEND] == "rocksdb"
    for file in (tmp_path).rglob("shared"):
        shutil.rmtree(file)
    with pytest.raises(MissingFileError):
        contract_of_savepoint(str(place), access=access)
