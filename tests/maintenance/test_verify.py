"""A verification names every damaged file, whatever the damage.

``make damages`` tries more flips than the 300 of every run, and others with ``STATESTORE_SEED``.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.documents import document_bytes
from statestore.format.names import manifest_path, writer_path
from statestore.maintenance import verify_file
from statestore.maintenance.verify import VerifyReport
from statestore.maintenance.verify_file import FileCheck, Flaws, check_file
from statestore.snapshot.state_spec import Changes
from statestore.store import StateStore
from tests.support.damage import FLIPS, SORTS, change_unread_byte, copy_of, files_of, fill
from tests.support.examples import examples
from tests.support.forms import (
    Checkpoints,
    break_file,
    data_in,
    layer_file,
    names_of,
    newest_file,
    state_of,
)
from tests.support.forms import files_of as files_in
from tests.support.strategies import KeyedCase, element_lists, keyed_cases, parallelisms

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("STATESTORE_SEED", "2026"))


@pytest.fixture(scope="session")
def intact(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A store with one checkpoint, for tests that only read."""
    return fill(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def store(intact: StateStore, tmp_path: Path) -> StateStore:
    """A copy of the store, which the test can damage."""
    return copy_of(intact, tmp_path / "store")


def broken(report: VerifyReport) -> list[str]:
    return [file.file for file in report.broken]


def name_in(store: StateStore, file: Path) -> str:
    return file.relative_to(store.url).as_posix()


# --- intact checkpoints ---------------------------------------------------------------------------


@pytest.mark.long
@examples(40)
@given(st.data(), keyed_cases(), st.integers(1, 3))
def test_written_files_are_intact(data: st.DataObject, case: KeyedCase, old: int) -> None:
    """I1, I5, I7: any state of any kind, at any parallelism, causes no false alarm."""
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet")
        parallelism = data.draw(parallelisms(case.max_parallelism))
        with store.snapshot(parallelism=parallelism) as checkpoint:
            entry = case.write(checkpoint, "u", "n")
        with store.snapshot(parallelism=old) as checkpoint:
            checkpoint.write_split("u", "s", data.draw(element_lists(old)))
            checkpoint.write_broadcast("u", "b", data.draw(element_lists(1))[0])
            checkpoint.drop("u", "n")
        for deep in (False, True):
            report = store.maintenance.verify("all", deep)
            assert (report.broken, report.strays) == ((), ())
            assert report.checkpoints == (1, 2)
            assert report.files == len(entry.handles) + store.checkpoint().manifest.files
            assert report.rows == entry.rows + store.checkpoint().manifest.rows


def test_progress_is_reported_in_files(intact: StateStore) -> None:
    """It starts at zero and reaches the total."""
    heard: list[tuple[int, int]] = []
    report = intact.maintenance.verify(on_progress=lambda done, total: heard.append((done, total)))
    assert heard == [(done, report.files) for done in range(report.files + 1)]


def test_missing_names_are_not_found(intact: StateStore, tmp_path: Path) -> None:
    """The name was wrong, so this is not damage."""
    with pytest.raises(CheckpointNotFoundError, match="the store has the checkpoints 1"):
        intact.maintenance.verify(7)
    with pytest.raises(StoreNotFoundError):
        StateStore.open(str(tmp_path / "none")).maintenance.verify()


# --- random damage --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_flips_of_one_byte_are_found(tmp_path: Path) -> None:
    """I4, I5, I7: any byte of any file of a checkpoint is replaced by any other value."""
    store = fill(tmp_path / "store", max_parallelism=1)
    dice = random.Random(SEED)
    data = [path for name in SORTS for path in files_of(store, name)]
    documents = ("statestore.json", manifest_path(1), writer_path(1))
    files = [*data, *(Path(store.url, name) for name in documents)]
    found = shallow = 0
    missed: list[str] = []
    for _ in range(FLIPS):
        file = dice.choice(files)
        raw = file.read_bytes()
        at = dice.randrange(len(raw))
        value = dice.choice([value for value in range(256) if value != raw[at]])
        file.write_bytes(raw[:at] + bytes([value]) + raw[at + 1 :])
        if broken(store.maintenance.verify(deep=True)) == [name_in(store, file)]:
            found += 1
        else:
            missed.append(f"{file} at {at}: {raw[at]} to {value}")
        shallow += broken(store.maintenance.verify()) == [name_in(store, file)]
        file.write_bytes(raw)
    print(f"\n{found} of {FLIPS} flips found; {shallow} of them without --deep")
    assert missed == []
    assert store.maintenance.verify(deep=True).is_intact


@pytest.mark.long_cases("map", "reducing", "aggregating", "timers", "split", "broadcast")
@pytest.mark.parametrize("name", SORTS)
def test_a_truncated_file_is_found(store: StateStore, name: str) -> None:
    """I5: at any length. The shallow level also finds it, and names its owner."""
    file, *_ = files_of(store, name)
    raw = file.read_bytes()
    for length in {0, 1, len(raw) // 2, len(raw) - 1}:
        file.write_bytes(raw[:length])
        for deep in (False, True):
            (flaw,) = store.maintenance.verify(deep=deep).broken
            assert (flaw.file, flaw.kind) == (name_in(store, file), "damaged-file")
            assert flaw.what == (f"has {length} bytes, but the manifest says {len(raw)}",)
            assert (flaw.state, flaw.checkpoint_id) == (name, 1)


@pytest.mark.parametrize("name", SORTS)
def test_a_missing_file_is_found(store: StateStore, name: str) -> None:
    """I5: the verification continues, and reports all missing files with their key groups."""
    files = files_of(store, name)
    for file in files:
        file.unlink()
    report = store.maintenance.verify()
    assert broken(report) == [name_in(store, file) for file in files]
    assert {flaw.kind for flaw in report.broken} == {"missing-file"}
    keyed = name not in ("split", "union", "broadcast")
    groups = [str(flaw.key_groups) for flaw in report.broken]
    assert groups == (["0..0", "1..1"] if keyed else ["None"])


@pytest.mark.slow
@pytest.mark.parametrize("any_two", [False, pytest.param(True, marks=pytest.mark.long)])
def test_swapped_files_are_found(store: StateStore, any_two: bool) -> None:
    """I7: both files are found, for two states or key groups. Different lengths are found
    without --deep.
    """
    files = [path for name in SORTS for path in files_of(store, name)]
    for one, other in combinations(files, 2) if any_two else pairwise(files):
        exchange(one, other)
        assert set(broken(store.maintenance.verify(deep=True))) == {
            name_in(store, f) for f in (one, other)
        }
        assert (
            one.stat().st_size == other.stat().st_size or not store.maintenance.verify().is_intact
        )
        exchange(one, other)


def test_swapped_files_of_equal_length_are_found(tmp_path: Path) -> None:
    """I1, I7: length, rows and columns are equal, as is common for files of small key groups."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rows = pa.table({"k": list(range(100, 164)), "v": list(range(200, 264))})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed(
            "u", "n", rows, key="k", max_parallelism=128, layout="partitioned"
        )
    alike = [
        handle
        for handle in entry.handles
        if (handle.rows, handle.size_bytes) == (1, entry.handles[0].size_bytes)
    ]
    assert len(alike) > 1
    one, other = (Path(store.url, entry.table.path, handle.path) for handle in alike[:2])
    exchange(one, other)
    for deep in (False, True):  # their footers show the least and greatest values
        assert set(broken(store.maintenance.verify(deep=deep))) == {
            name_in(store, f) for f in (one, other)
        }


def test_a_file_of_another_checkpoint_is_found(store: StateStore) -> None:
    """I5, I7: it contains the same state at an earlier time."""
    before = {name: files_of(store, name) for name in SORTS}
    with store.snapshot(parallelism=2) as checkpoint:
        values = pa.table({"user": ["user-1", "user-2"], "x": [0.5, 0.25]})
        checkpoint.write_keyed("job", "value", values, key="user")
        checkpoint.carry_rest()
    file, *_ = files_of(store, "value")
    shutil.copy(before["value"][0], file)
    assert name_in(store, file) in broken(store.maintenance.verify(deep=True))
    assert broken(store.maintenance.verify("all", deep=True)) == [name_in(store, file)]
    assert store.maintenance.verify(1, deep=True).is_intact


def test_an_orphan_file_is_not_damage(store: StateStore) -> None:
    """I5: files of a crashed writer are listed, and files of another checkpoint are not."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("source", "split", [[{"s": "d"}], []])
        checkpoint.carry_rest()
    (named,) = files_of(store, "split")
    stray = named.parent / "0000000009-0123456789abcdef.parquet"
    shutil.copy(named, stray)
    (named.parent / "_delta_log").mkdir()
    (named.parent / "_delta_log" / "0.json").write_text("{}")
    for checkpoint_id in (1, 2, "all"):
        report = store.maintenance.verify(checkpoint_id, deep=True)
        assert (report.broken, report.strays) == ((), (name_in(store, stray),))


# --- manifests ------------------------------------------------------------------------------------


def test_a_damaged_manifest_is_reported_with_the_others(store: StateStore) -> None:
    """I4: the other checkpoints are still checked, and its files are not listed as orphans."""
    first = store.checkpoint().manifest
    with store.snapshot(parallelism=2) as checkpoint:
        for state in [entry.state for entry in first.keyed] + [e.state for e in first.operator]:
            if state.name != "split":
                checkpoint.drop(state.uid, state.name)
        checkpoint.write_split("source", "split", [[{"s": "d"}], []])
    manifest = Path(store.url, manifest_path(1))
    manifest.write_bytes(manifest.read_bytes()[:-1])
    report = store.maintenance.verify("all")
    assert (broken(report), report.strays, report.files) == ([manifest_path(1)], (), 1)
    assert report.broken[0].kind == "malformed-manifest"
    assert (store.maintenance.verify(2).broken, store.maintenance.verify(2).strays) == ((), ())
    assert broken(store.maintenance.verify(1)) == [manifest_path(1)]
    with pytest.raises(CorruptionError, match=r"0000000001\.json"):
        raise report.problem or AssertionError


def test_a_manifest_of_another_store_is_found(store: StateStore, tmp_path: Path) -> None:
    """I4: the manifest is intact, but says nothing about the files here."""
    other = fill(tmp_path / "other")
    shutil.copy(Path(other.url, manifest_path(1)), Path(store.url, manifest_path(1)))
    (flaw,) = store.maintenance.verify().broken
    assert flaw.file == manifest_path(1)
    assert "is the manifest of store" in flaw.what[0]


def test_a_missing_store_file_is_reported(store: StateStore) -> None:
    """I4: its checkpoints exist, so the store has lost a file."""
    Path(store.url, "statestore.json").unlink()
    report = store.maintenance.verify()
    assert (broken(report), report.broken[0].kind) == (["statestore.json"], "missing-file")
    assert report.files > 0


def test_a_damaged_claim_is_reported(store: StateStore) -> None:
    """I6: the next writer would rely on it."""
    (claim,) = Path(store.url, "writers").iterdir()
    claim.write_bytes(claim.read_bytes().replace(b"1", b"2", 1))
    (flaw,) = store.maintenance.verify().broken
    assert (flaw.file, flaw.kind) == (name_in(store, claim), "malformed-manifest")


def test_a_newer_manifest_is_not_damage(store: StateStore) -> None:
    """The error asks for an upgrade."""
    newer = document_bytes({"format": "statestore-checkpoint", "format_version": 99})
    Path(store.url, manifest_path(2)).write_bytes(newer)
    with pytest.raises(FormatVersionError):
        store.maintenance.verify("all")
    assert store.maintenance.verify(1).strays == ()


def test_an_unreadable_file_is_not_called_damaged(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not respond says nothing about the file."""

    def fail(*_: object) -> int:
        raise StorageError("no answer")

    monkeypatch.setattr("statestore.storage.local.LocalStorage.native_path", fail)
    with pytest.raises(StorageError, match="no answer"):
        store.maintenance.verify()


# --- a restore that verifies ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SORTS)
def test_a_verified_restore_names_the_file(store: StateStore, name: str) -> None:
    """I7: a damaged byte that no reader uses is found by subtask, by key, and in elements."""
    file, *_ = files_of(store, name)
    change_unread_byte(file)
    restored, verified = store.restore(), store.restore(verify=True)
    if name in ("split", "union", "broadcast"):
        assert restored.operator_state("source", name).subtask(0)
        fails(lambda: verified.operator_state("source", name).subtask(0), file)
        return
    state = restored.keyed("job", name)
    (user, *_) = state.to_arrow(0).column("user").to_pylist()
    assert state.get(user)
    fails(lambda: verified.keyed("job", name).to_arrow(0), file)
    fails(lambda: verified.keyed("job", name).get(user), file)
    assert verified.keyed("job", name).to_arrow(1).num_rows


@pytest.mark.long
def test_a_verified_dataframe_names_the_file(store: StateStore, spark: SparkSession) -> None:
    """I7: the Spark task that reads the file checks it, and the error reaches the driver."""
    file, *_ = files_of(store, "value")
    change_unread_byte(file)
    with_spark = StateStore.open(store.url, spark=spark)
    rows = store.checkpoint().manifest.keyed_entry("job", "value").rows
    assert with_spark.restore().keyed("job", "value").to_spark().count() == rows
    frame = with_spark.restore(verify=True).keyed("job", "value").to_spark()
    with pytest.raises(PythonException, match="has changed since it was written") as caught:
        frame.collect()
    assert file.name in str(caught.value)


@pytest.mark.long_cases("false")
@pytest.mark.parametrize("word", ["true", "false", "maybe"])
def test_the_data_source_verifies_on_request(
    store: StateStore, spark: SparkSession, word: str
) -> None:
    """I7: a damaged byte that no reader uses is found only with ``verify``."""
    file, *_ = files_of(store, "value")
    change_unread_byte(file)
    StateStore.open(store.url, spark=spark)
    options = {"store": store.url, "operator": "job", "state": "value", "verify": word}
    source = spark.read.format("keyed_state").options(**options)
    if word == "false":
        assert source.load().count() == store.checkpoint().manifest.keyed_entry("job", "value").rows
        return
    message = (
        "has changed since it was written" if word == "true" else "verify must be true or false"
    )
    with pytest.raises(PySparkException, match=message):
        source.load().collect()


def fails(read: Callable[[], object], file: Path) -> None:
    with pytest.raises(StateStoreError, match="has changed since it was written") as caught:
        read()
    assert (caught.value.kind, str(file) in str(caught.value)) == ("damaged-file", True)


def exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


# --- every form of a state ------------------------------------------------------------------------


def named(taken: Checkpoints) -> set[str]:
    """Return the files of all checkpoints."""
    return set().union(*(names_of(taken.store, number) for number in taken.taken))


@pytest.mark.long_cases("plain", "layered")
def test_checkpoints_as_they_were_written_are_intact(taken: Checkpoints) -> None:
    for deep in (False, True):
        report = taken.store.maintenance.verify("all", deep)
        assert (report.broken, report.files) == ((), len(named(taken)))
        last = taken.store.maintenance.verify("latest", deep)
        (entry,) = taken.store.checkpoint().manifest.keyed
        assert (last.rows, last.changed_rows) == (entry.rows, entry.changed_rows)
        # No checkpoint references the file of a layer that was merged immediately.
        assert {*report.strays} == data_in(taken.store.url) - named(taken)
        assert taken.form == "compacted" or not report.strays


@pytest.mark.parametrize("kind", ["list", "timers"])
def test_a_delete_of_a_key_without_an_entry_is_valid(tmp_path: Path, kind: str) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=None)
    rows = pa.table({"k": ["a", "a", "b"], "at": pa.array([1, 2, 1], pa.int64()), "v": [1, 2, 3]})
    options: dict[str, Any] = {"key": "k", "max_parallelism": 4}
    options |= {"kind": kind, "entry": "at"}
    options |= {"time_domain": "event"} if kind == "timers" else {}
    for changed in (False, True):
        with store.snapshot(parallelism=1) as checkpoint:
            if not changed:
                checkpoint.write_keyed("u", "s", rows, **options)
            else:
                checkpoint.write_changes("u", "s", Changes(rows.slice(2), cleared=[{"k": "a"}]))
    assert state_of(store).changed_rows == 2
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_shared_file_is_checked_once_and_reported_for_all_owners(
    taken: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = newest_file(taken.store, 3)
    naming = [number for number in taken.taken if name in names_of(taken.store, number)]
    assert naming == {"plain": [3], "layered": [3, 4, 5], "compacted": [3]}[taken.form]
    break_file(taken.store, name)
    checked: Counter[str] = Counter()

    def check(one: FileCheck) -> Flaws | None:
        checked[f"{one.entry.table.path}/{one.handle.path}"] += 1
        return check_file(one)

    monkeypatch.setattr(verify_file, "check_file", check)
    heard: list[tuple[int, int]] = []
    report = taken.store.maintenance.verify("all", True, on_progress=lambda *now: heard.append(now))
    every = named(taken)
    assert checked == dict.fromkeys(every, 1)
    assert report.files == len(every)
    assert heard[-1] == (len(every), len(every))
    assert [(one.checkpoint_id, one.file) for one in report.broken] == [(n, name) for n in naming]
    assert {(one.operator, one.state) for one in report.broken} == {("u", "s")}


@pytest.mark.long_cases("plain-False", "plain-True", "layered-True", "compacted-False")
@pytest.mark.parametrize("deep", [False, True])
def test_a_file_of_any_form_that_is_missing_is_named(taken: Checkpoints, deep: bool) -> None:
    for name in files_in(taken.store):
        file = Path(taken.store.url, name)
        raw = file.read_bytes()
        file.unlink()
        report = taken.store.maintenance.verify("latest", deep)
        assert [(one.kind, one.file) for one in report.broken] == [("missing-file", name)]
        file.write_bytes(raw)


@pytest.mark.long_cases("plain", "layered")
def test_a_file_in_place_of_the_next_one_is_found(taken: Checkpoints) -> None:
    files = [Path(taken.store.url, name) for name in files_in(taken.store)]
    for first, second in pairwise(files):
        raw = second.read_bytes()
        shutil.copyfile(first, second)
        assert not taken.store.maintenance.verify("latest", True).is_intact
        second.write_bytes(raw)
    assert taken.store.maintenance.verify("latest", True).is_intact


def test_orphan_files_are_found_after_the_last_layer_is_gone(taken: Checkpoints) -> None:
    left = {*taken.store.maintenance.verify("latest").strays}
    name = newest_file(taken.store) if taken.form == "plain" else layer_file(taken.store, 0)
    stray = f"{Path(name).parent}/0000000099-00000-left.parquet"
    shutil.copyfile(Path(taken.store.url, name), Path(taken.store.url, stray))
    assert {*taken.store.maintenance.verify("latest").strays} == left | {stray}
    number = taken.full(taken.rows)
    assert {*taken.store.maintenance.verify(number).strays} == left | {stray}
