"""The metrics of a checkpoint: durations of its phases, amounts of data, and their form as JSON.

Everything except the put of the manifest is known before that put. So the manifest has the metrics
without ``put_ms``, and listeners get them with it. Durations are measured with a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from msgspec import Struct, field, structs

from statestore.format.documents import Count, convert_json


class _File(Protocol):
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True)
class Amount:
    """The rows and bytes in a number of data files."""

    rows: int = 0
    size_bytes: int = 0
    files: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.rows + other.rows, self.size_bytes + other.size_bytes, self.files + other.files
        )


def amount_of(handles: Iterable[_File]) -> Amount:
    """Return the total amount in some data files."""
    files = tuple(handles)
    return Amount(
        sum([file.rows for file in files]), sum([file.size_bytes for file in files]), len(files)
    )


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """The duration of each phase in ms. The phases are consecutive, except ``compaction_ms``.

    ``begin_ms``: claiming the store, and reading the newest checkpoint's id. ``write_ms``: writing
    the states one after another, including the computation of lazily computed states.
    ``compaction_ms``: compaction in parallel with the other phases, in older releases; now 0, or
    the whole time in a checkpoint of the command ``compact``. ``wait_ms``: adopting the results of
    background compaction, and reducing too large a backlog: waiting for it, or folding changes.
    ``check_ms``: checking that the files have the expected sizes, and that no other writer took
    over. ``publish_ms``: publishing new versions of the tables. ``put_ms``: the put of the
    manifest; None if it is unknown.
    """

    begin_ms: Count = 0
    write_ms: Count = 0
    compaction_ms: Count = 0
    wait_ms: Count = 0
    check_ms: Count = 0
    publish_ms: Count = 0
    put_ms: Count | None = None

    def items(self) -> tuple[tuple[str, int], ...]:
        """Return the name (``begin``) and milliseconds of each measured phase, in order."""
        # vars() has the order of a document's members if the value was read from one
        known = [(name.removesuffix("_ms"), getattr(self, name)) for name in _PHASES]
        return tuple([(name, spent) for name, spent in known if spent is not None])

    @property
    def slowest(self) -> tuple[str, int]:
        """The name and milliseconds of the longest phase that the checkpoint waited for."""
        return max(
            (phase for phase in self.items() if phase[0] != "compaction"),
            key=lambda phase: phase[1],
        )


_PHASES = tuple(PhaseTimes.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class StateMetrics:
    """The data written of one state for this checkpoint, without compaction.

    ``base_rows`` are the rows of its base. For a state written in full these are all its rows. For
    operator state, which is always written in full and has no base, it is None. A carried state has
    an empty ``written``. If subtasks write a state in their own processes, ``write_ms`` is the time
    from the request to the last answer.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("changed_share",)

    operator: str
    state: str
    write_ms: int = 0
    written: Amount = Amount()
    base_rows: int | None = None

    @property
    def changed_share(self) -> float | None:
        """The rows written per row of the base.

        It is 1 for a state written in full, 0 for a carried state, and None without base rows.
        """
        return share_of([self])


@dataclass(frozen=True, kw_only=True)
class CheckpointMetrics:
    """The metrics of one checkpoint.

    ``duration_ms`` covers everything from its beginning to its last phase here, including the job's
    work between the writes. ``compaction`` is the data that compaction wrote; some of it may have
    been written and merged again. ``written`` is the sum of all states.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("written", "changed_share")

    duration_ms: int
    phases: PhaseTimes
    states: tuple[StateMetrics, ...] = ()
    compaction: Amount = Amount()

    @property
    def took_ms(self) -> int:
        """The duration of the checkpoint, including the put of the manifest if it is known."""
        return self.duration_ms + (self.phases.put_ms or 0)

    @property
    def spent(self) -> tuple[tuple[str, int], ...]:
        """The ms of each phase that the checkpoint waited for, in order, and of ``other``.

        The parts sum to :attr:`took_ms`. Compaction is not included: it runs in the background, and
        ``wait`` is the time that the checkpoint waited for it. Processes write several states in
        parallel, so their total time can exceed the checkpoint's. Here ``write`` is at most the
        time that the other phases leave.
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
        """The files, rows and bytes written for the states, without compaction."""
        return sum((state.written for state in self.states), start=Amount())

    @property
    def files_written(self) -> int:
        """The data files written for this checkpoint, including compaction.

        Its manifest may name more files, which were written for earlier checkpoints.
        """
        return self.written.files + self.compaction.files

    @property
    def changed_share(self) -> float | None:
        """The rows written of all keyed states per row of their bases.

        See :attr:`StateMetrics.changed_share`.
        """
        return share_of(self.states)


def is_incremental(layers: int, files: int, metrics: CheckpointMetrics | None) -> bool | None:
    """Return whether a checkpoint has changes, or files that an earlier checkpoint wrote.

    Returns None if an older release did not record it.
    """
    if layers:
        return True
    if metrics is None:
        return None
    return metrics.written.files + metrics.compaction.files != files


def share_of(states: Iterable[StateMetrics]) -> float | None:
    """Return the rows written per row of the bases; None if the bases have no rows."""
    based = [state for state in states if state.base_rows is not None]
    rows = sum(state.base_rows or 0 for state in based)
    return sum(state.written.rows for state in based) / rows if rows else None


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
        "uid": state.operator,
        "name": state.state,
        "write_ms": state.write_ms,
        **asdict(state.written),
    }
    return document if state.base_rows is None else document | {"base_rows": state.base_rows}


class _Amount(Struct, frozen=True):
    rows: Count
    size_bytes: Count
    files: Count


class _State(_Amount, frozen=True, kw_only=True):
    operator: str = field(name="uid")
    state: str = field(name="name")
    write_ms: Count
    base_rows: Count | None = None

    @property
    def written(self) -> _Amount:
        return self


class MetricsDocument(Struct, frozen=True):
    """The stored metrics; a missing phase took no time."""

    duration_ms: Count
    phases: dict[str, Any]
    states: tuple[_State, ...]
    compaction: _Amount


def metrics_from_json(value: Any, name: str, place: str) -> CheckpointMetrics:
    """Parse the result of :func:`metrics_to_json` at ``place`` of the document ``name``.

    Raises MalformedManifestError with the place.
    """
    read = convert_json(value, MetricsDocument, name, place)
    measured = {phase: spent for phase, spent in read.phases.items() if spent is not None}
    return convert_json(structs.replace(read, phases=measured), CheckpointMetrics, name, place)
