"""Let Spark read a location as if it described its operators and its settings correctly.

Nothing is written to the location, whose query may be running. Instead Spark reads it through
Hadoop's ViewFs, which joins several folders under one URL: the location, and a temporary folder
with the descriptions to replace. Only Spark's driver reads descriptions, so this folder can be
local.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from statestore.interop.spark.descriptions import rewrite_description, schema_folder
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.operator_reader import Operator
from statestore.spark.session_settings import session_settings


@contextmanager
def described_location(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> Iterator[str]:
    """Yield a URL with which Spark can read all operators of a micro-batch within a block."""
    name = f"statestore-{uuid4().hex}"
    url = f"viewfs://{name}"
    files = dict(pair for operator in operators for pair in _list_replaced(operator, url))
    partitions = [store.partitions for operator in operators for store in operator.stores]
    if partitions:
        files |= location.corrected_plan(batch, max(partitions))
    if not files:
        yield location.spark_url
        return
    table = f"fs.viewfs.mounttable.{name}"
    with TemporaryDirectory(prefix="statestore-") as root:
        links = {f"{table}.linkFallback": location.spark_url}
        for file, content in files.items():
            path = Path(root, file)
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            folder = re.sub("(_metadata|offsets)/.*", r"\1", file)
            links[f"{table}.link./{folder}"] = f"file://{root}/{folder}"
        with session_settings(spark, links):
            try:
                yield f"{url}/"
            finally:
                _close_file_system(spark, url)


def _list_replaced(operator: Operator, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files that Spark must read instead of the stored ones."""
    yield from operator.corrections.items()
    if operator.moved_from is not None:
        folder = schema_folder(url, operator.number)
        yield operator.metadata, rewrite_description(operator.description, folder)


def _close_file_system(spark: SparkSession, url: str) -> None:
    """Remove the file system of a URL from Hadoop's cache, which would keep it forever."""
    session: Any = spark
    conf = session._jsparkSession.sessionState().newHadoopConf()
    session._jvm.org.apache.hadoop.fs.Path(f"{url}/").getFileSystem(conf).close()
