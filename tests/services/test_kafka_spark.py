"""Spark's Kafka source starts at the job's offsets, and a query writes to a topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.redistribute_offsets import redistribute_offsets
from statestore import StateStore
from tests.services.kafka_topics import Topics
from tests.services.spark_process import run_module

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.mark.long
def test_spark_reads_on_from_the_jobs_file(topics: Topics, tmp_path: Path) -> None:
    """A partition that continues, an idle one, one with a gap, and a new one."""
    topic = topics.make(3, 10)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=2) as checkpoint:
        elements = topics.elements(topic, [4, 10, 2])
        checkpoint.write_union("source", "offsets", [elements[:1], elements[1:]])
    topics.extend(topic, 4)
    topics.fill(topic, {3: "ab"})
    topics.cut(topic, 2, 7)
    settings = tmp_path / "settings.toml"
    settings.write_text(f"""
parallelism = 1
offsets = {{operator = "source", state = "offsets"}}
files.starting_offsets = "{tmp_path}/start.json"
kafka = {{bootstrap = "{topics.bootstrap}", gap = "earliest"}}
""")
    arguments = [str(settings), "--store", store.url]
    assert redistribute_offsets.main(arguments, standalone_mode=False) == 0
    given = {
        "bootstrap": topics.bootstrap,
        "topic": topic,
        "output": topics.make(2),
        "starting_offsets": (tmp_path / "start.json").read_text(),
        "location": str(tmp_path / "location"),
    }
    found, _ = run_module("spark_on_kafka", given)
    expected = [
        *([0, offset, str(offset)] for offset in range(4, 10)),
        *([2, offset, str(offset)] for offset in range(7, 10)),
        *([3, offset, "ab"[offset]] for offset in range(2)),
    ]
    written = [["a", '{"user":"a","n":1}'], ["b", '{"user":"b"}']]
    assert found == {"batch": expected, "stream": expected, "output": written}
