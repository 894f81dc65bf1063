"""Range reads: each needed byte is read once, in few requests, with a bounded number in
parallel.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore import StateStore
from statestore.errors import DamagedFileError, MissingFileError, StorageError
from statestore.format.manifest import KeyedEntry
from statestore.parquet.file_sources import ByteRange, RangedFile, Streams
from statestore.parquet.writer import ParquetOptions
from statestore.storage import Storage
from statestore.testing.faults import CountingStorage
from tests.servers.slow import SlowStorage

RANGED, PARTITIONED = "ranged", "partitioned"
LAYOUTS = (RANGED, PARTITIONED)
STREAMS = 4


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store per layout, each with a state of 3 MB that cannot be compressed. The ranged layout
    has 4 files.
    """
    random = Random(1)
    rows = pa.table(
        {
            "user": [f"user-{number:05}" for number in range(12_000)],
            "text": [random.randbytes(256) for _ in range(12_000)],
        }
    )
    folders = {}
    for layout in LAYOUTS:
        folders[layout] = tmp_path_factory.mktemp(layout)
        options = ParquetOptions(row_group_rows=512, file_bytes=800_000)
        store = StateStore.open(
            str(folders[layout]), table_format="parquet", layout=layout, parquet=options
        )
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("uid", "name", rows, key="user", max_parallelism=64)
    return folders


def read(storage: Storage, parallelism: int) -> tuple[KeyedEntry, list[pa.Table]]:
    keyed = StateStore.open(storage).restore(parallelism=parallelism).keyed("uid", "name")
    return keyed.entry, [keyed.to_arrow(subtask) for subtask in range(parallelism)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parallelism", [1, 3, 7, 16, 64])
def test_rows_are_the_same_for_every_way_to_read(
    stores: dict[str, Path], layout: str, parallelism: int
) -> None:
    """Files are read by path, through an open file, and by ranges."""
    path = str(stores[layout])
    _, through_file = read(CountingStorage(path), parallelism)
    _, by_ranges = read(CountingStorage(path, STREAMS), parallelism)
    assert through_file == by_ranges
    assert sum(table.num_rows for table in by_ranges) == 12_000


@pytest.mark.parametrize("streams", [1, STREAMS])
@pytest.mark.parametrize("parallelism", [3, 16, 64])
def test_files_of_a_key_group_are_read_once_and_opened_once(
    stores: dict[str, Path], streams: int, parallelism: int
) -> None:
    """I8: exactly the bytes of the state, and one request per file on an object store."""
    storage = CountingStorage(str(stores[PARTITIONED]), streams)
    entry, _ = read(storage, parallelism)
    assert storage.bytes_read == entry.size_bytes
    asked = storage.opened if streams == 1 else Counter(name for name, _, _ in storage.ranges)
    assert len(asked) == asked.total() == len(entry.handles)


@pytest.mark.parametrize("streams", [1, STREAMS])
@pytest.mark.parametrize("parallelism", [3, 16])
def test_only_needed_row_groups_and_the_end_of_a_shared_file_are_read(
    stores: dict[str, Path], streams: int, parallelism: int
) -> None:
    """I8: one subtask reads nothing twice, except the end of the file."""
    storage = CountingStorage(str(stores[RANGED]), streams)
    entry, _ = read(storage, parallelism)
    ends = sum(_end_bytes(stores[RANGED], entry, index, streams) for index in range(4))
    assert entry.size_bytes <= storage.bytes_read
    assert storage.bytes_read <= entry.size_bytes + ends * (parallelism // 4 + 2)


def _end_bytes(folder: Path, entry: KeyedEntry, index: int, streams: int) -> int:
    handle = entry.handles[index]
    if streams > 1:
        return 64 * 2**10 + 2**10 * handle.row_groups
    metadata = pq.read_metadata(folder / entry.table.path / handle.path)
    return int(metadata.serialized_size) + 8


def test_adjacent_row_groups_are_read_in_one_request(stores: dict[str, Path]) -> None:
    """There is one request for the end of each file, and one for the needed row groups."""
    storage = CountingStorage(str(stores[RANGED]), STREAMS)
    keyed = StateStore.open(storage).restore(parallelism=8).keyed("uid", "name")
    rows = keyed.to_arrow(1).num_rows
    asked = Counter(name for name, _, _ in storage.ranges)
    assert rows > 2 * 512
    assert max(asked.values()) <= 2


def test_parallel_requests_are_several_and_bounded(stores: dict[str, Path]) -> None:
    """The bound covers all subtasks of a process together."""
    storage = SlowStorage(str(stores[PARTITIONED]), streams=STREAMS, latency_seconds=0.001)
    threads = [threading.Thread(target=read, args=(storage, 3)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.most == STREAMS


def test_prefetch_is_bounded_and_a_needed_read_never_waits() -> None:
    """A paused reader keeps its prefetched ranges without blocking another reader."""
    streams, asked = Streams(2), Counter[str]()

    def reader(name: str) -> RangedFile:
        def fetch(start: int, stop: int) -> bytes:
            asked[name] += 1
            return bytes(stop - start)

        size = 100 * 2**20
        tail = ByteRange(size - 8, size, fetch, streams)
        return RangedFile(fetch, tail, size, streams)

    one, other = reader("one"), reader("other")
    one.want([range(4, 60 * 2**20)])
    other.want([range(4, 60 * 2**20)])
    other.seek(4)
    assert len(other.read(2**20)) == 2**20
    time.sleep(0.05)
    assert asked == {"one": 3, "other": 1}
    one.close()
    time.sleep(0.05)
    assert asked == {"one": 3, "other": 4}
    other.close()


@pytest.mark.slow
def test_an_abandoned_reader_sends_no_more_requests(stores: dict[str, Path]) -> None:
    """Its waiting requests are withdrawn."""
    storage = SlowStorage(str(stores[PARTITIONED]), streams=2, latency_seconds=0.01)
    batches = StateStore.open(storage).restore(parallelism=1).keyed("uid", "name").to_batches(0)
    batches.read_next_batch()
    del batches
    time.sleep(0.1)
    requests = storage.requests
    time.sleep(0.1)
    assert storage.requests == requests < 20


def _gone(path: Path) -> None:
    path.unlink()


def _short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _long(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (_gone, MissingFileError),
        (_short, DamagedFileError),
        (_long, DamagedFileError),
        (_flipped, DamagedFileError),
    ],
)
def test_a_damaged_prefetched_file_is_named(
    stores: dict[str, Path],
    tmp_path: Path,
    layout: str,
    damage: Callable[[Path], None],
    error: type[Exception],
) -> None:
    """I7: the error names the state that was being restored, although another thread read
    the file.
    """
    copy = tmp_path / "copy"
    shutil.copytree(stores[layout], copy)
    storage = CountingStorage(str(copy), STREAMS)
    entry = StateStore.open(storage).checkpoint().manifest.keyed[0]
    path = copy / entry.table.path / entry.handles[2].path
    damage(path)
    with pytest.raises(error, match=str(path)) as caught:
        read(storage, 1)
    assert any("while restoring" in note for note in caught.value.__notes__)


def test_a_failed_request_is_a_storage_error(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damage, and a later retry can succeed."""
    storage = CountingStorage(str(stores[RANGED]), STREAMS)

    def failing(self: CountingStorage, name: str, start: int, stop: int) -> bytes:
        raise OSError(5, "Input/output error")

    store = StateStore.open(storage)
    keyed = store.restore(parallelism=3).keyed("uid", "name")
    monkeypatch.setattr(CountingStorage, "read_range", failing)
    with pytest.raises(StorageError, match=r"cannot read .*\.parquet: .*Input/output error"):
        keyed.to_arrow(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_key_costs_a_footer_and_a_row_group(stores: dict[str, Path], layout: str) -> None:
    storage = CountingStorage(str(stores[layout]))
    keyed = StateStore.open(storage).restore().keyed("uid", "name")
    for user in ("user-00000", "user-07777"):
        storage.bytes_read = 0
        storage.opened.clear()
        assert len(keyed.get(user)) == 1
        (name,) = storage.opened
        metadata = pq.read_metadata(Path(storage.url, name))
        largest = max(
            metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)
        )
        assert storage.bytes_read <= metadata.serialized_size + 8 + largest
        assert storage.opened.total() == 1
