"""What a checkpoint cost: how long each phase took, and what was written for it.

All of it is known before the manifest is put, but the put itself: so the manifest has these figures
without ``put_ms``, and listeners have them with it. Durations are of a clock that only goes
forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from msgspec import Struct, structs

from statestore.format.documents import Count, converted

__all__ = [
    "Amount",
    "CheckpointMetrics",
    "MetricsDocument",
    "PhaseTimes",
    "StateMetrics",
    "amount_of",
    "metrics_from_json",
    "metrics_to_json",
    "share_of",
]


class _File(Protocol):
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True)
class Amount:
    """Rows and bytes in a number of data files."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.rows + other.rows, self.size_bytes + other.size_bytes, self.files + other.files
        )


def amount_of(handles: Iterable[_File]) -> Amount:
    """Return what some data files hold together."""
    files = tuple(handles)
    return Amount(sum(one.rows for one in files), sum(one.size_bytes for one in files), len(files))


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """How long each phase took, in ms; they follow one another, but for ``compaction_ms``.

    ``begin_ms``: the claim to the store, and the newest checkpoint's number. ``write_ms``: the
    states, one after another; where a state is computed as it is written, that too.
    ``compaction_ms``: compaction at the same time as the other phases, in older releases; 0 now,
    and the whole time in a checkpoint of the command ``compact``. ``wait_ms``: adopting what was
    compacted in the background, and folding overdue changes; in older releases the wait for
    compaction. ``check_ms``: that files have the sizes that were written, and that no other writer
    took over. ``publish_ms``: new versions of the tables. ``put_ms``: the put of the manifest; None
    where it is not known.
    """

    begin_ms: Count = 0
    write_ms: Count = 0
    compaction_ms: Count = 0
    wait_ms: Count = 0
    check_ms: Count = 0
    publish_ms: Count = 0
    put_ms: Count | None = None

    def items(self) -> tuple[tuple[str, int], ...]:
        """Return the phases in their order, each with its name (``begin``) and ms; without the put
        when that is not known.
        """
        known = ((one.name.removesuffix("_ms"), getattr(self, one.name)) for one in fields(self))
        return tuple((name, spent) for name, spent in known if spent is not None)

    @property
    def slowest(self) -> tuple[str, int]:
        """The phase that took longest of those that the checkpoint waited for, and its ms."""
        return max((one for one in self.items() if one[0] != "compaction"), key=lambda one: one[1])


@dataclass(frozen=True, kw_only=True)
class StateMetrics:
    """What was written of one state for this checkpoint, other than by compaction.

    ``base_rows`` are the rows of its base: of a state that was written in full, all of them; None
    for operator state, which is always written in full, and has no base. A state that was only
    named again has ``written`` of nothing. ``write_ms`` of a state that its subtasks write in
    processes of their own is the time from asking for it to the last answer.
    """

    uid: str
    name: str
    write_ms: int = 0
    written: Amount = Amount()
    base_rows: int | None = None

    @property
    def changed_share(self) -> float | None:
        """Rows written for each row of the base: 1 for a state written in full, 0 for one that was
        named again, None without a base, or with an empty one.
        """
        return share_of([self])


@dataclass(frozen=True, kw_only=True)
class CheckpointMetrics:
    """The figures of one checkpoint; ``duration_ms`` is from its beginning to its last phase here,
    with whatever the job did between the writes.

    ``compaction`` is what compaction wrote; a part of it may have been written and merged again.
    """

    duration_ms: int
    phases: PhaseTimes
    states: tuple[StateMetrics, ...] = ()
    compaction: Amount = Amount()

    @property
    def took_ms(self) -> int:
        """How long the checkpoint took, with the put of the manifest where that is known."""
        return self.duration_ms + (self.phases.put_ms or 0)

    @property
    def spent(self) -> tuple[tuple[str, int], ...]:
        """How the time was spent: each phase that the checkpoint waited for, in order, and
        ``other``, in ms.

        The parts sum to :attr:`took_ms`. Compaction is not among them: it runs in the background,
        and ``wait`` is the time for which the checkpoint waited for it. Processes write several
        states at once, so the sum of their times can be longer than the checkpoint. Here ``write``
        is at most the time that the other phases leave.
        """
        waited_for = dict(self.phases.items())
        del waited_for["compaction"]
        left = self.took_ms
        for name in sorted(waited_for, key=lambda name: name == "write"):  # writing comes last
            waited_for[name] = min(waited_for[name], left)
            left -= waited_for[name]
        return (*waited_for.items(), ("other", left))

    @property
    def written(self) -> Amount:
        """What the states have written, without compaction."""
        return sum((state.written for state in self.states), start=Amount())

    @property
    def files_written(self) -> int:
        """Data files written for this checkpoint, also by compaction; a manifest may name more,
        written for checkpoints before.
        """
        return self.written.files + self.compaction.files

    @property
    def changed_share(self) -> float | None:
        """Rows written of all keyed states for each row of their bases; see
        :attr:`StateMetrics.changed_share`.
        """
        return share_of(self.states)


def share_of(states: Iterable[StateMetrics]) -> float | None:
    """Return the rows written for each row of the bases, None when these have none."""
    based = [state for state in states if state.base_rows is not None]
    rows = sum(state.base_rows or 0 for state in based)
    return sum(state.written.rows for state in based) / rows if rows else None


# The figures of a checkpoint as its manifest has them, and back.


def metrics_to_json(metrics: CheckpointMetrics) -> dict[str, Any]:
    """Return the member ``metrics`` of a manifest, which docs/FORMAT.md describes."""
    return {
        "duration_ms": metrics.duration_ms,
        "phases": {f"{name}_ms": spent for name, spent in metrics.phases.items()},
        "states": [_state_json(state) for state in metrics.states],
        "compaction": asdict(metrics.compaction),
    }


def _state_json(state: StateMetrics) -> dict[str, Any]:
    document = {
        "uid": state.uid,
        "name": state.name,
        "write_ms": state.write_ms,
        **asdict(state.written),
    }
    return document if state.base_rows is None else document | {"base_rows": state.base_rows}


class _Amount(Struct, frozen=True):
    rows: Count
    size_bytes: Count
    files: Count


class _State(_Amount, frozen=True, kw_only=True):
    uid: str
    name: str
    write_ms: Count
    base_rows: Count | None = None

    @property
    def written(self) -> _Amount:
        return self


class MetricsDocument(Struct, frozen=True):
    """What is written of the figures; a phase that is missing took no time."""

    duration_ms: Count
    phases: dict[str, Any]
    states: tuple[_State, ...]
    compaction: _Amount


def metrics_from_json(value: Any, name: str, place: str) -> CheckpointMetrics:
    """Return what :func:`metrics_to_json` wrote, found at ``place`` of the document called
    ``name``; MalformedManifestError with the place.
    """
    read = converted(value, MetricsDocument, name, place)
    taken = {phase: spent for phase, spent in read.phases.items() if spent is not None}
    return converted(structs.replace(read, phases=taken), CheckpointMetrics, name, place)
