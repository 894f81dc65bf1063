"""A state in a bucket is an Iceberg table, whose metadata is in the bucket as well."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from statestore import IcebergTable, StateStore
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_a_state_in_a_bucket_is_published(s3: S3Server, tmp_path: Path) -> None:
    url = s3.url(uuid.uuid4().hex)
    store = StateStore.open(f"{url}/store", storage_options=s3.options, table_format="parquet")
    options = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{url}/warehouse",
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.region": "us-east-1",
    }
    table = IcebergTable("db.totals", catalog=load_catalog("lake", type="sql", **options))
    for number in (100, 120):
        rows = pa.table({"k": range(number), "v": range(number)})
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(
                "op", "totals", rows, key="k", max_parallelism=4, layout="partitioned"
            )
        store.maintenance.publish_iceberg("op", "totals", table)
        found = table.catalog.load_table("db.totals").scan()
        assert found.to_arrow().sort_by("k").select(["k", "v"]) == rows
        paths = [task.file.file_path for task in found.plan_files()]
        assert len(paths) == 4
        assert all(path.startswith(f"{url}/store/operators/op/keyed/totals/") for path in paths)
    store.maintenance.unpublish_iceberg(table)
    assert store.maintenance.verify("all", deep=True).is_intact
    assert store.maintenance.savepoints() == ()
