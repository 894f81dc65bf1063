"""The conditional put on further S3 servers, and a server that ignores its condition."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import StorageError
from statestore.storage import open_storage
from tests.servers.bad_network import bad_network
from tests.servers.s3_access import S3Access
from tests.servers.s3_zoo import COMPATIBLE, s3_zoo_server
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
