"""The conditional put on further S3 servers, and a server that ignores its condition."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import CommitConflictError, StorageError
from statestore.storage import open_storage
from tests.servers.bad_network import bad_network
from tests.servers.s3_access import S3Access
from tests.servers.s3_zoo import COMPATIBLE, KMS_KEY, s3_zoo_server
from tests.services.racing import race

pytestmark = [pytest.mark.services, pytest.mark.long]

WRITERS, LANES, RACES = 4, 16, 1000
FEWER_RACES = 256
RIVALS, RIVAL_LANES = 8, 32
CEPH = pytest.param("ceph", marks=pytest.mark.ceph)
EACH = ("s3", *COMPATIBLE, CEPH)


@pytest.mark.parametrize("name", [*COMPATIBLE, CEPH])
def test_of_many_writers_one_wins(name: str, request: pytest.FixtureRequest) -> None:
    """I4: several processes put each name, and no reader finds an incomplete object."""
    server: S3Access = request.getfixturevalue(name)
    storage = open_storage(server.url(uuid.uuid4().hex), server.options)
    names = [f"races/{number:04}" for number in range(RACES)]
    won, problems = race(storage, WRITERS, names, lanes=LANES)
    assert problems == []
    assert sorted(name for mine in won for name in mine) == names
    assert sum(map(bool, won)) > 1, "nobody had a rival"


@pytest.mark.parametrize("name", EACH)
def test_of_32_writers_of_a_name_one_wins(name: str, request: pytest.FixtureRequest) -> None:
    """I4: all put the same name at the same time."""
    server: S3Access = request.getfixturevalue(name)
    storage = open_storage(server.url(uuid.uuid4().hex), server.options)
    names = [f"races/{number:04}" for number in range(RIVAL_LANES)]
    repeated = [name for name in names for _ in range(RIVALS)]
    won, problems = race(storage, WRITERS, repeated, lanes=RIVAL_LANES)
    assert problems == []
    assert sorted(name for mine in won for name in mine) == names


@pytest.mark.parametrize("name", EACH)
def test_over_a_bad_network_one_of_many_writers_wins(
    name: str, request: pytest.FixtureRequest
) -> None:
    """I4: answers are lost or late, connections are reset, bodies are slow. Each writer
    learns whether its object exists.
    """
    server: S3Access = request.getfixturevalue(name)
    names = [f"races/{number:04}" for number in range(FEWER_RACES)]
    with bad_network(server) as network:
        options = network.server.options
        options["config_kwargs"] |= {"max_pool_connections": RIVAL_LANES}
        storage = open_storage(server.url(uuid.uuid4().hex), options)
        won, problems = race(storage, WRITERS, names, lanes=RIVAL_LANES)
    assert problems == []
    assert sorted(name for mine in won for name in mine) == names
    assert network.was_bad()


def test_a_server_that_ignores_the_condition_is_refused(tmp_path: Path) -> None:
    """I4: this real server answers each put with a success. No object of the store remains."""
    with s3_zoo_server("old-s3proxy", tmp_path) as server:
        # The server refuses the checksums that clients send by default.
        checksums = ("request_checksum_calculation", "response_checksum_validation")
        config = server.options["config_kwargs"] | dict.fromkeys(checksums, "when_required")
        options = server.options | {"config_kwargs": config}
        url = server.url("store")
        store = StateStore.open(url, table_format="parquet", storage_options=options)
        with pytest.raises(StorageError, match="its server ignores conditional puts"):
            store.snapshot(parallelism=1)
        assert open_storage(url, options).list("") == ()


def test_a_bucket_that_encrypts_with_a_key_of_kms_needs_no_option(tmp_path: Path) -> None:
    """SSE-KMS is the bucket's default encryption; conditional puts and large files work as ever."""
    rule = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KMS_KEY}
    encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]}
    numbers = [str(uuid.uuid4()) for _ in range(600_000)]
    rows = pa.table({"k": numbers, "n": pa.array(range(len(numbers)))})
    with s3_zoo_server("minio-kms", tmp_path) as server:
        fs = fsspec.filesystem("s3", **server.options)
        fs.call_s3(
            "put_bucket_encryption",
            Bucket=server.bucket,
            ServerSideEncryptionConfiguration=encryption,
        )
        store = StateStore.open(server.url("s"), storage_options=server.options)
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=4, layout="ranged")
        [large] = checkpoint.manifest.keyed[0].handles
        assert large.size_bytes > 8 * 2**20, "it was not uploaded in parts"
        late = store.snapshot(parallelism=1).__enter__()
        late.write_keyed("u", "n", rows.slice(0, 9), key="k", layout="ranged")
        other = StateStore.open(server.url("s"), storage_options=server.options)
        with other.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "n", rows.slice(0, 5), key="k", layout="ranged")
        with pytest.raises(CommitConflictError):
            late.__exit__(None, None, None)
        assert store.restore(parallelism=3, checkpoint=1).keyed("u", "n").to_arrow().num_rows > 0
        assert store.maintenance.verify("all").is_intact
        store.maintenance.expire(retain=1)
        assert store.maintenance.gc(minimum_age="0").removed.files > 0
        objects = fs.find(server.url("s"))
        for key in objects:
            bucket, _, name = key.partition("/")
            head = fs.call_s3("head_object", Bucket=bucket, Key=name)
            assert head["ServerSideEncryption"] == "aws:kms", name
            assert head["SSEKMSKeyId"].endswith(KMS_KEY), name
    on_disk = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(on_disk) > len(objects) > 5
    assert not [path for path in on_disk if b"statestore-checkpoint" in path.read_bytes()]
