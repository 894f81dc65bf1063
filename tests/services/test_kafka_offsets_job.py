"""The job redistribute_offsets with a real broker: it checks offsets, reports them and commits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from jobs.redistribute_offsets import redistribute_offsets
from statestore import StateStore
from tests.servers.process import free_ports
from tests.services.kafka_topics import Topics, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

SETTINGS = """
parallelism = 2
[offsets]
operator = "orders-source"
state = "offsets"
[files]
per_subtask = "{here}/all.json"
starting_offsets = "{here}/start.json"
[kafka]
bootstrap = "{bootstrap}"
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(topics: Topics, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the job with these settings of [kafka]; return its exit code, stdout and stderr."""

    def job(kafka: dict[str, Any], *arguments: str) -> tuple[int, str, str]:
        text = SETTINGS.replace("{here}", str(tmp_path)).replace("{bootstrap}", topics.bootstrap)
        lines = [f"{name} = {json.dumps(value)}" for name, value in kafka.items()]
        (tmp_path / "settings.toml").write_text("\n".join([text, *lines]))
        capfd.readouterr()
        words = [str(tmp_path / "settings.toml"), "--store", str(tmp_path / "store"), *arguments]
        code = redistribute_offsets.main(words, standalone_mode=False)
        return code, *capfd.readouterr()

    return job


@pytest.fixture
def name(topics: Topics, tmp_path: Path) -> str:
    """A topic: partition 0 continues, 1 is idle, 2 has a gap and 3 is new."""
    name = topics.make(3, 10)
    elements = topics.elements(name, [3, 10, 2])
    take(tmp_path, [elements[:2], elements[2:]])
    topics.extend(name, 4)
    topics.fill(name, {3: "abcd"})
    topics.cut(name, 2, 6)
    return name


def take(folder: Path, elements: list[list[dict[str, Any]]]) -> None:
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    with store.snapshot(parallelism=len(elements)) as checkpoint:
        checkpoint.write_split("orders-source", "offsets", elements)


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.json"))


def test_a_dry_run_reports_its_effect(run: Run, name: str, topics: Topics, tmp_path: Path) -> None:
    group = uuid.uuid4().hex
    code, out, err = run({"gap": "earliest", "group": group}, "--dry-run")
    assert (code, err) == (0, "")
    words = [line.split(maxsplit=6) for line in out.splitlines()]
    assert out.startswith(f"Kafka at {topics.bootstrap}: 2 kept, 1 moved, 1 added\n")
    assert words[1] == ["topic", "partition", "stored", "live", "decision", "offset", "reason"]
    assert words[2:6] == [
        [name, "0", "3", "0..10", "kept", "3", "continues"],
        [name, "1", "10", "0..10", "kept", "10", "idle: nothing new to read"],
        [name, "2", "2", "6..10", "moved", "6", "4 records deleted before they were read"],
        [name, "3", "-", "0..4", "added", "0", "no offset is stored"],
    ]
    assert out.endswith("dry run: nothing was written\n")
    assert written(tmp_path) == []
    assert topics.cluster.committed(group) == {}


def test_a_refusal_precedes_any_write(run: Run, name: str, topics: Topics, tmp_path: Path) -> None:
    group = uuid.uuid4().hex
    code, out, err = run({"group": group})
    assert (code, out) == (12, "")
    table, message = err.splitlines()[:-1], err.splitlines()[-1]
    assert len([line for line in table if line.startswith(name)]) == 4
    assert "refused" in next(line for line in table if " 6..10 " in line)
    assert message.startswith("error: the stored offsets do not fit the live topics: topic ")
    assert message.endswith("Choose what to do with the settings gap")
    assert written(tmp_path) == []
    assert topics.cluster.committed(group) == {}


def test_files_and_the_group_get_every_live_partition(
    run: Run, name: str, topics: Topics, tmp_path: Path
) -> None:
    group, expected = uuid.uuid4().hex, {0: 3, 1: 10, 2: 6, 3: 0}
    code, out, err = run({"gap": "earliest", "group": group})
    assert code == 0, err
    assert err.splitlines()[0] == f"Kafka at {topics.bootstrap}: 2 kept, 1 moved, 1 added"
    assert err.index("continues") < err.index("written:"), "it says so before it does so"
    assert f"committed for group {group!r}: 4 partitions" in out
    start = json.loads((tmp_path / "start.json").read_text())
    assert start == {name: {str(number): offset for number, offset in expected.items()}}
    subtasks = json.loads((tmp_path / "all.json").read_text())["subtasks"]
    of = topics.elements(name, [3, 10, 6, 0])
    # The new partition joined the shorter list, which belongs to the second subtask.
    assert [subtask["offsets"] for subtask in subtasks] == [of[:2], of[2:]]
    committed = {(name, number): offset for number, offset in expected.items()}
    assert topics.cluster.committed(group) == committed
    # A second run changes nothing, and returns the previous offsets.
    code, out, _ = run({"gap": "earliest", "group": group}, "--output", "json")
    report = json.loads(out)
    assert report["commit"]["before"] == [
        {"topic": name, "partition": number, "offset": offset}
        for number, offset in expected.items()
    ]
    assert report["kafka"]["decisions"] == {"kept": 2, "moved": 1, "added": 1}
    assert [each["unread"] for each in report["kafka"]["partitions"]] == [0, 0, 4, 0]
    assert topics.cluster.committed(group) == committed


def test_a_group_with_members_is_refused_before_any_write(
    run: Run, name: str, topics: Topics, tmp_path: Path
) -> None:
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group})
    consumer.subscribe([name])
    until(lambda: consumer.poll(0.05) is None and consumer.assignment())
    code, out, err = run({"gap": "earliest", "group": group})
    assert (code, out, written(tmp_path)) == (11, "", [])
    assert f"error: group {group!r} has 1 live member" in err
    consumer.close()
    assert run({"gap": "earliest", "group": group})[0] == 0


def test_additional_topics_are_read(run: Run, name: str, topics: Topics) -> None:
    other = topics.make(2, 3)
    code, out, _ = run({"gap": "earliest", "topics": [other]}, "--output", "json")
    assert code == 0
    offsets = [each for subtask in json.loads(out)["subtasks"] for each in subtask["offsets"]]
    assert sorted(offset["topic"] for offset in offsets) == sorted([name] * 4 + [other] * 2)
    assert "commit" not in json.loads(out)


def test_a_removed_topic_is_retired_line_by_line(run: Run, name: str, topics: Topics) -> None:
    topics.delete(name)
    code, out, _ = run({"removed_partitions": "retire"}, "--dry-run")
    assert code == 0
    gone = [line for line in out.splitlines() if line.endswith("the partition no longer exists")]
    assert ["retired" in line for line in gone] == [True, True, True]


def test_missing_topics_and_brokers(run: Run, name: str) -> None:
    code, out, err = run({"topics": ["no-such-topic"]})
    assert (code, out) == (10, "")
    assert "has no topic 'no-such-topic', which the setting kafka.topics names" in err
    port = free_ports(1)[0]
    settings = ("kafka.seconds=0.5", f"kafka.bootstrap='127.0.0.1:{port}'")
    code, out, err = run({}, *(word for setting in settings for word in ("--set", setting)))
    assert (code, out, err.count("\n")) == (15, "", 1)
    assert f"error: Kafka at 127.0.0.1:{port} did not list the offsets of the topics" in err
