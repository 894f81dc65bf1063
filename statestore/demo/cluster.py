"""The demo of a cluster: orders through Kafka, state in S3, a Spark job that is rescaled twice.

    python -m statestore.demo.cluster --master spark://host:7077 --bootstrap host:9092 \
        --store s3://bucket/prefix

The demo runs ``orders.py`` on the cluster several times, each time at another parallelism, and
produces more orders before each run. At the end it compares the store with the produced orders: the
number of orders and the cents of every customer must be equal. Each demo uses a new topic and a new
prefix, and deletes neither. Credentials for S3 come from the environment, here and on the workers:
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``. The exit code is 1 if an
order was lost or counted twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from statestore.demo.orders import STATE, UID
from statestore.display import duration
from statestore.errors import StateStoreError, StorageError
from statestore.extras import needs_extra
from statestore.spark.session import default_settings
from statestore.store import StateStore

JOB = Path(__file__).with_name("orders.py")
CUSTOMERS, PARTITIONS = 5_000, 6
# (parallelism, number of orders that are produced before the run): the first run writes the full
# state, and the others only changes.
RUNS = ((4, 12_000), (7, 600), (3, 400))
WAIT_SECONDS = 60
EXECUTOR_MEMORY = "512m"


@dataclass(frozen=True)
class Place:
    """Where the demo runs: the cluster, the broker, the store, and extra jars for the job."""

    master: str
    bootstrap: str
    store: str
    topic: str
    jars: str = ""


@dataclass
class Ledger:
    """The number of produced orders and their total in cents, by customer."""

    seed: int = 1
    orders: Counter[str] = field(default_factory=Counter)
    cents: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Seed the random numbers of the orders."""
        self._random = random.Random(self.seed)

    def more(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ``number`` more orders, each with its customer, and record them."""
        for order in range(self.orders.total(), self.orders.total() + number):
            customer = f"customer-{self._random.randrange(CUSTOMERS):04}"
            cents = self._random.randrange(100, 100_000)
            self.orders[customer] += 1
            self.cents[customer] += cents
            yield customer, {"id": order, "customer": customer, "cents": cents}

    def wrong(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Return the customers for which the rows of a state differ from the ledger."""
        totals = {row["customer"]: (row["orders"], row["cents"]) for row in rows}
        booked = {order: (self.orders[order], self.cents[order]) for order in self.orders}
        differing = {each for each in totals | booked if totals.get(each) != booked.get(each)}
        twice = len(rows) - len(totals)
        return sorted(differing) + ["a customer that has two rows"] * twice


def run_demo(place: Place, runs: Sequence[tuple[int, int]] = RUNS) -> bool:
    """Run the demo and print its results; return whether nothing was lost or counted twice.

    Raises MissingDependencyError without the Kafka client. Raises StorageError if the broker does
    not respond, or if the job fails, with the end of the job's output.
    """
    ledger = Ledger()
    make_topic(place)
    print(f"Topic {place.topic} with {PARTITIONS} partitions, store {place.store}.\n")
    for number, (parallelism, orders) in enumerate(runs, start=1):
        produce(place, ledger, orders)
        begin = time.monotonic()
        done = _submit(place, parallelism)
        _print_run(number, done, time.monotonic() - begin)
    return _print_check(place, ledger)


def _print_run(number: int, done: dict[str, Any], seconds: float) -> None:
    old, written = done["restored"], done["written"]
    print(f"{number}. Run at parallelism {done['parallelism']}, on {done['executors']} executors")
    if old is not None:
        rows = " ".join(f"{rows:,}" for rows in old["rows"])
        print(f"   restored   checkpoint {old['checkpoint']}, taken at {old['parallelism']}:")
        print(f"              {rows} customers per subtask, {sum(old['rows']):,} in total")
        starts = (
            " ".join(f"{each['partition']}@{each['offset']:,}" for each in mine) or "–"
            for mine in done["starts"]
        )
        print(f"   resumes at {' | '.join(starts)} (partition@offset, by subtask)")
    print(f"   read       {done['orders']:,} orders from Kafka")
    extent = "all rows" if written["in full"] else "only the changes"
    print(
        f"   wrote      checkpoint {done['checkpoint']}, {extent}: {written['rows']:,} rows, "
        f"{written['bytes']:,} bytes in {written['files']} files"
    )
    print(f"   took       {duration(1000 * seconds)}, most of it to start Spark\n", flush=True)


def _print_check(place: Place, ledger: Ledger) -> bool:
    """Read the newest checkpoint without Spark, and compare it with the produced orders."""
    parallelism = 2
    store = StateStore.open(place.store)
    state = store.restore(parallelism=parallelism).keyed(UID, STATE)
    rows = [row for i in range(parallelism) for row in state.to_arrow(i).to_pylist()]
    wrong = ledger.wrong(rows)
    intact = store.maintenance.verify(deep=True)
    print(
        f"Produced: {ledger.orders.total():,} orders of {len(ledger.orders):,} customers, "
        f"{ledger.cents.total():,} cents.\n"
        f"In the store: {sum(row['orders'] for row in rows):,} orders of {len(rows):,} customers, "
        f"{sum(row['cents'] for row in rows):,} cents; {intact.files} files, "
        f"{len(intact.broken)} of them broken.\n"
    )
    if wrong or not intact.is_intact:
        print(f"NOT EQUAL: {len(wrong)} customers differ, for example {', '.join(wrong[:5])}")
        return False
    print("Equal for every customer: nothing was lost, and nothing was counted twice.")
    return True


def make_topic(place: Place) -> None:
    """Create the demo's topic; StorageError if the broker refuses."""
    admin, topic = _kafka("admin", "AdminClient"), _kafka("admin", "NewTopic")
    client = admin({"bootstrap.servers": place.bootstrap, "log_level": 0})
    new = topic(place.topic, num_partitions=PARTITIONS, replication_factor=1)
    failed = _kafka("", "KafkaException")
    try:
        client.create_topics([new], request_timeout=WAIT_SECONDS)[place.topic].result()
    except failed as error:
        raise StorageError(
            f"the broker at {place.bootstrap} could not create topic {place.topic}: "
            f"{error.args[0].str()}"
        ) from error


def produce(place: Place, ledger: Ledger, number: int) -> None:
    """Produce orders and wait for all acknowledgments; StorageError if some are missing."""
    failures: list[str] = []
    producer = _kafka("", "Producer")(
        {"bootstrap.servers": place.bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for customer, order in ledger.more(number):
        producer.produce(
            place.topic,
            key=customer,
            value=json.dumps(order),
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    left = producer.flush(WAIT_SECONDS)
    if left or failures:
        raise StorageError(
            f"the broker at {place.bootstrap} did not accept {left + len(failures)} of "
            f"{number} orders: {(failures or ['no answer'])[0]}"
        )


def _kafka(module: str, name: str) -> Any:
    """Return a class of the Kafka client, which is imported only if the demo runs."""
    with needs_extra("kafka", "the demo of a cluster"):
        import confluent_kafka
        import confluent_kafka.admin
    return getattr(confluent_kafka.admin if module else confluent_kafka, name)


def _submit(place: Place, parallelism: int) -> dict[str, Any]:
    """Run the job on the cluster; return the JSON document that it prints."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    settings = default_settings("parquet") | {
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.executor.cores": "1",
        "spark.jars": place.jars,
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    conf = [
        text for name, value in settings.items() if value for text in ("--conf", f"{name}={value}")
    ]
    job = ["--store", place.store, "--bootstrap", place.bootstrap, "--topic", place.topic]
    done = subprocess.run(
        [
            *(str(Path(home) / "bin" / "spark-submit"), "--master", place.master, *conf, str(JOB)),
            *(*job, "--parallelism", str(parallelism)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        output = (done.stdout + done.stderr).splitlines()[-30:]
        raise StorageError("\n".join(["the job failed; its output ended with:", *output]))
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run(text: str) -> tuple[int, int]:
    parallelism, _, orders = text.partition(":")
    return int(parallelism), int(orders)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        prog="python -m statestore.demo.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("--master", "--bootstrap", "--store"):
        options.add_argument(name, required=True)
    options.add_argument(
        "--jars", default="", help="Spark's Kafka connector, if Spark does not have it"
    )
    options.add_argument(
        "--runs",
        nargs="+",
        type=_run,
        default=RUNS,
        metavar="PARALLELISM:ORDERS",
        help=(
            "the parallelism of each run, and the orders that are produced before it [4:12000 "
            "7:600 3:400]"
        ),
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo from the shell; return the exit code."""
    options = parser().parse_args(arguments)
    token = time.strftime("%Y%m%d-%H%M%S")
    place = Place(
        master=options.master,
        bootstrap=options.bootstrap,
        store=f"{options.store.rstrip('/')}/{token}",
        topic=f"orders-{token}",
        jars=options.jars,
    )
    try:
        return 0 if run_demo(place, options.runs) else 1
    except StateStoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
