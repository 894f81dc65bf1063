"""Real services for tests, one of each: object stores, a Kafka broker, a Spark cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from botocore.retries.standard import ExponentialBackoff

from statestore.storage.s3 import S3Storage
from tests.servers.azure import AzureServer, azure_server
from tests.servers.ceph import ceph_server
from tests.servers.cluster import SparkCluster, spark_cluster
from tests.servers.cluster_demo import s3_environment
from tests.servers.gcs import GcsServer, gcs_server
from tests.servers.hdfs import HdfsServer, hdfs_server
from tests.servers.kafka import KafkaBroker, kafka_broker
from tests.servers.s3 import S3Server, s3_server
from tests.servers.s3_access import S3Access
from tests.servers.s3_zoo import s3_zoo_server
from tests.services.kafka_topics import Topics


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The S3 server of this run; its access key and endpoint also work for Spark."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """The S3Proxy of this run."""
    with s3_zoo_server("s3proxy", tmp_path_factory.mktemp("s3proxy")) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """The Versity S3 Gateway of this run."""
    with s3_zoo_server("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """The MinIO of this run."""
    with s3_zoo_server("minio", tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """The Ceph of this run."""
    with ceph_server(tmp_path_factory.mktemp("ceph")) as server:
        yield server


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """The server of Azure's protocol in this run."""
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """The server of Google's protocol in this run."""
    with gcs_server(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """The HDFS of this run."""
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def url(s3: S3Server) -> str:
    """A prefix that no other test uses."""
    return s3.url(uuid.uuid4().hex)


@pytest.fixture
def storage(s3: S3Server, url: str) -> S3Storage:
    """The storage at that prefix."""
    return S3Storage(url, s3.options)


@pytest.fixture
def real_waits() -> None:
    """Make retries wait as long as for users, even if ``short_waits`` is active."""


@pytest.fixture
def short_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries wait only milliseconds: the tests count the retries."""
    if "real_waits" in request.fixturenames:
        return
    monkeypatch.setattr("statestore.storage.requests.WAIT_SECONDS", 0.01)
    delay = ExponentialBackoff.delay_amount
    monkeypatch.setattr(
        ExponentialBackoff, "delay_amount", lambda self, context: delay(self, context) / 100
    )


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The broker of this run, without topics."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers that can import this package and use the S3 server."""
    directory = tmp_path_factory.mktemp("spark")
    with spark_cluster(directory, environment=s3_environment(s3)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def topics(kafka: KafkaBroker) -> Topics:
    """Creates topics on the broker, with names that no other test uses."""
    return Topics(kafka.bootstrap)
