"""States that are rewritten into any number of partitions, and queries that continue with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    MissingDependencyError,
    ParallelismError,
    SchemaMismatchError,
    StorageError,
)
from statestore.interop.spark.rewriter import check_spark, rewrite
from tests.interop.spark.queries import QUERIES, events, run, state_rows
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

OLD, NEW = 2, 3
STORE = (0, "default")


@pytest.fixture(scope="module")
def sessions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, DataFrame]:
    """A checkpoint of session windows, and its rows."""
    folder = tmp_path_factory.mktemp("sessions")
    events(folder / "events", 0, 3)
    run(
        spark,
        QUERIES["session"],
        source=folder / "events",
        location=str(folder / "old"),
        provider="rocksdb",
        partitions=OLD,
    )
    spark.streams  # noqa: B018 - starts what the reader asks for partitions
    reader = spark.read.format("statestore").option("_readAllColumnFamilies", "true")
    return folder / "old", reader.load(str(folder / "old"))


def described(old: Path, new: Path, partitions: int = NEW) -> int:
    """Make ``new`` a checkpoint without a state and a commit; return its last micro-batch."""
    batch = max(int(path.name) for path in (old / "commits").iterdir() if path.name.isdigit())
    shutil.copytree(old, new, ignore=shutil.ignore_patterns("*.crc", "*.zip", "SSTs", "commits"))
    for path in (new / "offsets").iterdir():
        conf = '"spark.sql.shuffle.partitions":"{}"'
        assert conf.format(OLD) in path.read_text()
        path.write_text(path.read_text().replace(conf.format(OLD), conf.format(partitions)))
    metadata = new / "state/0/_metadata/metadata"
    count = f'"numPartitions":{OLD}'
    assert count in metadata.read_text()
    metadata.write_text(metadata.read_text().replace(count, f'"numPartitions":{partitions}'))
    return batch


ONE = """
import sys
from statestore.spark.session import spark_session
from statestore.interop.spark.rewriter import rewrite
spark = spark_session(master="local[1]", table_format="parquet")
old, new, batch = sys.argv[1:]
spark.streams
reader = spark.read.format("statestore").option("_readAllColumnFamilies", "true")
rows = reader.load(old).repartition(3, "partition_key")
print(rewrite(spark, location=new, batch=int(batch), frames={(0, "default"): rows}))
"""


@pytest.mark.long
def test_a_process_that_only_rewrites_exits(
    spark: SparkSession, sessions: tuple[Path, DataFrame], tmp_path: Path
) -> None:
    old, new = sessions[0], tmp_path / "new %20 # one"
    batch = described(old, new)
    done = subprocess.run(
        [sys.executable, "-c", ONE, str(old), str(new), str(batch)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    new = new.rename(tmp_path / "new")  # Spark's reader accepts no folder with such a name
    shutil.copytree(old / "commits", new / "commits")
    before, after = (state_rows(spark, at) for at in (old, new))
    assert before == after


class Refused:
    """A checkpoint that the test tries to write."""

    def __init__(self, spark: SparkSession, old: Path, new: Path) -> None:
        self.spark, self.new = spark, new
        self.batch = described(old, new)

    def __call__(self, frames: Mapping[tuple[int, str], DataFrame]) -> None:
        rewrite(self.spark, location=str(self.new), batch=self.batch, frames=frames)


@pytest.fixture
def refused(spark: SparkSession, sessions: tuple[Path, DataFrame], tmp_path: Path) -> Refused:
    return Refused(spark, sessions[0], tmp_path / "new")


@pytest.mark.long
def test_each_store_needs_its_rows(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"were passed for none, .* operator 0, store 'd"
    ):
        refused({})
    with pytest.raises(InvalidArgumentError, match="operator 1, store 'x', but the stores of"):
        refused({STORE: sessions[1], (1, "x"): sessions[1]})


def test_partitions_are_counted(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    with pytest.raises(ParallelismError, match="has 3 partitions, but its rows are in 2"):
        refused({STORE: sessions[1].repartition(2, "partition_key")})


def test_columns_and_their_types_are_compared(
    refused: Refused, sessions: tuple[Path, DataFrame]
) -> None:
    rows = sessions[1].repartition(NEW, "partition_key")
    with pytest.raises(
        SchemaMismatchError, match="must have the columns key_bytes, value_bytes, col"
    ):
        refused({STORE: rows.drop("value_bytes")})
    with pytest.raises(SchemaMismatchError, match=r"store 'default' requires rows of struct<part"):
        refused({STORE: rows.withColumn("value_bytes", F.lit(1))})


def test_an_error_of_the_jvm_names_the_store(
    refused: Refused, sessions: tuple[Path, DataFrame]
) -> None:
    rows = sessions[1].repartition(NEW, "partition_key")
    broken = rows.withColumn("column_family_name", F.lit("no such family"))
    with pytest.raises(StorageError, match=r"operator 0, store 'default' of .*no such family"):
        refused({STORE: broken})
    late = rows.withColumn("value_bytes", F.raise_error(F.lit("a bad row")).cast("binary"))
    with pytest.raises(StorageError, match=r"operator 0, store 'default' of .*a bad row"):
        refused({STORE: late})


def test_rows_that_cannot_be_read(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    fails = F.raise_error(F.lit("a bad key")).cast("binary")
    rows = sessions[1].withColumn("key_bytes", fails).repartition(NEW, "key_bytes")
    with pytest.raises(StorageError, match=r"operator 0, store 'default'.*a bad key"):
        refused({STORE: rows})


def test_other_providers_are_refused(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    offsets = refused.new / "offsets" / str(refused.batch)
    offsets.write_text(offsets.read_text().replace("RocksDB", "HDFSBacked"))
    with pytest.raises(IncompatibleStateError, match=r"only RocksDB, .* is hdfs"):
        refused({STORE: sessions[1]})


def test_a_folder_that_is_not_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot read the checkpoint {tmp_path}: .*state"):
        rewrite(spark, location=str(tmp_path), batch=1, frames={})


def test_spark_has_the_rewriter(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_spark(spark)
    module, name = (
        "statestore.interop.spark.rewriter",
        "org.apache.spark.of.another.Version",
    )
    monkeypatch.setattr(f"{module}._PARAMETERS", ("long",))
    with pytest.raises(MissingDependencyError, match=r"is Spark 4\.2\.0, whose .*er takes \(org"):
        check_spark(spark)
    monkeypatch.setattr(f"{module}._REWRITER", name)
    with pytest.raises(MissingDependencyError, match=rf"is Spark 4\.2\.0, which has no {name}"):
        rewrite(spark, location="nowhere", batch=1, frames={})


def test_spark_connect_is_refused() -> None:
    client = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(
        InvalidArgumentError, match=r"writing the state of a query requires .* Classic"
    ):
        check_spark(client)
