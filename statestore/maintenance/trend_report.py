"""The result of a trend: the points of each state and checkpoint, with growth and forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Final

import pyarrow as pa

from statestore.display import NotebookBar, bars, counted, duration, figure, size, table, when
from statestore.maintenance.trend_growth import Forecast, Growth
from statestore.rows.dataframes import as_pandas, as_polars, table_of

__all__ = [
    "FOLDS_NEEDED",
    "CheckpointPoint",
    "StatePoint",
    "StateTrend",
    "StoreTrend",
    "UnreadCheckpoint",
]

FOLDS_NEEDED: Final = 3
"""Below this many compactions, the growth may only be changes that wait for compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePoint:
    """A state at one checkpoint.

    ``rows`` and ``size_bytes`` are those in files, of which ``changed_rows`` and ``changed_bytes``
    are changes. ``live_rows`` is the number of rows that result from base and changes, None if it
    was not recorded. ``heaviest_bytes`` are the bytes of the key group with the most bytes, and
    ``skew`` is their multiple of the even share. Both are None for operator state. ``age_ms`` is
    the time since a checkpoint last wrote files of the state, including compaction. If that
    checkpoint has expired, ``is_least_age`` is True, and the state is at least that old.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: int
    changed_rows: int
    live_rows: int | None
    size_bytes: int
    changed_bytes: int
    heaviest_bytes: int | None
    skew: float | None
    age_ms: int
    is_least_age: bool


@dataclass(frozen=True, kw_only=True)
class StateTrend:
    """A state over the kept checkpoints that have it, oldest first, and its growth per day.

    ``rows`` is the growth of the live rows, or, if they are not known at every checkpoint
    (``is_of_live_rows`` is False), of the rows in files. ``size`` and ``skew`` are the growth of
    the bytes and of the skew. They are None if there are not enough checkpoints; ``skew`` also for
    operator state. ``folds`` is the number of times that compaction reduced the changes, None for a
    state without changes. With fewer than 3, ``is_provisional`` is True: the growth may be changes
    that wait for compaction. ``reaches`` is the forecast for the requested size, if any.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("is_provisional",)

    operator: str
    state: str
    points: tuple[StatePoint, ...]
    rows: Growth | None
    is_of_live_rows: bool
    size: Growth | None
    skew: Growth | None
    folds: int | None
    reaches: Forecast | None

    @property
    def is_provisional(self) -> bool:
        """Whether the growth may only be changes that wait for compaction."""
        return self.folds is not None and self.folds < FOLDS_NEEDED

    @property
    def newest(self) -> StatePoint:
        """The state at the newest checkpoint that has it."""
        return self.points[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPoint:
    """The selected states of one checkpoint together.

    ``largest_bytes`` are the bytes of the largest subtask of a restore, and ``seconds`` the time to
    read them. Both are None if the checkpoint cannot be restored at the parallelism. ``seconds`` is
    also None without a rate.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: int
    changed_rows: int
    size_bytes: int
    largest_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class UnreadCheckpoint:
    """A checkpoint that the trend lacks, because its manifest cannot be read."""

    checkpoint_id: int
    kind: str
    message: str


_COLUMNS: Final = {
    "operator": "string",
    "state": "string",
    "checkpoint_id": "int64",
    "created_at_ms": "int64",
    "rows": "int64",
    "changed_rows": "int64",
    "live_rows": "int64",
    "size_bytes": "int64",
    "changed_bytes": "int64",
    "heaviest_bytes": "int64",
    "skew": "float64",
    "age_ms": "int64",
    "is_least_age": "bool",
}
_values_of = attrgetter(*list(_COLUMNS)[2:])


@dataclass(frozen=True, kw_only=True)
class StoreTrend:
    """The trend of a store's states, and of all of them together.

    ``checkpoints`` are the kept checkpoints, oldest first. ``states`` begins with the state whose
    bytes grow fastest. ``size`` is the growth of all bytes. ``largest`` is the growth of the
    largest subtask of a restore at ``parallelism``, in bytes. ``rate`` is in bytes per second and
    subtask. ``reaches`` is the forecast for a size, and ``restore_reaches`` the forecast for a
    restore time in ms. They are None if they were not requested.
    """

    checkpoints: tuple[CheckpointPoint, ...]
    states: tuple[StateTrend, ...]
    size: Growth | None = None
    largest: Growth | None = None
    parallelism: int | None = None
    rate: float | None = None
    reaches: Forecast | None = None
    restore_reaches: Forecast | None = None
    unread: tuple[UnreadCheckpoint, ...] = ()

    def to_arrow(self) -> pa.Table:
        """Return one row per state and checkpoint."""
        rows = (
            (state.operator, state.state, *_values_of(point))
            for state in self.states
            for point in state.points
        )
        return table_of(_COLUMNS, rows)

    to_pandas = as_pandas
    to_polars = as_polars

    def __repr__(self) -> str:
        return f"StoreTrend({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the growth of each state."""
        growing = [state for state in self.states if state.size and state.size.per_day > 0]
        drawn = [
            NotebookBar(
                f"{state.operator} · {state.state}",
                ((state.size.per_day, "changed"),),
                f"{size(round(state.size.per_day))} a day, now {size(state.newest.size_bytes)}",
            )
            for state in growing
            if state.size
        ]
        columns = ("operator", "state", "checkpoints", "size_bytes", "skew", "age")
        rows = (
            (
                *(state.operator, state.state, len(state.points), state.newest.size_bytes),
                "" if state.newest.skew is None else f"{state.newest.skew:.2f}",
                duration(state.newest.age_ms),
            )
            for state in self.states
        )
        return figure(self._summary(), bars(drawn), table(columns, rows))

    def _summary(self) -> str:
        points = self.checkpoints
        if not points:
            return "no checkpoints"
        first, last = points[0], points[-1]
        return (
            f"{counted(len(points), 'checkpoint')}, {first.checkpoint_id} to "
            f"{last.checkpoint_id}, {when(first.created_at_ms)} to {when(last.created_at_ms)}"
        )
