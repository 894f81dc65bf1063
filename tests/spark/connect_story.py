"""``python -m tests.spark.connect_story FOLDER`` uses a store in a session of Spark Connect.

It is a process of its own, because PySpark has either classic sessions or remote ones in a process.
It runs also in an environment without py4j, Java and pytest. :func:`take_checkpoints` takes the
same checkpoints in any session.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import Changes, ParquetOptions, StateStore, partition
from statestore.errors import DuplicateKeyError, InvalidArgumentError, NullKeyError
from statestore.jobgraph.partitioners import KeyGroup
from statestore.spark.session import spark_session
from tests.servers.spark_connect import client_environment
from tests.syntax import ROOT

__all__ = ["run_story", "take_checkpoints"]

GROUPS, PARALLELISM = 16, 3
FEW = 1000
"""Changes with more bytes are not collected by the driver."""


def run_story(python: str, url: str, folder: Path) -> Any:
    """Run this program with a Python; return what it printed, as JSON."""
    done = subprocess.run(
        [python, "-m", "tests.spark.connect_story", str(folder)],
        cwd=ROOT,
        env=client_environment(url),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def take_checkpoints(spark: SparkSession, folder: Path, name: str) -> list[Any]:
    """Write states with keys of all types, in full and as changes; return the files' digests."""
    store = StateStore.open(
        str(folder / name), spark=spark, parquet=ParquetOptions(driver_bytes=FEW)
    )
    rows, changed, deleted = (
        spark.read.parquet(str(folder / f"{table}.parquet"))
        for table in ("rows", "changed", "deleted")
    )
    keys = json.loads((folder / "keys.json").read_text())
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        for scheme, key in keys.items():
            checkpoint.write_keyed(
                "u", scheme, rows, key=key, hash_scheme=scheme, max_parallelism=GROUPS
            )
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        deletes = deleted.select(*(f"`{column}`" for column in keys["java"]))
        checkpoint.write_changes("u", "java", Changes(upserts=changed, deletes=deletes))
        checkpoint.write_changes_against("u", "pyflink", changed)
        checkpoint.carry_rest()
    return [
        (entry.state.name, str(handle.key_groups), handle.rows, handle.digest)
        for entry in checkpoint.manifest.keyed
        for part in entry.parts
        for handle in part.handles
    ]


def reads(spark: SparkSession, folder: Path) -> None:
    """Read the states that were written."""
    store = StateStore.open(str(folder / "connect"), spark=spark)
    restored = store.restore(parallelism=5).keyed("u", "java")
    frame = restored.to_spark()
    placed = frame.select("long", F.spark_partition_id().alias("place")).collect()
    for subtask in range(5):
        own = restored.to_arrow(subtask)["long"].to_pylist()
        assert sorted(own) == sorted(row.long for row in placed if row.place == subtask)
    options = {"store": store.url, "operator": "u", "state": "java", "parallelism": "2"}
    loaded = spark.read.format("keyed_state").options(**options).load()
    assert loaded.count() == frame.count()
    keys = restored.to_arrow(1).select(restored.entry.state.key).slice(0, 3)
    found = restored.lookup_in_spark(keys, cache_bytes=2**20)
    assert found.count() == keys.num_rows
    # written back with their key groups, by tasks that stay where they are, and after a shuffle
    for parallelism in (5, 2):
        with store.snapshot(parallelism=parallelism) as checkpoint:
            entry = checkpoint.write_keyed("u", "java", frame, co_located=parallelism == 5)
            checkpoint.carry_rest()
        assert entry.rows == frame.count()


def refused(error: type[Exception], call: Callable[[], object], *texts: str) -> Exception:
    """Return the error of a call, which must have this type and these texts."""
    raised: Exception | None = None
    try:
        call()
    except error as one:
        raised = one
    assert raised is not None, f"no {error.__name__}"
    assert all(text in str(raised) for text in texts), raised
    return raised


def refuses_rows(spark: SparkSession, folder: Path) -> None:
    """Refuse rows as a classic session does; nothing is stored."""
    store = StateStore.open(str(folder / "refused"), spark=spark)

    def write(rows: DataFrame, **options: Any) -> None:
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=GROUPS, **options)

    ids = spark.range(0, 30, 1, 3)
    some = ids.select(F.when(F.col("id") % 3 > 0, F.col("id").cast("string")).alias("k"), "id")
    error = refused(NullKeyError, lambda: write(some))
    assert isinstance(error, NullKeyError)
    assert error.rows == 10
    twice = ids.selectExpr("cast(id % 20 as string) as k")
    refused(DuplicateKeyError, lambda: write(twice))
    upper, broken = "upper(uuid())", "if(id = 17, cast(x'80' as string), uuid())"
    for expression, key_type, problem in (
        ("if(id = 17, 'long', char(65 + id))", "Character", "not a Character"),
        (upper, "UUID", "in lower case"),
        (broken, "UUID", "not UTF-8"),
    ):
        rows, types = ids.selectExpr(f"{expression} as k"), {"k": key_type}
        call = partial(write, rows, key_types=types)
        refused(InvalidArgumentError, call, "state 's'", problem)
    assert not [*(folder / "refused").rglob("*.parquet")]


def refuses_calls(spark: SparkSession, folder: Path) -> None:
    """Refuse what needs a JVM, and name what to use instead."""
    from statestore.interop.spark import import_checkpoint, plan_query

    store = StateStore.open(str(folder / "connect"), spark=spark)
    frame = spark.range(3)
    stream = spark.readStream.format("rate").load()
    query = by_user(store, folder)
    calls: dict[str, Callable[[], object]] = {
        "split_by_subtask": lambda: partition(frame, KeyGroup(key="id"), parallelism=2),
        "process(…)": lambda: query.start(stream, str(folder / "location")),
        "where Java is installed": lambda: plan_query(stream, output_mode="append"),
        "'statestore spark'": lambda: import_checkpoint(spark, str(folder / "location"), store),
    }
    for instead, call in calls.items():
        refused(InvalidArgumentError, call, "Spark Connect", instead)


def by_user(store: StateStore, folder: Path) -> Any:
    """Return a query that counts the events of each user."""
    from statestore.streaming import StatefulQuery, by_key

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        return pd.DataFrame([{"user": key[0], "n": len(events) + int(state["n"].sum())}])

    return StatefulQuery(
        store=store,
        operator="counts",
        key="user",
        states={"n": "user string, n long"},
        update=by_key("user", update),
        parallelism=2,
    )


def updates_by_key(spark: SparkSession, folder: Path) -> None:
    """Process micro-batches with a function that is called for each key."""
    from statestore.streaming import MicroBatch

    store = StateStore.open(str(folder / "counts"), spark=spark)
    query = by_user(store, folder)
    for number in range(2):
        events = spark.range(10 * (number + 1)).selectExpr("concat('u', id % 7) as user")
        query.process(events, MicroBatch("q", number))
    stored = store.restore(parallelism=1).keyed("counts", "n").to_arrow(0)
    expected = Counter(f"u{number % 7}" for count in (10, 20) for number in range(count))
    assert dict(zip(*(stored[name].to_pylist() for name in ("user", "n")), strict=True)) == expected


def bootstraps(spark: SparkSession, folder: Path) -> None:
    """Begin a state with the rows of a table."""
    store = StateStore.open(str(folder / "begun"), spark=spark)
    rows = spark.read.parquet(str(folder / "rows.parquet"))
    done = store.bootstrap("u", "s", rows, key="long", max_parallelism=GROUPS)
    assert done.rows == rows.count()
    options: dict[str, Any] = {"key": "long", "max_parallelism": GROUPS, "replace": True}
    dry = lambda: store.bootstrap("u", "s", rows, dry_run=True, **options)  # noqa: E731
    refused(InvalidArgumentError, dry, "write them")


SNAPSHOT = """
parallelism = 2
[[keyed]]
operator = "u"
state = "s"
key = ["long"]
max_parallelism = 16
source = { format = "parquet", path = "FOLDER/rows.parquet" }
"""
RESTORE = """
parallelism = 3
[[keyed]]
operator = "u"
state = "s"
sink = { format = "parquet", path = "FOLDER/restored [x]" }
"""


def jobs(spark: SparkSession, folder: Path) -> None:
    """Run the jobs, in the session that is active."""
    from jobs.restore import restore
    from jobs.snapshot import snapshot
    from statestore.errors import SettingsError

    def run(job: Any, settings: str) -> Any:
        file = folder / "settings.toml"
        file.write_text(settings.replace("FOLDER", str(folder)))
        arguments = [str(file), "--store", str(folder / "jobs"), "--output", "json"]
        return job.main(arguments, standalone_mode=False)

    assert run(snapshot, SNAPSHOT) == 0
    for old, new in {"rows.parquet": "none", '"parquet"': '"no"'}.items():
        assert run(snapshot, SNAPSHOT.replace(old, new)) == SettingsError.exit_code
    assert run(restore, RESTORE) == 0
    back = pq.read_table(folder / "restored [x]", columns=["long", "subtask"])
    assert back.num_rows == pq.read_metadata(folder / "rows.parquet").num_rows
    assert {*back["subtask"].to_pylist()} == {0, 1, 2}
    assert run(restore, RESTORE) == SettingsError.exit_code  # its sink exists


def main(arguments: Sequence[str]) -> int:
    """Run everything; print the digests of the checkpoints."""
    folder = Path(arguments[0])
    spark = spark_session()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    digests = take_checkpoints(spark, folder, "connect")
    for part in (reads, refuses_rows, refuses_calls, bootstraps, updates_by_key, jobs):
        part(spark, folder)
    print(json.dumps({"digests": digests, "py4j": "py4j" in sys.modules}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
