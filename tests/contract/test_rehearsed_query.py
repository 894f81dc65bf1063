"""Two versions of a query that keeps its state in Spark are compared through import and export."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore.contract.rehearsed_query import _later_end
from statestore.errors import InvalidArgumentError
from tests.contract.rehearsed_job import QUERY, USERS, Job
from tests.contract.test_rehearsal import changes

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WORDS = ("--output-mode", "update", "--output-key", "user")


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    """A query that has run for two micro-batches, and has events for two more."""
    job = Job(spark, tmp_path, QUERY)
    job.add(2)
    job.run_query(job.version("old"))
    job.add(2)
    return job


def test_a_query_and_its_changed_version_are_compared(job: Job) -> None:
    """Its location stays as it is. The mended version runs again, and the old one does not."""
    before = job.tree()
    source = "spark.udf.register('half', lambda total: total / 2, 'double')"
    changed = "rows = rows.withColumn('total', F.expr(\"IF(user = 'u2', half(total), total)\"))"
    words = (job.version("new", changed, source), "--old", job.version("old"), *WORDS)
    document = job.document(*words, status=1)
    assert changes(document) == {"rows": (0, 0, 2)}  # the state has the sums before the change
    assert document["batches"] == [2, 3]
    assert job.tree() == before
    document = job.document(job.version("new"), *words[1:])
    assert changes(document) == {}
    states = {state["state"]: state["rows_a"] for state in document["difference"]["states"]}
    assert states == {"default": USERS, "rows": 2 * USERS}


@pytest.mark.long
def test_a_query_is_compared_with_the_job_itself(job: Job) -> None:
    job.run_query(job.version("old"))
    slower = "rows = rows.where('n > 0')"
    assert changes(job.document(job.version("new", slower), "1", *WORDS)) == {}
    wrong = "events = events.option('mode', 'DROPMALFORMED').option('lineSep', '\\n\\n')"
    new = job.version("new", source=wrong)
    assert changes(job.document(new, "1", *WORDS, status=1))["default"][2] > 0
    done = job.rehearse("--promote")
    assert done.exit_code == 2
    assert "rehearses state of spark, which has no store" in done.stderr
    done = job.rehearse(new, "many", *WORDS, to="other")
    assert "'many' is not the number of a micro-batch" in done.stderr


@pytest.mark.long
def test_state_that_does_not_fit_is_named(job: Job) -> None:
    """Spark itself refuses it, and the rehearsal says which version failed."""
    other = "rows = events.groupBy('total').count()"
    done = job.rehearse(job.version("new", other), "--old", job.version("old"), *WORDS)
    assert done.exit_code == 2
    assert "the new version failed: " in done.stderr
    assert "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in done.stderr
    job.document("--discard")
    assert not (job.folder / "rehearsal").exists()
    shutil.rmtree(job.folder / "job")


@pytest.mark.parametrize(
    ("stored", "given", "end"),
    [
        ('{"a":{"0":5,"1":7}}', '{"a": {"1": 9}}', '{"a":{"0":5,"1":9}}'),
        ('{"a":{"0":5}}', '{"b": {"0": 1}}', '{"a":{"0":5},"b":{"0":1}}'),
        ('{"a":{"0":5}}', '{"a": {"0": 4}}', None),
        ('{"a":{"0":5}}', '{"a": {"0": "9"}}', None),
        ('{"logOffset":3}', '{"logOffset": 4}', None),
        ("-", '{"a": {"0": 4}}', '{"a":{"0":4}}'),
    ],
)
def test_partitions_that_are_not_named_keep_their_offsets(
    stored: str, given: str, end: str | None
) -> None:
    if end is None:
        with pytest.raises(InvalidArgumentError, match="--until 0"):
            _later_end(f"--until 0={given}", stored, given)
    else:
        assert _later_end("", stored, given) == end
