"""Run each test on every object store: they must all behave alike."""

from __future__ import annotations

import uuid
from typing import TypeAlias

import pytest

from statestore.storage import open_storage
from statestore.storage.objects import ObjectStorage
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.hdfs import HdfsServer
from tests.servers.s3_access import S3Access

Server: TypeAlias = S3Access | AzureServer | GcsServer | HdfsServer


@pytest.fixture(params=["s3", "azure", "gcs", "hdfs"], scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """The server of one service in this run."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def url(server: Server) -> str:
    """A prefix that no other test uses."""
    return server.url(uuid.uuid4().hex)


@pytest.fixture
def storage(server: Server, url: str) -> ObjectStorage:
    """The storage at that prefix."""
    found = open_storage(url, server.options)
    assert isinstance(found, ObjectStorage)
    return found
