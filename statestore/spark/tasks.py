"""The store's tasks in Spark: their preferred hosts, and Arrow functions for them.

:func:`numbers` returns the subtasks' numbers as a DataFrame, each in a Spark partition that prefers
the host with the subtask's local copies.

PySpark has no API for preferred locations, so the RDD is created in the JVM.
``SparkContext.makeRDD`` takes locations, and a plan of narrow steps on top of it keeps them, down
to ``DAGScheduler.getPreferredLocs``.

A location is only a preference. Spark waits ``spark.locality.wait`` (3 s) for a free core on that
host. Then it uses another host, which reads from the store. A host without an executor is
requested too, because an executor may start there later. In local mode, which has only one host,
it is not requested.

Preferred locations are not supported by:

- Spark Connect, which has no JVM in this process;
- the data source ``keyed_state``, since PySpark's ``InputPartition`` has no locations;
- a Spark that refuses these calls.

Files record hosts as ``socket.gethostname()`` does. Spark identifies an executor by the name that
it registered with, often an address. :func:`numbers` uses Spark's names.

Spark resolves the columns of an Arrow function by name, and interprets a dot in a name as access to
a struct field. :func:`map_in_arrow` numbers the columns for Spark, and gives them their names back
before the function sees them.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from statestore.spark.compat import HAS_ARROW_COLUMNS, Py4JError, has_jvm
from statestore.spark.hashing import column_of

_AT_ONCE: Final = 32
"""The number of parallel lookups: an unreachable name server blocks each one for seconds."""

_THIS_MACHINE: Final = "this machine"
_log = logging.getLogger(__name__)


def numbers(spark: SparkSession, parallelism: int, hosts: Sequence[str] = ()) -> DataFrame:
    """Return 0 .. ``parallelism`` - 1 in a DataFrame of one column, number i in Spark partition i.

    ``hosts[i]`` is the preferred host of partition i, as recorded with the files, or empty. Without
    preferences, or if Spark does not support them, it is ``spark.range``. Starts no Spark job.
    """
    if any(hosts) and has_jvm(spark):
        try:
            wishes = _preferred_locations(spark, hosts)
            if any(wishes):
                return _create_located_frame(spark, wishes)
        except Py4JError as error:  # a restore must not fail because of a preference
            reason = str(error).partition("\n")[0]
            _log.warning(
                "Spark does not support preferred locations, so tasks run on any host: %s", reason
            )
    return spark.range(0, parallelism, 1, parallelism)


def executor_hosts(spark: SparkSession) -> tuple[str, ...]:
    """Return the distinct hosts of the running executors, with Spark's names.

    The driver's host is the last: in local mode it is the only one, and in a cluster it may have no
    executor.
    """
    # One call returns "host:port" of each block manager.
    known = str(_context(spark).getExecutorMemoryStatus().keys().mkString("\n")).splitlines()
    driver = _driver_host(spark)
    return tuple(
        sorted({executor.rpartition(":")[0] for executor in known}, key=lambda h: (h == driver, h))
    )


def names_for_spark(
    hosts: Iterable[str],
    executors: Sequence[str],
    driver: str = "",
    *,
    addresses: Callable[[str], frozenset[str]] | None = None,
) -> dict[str, str]:
    """Return Spark's name of each recorded host; empty hosts are left out.

    Spark's name is the recorded name, or the name of the first executor that shares an address with
    the host. A host without a common address, or without any address, keeps its name. ``driver`` is
    a name of this machine. ``addresses`` looks a name up; by default the system does.
    """
    names = {host: host for host in hosts if host}
    unknown = [host for host in names if host not in executors]
    if not unknown:
        return names
    look_up = addresses or _addresses
    here = {socket.gethostname(), driver}
    asked = list(dict.fromkeys([*unknown, *executors]))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        places = dict(zip(asked, pool.map(look_up, asked), strict=True))
    for name, place in places.items():
        # A loopback address always refers to the machine itself.
        if name in here or any(map(_is_loopback, place)):
            places[name] = place | {_THIS_MACHINE}
    first: dict[str, str] = {}
    for executor in executors:
        for address in places[executor]:
            first.setdefault(address, executor)
    for host in unknown:
        same = {first[address] for address in places[host] if address in first}
        names[host] = min(same, key=executors.index, default=host)
    return names


def _addresses(name: str) -> frozenset[str]:
    """Look up a name; the result is empty if it has no address."""
    try:
        # Spark writes an IPv6 address in brackets.
        answers = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label too long for a name
        _log.debug("cannot resolve the address of host %s: %s", name, error)
        return frozenset()
    return frozenset(str(answer[4][0]) for answer in answers)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _preferred_locations(spark: SparkSession, hosts: Sequence[str]) -> list[str]:
    executors = executor_hosts(spark)
    known = {"": "", **names_for_spark(hosts, executors, _driver_host(spark))}
    wishes = [known[host] for host in hosts]
    if _is_local(spark):
        # In local mode a task that waits for its host gets a core only when another task ends. If
        # some hosts exist and others do not, a task for a missing host would wait for ever.
        return [wish if wish in executors else "" for wish in wishes]
    return wishes


def _create_located_frame(spark: SparkSession, hosts: Sequence[str]) -> DataFrame:
    """Create the DataFrame, with JVM calls per host instead of per partition."""
    session: Any = spark
    jvm, scala = session._jvm, session._jvm.scala.jdk.javaapi.CollectionConverters
    numbers = {host: str(number) for number, host in enumerate(dict.fromkeys(hosts))}
    wishes = jvm.java.util.HashMap()
    for host, number in numbers.items():
        wish = jvm.java.util.ArrayList()
        if host:
            wish.add(host)
        wishes.put(number, scala.asScala(wish).toVector())
    lines = jvm.scala.collection.StringOps(
        "\n".join(numbers[host] for host in hosts)
    ).linesIterator()
    # A Scala map is also a function that looks up a key.
    per_partition = lines.toVector().map(scala.asScala(wishes))
    pairs = per_partition.indices().zip(per_partition)
    rdd = _context(spark).makeRDD(pairs, jvm.scala.reflect.ClassTag.Int())
    encoder = jvm.org.apache.spark.sql.Encoders.INT()
    return DataFrame(session._jsparkSession.createDataset(rdd, encoder).toDF(), spark)


def _context(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    return context._jsc.sc()


def _is_local(spark: SparkSession) -> bool:
    return bool(_context(spark).isLocal())


def _driver_host(spark: SparkSession) -> str:
    return spark.sparkContext.getConf().get("spark.driver.host") or ""


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Apply a function to the Arrow batches of each Spark partition."""
    names = list(df.columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return number_columns(df).mapInArrow(run, schema)


def with_arrow_column(
    df: DataFrame, name: str, inputs: Sequence[str], function: Callable[[pa.RecordBatch], pa.Array]
) -> DataFrame:
    """Return the rows with a last column of integers, which a function computes from some columns.

    Only these columns are sent to Python. Spark 4.0 sends whole rows there and back.
    """
    if HAS_ARROW_COLUMNS:

        def compute(*columns: pa.Array) -> pa.Array:
            return function(pa.RecordBatch.from_arrays(list(columns), list(inputs)))

        functions: Any = F  # its stubs lack this function
        return df.withColumn(name, functions.arrow_udf(compute, "int")(*map(column_of, inputs)))

    def append(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [*batch.columns, function(batch)]
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, name])

    schema = StructType([*df.schema, StructField(name, IntegerType())])
    return map_in_arrow(df, append, schema)


def number_columns(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns are named by their numbers: ``c0``, ``c1``, …"""
    return df.toDF(*(f"c{index}" for index in range(len(df.columns))))
