"""The store's tasks in Spark: where they run, what they do first, and Arrow functions in them."""

from __future__ import annotations

import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

__all__ = [
    "Task",
    "executor_hosts",
    "map_in_arrow",
    "names_for_spark",
    "numbered",
    "numbers",
    "settle",
    "until_closed",
]


# The numbers of the subtasks as a DataFrame, one Spark partition each, run where copies lie.
#
# PySpark names no preferred locations, so the RDD is made in the JVM: ``SparkContext.makeRDD``
# takes them, and a plan of narrow steps above it keeps them, down to
# ``DAGScheduler.getPreferredLocs``.
#
# A location is a wish. Spark waits ``spark.locality.wait`` (3 s) for a free core on that host, then
# takes another, which reads from the store. A host without an executor is asked for all the same,
# as one may start there yet; not in local mode, which has one host. No wish at all is known to
# Spark Connect, where there is no JVM to ask; to the data source ``keyed_state``, as an
# ``InputPartition`` of PySpark has no locations; and to a Spark that refuses these calls.
#
# Files name hosts as ``socket.gethostname()`` does; Spark knows an executor by the name that it
# registered with, often an address. :func:`numbers` asks with Spark's names.


_AT_ONCE: Final = 32
"""Names that are looked up at a time: a dead name server answers none of them for seconds."""

_THIS_MACHINE: Final = "this machine"
_log = logging.getLogger(__name__)


def numbers(spark: SparkSession, parallelism: int, hosts: Sequence[str] = ()) -> DataFrame:
    """Return 0 .. ``parallelism`` - 1 in a DataFrame of one column, number i in Spark partition i.

    ``hosts[i]`` is where Spark is asked to run partition i, empty for no wish, as recorded with the
    files. It is ``spark.range`` if there is no wish, or no way to tell Spark. Starts no Spark job.
    """
    # A session of Spark Connect is another class, and has no JVM.
    if any(hosts) and isinstance(spark, SparkSession):
        try:
            wishes = _wishes(spark, hosts)
            if any(wishes):
                return _located(spark, wishes)
        except Py4JError as error:  # the wish is not worth the restore
            reason = str(error).partition("\n")[0]
            _log.warning("Spark takes no preferred locations, going on without: %s", reason)
    return spark.range(0, parallelism, 1, parallelism)


def executor_hosts(spark: SparkSession) -> tuple[str, ...]:
    """Return the hosts of the running executors as Spark names them, each once.

    The driver's comes last: in local mode it is the only one, else it may have no executor.
    """
    # "host:port" of each block manager, in one call.
    known = str(_context(spark).getExecutorMemoryStatus().keys().mkString("\n")).splitlines()
    driver = _driver_host(spark)
    return tuple(sorted({one.rpartition(":")[0] for one in known}, key=lambda h: (h == driver, h)))


def names_for_spark(
    hosts: Iterable[str],
    executors: Sequence[str],
    driver: str = "",
    *,
    addresses: Callable[[str], frozenset[str]] | None = None,
) -> dict[str, str]:
    """Return per recorded host, empty ones left out, the name by which Spark knows it.

    That is the same name, or the first executor's that has an address in common; a host that has
    none, or has no address at all, keeps its name. ``driver`` is a name of this machine.
    ``addresses`` looks a name up; without it the system does.
    """
    found = {host: host for host in hosts if host}
    unknown = [host for host in found if host not in executors]
    if not unknown:
        return found
    look_up = addresses or _addresses
    here = {socket.gethostname(), driver}
    asked = list(dict.fromkeys([*unknown, *executors]))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        places = dict(zip(asked, pool.map(look_up, asked), strict=True))
    for name, place in places.items():
        # By a loopback address only the machine itself is meant.
        if name in here or any(map(_is_loopback, place)):
            places[name] = place | {_THIS_MACHINE}
    first: dict[str, str] = {}
    for executor in executors:
        for address in places[executor]:
            first.setdefault(address, executor)
    for host in unknown:
        same = {first[address] for address in places[host] if address in first}
        found[host] = min(same, key=executors.index, default=host)
    return found


def _addresses(name: str) -> frozenset[str]:
    """Look up a name; nothing when it has no address."""
    try:
        # Spark writes an IPv6 address in brackets.
        answers = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label too long for a name
        _log.debug("host %s has no address: %s", name, error)
        return frozenset()
    return frozenset(str(answer[4][0]) for answer in answers)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _wishes(spark: SparkSession, hosts: Sequence[str]) -> list[str]:
    executors = executor_hosts(spark)
    known = {"": "", **names_for_spark(hosts, executors, _driver_host(spark))}
    wishes = [known[host] for host in hosts]
    if _is_local(spark):
        # In local mode a task that waits for its host is offered a core only when another task
        # ends: a wish for a host that is not there, beside one that is, would wait for ever.
        return [wish if wish in executors else "" for wish in wishes]
    return wishes


def _located(spark: SparkSession, hosts: Sequence[str]) -> DataFrame:
    """Build the DataFrame, with calls into the JVM per host and not per partition."""
    session: Any = spark
    jvm, scala = session._jvm, session._jvm.scala.jdk.javaapi.CollectionConverters
    at = {host: str(number) for number, host in enumerate(dict.fromkeys(hosts))}
    wishes = jvm.java.util.HashMap()
    for host, number in at.items():
        wish = jvm.java.util.ArrayList()
        if host:
            wish.add(host)
        wishes.put(number, scala.asScala(wish).toVector())
    lines = jvm.scala.collection.StringOps("\n".join(at[host] for host in hosts)).linesIterator()
    # A Scala map is also the function that looks up a key in it.
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


# What the store's tasks do first in a Python worker of Spark.
#
# A worker is used again for other tasks, by the loop of PySpark's daemon that calls ``worker`` for
# each. Between them it waits at a socket.


_TASKS: list[None] = []

Worker = Callable[[socket.socket, bool], int]
_GONE = 1
"""What ``worker`` returns when the process is to end."""


def settle() -> None:
    """Make this worker one that lasts; call it as a task begins.

    It collects garbage after every task, and then walks over all objects of pyarrow, numpy and
    pyspark, which takes longer than a small subtask does: what is loaded is kept out of that. Some
    of it is loaded before the first task runs and some while it does, so this happens twice.
    """
    if len(_TASKS) < 2:
        _TASKS.append(None)
        gc.freeze()
    if len(_TASKS) == 1:
        daemon = sys.modules["__main__"]
        worker = getattr(daemon, "worker", None)
        if worker is not None:  # where there is no daemon, a worker has one task
            daemon.worker = until_closed(worker)  # type: ignore[attr-defined]


def until_closed(worker: Worker) -> Worker:
    """Return the worker of PySpark's daemon as one that ends when Spark closes its socket.

    That is how Spark lets go of a worker that waits, as a session stops, and of one whose task has
    enough rows. PySpark takes the end of the socket for a task that failed, tries to report it
    there, and dies of the broken pipe, with a traceback on the terminal.
    """

    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            if not sock.recv(1, socket.MSG_PEEK):  # waits for a task, and takes nothing of it
                return _GONE
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return _GONE

    return run


# Arrow functions over DataFrames, whatever their columns are called.
#
# Spark looks for the columns that it hands over by their names, and takes a dot in one for the way
# into a struct. So they are numbered on the way, and get their names back before the function sees
# them.


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Return what a function makes of the batches of each Spark partition."""
    names = list(df.columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return numbered(df).mapInArrow(run, schema)


def numbered(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns are called by their numbers: ``c0``, ``c1``, …"""
    return df.toDF(*(f"c{at}" for at in range(len(df.columns))))
