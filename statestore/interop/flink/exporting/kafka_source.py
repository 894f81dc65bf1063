"""Offsets of a table as the state of Flink's ``KafkaSource``.

The readers keep a split for each partition, with the offset of the next record. The coordinator
keeps the partitions that are assigned to readers. Without that, it would assign all partitions
again, from the offsets of the job's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.state import OperatorState
from statestore.interop.flink.columns.store_types import Part
from statestore.interop.flink.exporting.export_types import OperatorStatePlan
from statestore.interop.flink.importing.import_record import ImportedOperator
from statestore.interop.flink.metadata.java_binary import Reader, i32, utf
from statestore.interop.flink.read.operator_state import KafkaSplit, kafka_split_bytes, kafka_splits
from statestore.interop.flink.types.java_types import Scalar
from statestore.rows.column_types import arrow_schema
from statestore.sources.offsets import changed_offsets

KAFKA_SOURCE = "KafkaSource"
"""The declared type of a state with a source's offsets."""

_COLUMNS = {"topic": (pa.string(),), "partition": (pa.int32(), pa.int64()), "offset": (pa.int64(),)}
_TYPES = {"topic": "string", "partition": "integer or long", "offset": "long"}
_NO_STOP = -(1 << 63)
_COORDINATOR_VERSION, _ENUMERATOR_VERSION = 1, 1
"""Later versions of the enumerator also have splits that no reader has, which a table cannot say.
Every connector reads this version as a list of partitions that are assigned."""
_WITH_SPLITS, _ASSIGNED = 3, 0

Elements = list[dict[str, Any]]


def list_misfits(state: OperatorState) -> Iterator[str]:
    """Yield a sentence for each column that the offsets of a source lack or should not have."""
    stored = arrow_schema(state.schema)
    for name, fitting in _COLUMNS.items():
        if name not in stored.names:
            yield f"the column {name!r} ({_TYPES[name]}) of {KAFKA_SOURCE} is missing"
        elif stored.field(name).type not in fitting:
            yield (
                f"the column {name!r} is {state.schema.type_of(name)}, but {KAFKA_SOURCE} has "
                f"{_TYPES[name]}"
            )
    for name in stored.names:
        if name not in _COLUMNS:
            yield f"the column {name!r} is not part of {KAFKA_SOURCE}: {', '.join(_COLUMNS)}"


def split_column(stored: Mapping[str, pa.DataType], subject: str) -> Part:
    """Return columns of offsets as the bytes of a source's splits.

    ``subject`` is the state in messages.
    """
    struct = pa.struct([pa.field(*column) for column in stored.items()])

    def to_flink(array: pa.Array) -> pa.Array:
        _refuse_wrong(array, subject)
        splits = (
            KafkaSplit(row["topic"], row["partition"], row["offset"], _NO_STOP)
            for row in array.to_pylist()
        )
        return pa.array([kafka_split_bytes(split) for split in splits], pa.binary())

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        rows = [
            {"topic": split.topic, "partition": split.partition, "offset": split.offset}
            for split in kafka_splits(array, subject)
        ]
        return pa.array(rows, stored)

    return Part(struct, Scalar("byte[]"), to_flink, from_flink, tuple(stored), is_flat=True)


def _refuse_wrong(array: pa.Array, subject: str) -> None:
    """Raise InvalidArgumentError for a row that is not the offset of a partition."""
    for row in array.to_pylist():
        if None in row.values():
            raise InvalidArgumentError(f"{subject} has a null in the offsets: {row}")
        if row["offset"] < 0 or not 0 <= row["partition"] < 1 << 31:
            raise InvalidArgumentError(
                f"{subject} has a partition or offset that Kafka does not have: {row}. A table "
                "says at which offset each partition continues; leave out partitions that the "
                "source should find itself and read from their beginning"
            )


def coordinator_bytes(offsets: pa.Table, subject: str) -> bytes:
    """Return the state of the source's coordinator, which assigned all partitions of the offsets.

    Raises InvalidArgumentError for a partition that occurs twice.
    """
    keys = offsets.select(["topic", "partition"])
    counts = keys.group_by(["topic", "partition"]).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1)).to_pylist()
    if twice:
        raise InvalidArgumentError(
            f"{subject} has two offsets of partition {twice[0]['partition']} of topic "
            f"{twice[0]['topic']!r}: keep the one at which the source continues"
        )
    return _coordinator_of((row["topic"], row["partition"]) for row in keys.to_pylist())


def _coordinator_of(partitions: Iterable[tuple[str, int]]) -> bytes:
    entries = [utf(topic) + i32(partition) for topic, partition in partitions]
    data = b"".join([i32(len(entries)), *entries])
    return i32(_COORDINATOR_VERSION) + i32(_ENUMERATOR_VERSION) + i32(len(data)) + data


def move_splits(
    old: Sequence[Elements],
    offsets: Sequence[Elements],
    plan: OperatorStatePlan,
    source: ImportedOperator | None,
    *,
    is_changed: bool,
) -> tuple[Sequence[Elements], bytes | None]:
    """Write the offsets of an imported source, which are a view of its splits, to them (I17).

    If an offset was deleted, its split is removed, and the source finds the partition itself. A
    split without read records never had an offset. It stays unless all of its topic is removed.

    Args:
        old: the splits, by old subtask.
        offsets: the elements of the state with offsets, by old subtask.
        plan: the plan of the splits.
        source: the imported operator.
        is_changed: whether the splits themselves were changed since the import.

    Returns:
        The splits by old subtask. Also the state of the coordinator, None if it is as imported.

    Raises:
        InvalidArgumentError: for offsets that Kafka does not have, and for changes that cannot be
            written to the splits or to the coordinator.
        UnsupportedTypeError: for splits of another source.
    """
    (column,) = plan.value.names
    lists = [
        kafka_splits(pa.array([each[column] for each in elements], pa.binary()), str(plan.state))
        for elements in old
    ]
    splits = {(split.topic, split.partition): split for found in lists for split in found}
    read = {place: split for place, split in splits.items() if split.offset >= 0}
    flat = [element for elements in offsets for element in elements]
    subject = f"the offsets of {plan.state}"
    changed = changed_offsets(flat, read.values(), subject)
    if changed is None:
        return old, None
    if is_changed:
        raise InvalidArgumentError(
            f"{subject} and its splits were changed since the import, and contradict each other: "
            "write the splits as they were imported, and change the offsets only"
        )
    wanted = {(offset.topic, offset.partition): offset.offset for offset in changed}
    gone_topics = {topic for topic, _ in read} - {topic for topic, _ in wanted}
    removed = (read.keys() - wanted.keys()) | {each for each in splits if each[0] in gone_topics}
    added = wanted.keys() - splits.keys()
    moved: list[Elements] = [[] for _ in old]
    for elements, new_elements, found in zip(old, moved, lists, strict=True):
        for element, split in zip(elements, found, strict=True):
            place = (split.topic, split.partition)
            if place not in removed:
                new_split = replace(split, offset=wanted.get(place, split.offset))
                new_elements.append({**element, column: kafka_split_bytes(new_split)})
    if not (added or removed):
        return moved, None
    if added and any(split.stop != _NO_STOP for split in splits.values()):
        raise InvalidArgumentError(
            f"{subject} have partitions without a split: {_listed(added)}. It is unknown where "
            "this bounded source stops in them; delete these elements"
        )
    for number, place in enumerate(sorted(added)):
        split = KafkaSplit(*place, wanted[place], _NO_STOP)
        moved[number % len(moved)].append({column: kafka_split_bytes(split)})
    assigned = None if source is None else _assigned_partitions(source.coordinator, str(plan.state))
    if assigned is None:
        raise InvalidArgumentError(
            f"{subject} have other partitions than its splits ({_listed(added | removed)}), but "
            "the state of the source's coordinator has partitions that no reader has yet, or an "
            "unknown form. Change only the offsets of the partitions that it has, or take a "
            "savepoint after the source has assigned all partitions"
        )
    return moved, _coordinator_of(sorted((assigned - removed) | added))


def _listed(places: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"partition {number} of topic {topic!r}" for topic, number in sorted(places))


def _assigned_partitions(coordinator: bytes | None, name: str) -> set[tuple[str, int]] | None:
    """Return the partitions that a coordinator has assigned.

    None if its form is unknown, or it has other partitions or has not looked for them yet.
    """
    if coordinator is None:
        return None
    reader = Reader(coordinator, f"the coordinator of {name}")
    version, form, length = reader.i32(), reader.i32(), reader.i32()
    if version != _COORDINATOR_VERSION or form not in (1, 2, 3) or length != reader.remaining:
        return None
    partitions, statuses, count = set(), set(), reader.i32()
    if form == _WITH_SPLITS:
        reader.i32()  # the version of all splits
    for _ in range(count):
        if form == _WITH_SPLITS:
            reader.i32()  # the length of a split
        partitions.add((reader.utf(), reader.i32()))
        if form == _WITH_SPLITS:
            reader.take(16)  # the offsets at which it was assigned
        if form > 1:
            statuses.add(reader.i32())
    is_found = reader.bool() if form > 1 else True
    is_whole = not reader.remaining and is_found and statuses <= {_ASSIGNED}
    return partitions if is_whole else None
