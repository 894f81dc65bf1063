"""A Spark for tests whose JVM starts faster and writes files faster.

``python -m tests.servers.quick_spark`` builds two things in the project's folder ``build``:

* Hadoop's local file system without its external programs (``LocalFiles.java``), if there is a JDK.
* An archive of Spark's classes. A JVM maps it instead of reading some 18,000 classes from jars.

Without them, tests use the same Spark and wait longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.spark.session import java_home, spark_session
from tests.servers.jars import spark_home
from tests.servers.process import SHORT_LIVED_JVM
from tests.syntax import ROOT

__all__ = ["main", "quick_spark", "spark_jvm"]

FILES, ARCHIVE = (ROOT / "build" / "quick-spark" / name for name in ("classes", "spark.jsa"))
SOURCE = Path(__file__).parent / "java" / "LocalFiles.java"
_QUIET = "-Xlog:cds*=off"  # a JVM that does not match the archive runs without it


def spark_jvm() -> tuple[str, ...]:
    """Return the options of Spark's JVMs."""
    archive = (f"-XX:SharedArchiveFile={ARCHIVE}", _QUIET) if ARCHIVE.exists() else ()
    return (*SHORT_LIVED_JVM, *archive)


def quick_spark() -> dict[str, str]:
    """Return the variables with which every Spark that is started uses the two."""
    if not FILES.exists():
        return {"SPARK_SUBMIT_OPTS": " ".join(spark_jvm())}
    files = (
        "-Dspark.hadoop.fs.file.impl=LocalFiles",
        "-Dspark.hadoop.fs.AbstractFileSystem.file.impl=LocalFiles$Context",
    )
    return {
        "SPARK_SUBMIT_OPTS": " ".join((*spark_jvm(), *files)),
        "SPARK_DIST_CLASSPATH": str(FILES),  # after Spark's own jars, so that the archive matches
    }


def main() -> int:
    """Build both; return the exit code."""
    FILES.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FILES.parent) as folder:
        _compile_files(Path(folder) / FILES.name)
        made = Path(folder) / ARCHIVE.name
        options = (*SHORT_LIVED_JVM, "-XX:+BytecodeVerificationRemote", _QUIET)
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*options, f"-XX:ArchiveClassesAtExit={made}"))
        spark = spark_session(
            master="local[2]", extra_conf={"spark.sql.shuffle.partitions": "2"}, driver_memory="1g"
        )
        _load_classes(spark, Path(folder))
        _end(spark)
        made.rename(ARCHIVE)
    return 0


def _compile_files(made: Path) -> None:
    """Compile the file system. Tests that run already see it only when it is complete."""
    compiler = java_home() / "bin" / "javac"
    if compiler.exists():
        path = os.pathsep.join(map(str, (spark_home() / "jars").glob("hadoop-client-api-*.jar")))
        subprocess.run([str(compiler), "-cp", path, "-d", str(made), str(SOURCE)], check=True)
        shutil.rmtree(FILES, ignore_errors=True)
        made.rename(FILES)


def _load_classes(spark: SparkSession, folder: Path) -> None:
    """Run a little of everything that the tests do."""
    rows = spark.range(100, numPartitions=2).selectExpr("id", "uuid() AS text")
    store = StateStore.open(str(folder / "store"), spark=spark)
    with store.snapshot(parallelism=2) as checkpoint:
        entry = checkpoint.write_keyed("u", "s", rows, key="id", max_parallelism=4)
    store.restore().keyed("u", "s").to_spark().toArrow()
    spark.read.format("delta").load(f"{store.url}/{entry.table.path}").count()
    rows.write.parquet(str(folder / "rows"))
    for name in ("HDFSBacked", "RocksDB"):
        provider = f"org.apache.spark.sql.execution.streaming.state.{name}StateStoreProvider"
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
        counts = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
        (
            counts.groupBy("id")
            .count()
            .writeStream.outputMode("update")
            .foreachBatch(_collect)
            .option("checkpointLocation", str(folder / name))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )


def _collect(batch: DataFrame, _: int) -> None:
    batch.collect()


def _end(spark: SparkSession) -> None:
    """Stop the session, and wait for its JVM, which writes the archive when it exits."""
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    raise SystemExit(main())
