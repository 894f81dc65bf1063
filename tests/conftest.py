"""What all tests share: one Spark session for each worker, a history in every form that a store
may have it in, and Hypothesis's profile.

``CI=1`` makes Hypothesis try the same examples on every run, so that a red build is red again;
everywhere else it looks for new ones; ``make quick`` tries fewer. Spark starts only when a test
asks for ``spark``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from statestore.spark.session import spark_session
from tests.servers.quick_spark import quick_spark
from tests.support.forms import FORMS, Checkpoints, history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# No deadline: the first example of a run pays for imports and, on two cores, for its neighbours.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# For the processes that tests start, and the session below.
os.environ |= quick_spark() | {**os.environ}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this worker: 2 cores, Delta, a warehouse that is thrown away."""
    session = spark_session(
        app_name="statestore-tests",
        master="local[2]",
        extra_conf={
            "spark.sql.shuffle.partitions": "2",
            # VACUUM lists folders with as many tasks, 10,000 by default.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
            # Delta keeps what it knows of a table in so many Spark partitions, 50 by default.
            "spark.databricks.delta.snapshotPartitions": "2",
            # Of so many queries compiled code is kept, 100 by default: tests ask the same again.
            "spark.sql.codegen.cache.maxEntries": "2000",
            # Else each call of a function of columns walks Python's stack, and tells the JVM.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # What a page would show of each query, if somebody looked: short.
            "spark.sql.ui.explainMode": "simple",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def uncompiled(spark: SparkSession) -> Iterator[None]:
    """For queries that are mostly Delta's own: each task of theirs would make code again that turns
    lines of a log into rows. Whole stages are compiled as ever.
    """
    name = "spark.sql.codegen.factoryMode"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "NO_CODEGEN")
    yield
    spark.conf.set(name, before)


@pytest.fixture(params=[(form, "ranged") for form in FORMS], ids=FORMS)
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    """Five checkpoints of one state, in each form that they may have."""
    return history(tmp_path / "store", *request.param)


# The files that take longest come first, so that no worker has one of them left when the other is
# done.
LONGEST = (
    *("services/test_cluster", "services/objects/test_crashes", "streaming/test_query"),
    *("files/test_state_table", "files/test_foreign_hands", "spark/test_hashing"),
    *("interop/spark/test_round_trip", "interop/spark/test_transform_with_state"),
    *("interop/spark/test_crashes", "services/test_spark_checkpoints"),
    *("interop/spark/test_rewriter", "interop/spark/test_rows", "interop/spark/test_refusals"),
    *("spark/test_partition", "demo/test_story", "faults/test_kills", "streaming/test_kills"),
    *("demo/test_job", "demo/test_proof", "spark/test_delta_schema_change"),
    *("jobs/test_spark_submit", "jobs/test_restarted_jobs", "maintenance/test_verify"),
    *("simulate/test_simulate", "histories/test_histories", "services/test_spark_s3"),
    *("faults/test_snapshot", "faults/test_salvage", "faults/test_processes"),
    *("test_docs", "snapshot/test_list_keys", "services/objects/test_faults", "races/test_races"),
    *("interop/spark/test_hand_over", "interop/spark/test_sinks", "maintenance/test_purge"),
    *("snapshot/test_null_structs", "spark/test_session", "spark/test_worker"),
    *("interop/flink/test_import", "interop/flink/test_repack", "services/objects/test_storage"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, and mark the tests that use Spark's session."""
    tests = Path(__file__).parent
    order = {tests / f"{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
