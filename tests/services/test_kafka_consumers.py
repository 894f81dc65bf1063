"""Stop three real consumers, start five from the checkpoint, then two: each record counts once.

A checkpoint has both the records read and the next offsets. Before the consumers are killed, they
read more records that no checkpoint has. These must be read again, and count once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.redistribute_offsets import redistribute_offsets
from statestore import StateStore
from tests.services.kafka_topics import Topics
from tests.syntax import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow]

UID = "reader"
PARTITIONS, RECORDS = 7, 60
ALL = 10**9


class Group:
    """Running consumers, each started with its part of the job's assignment."""

    def __init__(self, bootstrap: str, subtasks: list[list[dict[str, Any]]]) -> None:
        command = [sys.executable, "-m", "tests.services.kafka_consumer"]
        self._processes = [
            subprocess.Popen(
                command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in subtasks
        ]
        for process, offsets in zip(self._processes, subtasks, strict=True):
            self._tell(process, {"bootstrap": bootstrap, "offsets": offsets})

    def read(self, number: int) -> list[dict[str, Any]]:
        """Read this many records with each consumer; return the responses in order of subtask."""
        for process in self._processes:
            self._tell(process, {"read": number})
        return [json.loads(process.stdout.readline()) for process in self._processes]  # type: ignore[union-attr]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _tell(self, process: subprocess.Popen[str], command: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()


class Job:
    """The job whose subtasks are the consumers: its state has the records read and the offsets."""

    def __init__(self, topics: Topics, folder: Path, mode: str) -> None:
        self.topics, self.folder, self.mode = topics, folder, mode
        self.store = StateStore.open(str(folder / "store"), table_format="parquet")
        self._seen: Counter[str] = Counter()

    def checkpoint(self, subtasks: list[dict[str, Any]]) -> None:
        """Store the offsets, and the restored counts plus the records read since then."""
        seen = sum((Counter(subtask["seen"]) for subtask in subtasks), self._seen)
        rows = [{"id": number, "times": times} for number, times in sorted(seen.items())]
        with self.store.snapshot(parallelism=len(subtasks)) as checkpoint:
            offsets = checkpoint.write_union if self.mode == "union" else checkpoint.write_split
            offsets(UID, "offsets", [subtask["offsets"] for subtask in subtasks])
            if rows:
                checkpoint.write_keyed(UID, "seen", rows, key="id", max_parallelism=16)

    def counted(self) -> Counter[str]:
        """Return how often each record counts in the newest checkpoint."""
        if not self.store.checkpoint().manifest.keyed:
            return Counter()
        rows = self.store.restore(parallelism=1).keyed(UID, "seen").to_arrow(0)
        return Counter({row["id"]: row["times"] for row in rows.to_pylist()})

    @contextmanager
    def consumers(self, parallelism: int, topic: str) -> Iterator[Group]:
        """Yield consumers that start at the job's offsets; kill them at the end."""
        assigned = self.folder / "assigned.json"
        settings = self.folder / "settings.toml"
        settings.write_text(f"""
parallelism = {parallelism}
offsets = {{ operator = "{UID}", state = "offsets" }}
files.per_subtask = "{assigned}"
kafka = {{ bootstrap = "{self.topics.bootstrap}", topics = ["{topic}"] }}
""")
        self._seen = self.counted()
        arguments = [str(settings), "--store", self.store.url]
        assert redistribute_offsets.main(arguments, standalone_mode=False) == 0
        subtasks = json.loads(assigned.read_text())["subtasks"]
        assert len(subtasks) == parallelism
        group = Group(self.topics.bootstrap, [subtask["offsets"] for subtask in subtasks])
        try:
            yield group
        finally:
            group.kill()


@pytest.mark.long_cases("split")
@pytest.mark.parametrize("mode", ["union", "split"])
def test_three_consumers_then_five_then_two(topics: Topics, tmp_path: Path, mode: str) -> None:
    topic = topics.make(PARTITIONS)
    # Partition 0 stays idle, but its offset is carried along.
    produced = {n: [f"{n}-{at}" for at in range(RECORDS)] for n in range(1, PARTITIONS)}
    topics.fill(topic, produced)
    job = Job(topics, tmp_path, mode)
    job.checkpoint([{"offsets": [], "seen": {}}] * 3)

    with job.consumers(3, topic) as three:
        job.checkpoint(three.read(30))
        assert sum(job.counted().values()) == 90
        lost = three.read(25)
        assert sum(sum(each["seen"].values()) for each in lost) == 3 * 55
    # The job continues with two more partitions and new records.
    topics.extend(topic, PARTITIONS + 2)
    later = {n: [f"{n}-{at}" for at in range(RECORDS, 2 * RECORDS)] for n in range(3, 9)}
    topics.fill(topic, later)
    with job.consumers(5, topic) as five:
        job.checkpoint(five.read(40))
        assert set(job.counted().values()) == {1}
        five.read(ALL)
    with job.consumers(2, topic) as two:
        job.checkpoint(two.read(ALL))

    ids = [text for texts in (*produced.values(), *later.values()) for text in texts]
    assert len(ids) == 720
    assert job.counted() == Counter(dict.fromkeys(ids, 1))
    live = topics.live(topic)
    assert live is not None
    stored = job.store.restore().operator_state(UID, "offsets").per_old_subtask()
    assert {each["partition"]: each["offset"] for mine in stored for each in mine} == {
        number: known.high for number, known in live.partitions.items()
    }
