"""The jobs on a real cluster with two workers, a broker and an S3 server; an executor is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from statestore import KeyGroupAssignment, StateStore, key_group_of
from statestore.demo.cluster import Ledger, Place, make_topic, produce
from statestore.spark.session import default_settings
from tests.servers.cluster import SparkCluster
from tests.servers.cluster_demo import connector_jars, run_demo
from tests.servers.flaky_proxy import Headers, flaky_proxy
from tests.servers.kafka import KafkaBroker
from tests.servers.s3 import S3Server
from tests.syntax import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow]

ORDERS, PARALLELISM, NEW_PARALLELISM = 3_000, 4, 7
UID, SOURCE = "totals-by-customer", "orders-source"
BEFORE_THE_KILL = 3  # data files that a task writes before it is blocked
PATIENCE_S = 300

STORE = """
table_format = "parquet"
layout = "partitioned"
storage_options = {{ endpoint_url = "{endpoint}" }}
"""
KAFKA = """
format = "kafka"
[{state}.source.options]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
"""
SNAPSHOT = f"""
parallelism = {PARALLELISM}
[[keyed]]
operator = "{UID}"
state = "totals"
key = ["customer"]
max_parallelism = 128
[keyed.source]
sql = '''
SELECT CAST(key AS STRING) AS customer, count(*) AS orders,
       sum(CAST(get_json_object(CAST(value AS STRING), '$.cents') AS BIGINT)) AS cents
FROM {{source}} GROUP BY key'''{KAFKA.replace("{state}", "keyed")}
[[operator_state]]
operator = "{SOURCE}"
state = "offsets"
mode = "split"
[operator_state.source]
sql = '''SELECT topic, partition, max(offset) + 1 AS offset FROM {{source}}
GROUP BY topic, partition'''{KAFKA.replace("{state}", "operator_state")}
"""
RESTORE = f"""
parallelism = {NEW_PARALLELISM}
[[keyed]]
operator = "{UID}"
state = "totals"
sink = {{format = "parquet", path = "HERE/totals"}}
[[operator_state]]
operator = "{SOURCE}"
state = "offsets"
sink = {{format = "json", path = "HERE/offsets"}}
"""


@dataclass
class Gate:
    """Lets the first data files of each task pass, and blocks the next until it is opened.

    A file's token identifies the task that writes it.
    """

    written: Counter[str] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)
    opened: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, method: str, path: str, headers: Headers, body: bytes) -> Headers:
        if method == "PUT" and "/keyed/" in path and path.endswith(".parquet"):
            token = token_of(path)
            with self._lock:
                self.written[token] += 1
                wait = self.written[token] > BEFORE_THE_KILL and not self.opened.is_set()
                if wait:
                    self.held.add(token)
            if wait:
                self.opened.wait(PATIENCE_S)
        return headers


@pytest.fixture
def place(s3: S3Server, kafka: KafkaBroker, cluster: SparkCluster) -> Place:
    name = uuid.uuid4().hex
    place = Place(cluster.master, kafka.bootstrap, s3.url(name), f"orders-{name}")
    make_topic(place)
    return place


@pytest.fixture
def ledger(place: Place) -> Ledger:
    ledger = Ledger()
    produce(place, ledger, ORDERS)
    return ledger


def token_of(name: str) -> str:
    return name.rpartition("-")[2].removesuffix(".parquet")


@contextmanager
def submitted(
    cluster: SparkCluster, job: str, settings: str, here: Path, *, store: str, endpoint: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A running job on the cluster; its stdout and stderr go to files."""
    (here / f"{job}.toml").write_text(settings)
    (here / "statestore.toml").write_text(STORE.format(endpoint=endpoint))
    conf = default_settings("parquet") | {
        "spark.jars": connector_jars(),
        "spark.executor.memory": "512m",
    }
    options = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
    command = [cluster.submit, "--master", cluster.master, *options, str(ROOT / f"jobs/{job}.py")]
    with (here / f"{job}.out").open("wb") as out, (here / f"{job}.err").open("wb") as err:
        process = subprocess.Popen(
            [
                *(*command, str(here / f"{job}.toml"), "--output", "json"),
                *("--store", store, "--config", str(here / "statestore.toml")),
            ],
            env=cluster.environment,
            cwd=here,  # the job must not find files through its working directory
            stdout=out,
            stderr=err,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def report(process: subprocess.Popen[bytes], job: str, here: Path) -> Any:
    said = [(here / f"{job}.{end}").read_text() for end in ("out", "err")]
    assert process.wait(PATIENCE_S) == 0, "\n".join(each[-3000:] for each in said)
    text = (here / f"{job}.out").read_text()
    return json.loads(text[text.index("{\n") :])


def until(done: Any, process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert process.poll() is None, f"the job ended before {what}"
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


def expected_rows(ledger: Ledger) -> list[dict[str, Any]]:
    return [
        {"customer": order, "orders": ledger.orders[order], "cents": ledger.cents[order]}
        for order in sorted(ledger.orders)
    ]


@pytest.mark.long
@pytest.mark.parametrize("by_job", [False, True])
def test_a_snapshot_survives_an_executor_and_is_restored_at_another_parallelism(
    place: Place, ledger: Ledger, cluster: SparkCluster, s3: S3Server, tmp_path: Path, by_job: bool
) -> None:
    """I4, I7: one executor is killed while two tasks write to S3; its files are in no state."""
    gate = Gate()
    settings = SNAPSHOT.replace("{bootstrap}", place.bootstrap).replace("{topic}", place.topic)
    with (
        flaky_proxy(s3.endpoint, gate) as proxy,
        submitted(
            cluster,
            "snapshot",
            settings,
            tmp_path,
            store=place.store,
            endpoint=proxy.endpoint,
        ) as job,
    ):
        until(
            lambda: len(gate.held) >= 2 and cluster.executors(),
            job,
            "tasks on two executors wrote files",
        )
        killed = cluster.executors()[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in cluster.executors(), job, "the executor was gone")
        gate.opened.set()
        taken = report(job, "snapshot", tmp_path)

    assert [state["rows"] for state in taken["states"]] == [len(ledger.orders), 6]
    store = StateStore.open(place.store, storage_options=s3.options)
    assert store.checkpoints() == (taken["checkpoint"],) == (1,)
    intact = store.maintenance.verify(deep=True)
    assert intact.is_intact
    named = {token_of(handle.path) for handle in store.checkpoint().manifest.keyed[0].handles}
    assert len(named) == PARALLELISM, "each subtask's files are of one task"
    lost = gate.held - named
    assert len(lost) == 1, "one of the two tasks that were held was lost"
    assert {token_of(name) for name in intact.strays} <= set(gate.written) - named
    assert store.checkpoint().manifest.keyed[0].digest == digest_without_spark(ledger, tmp_path)

    if not by_job:
        check_read(ledger, store)
        return
    with submitted(
        cluster,
        "restore",
        RESTORE.replace("HERE", str(tmp_path)),
        tmp_path,
        store=place.store,
        endpoint=s3.endpoint,
    ) as job:
        assert report(job, "restore", tmp_path)["parallelism"] == NEW_PARALLELISM
    check_restored(ledger, tmp_path)


def digest_without_spark(ledger: Ledger, here: Path) -> int:
    store = StateStore.open(str(here / "reference"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.Table.from_pylist(expected_rows(ledger))
        checkpoint.write_keyed(UID, "totals", rows, key="customer", max_parallelism=128)
    return store.checkpoint().manifest.keyed[0].digest


def check_read(ledger: Ledger, store: StateStore) -> None:
    restored = store.restore(parallelism=NEW_PARALLELISM)
    totals = restored.keyed(UID, "totals")
    rows = [
        row | {"subtask": subtask}
        for subtask in range(NEW_PARALLELISM)
        for row in totals.to_arrow(subtask).drop_columns(["key_group"]).to_pylist()
    ]
    check_rows(ledger, rows)
    offsets = restored.operator_state(SOURCE, "offsets")
    dealt = [each for subtask in range(NEW_PARALLELISM) for each in offsets.subtask(subtask)]
    check_offsets(dealt)


def check_restored(ledger: Ledger, here: Path) -> None:
    partitioning = ds.partitioning(pa.schema({"subtask": pa.int32()}), flavor="hive")
    totals = ds.dataset(here / "totals", format="parquet", partitioning=partitioning).to_table()
    check_rows(ledger, totals.to_pylist())
    parts = sorted((here / "offsets").rglob("*.json"))
    check_offsets([json.loads(line) for part in parts for line in part.read_text().splitlines()])


def check_rows(ledger: Ledger, rows: list[dict[str, Any]]) -> None:
    owners = KeyGroupAssignment(max_parallelism=128, parallelism=NEW_PARALLELISM)
    rows = sorted(rows, key=lambda row: str(row["customer"]))
    for row in rows:
        group = key_group_of(row["customer"], max_parallelism=128)
        assert row.pop("subtask") == owners.subtask_of(group)
    assert rows == expected_rows(ledger)


def check_offsets(offsets: list[dict[str, Any]]) -> None:
    assert sorted(offset["partition"] for offset in offsets) == list(range(6))
    assert sum(offset["offset"] for offset in offsets) == ORDERS


@pytest.mark.long
def test_the_cluster_demo(
    s3: S3Server, kafka: KafkaBroker, cluster: SparkCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first run writes everything. The second restores at 7 and writes the changes."""
    code = run_demo(s3, kafka, cluster, "--runs", "4:1500", "7:60")
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "read       1,500 orders" in said.out
    assert "checkpoint 1, taken at 4" in said.out
    assert "read       60 orders" in said.out
    assert "checkpoint 2, only the changes: " in said.out
    assert "Produced: 1,560 orders" in said.out
    assert "In the store: 1,560 orders" in said.out
    assert said.out.splitlines()[-1].startswith("Equal for every customer")
    assert s3.secret_key not in said.out + said.err


def test_the_demo_detects_lost_and_duplicated_records() -> None:
    ledger = Ledger()
    produced = [order for _, order in ledger.more(50)]
    assert [order["id"] for order in produced] == list(range(50))
    rows = expected_rows(ledger)
    assert ledger.wrong(rows) == []
    assert ledger.wrong(rows[1:]) == [rows[0]["customer"]]
    assert ledger.wrong([*rows, rows[-1]]) == ["a customer that has two rows"]
    assert ledger.wrong([*rows[:-1], rows[-1] | {"orders": 99}]) == [rows[-1]["customer"]]
