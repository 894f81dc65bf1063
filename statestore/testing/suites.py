"""Conformance suites: a backend's test inherits a suite and its tests, and provides a fixture.

::

    class TestMyStorage(StorageSuite):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(tmp_path)
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.storage import Storage

ASTRAY = (
    *("..", "../a/b", "a/..", "a/../a/b", "a/../../b", "./a", "a/./b", "a/."),
    *("/", "/a/b", "//a/b", "a//b", "a/b/", "/etc/hostname"),
    *("C:/a", "c:a", "Z:", "a\\b", "..\\a", "\\\\host\\a", "a\x00b", "\x00"),
)
"""Names that are outside of a store, or that two systems could treat as different files."""

_PAYLOAD = 64 * 1024


class StorageSuite:
    """The guarantees of every :class:`~statestore.storage.Storage`; ``storage`` must be empty."""

    writers = 8
    """The number of processes that race for a name."""

    races = 120
    """The number of names for which they race, one after another."""

    renews = True
    """Whether it can give a small file a second name; if not, callers copy the bytes."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return an empty storage; the backend's test overrides this."""
        raise NotImplementedError

    def test_what_is_put_is_read(self, storage: Storage) -> None:
        """This holds for any bytes, including none."""
        for name, data in (("a", b""), ("b/c", b"\x00\xff\r\n"), ("b/d", bytes(1_000_000))):
            assert storage.put_if_absent(name, data)
            assert storage.read(name) == data
            assert storage.size(name) == len(data)

    def test_a_name_is_put_once(self, storage: Storage) -> None:
        """I4: the second writer gets False, and changes nothing."""
        assert storage.put_if_absent("checkpoints/1.json", b"first")
        assert not storage.put_if_absent("checkpoints/1.json", b"second")
        assert storage.read("checkpoints/1.json") == b"first"

    def test_a_name_can_be_put_again_after_it_was_deleted(self, storage: Storage) -> None:
        """The storage does not remember names; the catalog never reuses ids (I6)."""
        storage.put_if_absent("a", b"first")
        storage.delete("a")
        assert storage.put_if_absent("a", b"second")
        assert storage.read("a") == b"second"

    def test_nothing_lies_above(self, storage: Storage) -> None:
        """A file in the folder itself does not count as above it."""
        storage.put_if_absent("here.json", b"x")
        assert storage.folder_above("here.json") is None

    def test_a_missing_file_is_not_found(self, storage: Storage) -> None:
        """This holds in an empty storage, and next to a file whose name has the same prefix."""
        for name in ("a", "folder/a"):
            _nothing_at(storage, name)
        storage.put_if_absent("folder/ab", b"x")
        _nothing_at(storage, "folder/a")

    def test_list_names_all_files_below_a_folder_sorted(self, storage: Storage) -> None:
        """Files of another folder whose name has the same prefix are not listed."""
        for name in ("a/2", "a/b/c=1/3", "a/10", "ab/1", "b"):
            storage.put_if_absent(name, b"x")
        assert storage.list("a") == ("a/10", "a/2", "a/b/c=1/3")
        assert storage.list("a/b") == ("a/b/c=1/3",)

    def test_a_listing_may_say_length_and_time(self, storage: Storage) -> None:
        """It has all files below a folder, sorted by name, with the time of the last write."""
        assert storage.listed("a") == ()
        before = time.time_ns() // 1_000_000
        for name, length in (("a/2", 2), ("a/b/c=1/3", 0), ("a/.10", 10), ("ab/1", 1)):
            storage.put_if_absent(name, bytes(length))
        after = time.time_ns() // 1_000_000
        items = storage.listed("a")
        assert [item[:2] for item in items] == [("a/.10", 10), ("a/2", 2), ("a/b/c=1/3", 0)]
        assert {item.name for item in storage.listed("")} == {
            "ab/1",
            *(item.name for item in items),
        }
        # Clocks differ, and some file systems have a resolution of whole seconds.
        assert all(before - 5_000 <= item.modified_ms <= after + 5_000 for item in items)
        storage.delete("a/2")
        assert [item.name for item in storage.listed("a")] == ["a/.10", "a/b/c=1/3"]

    def test_list_sees_every_change_at_once(self, storage: Storage) -> None:
        """A listing is never cached."""
        assert storage.list("a") == ()
        storage.put_if_absent("a/1", b"x")
        assert storage.list("a") == ("a/1",)
        with storage.open_write("a/2") as file:
            file.write(b"x")
        assert storage.list("a") == ("a/1", "a/2")
        storage.delete("a/1")
        assert storage.list("a") == ("a/2",)

    def test_list_of_a_missing_folder_is_empty(self, storage: Storage) -> None:
        """This also holds below a folder that exists."""
        storage.put_if_absent("a/1", b"x")
        assert storage.list("nowhere") == storage.list("a/nowhere") == ()

    def test_a_storage_is_empty_until_a_file_is_put(self, storage: Storage) -> None:
        """A file in a nested folder counts."""
        assert storage.is_empty()
        storage.put_if_absent("a/b/c", b"x")
        assert not storage.is_empty()

    def test_delete_removes_one_file_and_ignores_a_missing_file(self, storage: Storage) -> None:
        """A second delete has no effect."""
        for name in ("a/1", "a/2"):
            storage.put_if_absent(name, b"x")
        for name in ("a/1", "a/1", "nowhere/at/all"):
            storage.delete(name)
        storage.sync(["a/", "nowhere/"])
        assert storage.list("a") == ("a/2",)

    def test_a_written_file_is_read_back(self, storage: Storage) -> None:
        """This holds for several pieces, and for a seek, after :meth:`Storage.sync`."""
        pieces = [bytes([number]) * 300_000 for number in range(4)]
        with storage.open_write("t/key_group=7/x.parquet") as file:
            for piece in pieces:
                file.write(piece)
        storage.sync(["t/key_group=7/x.parquet"])
        assert storage.size("t/key_group=7/x.parquet") == 1_200_000
        with storage.open_read("t/key_group=7/x.parquet") as file:
            assert file.read() == b"".join(pieces)
            file.seek(599_999)
            assert file.read(2) == b"\x01\x02"

    def test_a_renewed_file_has_two_names_and_is_young(self, storage: Storage) -> None:
        """The new name stays after the old one is deleted, and has a new modification time."""
        with storage.open_write("t/old") as file:
            file.write(b"some bytes")
        path = storage.native_path("t/old")
        if path is not None:
            os.utime(path, (0, 0))
        before = time.time_ns() // 1_000_000
        with pytest.raises(FileNotFoundError):
            storage.renew("t/none", "t/new")
        assert storage.renew("t/old", "u/new") == self.renews
        if not self.renews:
            assert storage.list("") == ("t/old",)
            return
        assert all(item.modified_ms >= before - 5_000 for item in storage.listed(""))
        storage.delete("t/old")
        assert storage.read("u/new") == b"some bytes"
        assert storage.list("") == ("u/new",)

    @pytest.mark.parametrize("size", [0, 1, 9_000_000])
    def test_a_file_that_is_left_by_an_error_does_not_appear(
        self, storage: Storage, size: int
    ) -> None:
        """I5: a file appears only when it is closed, and an error leaves nothing."""
        with suppress(ZeroDivisionError), storage.open_write("t/a") as file:
            file.write(bytes(size))
            _nothing_at(storage, "t/a")
            raise ZeroDivisionError
        assert file.closed
        abandoned = storage.open_write("t/b")
        abandoned.write(bytes(size))
        for end in (abandoned.abandon, abandoned.abandon, abandoned.close):
            end()
            _nothing_at(storage, "t/b")
        assert storage.listed("") == ()
        with storage.open_write("t/a") as file:
            file.write(b"whole")
        file.abandon()
        assert storage.read("t/a") == b"whole"

    def test_what_a_killed_writer_left_is_listed_and_can_be_deleted(self, storage: Storage) -> None:
        """I9: the leftover file is hidden, and its final name is free."""
        file = storage.open_write("t/a")
        file.write(bytes(9_000_000))
        (left,) = storage.listed("")
        assert left.name.startswith("t/.a.")
        assert storage.list("") == ()
        for _ in range(2):
            storage.delete(left.name)
        assert storage.listed("") == ()
        file.abandon()
        _nothing_at(storage, "t/a")

    def test_a_range_ends_where_the_file_ends(self, storage: Storage) -> None:
        """This holds for any range, even beyond the end, and for concurrent reads."""
        storage.put_if_absent("a", b"0123456789")
        wanted = [(0, 10), (3, 5), (8, 11), (10, 12), (99, 100), (4, 4)]
        with ThreadPoolExecutor(len(wanted)) as pool:
            ranges = list(pool.map(lambda part: storage.read_range("a", *part), wanted))
        assert ranges == [b"0123456789"[start:stop] for start, stop in wanted]
        assert storage.streams >= 1

    def test_names_of_a_store_are_kept_as_they_are(self, storage: Storage) -> None:
        """This includes characters that are special in a file system or a URL."""
        names = ["a=1/~20~E2.parquet", "a=1/b-c_d.x~2F"]
        for name in names:
            storage.put_if_absent(name, name.encode())
        assert list(storage.list("a=1")) == sorted(names)
        assert all(storage.read(name) == name.encode() for name in names)

    def test_a_name_that_leads_elsewhere_is_refused(self, storage: Storage) -> None:
        """This holds for all methods, and nothing is read, created or deleted."""
        storage.put_if_absent("a/b", b"x")
        calls: dict[str, Callable[[str], object]] = {
            "read": storage.read,
            "size": storage.size,
            "delete": storage.delete,
            "open_read": storage.open_read,
            "open_write": storage.open_write,
            "list": storage.list,
            "listed": storage.listed,
            "spark_url": storage.spark_url,
            "read_range": lambda name: storage.read_range(name, 0, 1),
            "renew from": lambda name: storage.renew(name, "a/c"),
            "renew to": lambda name: storage.renew("a/b", name),
            "put_if_absent": lambda name: storage.put_if_absent(name, b"y"),
        }
        before = storage.listed("")
        outcomes = {
            (method, name): _outcome(call, name)
            for method, call in calls.items()
            for name in ASTRAY
        }
        assert outcomes == dict.fromkeys(outcomes, InvalidArgumentError)
        assert storage.listed("") == before
        assert storage.read("a/b") == b"x"

    def test_it_can_be_pickled(self, storage: Storage) -> None:
        """A worker process gets the same storage."""
        storage.put_if_absent("a", b"x")
        copy: Storage = pickle.loads(pickle.dumps(storage))
        assert copy.url == storage.url
        assert copy.read("a") == b"x"

    def test_of_many_writers_one_wins_and_no_reader_sees_a_part(self, storage: Storage) -> None:
        """I4, I5: processes race for names; a name that exists always has all of its bytes."""
        # Not with fork: Arrow's threads do not survive it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        barrier = context.Barrier(self.writers)
        results: Any = context.SimpleQueue()
        processes = [
            context.Process(target=_write, args=(storage, number, self.races, barrier, results))
            for number in range(self.writers)
        ]
        processes.append(context.Process(target=_watch, args=(storage, self.races, results)))
        for process in processes:
            process.start()
        outcomes = [results.get() for _ in processes]
        for process in processes:
            process.join()
        assert [problem for _, problems in outcomes for problem in problems] == []
        won = sorted(name for names, _ in outcomes for name in names)
        assert won == [_name(race) for race in range(self.races)]


def _outcome(call: Callable[[str], object], name: str) -> type[Exception] | None:
    """Return the type of the error that a call raises, or None."""
    try:
        call(name)
    except Exception as error:  # noqa: BLE001 - the caller compares it
        return type(error)
    return None


def _nothing_at(storage: Storage, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read(name)
    with pytest.raises(FileNotFoundError):
        storage.size(name)
    with pytest.raises(FileNotFoundError):
        storage.open_read(name)
    with pytest.raises(FileNotFoundError):
        storage.read_range(name, 0, 1)


def _name(race: int) -> str:
    return f"races/{race:04}"


def _write(storage: Storage, number: int, races: int, barrier: Any, results: Any) -> None:
    """Race for each name; report the names won, and all problems."""
    won, problems = [], []
    for race in range(races):
        try:
            barrier.wait(timeout=60)
            if storage.put_if_absent(_name(race), bytes([number]) * _PAYLOAD):
                won.append(_name(race))
                if storage.read(_name(race))[0] != number:
                    problems.append(f"{_name(race)}: {number} won, another's bytes are there")
            problems.extend(_torn(storage, race))
        except Exception as error:  # noqa: BLE001 - reported by the process that asserts
            problems.append(f"{_name(race)}: {number} met {error!r}")
    results.put((won, problems))


def _watch(storage: Storage, races: int, results: Any) -> None:
    """Read every name as soon as it appears."""
    problems: list[str] = []
    for race in range(races):
        while True:
            try:
                problems.extend(_torn(storage, race))
                break
            except FileNotFoundError:
                continue
    results.put(([], problems))


def _torn(storage: Storage, race: int) -> list[str]:
    raw = storage.read(_name(race))
    whole = len(raw) == _PAYLOAD and raw == raw[:1] * _PAYLOAD
    return [] if whole else [f"{_name(race)}: {len(raw)} bytes, or of two writers"]
