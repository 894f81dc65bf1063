"""What Kafka-shaped offsets mean: topic, partition, and the offset to read next.

Pure functions between operator state and a source's start positions. Two ways to store offsets:

split   Each old subtask's list is dealt by :mod:`statestore.flink.redistribution`.
union   Every subtask gets every offset and keeps the partitions that are assigned to it, as Flink's
        ``KafkaTopicPartitionAssigner`` does: a topic's partitions go round robin over the
        subtasks, from a start that the topic's hash picks.

The assignment depends on topic, partition and parallelism only: not on the order of a list, nor on
which other partitions exist. So a partition is never read twice or by nobody, and an offset is
never dropped because a list of live partitions was incomplete (I11). An offset reported several
times counts once, so that restoring and reporting again does not make the state grow.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from statestore.errors import InvalidArgumentError
from statestore.flink.redistribution import (
    RedistributionMode,
    check_parallelism,
    redistribute,
)
from statestore.keys.hashing import key_hash

__all__ = [
    "SourceOffset",
    "assign_partitions",
    "offset_elements",
    "per_subtask_offsets",
    "source_offset",
    "source_offsets",
    "starting_offsets_json",
    "subtask_of_partition",
]

_FIELDS = ("topic", "partition", "offset")
_ID = "topic_id"
_STATE = "offsets"
_MAX_PARTITION = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class SourceOffset:
    """Where to go on reading one partition of a topic: ``offset`` is the next one to read.

    Ordered by topic, partition and offset, and equal when these are. ``topic_id`` is the id that
    the broker gave to the topic, None when it was not stored: a topic that was deleted and made
    anew has the same name and another id. Raises :class:`InvalidArgumentError` for an empty topic,
    for a partition or offset that is not an integer in Kafka's bounds, 0 upwards, and for an id
    that is no text.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        where = f"topic {_name(self.topic)!r}"
        partition = _whole(self.partition, f"{where}: partition", _MAX_PARTITION)
        offset = _whole(self.offset, f"{where} partition {partition}: offset", _MAX_OFFSET)
        # Columns of other libraries yield their own integers; JSON and equality want Python's.
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "offset", offset)
        if self.topic_id is not None:
            _name(self.topic_id, f"{where}: topic_id")


def source_offset(element: object) -> SourceOffset:
    """The offset that ``element`` holds: a mapping or a row with topic, partition and offset.

    A row is anything with attributes of these names (a Spark ``Row``, a named tuple); ``topic_id``
    may be there as well; other fields are ignored. Raises :class:`InvalidArgumentError` for a
    missing field and what :class:`SourceOffset` refuses.
    """
    if isinstance(element, SourceOffset):
        return element
    topic, partition, offset = (_field(element, name) for name in _FIELDS)
    topic_id = element.get(_ID) if isinstance(element, Mapping) else getattr(element, _ID, None)
    return SourceOffset(topic, partition, offset, topic_id)  # type: ignore[arg-type]


def source_offsets(elements: Iterable[object]) -> tuple[SourceOffset, ...]:
    """The offsets of many elements, each partition once, by topic and partition.

    Raises :class:`InvalidArgumentError` if one partition has two different offsets or topic ids,
    and what :func:`source_offset` does.
    """
    return tuple(sorted(_new_ones(elements, {})))


def offset_elements(offsets: Iterable[SourceOffset]) -> tuple[dict[str, str | int], ...]:
    """The offsets as elements to store: ``{"topic": ..., "partition": ..., "offset": ...}``.

    With ``topic_id`` as well where it is known.
    """
    return tuple(map(_element, offsets))


def starting_offsets_json(offsets: Iterable[object]) -> str:
    """The offsets as Spark's Kafka source takes them in its option ``startingOffsets``.

    ``{"topic":{"0":23,"1":345}}``, topics by name and partitions by number, so equal offsets give
    equal text. Spark refuses to start unless every partition that it subscribes to is named.
    Raises what :func:`source_offsets` does.
    """
    topics: dict[str, dict[str, int]] = {}
    for each in source_offsets(offsets):
        topics.setdefault(each.topic, {})[str(each.partition)] = each.offset
    return json.dumps(topics, separators=(",", ":"))


def subtask_of_partition(topic: str, partition: int, parallelism: int) -> int:
    """The subtask that reads a partition, as Flink's ``KafkaTopicPartitionAssigner`` says.

    Raises :class:`InvalidArgumentError` if parallelism is not in 1..32768, and
    for what is not a topic or a partition.
    """
    known = SourceOffset(topic, partition, 0)
    return (_start_subtask(topic, check_parallelism(parallelism)) + known.partition) % parallelism


def assign_partitions(
    partitions: Iterable[tuple[str, int]], parallelism: int
) -> tuple[tuple[tuple[str, int], ...], ...]:
    """For each subtask the (topic, partition) pairs that it reads, in order.

    Each partition is in exactly one subtask, whatever the order of ``partitions`` and however often
    one is listed. Raises what :func:`subtask_of_partition` does.
    """
    assigned: list[list[tuple[str, int]]] = [[] for _ in range(check_parallelism(parallelism))]
    for each in sorted({SourceOffset(topic, partition, 0) for topic, partition in partitions}):
        subtask = subtask_of_partition(each.topic, each.partition, parallelism)
        assigned[subtask].append((each.topic, each.partition))
    return tuple(map(tuple, assigned))


def per_subtask_offsets(
    old: Sequence[Sequence[object] | None], parallelism: int, *, mode: RedistributionMode | str
) -> tuple[tuple[SourceOffset, ...], ...]:
    """For each new subtask the offsets that it starts from; every partition in exactly one (I11).

    ``old`` holds for each old subtask None or its elements. With split state the new subtask's
    block, in stored order; with union state the partitions assigned to it, sorted. A partition that
    several old subtasks reported with the same offset counts where it was reported first.

    Raises :class:`InvalidArgumentError` for broadcast (each partition would be read by every
    subtask) and what :func:`source_offsets` does, and errors as
    :func:`~statestore.flink.redistribution.redistribute` does.
    """
    mode = RedistributionMode(mode)
    if mode is RedistributionMode.BROADCAST:
        raise InvalidArgumentError(
            "offsets cannot be broadcast: every subtask would read every partition; "
            "use 'split' or 'union'"
        )
    dealt = redistribute(_reported_once(old, mode), parallelism)
    if mode is RedistributionMode.SPLIT:
        return tuple(states.get(_STATE, ()) for states in dealt)
    assigned: list[list[SourceOffset]] = [[] for _ in dealt]
    # Every subtask got the same list: filtering it once for all spares parallelism x partitions.
    for each in sorted(dealt[0].get(_STATE, ())):
        assigned[subtask_of_partition(each.topic, each.partition, parallelism)].append(each)
    return tuple(map(tuple, assigned))


def _reported_once(
    old: Sequence[Sequence[object] | None], mode: RedistributionMode
) -> list[dict[str, tuple[RedistributionMode, list[SourceOffset]]] | None]:
    """The operator state with only the first report of each partition left in it."""
    found: dict[tuple[str, int], SourceOffset] = {}
    return [
        None if elements is None else {_STATE: (mode, list(_new_ones(elements, found)))}
        for elements in old
    ]


def _new_ones(
    elements: Iterable[object], found: dict[tuple[str, int], SourceOffset]
) -> Iterator[SourceOffset]:
    """The offsets of partitions that are not in ``found`` yet, in order; adds them to it."""
    for element in elements:
        new = source_offset(element)
        known = found.get((new.topic, new.partition))
        if known is None:
            found[new.topic, new.partition] = new
            yield new
        elif known != new:
            raise InvalidArgumentError(
                f"topic {new.topic!r} partition {new.partition} has two offsets, {known.offset} "
                f"and {new.offset}: each partition is to be reported by one subtask"
            )
        elif known.topic_id != new.topic_id:
            raise InvalidArgumentError(
                f"topic {new.topic!r} partition {new.partition} has two topic ids, "
                f"{known.topic_id} and {new.topic_id}: each is to be reported by one subtask"
            )


@lru_cache(maxsize=4096)
def _start_subtask(topic: str, parallelism: int) -> int:
    """The subtask of a topic's partition 0."""
    code = key_hash(topic, key_type="string", hash_scheme="java")
    return (code * 31 & 0x7FFFFFFF) % parallelism


def _element(offset: SourceOffset) -> dict[str, str | int]:
    element: dict[str, str | int] = dict(zip(_FIELDS, _place(offset), strict=True))
    return element if offset.topic_id is None else element | {_ID: offset.topic_id}


def _place(offset: SourceOffset) -> tuple[str, int, int]:
    return offset.topic, offset.partition, offset.offset


def _field(element: object, name: str) -> object:
    """One field of a mapping or of a row with attributes."""
    if isinstance(element, Mapping) and name in element:
        return element[name]
    # A string has an attribute "partition": only what is not callable is a field.
    value = getattr(element, name, _field)
    if isinstance(element, Mapping) or callable(value):
        raise InvalidArgumentError(f"an offset needs the field {name!r}: {element!r} has none")
    return value


def _name(name: object, what: str = "a topic") -> str:
    if isinstance(name, str) and name:
        return name
    raise InvalidArgumentError(f"{what} is a non-empty string, not {name!r}")


def _whole(value: object, what: str, most: int) -> int:
    """``value`` as Python's integer in 0..``most``; a boolean is not one."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= most:
        raise InvalidArgumentError(f"{what} must be an integer in 0..{most}, not {value!r}")
    return number
