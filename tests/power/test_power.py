"""The power fails after any call of a program: I4, I5, I9, I10, on the files of a real system.

The other tests of a lost disk simulate it in Python. Here a recorder sees the calls of all
libraries and processes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power.disk import Disk, UnknownCallError, contents_of
from tests.power.recording import Record, Recording, record
from tests.power.run import PROGRAM, Plan, replay
from tests.power.subjects import SUBJECTS

pytestmark = pytest.mark.slow


def failures(subject: str, folder: Path, plan: Plan, loses: str = "") -> tuple[int, list[str]]:
    """Return the number of contents that were checked, and the broken promises."""
    recording = record(PROGRAM, (subject,), folder, loses)
    result = replay(recording, plan)
    return result.failures, result.problems


@pytest.mark.parametrize(("subject", "share"), [("snapshot", 0.3), ("collect", 0.05)])
def test_a_committed_checkpoint_survives_a_power_failure(
    subject: str, share: float, tmp_path: Path
) -> None:
    number, problems = failures(subject, tmp_path, Plan(draws=1, share=share, go_on=0.1))
    assert problems == []
    assert number > 20


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_program_survives_a_power_failure(subject: str, tmp_path: Path) -> None:
    number, problems = failures(subject, tmp_path, Plan(seed=2, draws=2, share=0.5))
    assert problems == []
    assert number > 50


@pytest.mark.parametrize("loses", ["files", "folders"])
def test_a_missing_fsync_is_detected(loses: str, tmp_path: Path) -> None:
    """The recorder omits the fsync of files, or of folders, from the log."""
    _, problems = failures("snapshot", tmp_path, Plan(draws=1, go_on=0), loses)
    assert any("is lost" in one or "missing" in one or "damaged" in one for one in problems)


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
