"""Tables of other systems in a bucket."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore.errors import NotFoundError
from statestore.interop.tables import open_table
from statestore.storage.objects import ObjectStorage
from tests.services.objects.conftest import Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2]})


@pytest.mark.long_cases("azure", "gcs", "hdfs")
def test_tables_are_read_where_they_are(server: Server, url: str, storage: ObjectStorage) -> None:
    content = io.BytesIO()
    pq.write_table(ROWS, content)
    assert storage.put_if_absent("t/day=1/x.parquet", content.getvalue())
    assert storage.put_if_absent("t.csv", b"k,v\na,1\nb,2\n")
    folder = open_table(f"{url}/t", storage_options=server.options)
    assert folder.rows == 2
    file = open_table(f"{url}/t/day=1/x.parquet", storage_options=server.options)
    text = open_table(f"{url}/t.csv", types={"v": "long"}, storage_options=server.options)
    for table in (folder, file, text):
        read = pa.Table.from_batches(list(table.batches()), table.schema)
        assert read.select(ROWS.schema.names) == ROWS
    with pytest.raises(NotFoundError, match="nothing"):
        open_table(f"{url}/nothing.parquet", storage_options=server.options)
