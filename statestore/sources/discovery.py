"""Compare stored offsets with a source's live partitions: keep, move, retire or refuse each.

A checkpoint may be older than its topics. Meanwhile, partitions may have been added or removed, or
a topic deleted and recreated under the same name. Retention may have deleted records, and the end
of a log may have moved back. :func:`reconcile` decides what happens to every stored or live
partition, and gives the reason. :class:`Policies` configures the decisions. No change is silent:
each stored offset is kept, moved or retired with a reason, or all of them are refused.

These are pure functions of the stored and the live offsets. :mod:`statestore.sources.kafka` asks a
broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.sources.mirror_translation import Translation
from statestore.sources.offsets import SourceOffset, source_offset, source_offsets

__all__ = [
    "Case",
    "Decision",
    "LiveRange",
    "LiveTopic",
    "PartitionFinding",
    "Policies",
    "Reconciled",
    "reconcile",
]

NewPolicy = Literal["earliest", "latest", "fail"]
RemovedPolicy = Literal["fail", "retire"]
RecreatedPolicy = Literal["fail", "earliest", "latest"]
GapPolicy = Literal["fail", "earliest"]
RewindPolicy = Literal["fail", "latest", "earliest"]

_NAMED = 20


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The offsets of a partition now: ``low`` is the first one, ``high`` is the next to be written.

    Raises :class:`InvalidArgumentError` unless 0 <= low <= high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse an invalid range."""
        if not 0 <= self.low <= self.high:
            raise InvalidArgumentError(f"a partition has the invalid range {self.low}..{self.high}")


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic now: its name, its id (None if the broker gives none), and its partitions."""

    name: str
    id: str | None
    partitions: Mapping[int, LiveRange]


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The reactions to stored offsets that do not match the live topics; ``fail`` refuses all.

    new_partitions      A live partition has no stored offset. Read it from its ``earliest``
                        record, as Flink does with discovered partitions, so that no record is
                        missed; or from its ``latest`` end.
    removed_partitions  A stored partition or its whole topic no longer exists. ``retire`` drops
                        the offset; unread records are lost.
    recreated_topics    A topic's id differs from the id stored with the offset. It is another log
                        with the same name, so the offset is meaningless. Read the new log from
                        its ``earliest`` or ``latest`` offset. This is detected only if the offset
                        has a ``topic_id``.
    gap                 A stored offset is before the first record, because retention deleted
                        unread records. Continue at the ``earliest`` record. The report counts the
                        lost ones.
    rewind              A stored offset is beyond the end (an unclean leader election, or a
                        recreated topic that was not detected). Continue at the ``latest`` end, or
                        read everything again from the ``earliest`` record.

    A recreated topic is not checked for gaps and rewinds. Raises :class:`InvalidArgumentError` for
    any other value.
    """

    new_partitions: NewPolicy = "earliest"
    removed_partitions: RemovedPolicy = "fail"
    recreated_topics: RecreatedPolicy = "fail"
    gap: GapPolicy = "fail"
    rewind: RewindPolicy = "fail"

    def __post_init__(self) -> None:
        """Refuse unknown policy values."""
        check_words(self)


def check_words(options: object) -> None:
    """Raise InvalidArgumentError for a field that is not one of the words of its type."""
    for name, annotation in get_type_hints(type(options)).items():
        words = get_args(annotation) if get_origin(annotation) is Literal else ()
        if words and getattr(options, name) not in words:
            raise InvalidArgumentError(
                f"{name} must be one of {', '.join(words)}, not {getattr(options, name)!r}"
            )


class Case(StrEnum):
    """The state of a partition. A policy applies to all but the first two.

    The last two are only for offsets that were translated from another cluster.
    """

    IN_RANGE = "in range"
    IDLE = "idle"
    NEW = "new"
    REMOVED = "removed"
    RECREATED = "recreated"
    GAP = "gap"
    REWIND = "rewind"
    EARLIER = "earlier"
    UNTRANSLATED = "untranslated"


_POLICY_OF = {
    Case.NEW: "new_partitions",
    Case.REMOVED: "removed_partitions",
    Case.RECREATED: "recreated_topics",
    Case.GAP: "gap",
    Case.REWIND: "rewind",
    Case.EARLIER: "read_again",
    Case.UNTRANSLATED: "untranslated",
}


class Decision(StrEnum):
    """The decision about a partition."""

    KEPT = "kept"
    TRANSLATED = "translated"
    MOVED = "moved"
    ADDED = "added"
    RETIRED = "retired"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFinding:
    """One partition: its stored and live state, and the decision about it.

    ``live`` is None if the partition no longer exists. ``topic_id`` is the live topic's id.
    ``offset`` is the next offset to read, or None if the partition is retired or refused. With a
    ``translation``, the finding is about the target cluster, and ``stored`` is the translated
    offset.
    """

    topic: str
    partition: int
    stored: SourceOffset | None
    live: LiveRange | None
    case: Case
    decision: Decision
    offset: int | None = None
    topic_id: str | None = None
    translation: Translation | None = None
    json_properties: ClassVar[tuple[str, ...]] = ("unread", "reason")

    @property
    def unread(self) -> int:
        """The number of skipped records, as far as it is known.

        These are the deleted records of a gap, and the records before the end of a new partition or
        a recreated topic that is read from its ``latest`` end.
        """
        if self.live is None:
            return 0
        if self.case is Case.GAP and self.stored is not None:
            return self.live.low - self.stored.offset
        started = self.case in (Case.NEW, Case.RECREATED) and self.offset is not None
        return self.offset - self.live.low if started and self.offset is not None else 0

    @property
    def reason(self) -> str:
        """The reason as a line of a report, with the number of affected records if it is known."""
        if self.translation is None:
            return self._live_reason()
        again = self.translation.read_again
        match self.case:
            case Case.REMOVED:
                return "the partition does not exist on the target cluster"
            case Case.UNTRANSLATED:
                return self.translation.reason
            case Case.GAP if again:
                return f"at most {self._live_reason()}; {self.translation.reason}"
            case Case.GAP | Case.REWIND:
                return f"{self._live_reason()}; {self.translation.reason}"
            case _ if again:
                return f"at most {_records(again)} read again; {self.translation.reason}"
            case _:
                return self.translation.reason

    def _live_reason(self) -> str:
        skipped = f"; {_records(self.unread)} not read" if self.unread else ""
        match self.case:
            case Case.IN_RANGE:
                return "continues"
            case Case.IDLE:
                return "idle: nothing new to read"
            case Case.NEW:
                return f"no offset is stored{skipped}"
            case Case.REMOVED:
                return "the partition no longer exists"
            case Case.RECREATED:
                old = None if self.stored is None else self.stored.topic_id
                return f"the topic was recreated: its id is {self.topic_id}, not {old}{skipped}"
            case Case.GAP:
                return f"{_records(self.unread)} deleted before they were read"
            case _:
                return self._rewind_reason()

    def _rewind_reason(self) -> str:
        offset, live = (self.stored.offset if self.stored else 0), self.live or LiveRange(0, 0)
        again = live.high - live.low if self.offset == live.low else 0
        reason = f"the stored offset is {offset - live.high} after the end"
        return f"{reason}; {_records(again)} read again" if again else reason


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The decisions about every partition, stored or live, sorted by topic and partition."""

    report: tuple[PartitionFinding, ...]

    @property
    def refused(self) -> tuple[PartitionFinding, ...]:
        """The partitions that a policy refuses."""
        return tuple(each for each in self.report if each.decision is Decision.REFUSED)

    @property
    def offsets(self) -> tuple[SourceOffset, ...]:
        """The offsets to continue with, with the ids of the live topics.

        Raises :class:`IncompatibleStateError` if an offset is refused. The error names the
        first refused offset, and the policies that would accept it.
        """
        if self.refused:
            reasons = "; ".join(
                f"topic {each.topic!r} partition {each.partition}: {each.reason}"
                for each in self.refused[:_NAMED]
            )
            if len(self.refused) > _NAMED:
                reasons = f"{reasons}; and {len(self.refused) - _NAMED} more"
            policies = sorted({_POLICY_OF[each.case] for each in self.refused})
            raise IncompatibleStateError(
                f"the stored offsets do not fit the live topics: {reasons}. Choose what to do "
                f"with the settings {', '.join(policies)}"
            )
        return tuple(
            SourceOffset(each.topic, each.partition, each.offset, each.topic_id)
            for each in self.report
            if each.offset is not None
        )

    def per_old_subtask(
        self, old: Sequence[Sequence[object] | None]
    ) -> list[list[SourceOffset] | None]:
        """Return the old subtasks' lists with these offsets in them, ready for redistribution.

        An offset stays in the list that reported it (the first one, if there were several), so that
        split state is redistributed as if no offset had changed. A new partition is appended to the
        shortest list, the first one of equal length. Old subtasks without state (None) get no
        offsets, unless no subtask has state. Raises the errors of :attr:`offsets`.
        """
        left = {(offset.topic, offset.partition): offset for offset in self.offsets}
        lists: list[list[SourceOffset] | None] = [
            None if elements is None else list(_take_offsets(elements, left)) for elements in old
        ]
        open_lists = [mine for mine in lists if mine is not None]
        if left and not open_lists:
            lists[:1] = [[]]
            open_lists = [mine for mine in lists if mine is not None]
        for each in left.values():
            min(open_lists, key=len).append(each)
        return lists


def reconcile(
    stored: Iterable[object], live: Mapping[str, LiveTopic], policies: Policies | None = None
) -> Reconciled:
    """Return the decision about every stored offset and every partition of the live topics.

    ``stored`` are elements or offsets in the form that
    :func:`~statestore.sources.offsets.source_offset` accepts. ``live`` contains the existing topics
    by name, including new topics without a stored offset. An offset in
    ``low..high`` is kept. An offset equal to ``high`` is kept too: the partition is idle.

    Refusals are in the report; reading ``.offsets`` raises them. Raises InvalidArgumentError as
    :func:`~statestore.sources.offsets.source_offsets` does.
    """
    rules = policies or Policies()
    known = {(each.topic, each.partition): each for each in source_offsets(stored)}
    partitions = {(topic.name, number) for topic in live.values() for number in topic.partitions}
    return Reconciled(
        tuple(
            _finding(topic, number, known.get((topic, number)), live.get(topic), rules)
            for topic, number in sorted(known.keys() | partitions)
        )
    )


def _finding(
    name: str, number: int, stored: SourceOffset | None, topic: LiveTopic | None, rules: Policies
) -> PartitionFinding:
    live = None if topic is None else topic.partitions.get(number)
    case = _case(stored, topic, live)
    policy = getattr(rules, _POLICY_OF[case]) if case in _POLICY_OF else "keep"
    if case is Case.RECREATED and live is None and policy != "fail":
        case, policy = Case.REMOVED, rules.removed_partitions  # the new topic has fewer partitions
    decision, offset = _decision(case, policy, stored, live)
    return PartitionFinding(
        topic=name,
        partition=number,
        stored=stored,
        live=live,
        case=case,
        decision=decision,
        offset=offset,
        topic_id=None if topic is None else topic.id,
    )


def _case(stored: SourceOffset | None, topic: LiveTopic | None, live: LiveRange | None) -> Case:
    if stored is None:
        return Case.NEW
    if (
        topic is not None
        and None not in (topic.id, stored.topic_id)
        and topic.id != stored.topic_id
    ):
        return Case.RECREATED
    if live is None:
        return Case.REMOVED
    if stored.offset < live.low:
        return Case.GAP
    if stored.offset > live.high:
        return Case.REWIND
    return Case.IDLE if stored.offset == live.high else Case.IN_RANGE


def _decision(
    case: Case, policy: str, stored: SourceOffset | None, live: LiveRange | None
) -> tuple[Decision, int | None]:
    if policy == "fail":
        return Decision.REFUSED, None
    if live is None:
        return Decision.RETIRED, None
    if policy == "keep" and stored is not None:
        return Decision.KEPT, stored.offset
    where = live.low if policy == "earliest" else live.high
    return Decision.ADDED if case is Case.NEW else Decision.MOVED, where


def _records(number: int) -> str:
    return f"{number:,} record{'' if number == 1 else 's'}"


def _take_offsets(
    elements: Iterable[object], left: dict[tuple[str, int], SourceOffset]
) -> Iterator[SourceOffset]:
    """Yield the reconciled offsets of a list's partitions, once each; remove them from ``left``."""
    for element in elements:
        known = source_offset(element)
        finding = left.pop((known.topic, known.partition), None)
        if finding is not None:
            yield finding
