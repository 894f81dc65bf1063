"""States written anew, in as many partitions as wanted, and queries that go on with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

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
from statestore.interop.spark.rows import encoded
from tests.interop.spark.byte_queries import (
    FORMAT,
    HDFS,
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    run,
    settings,
    state,
    stores,
    write_events,
)
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import Row

OLD, NEW = 4, 7
# What each query shuffles its rows by, of the fields in the keys of its state.
SHUFFLED_BY = {"aggregated": ["k"], "session": ["k"], "join": ["field0", "field1"]}


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    with settings(spark, {PROVIDER: ROCKSDB, PARTITIONS: str(OLD), FORMAT: "1"}):
        yield


def last_batch(location: Path) -> int:
    return max(int(path.name) for path in (location / "commits").iterdir() if path.name.isdigit())


def described(old: Path, new: Path, partitions: int = NEW) -> int:
    """Make ``new`` a checkpoint without a state and a commit, and return the batch it stops at."""
    batch = last_batch(old)
    new.mkdir()
    shutil.copy(old / "metadata", new)
    shutil.copytree(old / "sources", new / "sources")
    (new / "offsets").mkdir()
    for number in (batch - 1, batch):
        text = (old / "offsets" / str(number)).read_text()
        conf = f'"{PARTITIONS}":"{{}}"'
        assert conf.format(OLD) in text
        text = text.replace(conf.format(OLD), conf.format(partitions)).replace(HDFS, ROCKSDB)
        (new / "offsets" / str(number)).write_text(text)
    for path in (old / "state").rglob("_metadata/*"):
        if path.name.startswith("."):
            continue
        target = new / path.relative_to(old)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "metadata":
            count = f'"numPartitions":{OLD}'
            assert count in path.read_text()
            text = path.read_text().replace(count, f'"numPartitions":{partitions}')
            target.write_text(text)
        else:
            shutil.copy(path, target)
    return batch


def commit(old: Path, new: Path, ids: Mapping[int, list[list[str]]] | None) -> None:
    batch = str(last_batch(old))
    version, document = (old / "commits" / batch).read_text().splitlines()
    known = json.loads(document)
    if ids is not None:
        known["stateUniqueIds"] = ids
    (new / "commits").mkdir(exist_ok=True)
    (new / "commits" / batch).write_text(f"{version}\n{json.dumps(known)}")


def repartitioned(
    spark: SparkSession, old: Path, fields: list[str]
) -> dict[tuple[int, str], DataFrame]:
    """Return the rows of every store, in partitions by a hash of these fields of the key."""
    frames = {}
    for store in stores(spark, old):
        by = [F.col("key")[name] for name in fields]
        typed = state(spark, old, store).repartition(NEW, *by)
        like = state(spark, old, store, raw=True).schema["partition_key"].dataType
        frames[store] = encoded(typed).select(
            F.lit(None).cast(like).alias("partition_key"),
            *("key_bytes", "value_bytes", F.lit("default").alias("column_family_name")),
        )
    return frames


def stopped(spark: SparkSession, kind: str, folder: Path) -> Path:
    """Run a query for three batches."""
    write_events(folder / "events", range(3))
    run(spark, kind, folder / "events", folder / "old")
    return folder / "old"


def gone_on(spark: SparkSession, kind: str, folder: Path) -> tuple[list[Row], list[Row]]:
    """Let the new checkpoint and the old one go on with the same two batches.

    Returns:
        What each of them emitted.
    """
    write_events(folder / "events", range(3, 5))
    shutil.copytree(folder / "old", folder / "plain")
    rewritten, plain = (
        in_order(run(spark, kind, folder / "events", folder / name)) for name in ("new", "plain")
    )
    assert plain
    return rewritten, plain


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


@pytest.fixture(scope="module")
def sessions(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, DataFrame]:
    """A checkpoint of session windows, and its rows."""
    folder = tmp_path_factory.mktemp("sessions")
    with settings(spark, {PROVIDER: ROCKSDB, PARTITIONS: str(OLD)}):
        old = stopped(spark, "session", folder)
        return old, state(spark, old, (0, "default"), raw=True)


@pytest.mark.parametrize(
    ("kind", "version"),
    [("aggregated", "1"), ("session", "1"), ("join", "1"), ("join", "2")],
)
def test_a_query_goes_on_in_more_partitions(
    spark: SparkSession, tmp_path: Path, kind: str, version: str
) -> None:
    with settings(spark, {FORMAT: version}):
        old, new = stopped(spark, kind, tmp_path), tmp_path / "new"
        batch = described(old, new)
        frames = repartitioned(spark, old, SHUFFLED_BY[kind])
        ids = rewrite(spark, location=str(new), batch=batch, frames=frames)
        if version == "1":
            assert ids is None
        else:
            assert ids is not None
            assert {op: [len(each) for each in one] for op, one in ids.items()} == {
                0: [len(frames)] * NEW
            }
        commit(old, new, ids)
        for store in frames:
            found = state(spark, new, store).collect()
            moved = state(spark, old, store).drop("partition_id").collect()
            assert in_order([row[:2] for row in found]) == in_order([row[:2] for row in moved])
            assert len({row.partition_id for row in found}) > OLD
        rewritten, plain = gone_on(spark, kind, tmp_path)
        assert rewritten == plain


def test_rows_in_other_partitions_are_not_found(spark: SparkSession, tmp_path: Path) -> None:
    """The comparison above can fail: Spark says nothing of rows that lie elsewhere."""
    old, new = stopped(spark, "session", tmp_path), tmp_path / "new"
    batch = described(old, new)
    frames = repartitioned(spark, old, ["sessionStartTime"])
    rewrite(spark, location=str(new), batch=batch, frames=frames)
    commit(old, new, None)
    rewritten, plain = gone_on(spark, "session", tmp_path)
    assert rewritten != plain


def test_a_query_goes_on_with_another_provider(spark: SparkSession, tmp_path: Path) -> None:
    with settings(spark, {PROVIDER: HDFS}):
        old, new = stopped(spark, "aggregated", tmp_path), tmp_path / "new"
    typed = state(spark, old, (0, "default")).repartition(NEW, "key.k")
    rows = encoded(typed.withColumn("partition_key", F.col("key"))).drop("partition_id")
    frames = {(0, "default"): rows.withColumn("column_family_name", F.lit("default"))}
    rewrite(spark, location=str(new), batch=described(old, new), frames=frames)
    commit(old, new, None)
    rewritten, plain = gone_on(spark, "aggregated", tmp_path)
    assert rewritten == plain
    assert list((tmp_path / "new").rglob("*.sst"))
    assert not list((tmp_path / "plain").rglob("*.sst"))


def test_two_rewrites_of_bytes_alone_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark's own repartitioning does; there and back again gives what was there."""
    kind = "two-operators"
    old, between, new = stopped(spark, kind, tmp_path), tmp_path / "between", tmp_path / "new"
    for source, target, partitions in ((old, between, NEW), (between, new, OLD)):
        batch = described(old, target, partitions)
        frames = {
            store: state(spark, source, store, raw=True).repartition(partitions, "partition_key")
            for store in stores(spark, source)
        }
        assert [operator for operator, _ in frames] == [0, 1]
        assert rewrite(spark, location=str(target), batch=batch, frames=frames) is None
        commit(old, target, None)
    for store in stores(spark, new):
        assert in_order(state(spark, new, store).collect()) == in_order(
            state(spark, old, store).collect()
        )
    rewritten, plain = gone_on(spark, kind, tmp_path)
    assert rewritten == plain


ONE = """
import sys
from statestore.spark.session import spark_session
from statestore.interop.spark.rewriter import rewrite
spark = spark_session(master="local[1]", table_format="parquet")
kind = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark.conf.set("spark.sql.streaming.stateStore.providerClass", kind)
old, new, batch = sys.argv[1:]
spark.streams
reader = spark.read.format("statestore").option("_readAllColumnFamilies", "true")
rows = reader.load(old).repartition(7, "partition_key")
print(rewrite(spark, location=new, batch=int(batch), frames={(0, "default"): rows}))
"""


@pytest.mark.parametrize("pinned", ["true", "false"])
def test_a_process_that_only_rewrites_ends(
    spark: SparkSession, sessions: tuple[Path, DataFrame], tmp_path: Path, pinned: str
) -> None:
    """PySpark talks to the JVM in two ways, and calls come back differently in each."""
    old, new = sessions[0], tmp_path / "new %20 # one"
    batch = described(old, new)
    done = subprocess.run(
        [sys.executable, "-c", ONE, str(old), str(new), str(batch)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PIN_THREAD": pinned},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    new = new.rename(tmp_path / "new")  # Spark's reader takes no folder of such a name
    commit(old, new, None)
    before, after = (state(spark, at, (0, "default")).drop("partition_id") for at in (old, new))
    assert in_order(before.collect()) == in_order(after.collect())


class Refused:
    """A checkpoint that is to be written, and what is refused about it."""

    def __init__(self, spark: SparkSession, old: Path, new: Path) -> None:
        self.spark, self.new = spark, new
        self.batch = described(old, new)

    def __call__(self, frames: Mapping[tuple[int, str], DataFrame]) -> None:
        rewrite(self.spark, location=str(self.new), batch=self.batch, frames=frames)


@pytest.fixture
def refused(spark: SparkSession, sessions: tuple[Path, DataFrame], tmp_path: Path) -> Refused:
    return Refused(spark, sessions[0], tmp_path / "new")


STORE = (0, "default")


def test_each_store_needs_its_rows(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"were given for none; .* operator 0, store 'd"):
        refused({})
    with pytest.raises(InvalidArgumentError, match="operator 1, store 'x'; the stores of"):
        refused({STORE: sessions[1], (1, "x"): sessions[1]})


def test_partitions_are_counted(refused: Refused, sessions: tuple[Path, DataFrame]) -> None:
    with pytest.raises(ParallelismError, match="has 7 partitions; the rows for it are in 6"):
        refused({STORE: sessions[1].repartition(6, "partition_key")})


def test_columns_and_their_types_are_compared(
    refused: Refused, sessions: tuple[Path, DataFrame]
) -> None:
    rows = sessions[1].repartition(NEW, "partition_key")
    with pytest.raises(SchemaMismatchError, match="have columns partition_key, key_bytes, val"):
        refused({STORE: rows.drop("value_bytes")})
    with pytest.raises(SchemaMismatchError, match=r"store 'default' takes rows of struct<part"):
        refused({STORE: rows.withColumn("partition_key", F.struct(F.lit(1)))})


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
    with pytest.raises(IncompatibleStateError, match=r"RocksDB alone, .* is .*HDFSBackedStateSt"):
        refused({STORE: sessions[1]})


def test_a_folder_that_is_no_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot read the checkpoint {tmp_path}: .*state"):
        rewrite(spark, location=str(tmp_path), batch=1, frames={})


def test_spark_has_the_rewriter(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_spark(spark)
    module, name = "statestore.interop.spark.rewriter", "org.apache.spark.of.another.Version"
    monkeypatch.setattr(f"{module}._PARAMETERS", ("long",))
    with pytest.raises(MissingDependencyError, match=r"is Spark 4\.2\.0, whose .*er takes \(org"):
        check_spark(spark)
    monkeypatch.setattr(f"{module}._REWRITER", name)
    with pytest.raises(MissingDependencyError, match=rf"is Spark 4\.2\.0, which has no {name}"):
        rewrite(spark, location="nowhere", batch=1, frames={})


def test_spark_connect_is_refused() -> None:
    class Connected:
        version = "4.2.0"

        @property
        def _jvm(self) -> Any:
            raise AttributeError("a client has no JVM")

    client: Any = Connected()
    with pytest.raises(MissingDependencyError, match="in this process, not through Spark Connect"):
        check_spark(client)
