"""Run each test on every object store: they must all behave alike."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from statestore.storage import open_storage
from statestore.storage.objects import ObjectStorage
from tests.servers.azure import AzureServer
from tests.servers.bad_network import bad_network
from tests.servers.flaky_proxy import Fault
from tests.servers.gcs import GcsServer
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.servers.s3_access import S3Access

BAD_NETWORK = "-bad-network"
"""After the name of an S3 server: the tests reach it over a bad network."""

Server: TypeAlias = S3Access | AzureServer | GcsServer | HdfsServer


@pytest.fixture(params=["s3", "azure", "gcs", "hdfs"], scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of one service in this run."""
    found: Server = request.getfixturevalue(request.param.removesuffix(BAD_NETWORK))
    if not request.param.endswith(BAD_NETWORK):
        yield found
        return
    assert isinstance(found, S3Access)
    with bad_network(found) as network:
        yield network.server
        assert network.proxy.counts[Fault.LOST.name], "no answer was lost"


@pytest.fixture
def storages(
    s3: S3Server, azure: AzureServer, gcs: GcsServer, hdfs: HdfsServer
) -> list[ObjectStorage]:
    """A storage on each server, at a prefix that no other test uses."""
    prefix = uuid.uuid4().hex
    servers: tuple[Server, ...] = (s3, azure, gcs, hdfs)
    return [storage_at(server, server.url(prefix)) for server in servers]


@pytest.fixture
def url(server: Server) -> str:
    """A prefix that no other test uses."""
    return server.url(uuid.uuid4().hex)


@pytest.fixture
def storage(server: Server, url: str) -> ObjectStorage:
    """The storage at that prefix."""
    return storage_at(server, url)


def storage_at(server: Server, url: str) -> ObjectStorage:
    found = open_storage(url, server.options)
    assert isinstance(found, ObjectStorage)
    return found
