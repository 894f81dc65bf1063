"""Union offsets for many readers: one read of the state's file serves all of them.

One topic has 100,000 partitions, reported by 20 old subtasks as Flink's Kafka source assigns them.
They are redistributed to 1, 20, 200 and 2,000 readers. The figures count the bytes read from the
store, and the starting offsets that each reader receives. A reader that uses ``where`` reads the
file by itself; this cost is shown too.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from bench.measure import Figure, counted, in_turn
from statestore import StateStore
from statestore.sources.offsets import (
    SourceOffset,
    assign_partitions,
    per_subtask_offsets,
    starting_offsets_json,
)
from statestore.testing.faults import CountingStorage

__all__ = ["figures"]

TARGET = "B12"
ELEMENTS, OLD_READERS = 100_000, 20
READERS = (1, 20, 200, 2_000)
TOPIC, UID, NAME = "orders", "orders-source", "offsets"
# Each reader's share is a separate document with the name of the topic.
MOST_BYTES = 1.05


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the bytes and the time for each number of readers; ``rows`` has no effect here."""
    url = str(folder / "store")
    _write(url)
    runs = {_what(readers): partial(_deal, url, readers) for readers in READERS}
    seconds = in_turn(runs, repeats)
    floor, base = _what(READERS[0]), _moved(url, READERS[0])
    found = []
    for readers in READERS:
        what, moved = _what(readers), _moved(url, readers)
        found.append(_figure(f"bytes moved, {what}", [moved], "bytes", floor, moved / base))
        middle = statistics.median(seconds[what])
        ratio = middle / statistics.median(seconds[floor])
        found.append(_figure(f"dealing, {what}", seconds[what], "s", floor, ratio))
    alone = _read_alone(url, READERS[-1])
    found.append(counted(TARGET, f"bytes that one of {READERS[-1]} reads alone", alone, "bytes"))
    return found


def _what(readers: int) -> str:
    return f"{readers:,} reader{'s' if readers > 1 else ''}"


def _write(url: str) -> None:
    partitions = [(TOPIC, number) for number in range(ELEMENTS)]
    elements = [
        [
            {"topic": topic, "partition": number, "offset": 1_000_003 * number}
            for topic, number in own
        ]
        for own in assign_partitions(partitions, OLD_READERS)
    ]
    store = StateStore.open(url, table_format="parquet")
    with store.snapshot(parallelism=OLD_READERS) as checkpoint:
        checkpoint.write_union(UID, NAME, elements)


def _deal(url: str, readers: int) -> list[str]:
    """Return the starting offsets of every reader."""
    return _dealt(StateStore.open(url), readers)


def _dealt(store: StateStore, readers: int) -> list[str]:
    state = store.restore().operator_state(UID, NAME)
    parts = per_subtask_offsets(state.per_old_subtask(), readers, mode=state.entry.state.mode)
    return [starting_offsets_json(part) for part in parts]


def _moved(url: str, readers: int) -> int:
    """Return the bytes read from the store's data and passed to the readers."""
    storage = CountingStorage(url)
    handed = _dealt(StateStore.open(storage), readers)
    assert sum(storage.opened.values()) == 1
    return storage.bytes_read + sum(len(text.encode()) for text in handed)


def _read_alone(url: str, readers: int) -> int:
    """Return the bytes that one reader reads if it requests only its own partitions."""
    storage = CountingStorage(url)
    own = assign_partitions(((TOPIC, number) for number in range(ELEMENTS)), readers)[0]
    wanted = [partition for _, partition in own]
    state = StateStore.open(storage).restore(parallelism=readers).operator_state(UID, NAME)
    elements = state.subtask(0, where={"partition": wanted})
    assert {SourceOffset(**element) for element in elements} == {
        SourceOffset(TOPIC, partition, 1_000_003 * partition) for partition in wanted
    }
    return storage.bytes_read


def _figure(what: str, values: list[float], unit: str, floor: str, ratio: float) -> Figure:
    goal = MOST_BYTES if unit == "bytes" and what != f"bytes moved, {floor}" else None
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), floor, ratio, goal)
