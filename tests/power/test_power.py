"""The power fails after any call of a program: I4, I5, I9, I10, on the files of a real system.

The other tests of a lost disk simulate it in Python. Here a recorder sees the calls of all
libraries and processes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from statestore import StateStore
from statestore.interop.spark.location import UNFINISHED
from tests.power import spark_subjects, subjects
from tests.power.check import Checker
from tests.power.content import Promises
from tests.power.disk import Disk, Tree, UnknownCallError, contents_of
from tests.power.recording import Record, Recording, record
from tests.power.run import SUBJECTS, Plan, Result, replay

pytestmark = pytest.mark.slow


LARGE = (
    *("changes", "claims", "collect", "command", "copy", "delta", "edit_sql", "processes"),
    *("purge", "purge_delta", "rekey", "upgrade"),
)
"""Programs whose cuts take longer than a few seconds."""
SMALL = sorted(set(subjects.SUBJECTS) - set(LARGE))


def tried(subject: str, folder: Path, plan: Plan, loses: str = "") -> Result:
    """Record a program, and fail the power."""
    return replay(record(SUBJECTS[subject], (subject,), folder, loses), plan)


@pytest.mark.long_cases("edit", "outputs", "export")
@pytest.mark.parametrize("subject", SMALL)
def test_each_prefix_of_the_calls_keeps_all_promises(subject: str, tmp_path: Path) -> None:
    """The processes die after any of the calls, and the disk loses nothing."""
    result = tried(subject, tmp_path, Plan(losses=False, go_on=0.05))
    assert result.problems == []
    assert result.cuts == result.calls > 80


@pytest.mark.long
@pytest.mark.parametrize("subject", ["snapshot", "outputs"])
def test_the_power_may_fail_after_any_call(subject: str, tmp_path: Path) -> None:
    result = tried(subject, tmp_path, Plan(draws=1, go_on=0.05))
    assert result.problems == []
    assert result.cuts == result.calls > 80


@pytest.mark.long
def test_a_held_checkpoint_survives_a_power_failure(tmp_path: Path) -> None:
    result = tried("collect", tmp_path, Plan(draws=1, share=0.05, go_on=0.1))
    assert result.problems == []
    assert result.failures > 20


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_program_survives_a_power_failure(subject: str, tmp_path: Path) -> None:
    """After every call, with one content of each random kind."""
    has_jvm = subject in spark_subjects.SUBJECTS
    result = tried(subject, tmp_path, Plan(seed=2, draws=1, go_on=0.01 if has_jvm else 0.1))
    assert result.problems == []
    assert result.cuts == result.calls > 80


@pytest.mark.long
def test_the_recorder_sees_the_jvm_and_its_workers(tmp_path: Path) -> None:
    recording = record(SUBJECTS["locations"], ("locations",), tmp_path)
    written = {call.process for call in recording.records if call.kind == "W"}
    assert len(written) >= 3, "the driver, the JVM and a Python worker write"


@pytest.mark.search_program
@pytest.mark.parametrize("loses", ["files", "folders"])
def test_a_missing_fsync_is_detected(loses: str, tmp_path: Path) -> None:
    """The recorder omits the fsync of files, or of folders, from the log."""
    problems = tried("snapshot", tmp_path, Plan(draws=1, go_on=0), loses).problems
    assert any("is lost" in one or "missing" in one or "damaged" in one for one in problems)


@pytest.mark.search_program
@pytest.mark.parametrize("loses", ["files", "folders"])
def test_a_missing_fsync_of_an_output_is_detected(loses: str, tmp_path: Path) -> None:
    problems = tried("outputs", tmp_path, Plan(draws=1, go_on=0), loses).problems
    assert any("new: " in problem or "out: " in problem for problem in problems)


def test_the_log_explains_every_file(tmp_path: Path) -> None:
    """Each way to write and to name a file, also of threads and of child processes."""
    recording = record("tests.power.every_call", ("known",), tmp_path)
    assert {call.kind for call in recording.records} == {*"CDWTFRLU"}
    disk = played(recording)
    assert disk.all_kept() == contents_of(recording.root)
    together = disk.all_kept()["folder/together"]
    assert together is not None
    assert sorted(together) == sorted(bytes(range(4)) * 50 + b"f" * 50 + b"text\n")


def test_a_write_that_the_recorder_cannot_see_is_not_judged(tmp_path: Path) -> None:
    recording = record("tests.power.every_call", ("hidden",), tmp_path)
    result = replay(recording, Plan())
    assert result.problems == ["the log does not explain the files that the program left"]


def test_a_shared_mapping_is_refused(tmp_path: Path) -> None:
    recording = record("tests.power.every_call", ("mapped",), tmp_path)
    with pytest.raises(UnknownCallError, match="mmap"):
        played(recording)


def call(kind: str, inode: int = 0, name: str = "", to_name: str = "", data: bytes = b"") -> Record:
    """Return a call in the root, whose inode is 1."""
    return Record(kind, inode, 1, 1, 0, name, to_name, data)


def played(recording: Recording) -> Disk:
    """Return the disk after all calls."""
    disk = Disk(recording)
    for each in recording.records:
        disk.play(each)
    return disk


def disk_after(*calls: Record) -> Disk:
    return played(Recording(Path(), calls, 1))


REPLACED = (
    *(call("C", 2, "a"), call("W", 2, data=b"old"), call("F", 2), call("F", 1)),
    *(call("C", 3, "b"), call("W", 3, data=b"new"), call("R", 0, "b", "a")),
)


def test_a_file_that_was_not_synced_may_replace_another_one_without_its_bytes() -> None:
    disk = disk_after(*REPLACED)
    assert disk.all_lost() == {"a": b"old"}
    assert disk.names_only() == {"a": b""}
    assert disk.all_kept() == {"a": b"new"}
    drawn = [disk.weak(Random(seed)) for seed in range(300)]
    assert {"a": b"old"} in drawn
    assert {"a": b"\0\0\0"} in drawn
    assert {"a": b"old", "b": b"new"} in drawn
    ordered = [disk.ordered(Random(seed)) for seed in range(300)]
    assert {"a": b"n"} in ordered
    assert not any(tree["a"] == b"\0\0\0" for tree in ordered)


def test_a_journal_is_cut_at_each_of_its_changes() -> None:
    """The two names of a rename in one folder change together."""
    disk = disk_after(*REPLACED)
    assert [*disk.journals()] == [
        *({"a": b"old"}, {"a": b"old"}),
        *({"a": b"old", "b": b"new"}, {"a": b"old", "b": b""}),
        *({"a": b"new"}, {"a": b""}),
    ]


def test_an_fsync_keeps_what_it_covers() -> None:
    """The fsync of a file is enough for its name in the journal, but not in POSIX."""
    disk = disk_after(*REPLACED, call("F", 3))
    assert disk.all_lost() == {"a": b"old"}
    assert {*(disk.ordered(Random(seed))["a"] for seed in range(50))} == {b"new"}
    assert {*(disk.weak(Random(seed))["a"] for seed in range(50))} == {b"old", b"new"}
    assert disk_after(*REPLACED, call("F", 3), call("F", 1)).all_lost() == {"a": b"new"}


def test_a_deleted_file_returns_unless_its_folder_is_synced() -> None:
    calls = (*REPLACED, call("F", 3), call("F", 1), call("U", 0, "a"))
    assert disk_after(*calls).all_lost() == {"a": b"new"}
    assert disk_after(*calls, call("F", 1)).all_lost() == {}


def test_an_inode_is_used_again_after_its_file_or_folder_is_gone() -> None:
    calls = (call("D", 2, "a"), call("F", 2), call("U", 0, "a"), call("C", 2, "b"))
    disk = disk_after(*calls, call("W", 2, data=b"new"), call("F", 2), call("F", 1))
    assert disk.all_kept() == disk.all_lost() == {"b": b"new"}
    calls = (call("C", 2, "a"), call("W", 2, data=b"old"), call("F", 2), call("F", 1))
    disk = disk_after(*calls, call("U", 0, "a"), call("C", 2, "b"), call("W", 2, data=b"new"))
    assert disk.all_kept() == {"b": b"new"}
    assert disk.all_lost() == {"a": b"old"}


def promise(what: str, **facts: object) -> Record:
    return call("M", data=json.dumps({"what": what, **facts}).encode())


def test_a_location_that_spark_may_use_too_early_is_detected(tmp_path: Path) -> None:
    whole: Tree = {"to": None, "to/metadata": b"id", "to/.metadata.crc": b"sum"}
    files = {name: sha256(data).hexdigest() for name, data in whole.items() if data is not None}
    marks = [promise("location", folder="to"), promise("complete", folder="to", files=files)]
    promises, checker = Promises(marks), Checker(tmp_path / "image")

    def problems(changes: Tree, *without: str) -> list[str]:
        tree = {name: data for name, data in (whole | changes).items() if name not in without}
        return checker.problems(tree, promises, go_on=False, is_whole=False)

    promises.read(marks[0])
    assert problems({}) == problems({"to/.temporary": b""}) == []
    assert problems({}, *whole) == problems({"to/offsets/2": UNFINISHED}, "to/metadata") == []
    early = "Spark can start with to, where to/{} is not whole"
    assert problems({}, "to/metadata") == [early.format("metadata")]
    assert problems({"to/.metadata.crc": b""}) == [early.format(".metadata.crc")]
    promises.read(marks[1])
    assert problems({}) == []
    assert problems({"to/offsets/2": UNFINISHED}) == ["to is blocked again for Spark"]


def test_a_gap_between_claims_is_detected(tmp_path: Path) -> None:
    for number in range(3):
        store = StateStore.open(str(tmp_path / "root" / "store"), table_format="parquet")
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_union("source", "offsets", [[{"offset": number}]])
    promises = Promises([mark := promise("leaving", store="store")])
    promises.read(mark)
    tree = contents_of(tmp_path / "root")
    del tree["store/writers/0000000002.json"]
    found = Checker(tmp_path / "image").problems(tree, promises, go_on=False, is_whole=True)
    assert found == ["store: claim 2 is missing between others"]
