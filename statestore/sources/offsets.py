"""Kafka offsets as operator state: topic, partition, and the offset to read next.

Pure functions that convert between operator state and a source's start positions. Offsets are
stored in one of two ways:

split   :mod:`statestore.jobgraph.redistribution` deals each old subtask's list.
union   Every subtask gets every offset and keeps its own partitions. They are assigned as in
        Flink's ``KafkaTopicPartitionAssigner``: a topic's partitions are assigned round robin to
        the subtasks, starting at a subtask that the topic's hash selects.

The assignment depends only on topic, partition and parallelism. It does not depend on the order of
a list, or on which other partitions exist. So each partition is read by exactly one subtask, and no
offset is dropped because a list of live partitions was incomplete (I11). An offset that was
reported several times counts once, so repeated restores do not make the state grow.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.redistribution import RedistributionMode, redistribute
from statestore.keys.groups import check_parallelism
from statestore.keys.hashing import key_hash

_FIELDS = ("topic", "partition", "offset")
_ID = "topic_id"
_STATE = "offsets"
_MAX_PARTITION = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class SourceOffset:
    """The position in one partition of a topic: ``offset`` is the next one to read.

    Positions are ordered and compared by topic, partition and offset. ``topic_id`` is the broker's
    id of the topic, None if it was not stored. A topic that was deleted and recreated has the same
    name but another id. Raises :class:`InvalidArgumentError` for an empty topic, for a partition or
    offset that is not an integer from 0 to Kafka's limit, and for an id that is not text.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        where = f"topic {_name(self.topic)!r}"
        partition = _whole_number(self.partition, f"{where}: partition", _MAX_PARTITION)
        offset = _whole_number(self.offset, f"{where} partition {partition}: offset", _MAX_OFFSET)
        # Other libraries' columns yield their own integer types; JSON and equality need Python's
        # int.
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "offset", offset)
        if self.topic_id is not None:
            _name(self.topic_id, f"{where}: topic_id")


def source_offset(element: object) -> SourceOffset:
    """Return the offset in ``element``: a mapping or a row with topic, partition and offset.

    A row is any object with these attributes (a Spark ``Row``, a named tuple). ``topic_id`` is
    optional, and other fields are ignored. Raises :class:`InvalidArgumentError` for a missing
    field, and the errors of :class:`SourceOffset`.
    """
    if isinstance(element, SourceOffset):
        return element
    topic, partition, offset = (_field(element, name) for name in _FIELDS)
    topic_id = element.get(_ID) if isinstance(element, Mapping) else getattr(element, _ID, None)
    return SourceOffset(topic, partition, offset, topic_id)  # type: ignore[arg-type]


def source_offsets(elements: Iterable[object]) -> tuple[SourceOffset, ...]:
    """Return the offsets of many elements, each partition once, sorted by topic and partition.

    Raises :class:`InvalidArgumentError` if a partition has two different offsets or topic ids, and
    the errors of :func:`source_offset`.
    """
    return tuple(sorted(_new_offsets(elements, {})))


def changed_offsets(
    elements: Iterable[object], recorded: Iterable[object], subject: str
) -> tuple[SourceOffset, ...] | None:
    """Return the offsets of a state that is a view of another record (I17); None if they agree.

    Args:
        elements: the elements of the state.
        recorded: the offsets in the record.
        subject: the state, for messages.

    Raises InvalidArgumentError, with the subject, if no offset is left, and for the errors of
    :func:`source_offsets`.
    """
    try:
        stored, known = (
            {tuple(_field(element, name) for name in _FIELDS): element for element in each}
            for each in (elements, recorded)
        )
        if stored.keys() == known.keys():
            return None
        if not stored:
            raise InvalidArgumentError(
                "no offset is left, so it is unknown where the source continues; write the offset "
                "of each partition"
            )
        return source_offsets(stored.values())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{subject}: {error}") from error


def offset_elements(offsets: Iterable[SourceOffset]) -> tuple[dict[str, str | int], ...]:
    """Return offsets as elements to store: ``{"topic": ..., "partition": ..., "offset": ...}``.

    An element also has ``topic_id`` if it is known.
    """
    return tuple(map(_element, offsets))


def starting_offsets_json(offsets: Iterable[object]) -> str:
    """Return the offsets in the format of the option ``startingOffsets`` of Spark's Kafka source.

    The format is ``{"topic":{"0":23,"1":345}}``, sorted by topic and partition, so equal offsets
    give equal text. Spark refuses to start unless the offsets name every partition that it
    subscribes to. Raises the errors of :func:`source_offsets`.
    """
    topics: dict[str, dict[str, int]] = {}
    for each in source_offsets(offsets):
        topics.setdefault(each.topic, {})[str(each.partition)] = each.offset
    return json.dumps(topics, separators=(",", ":"))


def subtask_of_partition(topic: str, partition: int, parallelism: int) -> int:
    """Return the subtask that reads a partition, as Flink's ``KafkaTopicPartitionAssigner`` does.

    Raises :class:`InvalidArgumentError` if parallelism is not in 1..32768, or if the topic or
    partition is invalid.
    """
    known = SourceOffset(topic, partition, 0)
    return (_start_subtask(topic, check_parallelism(parallelism)) + known.partition) % parallelism


def assign_partitions(
    partitions: Iterable[tuple[str, int]], parallelism: int
) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return, for each subtask, the (topic, partition) pairs that it reads, in order.

    Each partition is assigned to exactly one subtask, regardless of the order of ``partitions`` and
    of duplicates in it. Raises the errors of :func:`subtask_of_partition`.
    """
    assigned: list[list[tuple[str, int]]] = [[] for _ in range(check_parallelism(parallelism))]
    for each in sorted({SourceOffset(topic, partition, 0) for topic, partition in partitions}):
        subtask = subtask_of_partition(each.topic, each.partition, parallelism)
        assigned[subtask].append((each.topic, each.partition))
    return tuple(map(tuple, assigned))


def per_subtask_offsets(
    old: Sequence[Sequence[object] | None], parallelism: int, *, mode: RedistributionMode | str
) -> tuple[tuple[SourceOffset, ...], ...]:
    """Return, for each new subtask, the offsets that it starts from; each partition once (I11).

    ``old`` contains, for each old subtask, its elements or None. With split state a new subtask
    gets its block in stored order. With union state it gets its assigned partitions, sorted. If
    several old subtasks reported the same offset of a partition, the first report counts.

    Raises :class:`InvalidArgumentError` for broadcast state, because every subtask would read every
    partition. Also raises the errors of :func:`source_offsets` and of
    :func:`~statestore.jobgraph.redistribution.redistribute`.
    """
    mode = RedistributionMode(mode)
    if mode is RedistributionMode.BROADCAST:
        raise InvalidArgumentError(
            "offsets cannot be broadcast, because then every subtask would read every "
            "partition; use 'split' or 'union'"
        )
    dealt = redistribute(_drop_repeated(old, mode), parallelism)
    if mode is RedistributionMode.SPLIT:
        return tuple(states.get(_STATE, ()) for states in dealt)
    assigned: list[list[SourceOffset]] = [[] for _ in dealt]
    # Every subtask got the same list: filtering it once saves parallelism x partitions steps.
    for each in sorted(dealt[0].get(_STATE, ())):
        assigned[subtask_of_partition(each.topic, each.partition, parallelism)].append(each)
    return tuple(map(tuple, assigned))


def _drop_repeated(
    old: Sequence[Sequence[object] | None], mode: RedistributionMode
) -> list[dict[str, tuple[RedistributionMode, list[SourceOffset]]] | None]:
    """Return the operator state with only the first report of each partition."""
    offsets: dict[tuple[str, int], SourceOffset] = {}
    return [
        None if elements is None else {_STATE: (mode, list(_new_offsets(elements, offsets)))}
        for elements in old
    ]


def _new_offsets(
    elements: Iterable[object], offsets: dict[tuple[str, int], SourceOffset]
) -> Iterator[SourceOffset]:
    """Yield the offsets of partitions that are not yet in ``offsets``, and add them to it."""
    for element in elements:
        new = source_offset(element)
        known = offsets.get((new.topic, new.partition))
        if known is None:
            offsets[new.topic, new.partition] = new
            yield new
        elif known != new:
            raise InvalidArgumentError(
                f"topic {new.topic!r} partition {new.partition} has two offsets, "
                f"{known.offset} and {new.offset}: only one subtask may report a partition"
            )
        elif known.topic_id != new.topic_id:
            raise InvalidArgumentError(
                f"topic {new.topic!r} partition {new.partition} has two topic ids, "
                f"{known.topic_id} and {new.topic_id}: only one subtask may report a partition"
            )


@lru_cache(maxsize=4096)
def _start_subtask(topic: str, parallelism: int) -> int:
    """Return the subtask of a topic's partition 0."""
    code = key_hash(topic, key_type="string", hash_scheme="java")
    return (code * 31 & 0x7FFFFFFF) % parallelism


def _element(offset: SourceOffset) -> dict[str, str | int]:
    element: dict[str, str | int] = dict(
        zip(_FIELDS, (offset.topic, offset.partition, offset.offset), strict=True)
    )
    return element if offset.topic_id is None else element | {_ID: offset.topic_id}


def _field(element: object, name: str) -> object:
    """Return one field of a mapping, or of a row with attributes."""
    if isinstance(element, Mapping) and name in element:
        return element[name]
    # A string has a method "partition": a callable attribute is not a field.
    value = getattr(element, name, _field)
    if isinstance(element, Mapping) or callable(value):
        raise InvalidArgumentError(
            f"an offset requires the field {name!r}, which {element!r} lacks"
        )
    return value


def _name(name: object, label: str = "a topic") -> str:
    if isinstance(name, str) and name:
        return name
    raise InvalidArgumentError(f"{label} must be a non-empty string, not {name!r}")


def _whole_number(value: object, label: str, most: int) -> int:
    """Return ``value`` as an int in 0..``most``; booleans are refused."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= most:
        raise InvalidArgumentError(f"{label} must be an integer in 0..{most}, not {value!r}")
    return number
