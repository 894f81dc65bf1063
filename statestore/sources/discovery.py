"""Stored offsets against what a source has now: which are kept, moved, given up or refused.

A checkpoint may be older than its topics: since it was taken, partitions may have come and gone, a
topic may have been made anew under its old name, records may have been deleted by retention, or the
end of a log may have gone back. :func:`reconcile` says for every partition, stored or live, what
becomes of it, and why. What it does is stated by :class:`Policies`. Nothing happens in silence: a
stored offset is kept, moved or retired, each with its reason, or all of them are refused.

Pure functions of what is stored and what is live; :mod:`statestore.sources.kafka` asks a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal, get_args, get_type_hints

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.sources.offsets import SourceOffset, source_offset, source_offsets

__all__ = [
    "Case",
    "Decision",
    "Finding",
    "LiveRange",
    "LiveTopic",
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
    """What a partition holds now: ``low`` is its first offset, ``high`` the next to be written.

    Raises :class:`InvalidArgumentError` unless 0 <= low <= high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if not 0 <= self.low <= self.high:
            raise InvalidArgumentError(f"a partition holds {self.low}..{self.high}: not a range")


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as it is now: its id (None when the broker gives none), and its partitions."""

    name: str
    id: str | None
    partitions: Mapping[int, LiveRange]


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What to do where stored offsets and live topics do not fit; ``fail`` refuses all of it.

    new_partitions      A live partition without a stored offset: read it from its ``earliest``
                        record, as Flink does with partitions that it discovers, so that none is
                        missed; or from its ``latest`` end.
    removed_partitions  A stored partition, or its whole topic, is no longer there: ``retire`` the
                        offset; what was not read yet is lost.
    recreated_topics    A topic has another id than was stored with the offset, so it is another log
                        under the same name and the offset means nothing in it: ``earliest`` or
                        ``latest`` of the new one. Known only where the offset has a ``topic_id``.
    gap                 A stored offset lies before the first record (retention deleted what was to
                        be read): go on at the ``earliest``; the report counts the lost records.
    rewind              A stored offset lies beyond the end (an unclean leader election, a topic
                        made anew that is not known to be): go on at the ``latest`` end, or read all
                        again from the ``earliest`` record.

    A recreated topic is not looked at for gaps and rewinds. Raises
    :class:`InvalidArgumentError` for another word than these.
    """

    new_partitions: NewPolicy = "earliest"
    removed_partitions: RemovedPolicy = "fail"
    recreated_topics: RecreatedPolicy = "fail"
    gap: GapPolicy = "fail"
    rewind: RewindPolicy = "fail"

    def __post_init__(self) -> None:
        """Refuse words that are no policy."""
        hints = get_type_hints(Policies)
        for field in fields(Policies):  # and not those of a subclass
            words, given = get_args(hints[field.name]), getattr(self, field.name)
            if given not in words:
                raise InvalidArgumentError(
                    f"{field.name} is one of {', '.join(words)}, not {given!r}"
                )


class Case(StrEnum):
    """What was found of a partition. All but the first two fall under a policy."""

    IN_RANGE = "in range"
    IDLE = "idle"
    NEW = "new"
    REMOVED = "removed"
    RECREATED = "recreated"
    GAP = "gap"
    REWIND = "rewind"


_POLICY_OF = {
    Case.NEW: "new_partitions",
    Case.REMOVED: "removed_partitions",
    Case.RECREATED: "recreated_topics",
    Case.GAP: "gap",
    Case.REWIND: "rewind",
}


class Decision(StrEnum):
    """What becomes of a partition."""

    KEPT = "kept"
    MOVED = "moved"
    ADDED = "added"
    RETIRED = "retired"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One partition: what was stored and what is live, and what becomes of it.

    ``live`` is None where there is no such partition any more, ``topic_id`` the live topic's.
    ``offset`` is the next one to read, None when it is retired or refused.
    """

    topic: str
    partition: int
    stored: SourceOffset | None
    live: LiveRange | None
    case: Case
    decision: Decision
    offset: int | None = None
    topic_id: str | None = None

    @property
    def unread(self) -> int:
        """How many records are left out, where that is known.

        Those of a gap, which are deleted; and those before the end, where a new partition or a
        topic made anew is read from its ``latest`` end.
        """
        if self.live is None:
            return 0
        if self.case is Case.GAP and self.stored is not None:
            return self.live.low - self.stored.offset
        started = self.case in (Case.NEW, Case.RECREATED) and self.offset is not None
        return self.offset - self.live.low if started and self.offset is not None else 0

    @property
    def reason(self) -> str:
        """Why, as a line of a report says it, with the number of records where it is known."""
        skipped = f"; {_records(self.unread)} not read" if self.unread else ""
        match self.case:
            case Case.IN_RANGE:
                return "goes on"
            case Case.IDLE:
                return "idle: nothing new to read"
            case Case.NEW:
                return f"no offset is stored{skipped}"
            case Case.REMOVED:
                return "it does not exist any more"
            case Case.RECREATED:
                old = None if self.stored is None else self.stored.topic_id
                return f"the topic was made anew: id {self.topic_id}, not {old}{skipped}"
            case Case.GAP:
                return f"{_records(self.unread)} deleted before they were read"
            case _:
                return self._rewound()

    def _rewound(self) -> str:
        at, live = (self.stored.offset if self.stored else 0), self.live or LiveRange(0, 0)
        again = live.high - live.low if self.offset == live.low else 0
        told = f"{at - live.high} beyond the end"
        return f"{told}; {_records(again)} read again" if again else told


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What becomes of every partition, stored or live, by topic and partition."""

    report: tuple[Finding, ...]

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Those that a policy refuses."""
        return tuple(each for each in self.report if each.decision is Decision.REFUSED)

    @property
    def offsets(self) -> tuple[SourceOffset, ...]:
        """The offsets to go on with, with the ids of the live topics.

        Raises :class:`IncompatibleStateError` if any is refused, naming them (of many the first),
        and the policies that would not.
        """
        if self.refused:
            told = "; ".join(
                f"topic {each.topic!r} partition {each.partition}: {each.reason}"
                for each in self.refused[:_NAMED]
            )
            if len(self.refused) > _NAMED:
                told = f"{told}; and {len(self.refused) - _NAMED} more"
            policies = sorted({_POLICY_OF[each.case] for each in self.refused})
            raise IncompatibleStateError(
                f"the stored offsets do not fit the live topics: {told}. "
                f"Choose what to do with {', '.join(policies)}"
            )
        return tuple(
            SourceOffset(each.topic, each.partition, each.offset, each.topic_id)
            for each in self.report
            if each.offset is not None
        )

    def per_old_subtask(
        self, old: Sequence[Sequence[object] | None]
    ) -> list[list[SourceOffset] | None]:
        """The old subtasks' lists with these offsets in them, to be redistributed.

        An offset stays where it was reported (first, if several did), so that split state is dealt
        as if nothing had happened. A new partition goes to the shortest list, the first of several.
        Old subtasks without state (None) get none, unless none has any. Raises as :attr:`offsets`.
        """
        left = {(each.topic, each.partition): each for each in self.offsets}
        lists: list[list[SourceOffset] | None] = [
            None if elements is None else list(_taken(elements, left)) for elements in old
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
    """Return what becomes of every stored offset, and of every partition of the live topics.

    ``stored`` are elements or offsets as :func:`~statestore.sources.offsets.source_offset` takes
    them; ``live`` has the topics that exist, by name: also those to be read from now on of which
    nothing is stored. An offset in ``low..high`` is kept, also at ``high``, where nothing is to be
    read yet (an idle partition).

    Refusals are in the report; ``.offsets`` raises them. Raises InvalidArgumentError as
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
) -> Finding:
    live = None if topic is None else topic.partitions.get(number)
    case = _case(stored, topic, live)
    policy = getattr(rules, _POLICY_OF[case]) if case in _POLICY_OF else "keep"
    if case is Case.RECREATED and live is None and policy != "fail":
        case, policy = Case.REMOVED, rules.removed_partitions  # the new one has fewer partitions
    decision, offset = _decision(case, policy, stored, live)
    return Finding(
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


def _taken(
    elements: Iterable[object], left: dict[tuple[str, int], SourceOffset]
) -> Iterator[SourceOffset]:
    """The reconciled offsets of a list's partitions, each once; takes them out of ``left``."""
    for element in elements:
        known = source_offset(element)
        found = left.pop((known.topic, known.partition), None)
        if found is not None:
            yield found
