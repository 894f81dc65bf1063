"""A store on each service through the public API: snapshot and restore, without a connector."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.demo import job as job_module
from statestore.demo import run
from statestore.errors import CommitConflictError
from statestore.storage.objects import ObjectStorage
from tests.servers.gcs import GcsServer
from tests.servers.gcs_xml import xml_requests
from tests.services.objects.conftest import Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

USERS = pa.table({"user": [f"user-{n:03}" for n in range(200)], "total": list(range(200))})


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.select(["user", "total"]).to_pylist())


def take(store: StateStore, rows: pa.Table = USERS) -> int:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=16)
    return checkpoint.id


@pytest.fixture
def options(server: Server) -> Iterator[dict[str, Any]]:
    """The options of a store that also has Delta tables."""
    if not isinstance(server, GcsServer):
        yield server.options
        return
    with xml_requests(server.endpoint) as endpoint:
        yield server.through(endpoint)


@pytest.mark.long_cases("gcs-delta", "hdfs-delta")  # the next test also writes Delta's log there
@pytest.mark.parametrize("table_format", ["delta", pytest.param("parquet", marks=pytest.mark.long)])
def test_a_snapshot_is_restored(url: str, options: dict[str, Any], table_format: Any) -> None:
    """I7; with Delta, delta-rs writes the log, and one of two writers gets a conflict."""
    store = StateStore.open(url, table_format=table_format, storage_options=options)
    assert [take(store), take(store, USERS.slice(50))] == [1, 2]
    for parallelism in (1, 3, 16):
        keyed = store.restore(checkpoint=1, parallelism=parallelism).keyed("totals", "total")
        found = [keyed.to_arrow(subtask) for subtask in range(parallelism)]
        assert rows_of(pa.concat_tables(found)) == rows_of(USERS)
    late = store.snapshot(parallelism=2).__enter__()
    late.write_keyed("totals", "total", USERS, key="user", max_parallelism=16)
    assert take(store) == 3
    with pytest.raises(CommitConflictError):
        late.__exit__(None, None, None)
    assert store.maintenance.verify("all", deep=True).is_intact
    assert store.checkpoints() == (1, 2, 3)


@pytest.mark.long_cases("s3", "azure")
def test_no_secret_is_stored_or_shown(
    server: Server, url: str, options: dict[str, Any], storage: ObjectStorage
) -> None:
    store = StateStore.open(url, table_format="delta", storage_options=options)
    take(store)
    restored = store.restore()
    texts = [
        *(storage.read(name) for name in storage.list("")),
        *(
            repr(some).encode()
            for some in (store, vars(store), storage, server, store.checkpoint().manifest)
        ),
        *(repr(some).encode() for some in (restored, vars(restored))),
    ]
    assert not any(server.secret_key.encode() in text for text in texts)
    assert repr(storage) == f"{type(storage).__name__}('{storage.url}')"


@pytest.mark.long_cases("s3")
@pytest.mark.parametrize(
    "server",
    ["s3", *(pytest.param(name, marks=pytest.mark.long) for name in ("azure", "gcs", "hdfs"))],
    indirect=True,
)
def test_tasks_of_spark_write_and_read_the_store(
    spark: SparkSession, url: str, options: dict[str, Any]
) -> None:
    """I7: Spark has no connector to the service, neither for the files nor for the Delta log."""
    store = StateStore.open(url, spark=spark, storage_options=options)
    users = spark.range(0, 200, 1, 2).selectExpr(
        "format_string('user-%03d', id) AS user", "id AS total"
    )
    for rows in (users, users.where("total >= 50")):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=16)
    for checkpoint_id, wanted in ((1, USERS), (2, USERS.slice(50))):
        keyed = store.restore(checkpoint=checkpoint_id, parallelism=3).keyed("totals", "total")
        assert rows_of(keyed.to_spark().toArrow()) == rows_of(wanted)
    assert [store.checkpoint(n).manifest.keyed[0].table.version for n in (1, 2)] == [0, 1]
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.long
def test_the_demo_runs_on_the_service(
    spark: SparkSession,
    url: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """I7: Spark's own tasks read and write the store; Spark has no connector to the service."""
    monkeypatch.setattr(job_module, "MAX_PARALLELISM", 8)
    monkeypatch.setattr(job_module, "BATCHES_TO_HALF", 1)
    status = run(url, output="json", flights_per_month=20, storage_options=options)
    told = json.loads(capfd.readouterr().out)
    assert (status, told["equal"], told["directory"]) == (0, True, url)
