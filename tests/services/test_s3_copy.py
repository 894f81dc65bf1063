"""Copy a checkpoint from disk to a bucket and back, and change it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import OperatorKey, StateStore
from statestore.errors import StorageError
from statestore.storage.s3 import S3Storage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.servers.s3 import S3Server
from tests.support.damage import fill

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture
def bucket(s3: S3Server, url: str) -> StateStore:
    return StateStore.open(url, table_format="parquet", storage_options=s3.options)


def test_from_disk_to_a_bucket_and_back(
    tmp_path: Path, s3: S3Server, url: str, bucket: StateStore
) -> None:
    source = fill(tmp_path / "source")
    source.maintenance.savepoint("before")
    done = source.maintenance.copy("before", url, storage_options=s3.options)
    assert done.copied_bytes == done.size_bytes == source.checkpoint().manifest.size_bytes
    assert bucket.maintenance.verify("before", deep=True).is_intact
    back = bucket.maintenance.copy("before", str(tmp_path / "back"))
    assert back.copied_bytes == done.size_bytes
    target = StateStore.open(str(tmp_path / "back"), table_format="parquet")
    assert target.maintenance.verify("all", deep=True).is_intact
    digests = [
        [entry.digest for entry in store.checkpoint().manifest.entries]
        for store in (source, bucket, target)
    ]
    assert digests[0] == digests[1] == digests[2]
    assert source.maintenance.copy("before", bucket).found


@pytest.mark.long
def test_a_copy_to_a_bucket_resumes_after_a_failure(
    tmp_path: Path, s3: S3Server, storage: S3Storage, bucket: StateStore
) -> None:
    """I10: no partial object is visible, and complete files are not copied again."""
    source = fill(tmp_path / "source")
    counted = S3Storage(f"{storage.url}-counted", s3.options)
    calls = calls_of(counted, lambda each: source.maintenance.copy(1, StateStore.open(each)))
    writes = [call.number for call in calls if call.operation == "write"]
    for at in (writes[len(writes) // 2], writes[-1]):
        faulty = FaultyStorage(storage, Fault(at, FaultKind.DISCONNECTED, lasting=True))
        with pytest.raises(StorageError):
            source.maintenance.copy(1, StateStore.open(faulty, table_format="parquet"))
    left = {name for name in storage.list("operators") if name.endswith(".parquet")}
    sizes = {name: storage.size(name) for name in left}
    # The second attempt has given new names to the files that it found there.
    there = sum({storage.read(name): size for name, size in sizes.items()}.values())
    assert there > 0
    done = source.maintenance.copy(1, bucket)
    assert done.copied_bytes <= done.size_bytes - there + max(sizes.values())
    assert done.copied_files < done.files
    named = {
        f"{p.table.path}/{h.path}" for p in bucket.checkpoint().manifest.parts for h in p.handles
    }
    assert not named & left
    assert bucket.maintenance.verify("all", deep=True).is_intact


@pytest.mark.long
def test_purge_and_edit_in_a_bucket(tmp_path: Path, bucket: StateStore) -> None:
    fill(tmp_path / "source").maintenance.copy(1, bucket)
    assert bucket.maintenance.find_subject(OperatorKey("job", "user-3")).found
    bucket.maintenance.edit("job", "value", delete=["user-4"])
    bucket.maintenance.forget(OperatorKey("job", "user-3"), search=False)
    bucket.maintenance.gc(minimum_age="0")
    assert bucket.maintenance.find_subject(OperatorKey("job", "user-3")).found == ()
    assert bucket.maintenance.verify("all", deep=True).is_intact
    values = bucket.restore(parallelism=1).keyed("job", "value")
    assert [values.get(key) for key in ("user-3", "user-4")] == [[], []]
    assert len(values.get("user-5")) == 1
