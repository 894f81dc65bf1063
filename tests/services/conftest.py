"""The services that tests use for real: an S3 server, one for the whole run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from statestore.storage import S3Storage
from statestore.testing.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server of this run; its access key and endpoint serve Spark as well."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def url(s3: S3Server) -> str:
    """A prefix that no other test uses."""
    return s3.url(uuid.uuid4().hex)


@pytest.fixture
def storage(s3: S3Server, url: str) -> S3Storage:
    """The storage of that prefix."""
    return S3Storage(url, s3.options)
