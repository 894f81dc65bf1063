"""The trend of a store: rows, bytes, skew and age of each state over the kept checkpoints.

The manifests are read one after another, oldest first. Only the newest and one other are in memory,
and no data file is read. If a state has the same files as at the previous checkpoint, its separate
list of files is not read again. Files of changes count with the files of their base, because a
restore reads both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from statestore.catalog.catalog import Catalog
from statestore.durations import Duration, milliseconds_of
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    ParallelismError,
    StateNotFoundError,
    StateStoreError,
)
from statestore.format.handles import list_of, read_all
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.names import data_file_id
from statestore.jobgraph.operators import Operators
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.store_context import HasContext
from statestore.maintenance.trend_report import (
    CheckpointPoint,
    Forecast,
    Growth,
    StatePoint,
    StateTrend,
    StoreTrend,
    UnreadCheckpoint,
    forecast_of,
    growth_of,
)
from statestore.restore.key_group_weights import weights_of
from statestore.restore.plan import OperatorPlan, plan_restore
from statestore.restore.restart_time import RestoreSpeed
from statestore.restore.target import RestoreTarget, plan_target, select

T = TypeVar("T")
Planner = Callable[[Manifest, str], OperatorPlan]
_Name = tuple[str, str]
_Files = tuple[Any, ...]
_Known = tuple[_Files, T]
"""Figures of a state or operator, and the names of the files that they are of."""


@dataclass(frozen=True)
class _StateFigures:
    """The figures of a state's files: the heaviest key group, and the newest file's checkpoint."""

    heaviest_bytes: int | None
    skew: float | None
    written_for: int


@dataclass(frozen=True)
class _Restore:
    """The bytes of an operator's largest subtask, and the seconds of its slowest one."""

    largest_bytes: int
    seconds: float


def trend(
    store: HasContext,
    operator: str | None = None,
    state: str | None = None,
    *,
    last: int | None = None,
    size_bytes: int | None = None,
    restore_time: Duration | None = None,
    rate: float | RestoreSpeed | None = None,
    parallelism: int | None = None,
    on_progress: Progress | None = None,
) -> StoreTrend:
    """Return the growth of each state over the kept checkpoints, and forecasts.

    Growth is the median slope between all pairs of checkpoints (Theil–Sen). It needs at least 5
    checkpoints at different times. A checkpoint is kept if it is visible or has a savepoint.
    Only their manifests are read, one after another.

    Args:
        operator: restricts the trend to this operator's states; by default all states.
        state: restricts the trend to the state of this name, of operator ``operator``.
        last: restricts the trend to this number of newest checkpoints; by default all.
        size_bytes: the size whose time is forecast, for each state and for all together.
        restore_time: the time of a restore whose date is forecast, such as ``"10m"``. It needs
            ``rate``.
        rate: bytes per second, or a speed with the time of requests, to estimate the time of the
            slowest subtask.
        parallelism: the parallelism of the restore; by default the newest checkpoint's.
        on_progress: called with the number of checkpoints that were read, and the total.

    Returns:
        The points of each state and checkpoint, with growth and forecasts. A checkpoint whose
        manifest cannot be read is in ``unread``.

    Raises:
        StateNotFoundError: if no kept checkpoint has the operator or state.
        InvalidArgumentError: for an invalid number.
        ParallelismError: if the newest checkpoint cannot be restored at ``parallelism``.
    """
    catalog, progress = store.parts.catalog(), on_progress or ignore_progress
    if last is not None and last < 1:
        raise InvalidArgumentError(f"must be above 0, not {last}", argument="last")
    ids = catalog.kept_ids()[-(last or 0) :]
    newest = _newest(catalog, ids)
    unread: list[UnreadCheckpoint] = []

    def manifests() -> Iterator[Manifest]:
        for done, checkpoint_id in enumerate(ids, 1):
            found = _load(catalog, checkpoint_id)
            if isinstance(found, Manifest):
                yield found
            elif found is not None:
                unread.append(found)
            progress(done, len(ids))

    return trend_of(
        manifests(),
        newest,
        selected=(operator, state),
        size_bytes=size_bytes,
        restore_ms=None if restore_time is None else milliseconds_of(restore_time),
        rate=rate,
        parallelism=parallelism,
        unread=unread,
    )


def trend_of(
    manifests: Iterable[Manifest],
    newest: Manifest | None,
    *,
    selected: tuple[str | None, str | None] = (None, None),
    size_bytes: int | None = None,
    restore_ms: int | None = None,
    rate: float | RestoreSpeed | None = None,
    parallelism: int | None = None,
    unread: list[UnreadCheckpoint] | None = None,
) -> StoreTrend:
    """Return the trend of the selected states over checkpoints, which are read once, oldest first.

    ``newest`` is the newest of them, whose parallelism is the default. ``unread`` is complete once
    the last checkpoint was read. Checkpoints whose list of files cannot be read are added to it.
    Raises StateNotFoundError, InvalidArgumentError, or ParallelismError.
    """
    for argument, number in (("size_bytes", size_bytes), ("restore_time", restore_ms)):
        if number is not None and number < 1:
            raise InvalidArgumentError(f"must be above 0, not {number}", argument=argument)
    speed = None if rate is None else RestoreSpeed.of(rate)
    unread = [] if unread is None else unread
    collected = _Points(_planner(newest, parallelism), speed)
    missing: StateNotFoundError | None = None
    for manifest in manifests:
        try:
            part = select(manifest, *selected)
        except StateNotFoundError as error:
            missing = error
            continue
        try:
            collected.add(part)
        except (CorruptionError, FormatVersionError) as error:
            unread.append(_unread(manifest.checkpoint_id, error))
    if not collected.checkpoints and missing is not None:
        raise StateNotFoundError(f"no kept checkpoint has this state: {missing}")
    unread.sort(key=lambda one: one.checkpoint_id)
    parallelism = parallelism or (None if newest is None else newest.parallelism)
    return collected.result(size_bytes, restore_ms, parallelism, tuple(unread))


class _Points:
    """The points of the checkpoints that were read so far.

    The figures of the last checkpoint are kept, because later ones may have the same files.
    """

    def __init__(self, plan: Planner, speed: RestoreSpeed | None) -> None:
        self._plan, self._speed = plan, speed
        self.checkpoints: list[CheckpointPoint] = []
        self._points: dict[_Name, list[StatePoint]] = {}
        self._ids: list[int] = []
        self._times: list[int] = []
        self._states: dict[_Name, _Known[_StateFigures]] = {}
        self._operators: dict[str, _Known[_Restore | None]] = {}

    def add(self, manifest: Manifest) -> None:
        """Add the points of a checkpoint, which is newer than the previous ones.

        Raises MalformedManifestError for a list of files that cannot be read, and adds nothing.
        """
        files = {_name(entry): _files(entry) for entry in manifest.entries}
        known = {name: self._states.get(name) for name in files}
        new = [
            entry
            for entry in manifest.entries
            if (kept := known[_name(entry)]) is None or kept[0] != files[_name(entry)]
        ]
        read_all(part.handles for entry in new for part in entry.parts)
        fresh = {_name(entry): (files[_name(entry)], _figures(entry)) for entry in new}
        states = {name: fresh[name] if name in fresh else self._states[name] for name in files}
        operators = {uid: self._operator(manifest, uid, files) for uid in manifest.uids}
        self._states, self._operators = states, operators
        self._ids.append(manifest.checkpoint_id)
        self._times.append(manifest.created_at_ms)
        restores = [restore for _, restore in operators.values()]
        possible = [restore for restore in restores if restore is not None]
        is_possible = len(possible) == len(restores)
        largest = max((restore.largest_bytes for restore in possible), default=0)
        slowest = max((restore.seconds for restore in possible), default=0.0)
        self.checkpoints.append(
            CheckpointPoint(
                checkpoint_id=manifest.checkpoint_id,
                created_at_ms=manifest.created_at_ms,
                rows=manifest.rows,
                changed_rows=sum(entry.changed_rows for entry in manifest.keyed),
                size_bytes=manifest.size_bytes,
                largest_bytes=largest if is_possible else None,
                seconds=slowest if is_possible and self._speed is not None else None,
            )
        )
        for entry in manifest.entries:
            points = self._points.setdefault(_name(entry), [])
            points.append(self._point(entry, manifest, states[_name(entry)][1]))

    def _operator(
        self, manifest: Manifest, uid: str, files: Mapping[_Name, _Files]
    ) -> _Known[_Restore | None]:
        """Return everything that determines an operator's plan, and the figures of its restore."""
        own = (
            manifest.ranges.get(uid),
            manifest.operators.max_parallelism_of(uid),
            *(files[_name(entry)] for entry in manifest.entries if entry.state.uid == uid),
        )
        known = self._operators.get(uid)
        if known is not None and known[0] == own:
            return known
        try:
            plan = self._plan(manifest, uid)
            seconds = 0.0 if self._speed is None else self._speed.seconds(plan.subtasks)
            return own, _Restore(plan.largest.size_bytes, seconds)
        except ParallelismError:  # it had another max parallelism
            return own, None

    def result(
        self,
        size_bytes: int | None,
        restore_ms: int | None,
        parallelism: int | None,
        unread: tuple[UnreadCheckpoint, ...],
    ) -> StoreTrend:
        """Return the trend over all points."""
        points = self.checkpoints
        sizes = growth_of(
            [point.created_at_ms for point in points], [point.size_bytes for point in points]
        )
        restorable = [
            (point.created_at_ms, point.largest_bytes)
            for point in points
            if point.largest_bytes is not None
        ]
        largest = growth_of([at for at, _ in restorable], [held for _, held in restorable])
        states = [_state_trend(*key, tuple(own), size_bytes) for key, own in self._points.items()]
        return StoreTrend(
            checkpoints=tuple(points),
            states=tuple(sorted(states, key=_by_growth)),
            size=sizes,
            largest=largest,
            parallelism=parallelism,
            speed=self._speed,
            reaches=_size_forecast(sizes, points[-1], size_bytes) if points else None,
            restore_reaches=_restore_forecast(points, restore_ms),
            unread=unread,
        )

    def _point(self, entry: Entry, manifest: Manifest, figures: _StateFigures) -> StatePoint:
        layers = entry.layers if isinstance(entry, KeyedEntry) else ()
        live_rows: int | None = entry.rows
        if isinstance(entry, KeyedEntry):
            live_rows = None if entry.contents is None else entry.contents.rows
        age_ms, is_least = self._age(figures.written_for, manifest)
        return StatePoint(
            checkpoint_id=manifest.checkpoint_id,
            created_at_ms=manifest.created_at_ms,
            rows=entry.rows,
            changed_rows=sum(layer.entry.rows for layer in layers),
            live_rows=live_rows,
            size_bytes=entry.size_bytes,
            changed_bytes=sum(layer.entry.size_bytes for layer in layers),
            heaviest_bytes=figures.heaviest_bytes,
            skew=figures.skew,
            age_ms=age_ms,
            is_least_age=is_least,
        )

    def _age(self, written_for: int, manifest: Manifest) -> tuple[int, bool]:
        """Return the time since the last write, and whether it may be longer.

        The names of files contain the checkpoint for which they were written. If that checkpoint is
        not known, the next known one gives the least age.
        """
        written = min(written_for, manifest.checkpoint_id)
        index = bisect_left(self._ids, written)
        age_ms = max(0, manifest.created_at_ms - self._times[index])
        return age_ms, self._ids[index] != written


def _state_trend(
    uid: str, name: str, points: tuple[StatePoint, ...], size_bytes: int | None
) -> StateTrend:
    times = [point.created_at_ms for point in points]
    live = [point.live_rows for point in points if point.live_rows is not None]
    is_live = len(live) == len(points)
    rows = live if is_live else [point.rows for point in points]
    skews = [(point.created_at_ms, point.skew) for point in points if point.skew is not None]
    growth = growth_of(times, [point.size_bytes for point in points])
    changes = [point.changed_bytes for point in points]
    folds = sum(after < before for before, after in pairwise(changes)) if any(changes) else None
    return StateTrend(
        operator=uid,
        state=name,
        points=points,
        rows=growth_of(times, rows),
        is_of_live_rows=is_live,
        size=growth,
        skew=growth_of([at for at, _ in skews], [skew for _, skew in skews]),
        folds=folds,
        reaches=_size_forecast(growth, points[-1], size_bytes),
    )


def _size_forecast(
    growth: Growth | None, newest: StatePoint | CheckpointPoint, size_bytes: int | None
) -> Forecast | None:
    if size_bytes is None:
        return None
    return forecast_of(
        growth,
        value=newest.size_bytes,
        at_ms=newest.created_at_ms,
        limit=size_bytes,
        shown_limit=size_bytes,
    )


def _restore_forecast(points: list[CheckpointPoint], limit_ms: int | None) -> Forecast | None:
    if limit_ms is None or not points:
        return None
    newest = points[-1]
    if newest.largest_bytes is None:
        return Forecast(limit=limit_ms, reason="the newest checkpoint cannot be restored so")
    if newest.seconds is None:
        return Forecast(limit=limit_ms, reason="the rate of a restore is not known")
    timed = [(one.created_at_ms, one.seconds) for one in points if one.seconds is not None]
    return forecast_of(
        growth_of([at for at, _ in timed], [seconds for _, seconds in timed]),
        value=newest.seconds,
        at_ms=newest.created_at_ms,
        limit=limit_ms / 1000,
        shown_limit=limit_ms,
    )


def _by_growth(state: StateTrend) -> tuple[float, int, str, str]:
    growth = state.size.per_day if state.size else 0.0
    return -growth, -state.newest.size_bytes, state.operator, state.state


def _name(entry: Entry) -> _Name:
    return entry.state.uid, entry.state.name


def _files(entry: Entry) -> _Files:
    """Return the names of the files of base and changes, or of the lists that have them.

    The list is not read. Files are never changed, so equal names mean equal contents. The number of
    key groups can change without a new file.
    """
    parts = tuple(
        list_of(part.handles) or tuple(handle.path for handle in part.handles)
        for part in entry.parts
    )
    if not isinstance(entry, KeyedEntry):
        return (parts,)
    layers = tuple((layer.checkpoint_id, layer.live) for layer in entry.layers)
    return parts, layers, entry.state.max_parallelism


def _figures(entry: Entry) -> _StateFigures:
    weights = weights_of([entry]) if isinstance(entry, KeyedEntry) else []
    heaviest = max(weights, default=None)
    layers = entry.layers if isinstance(entry, KeyedEntry) else ()
    files = [data_file_id(handle.path) or 0 for handle in entry.handles]
    return _StateFigures(
        heaviest_bytes=heaviest,
        skew=heaviest * len(weights) / sum(weights) if heaviest else None,
        written_for=max((*files, *(layer.checkpoint_id for layer in layers)), default=0),
    )


def _planner(newest: Manifest | None, parallelism: int | None) -> Planner:
    """Return a function that plans an operator's restore, as for the newest checkpoint.

    Raises ParallelismError if the newest checkpoint cannot be restored at the parallelism.
    """
    if parallelism is not None:
        target = RestoreTarget(parallelism=parallelism)
        if newest is not None:
            plan_target(newest, target)
        return lambda manifest, uid: plan_target(select(manifest, uid, None), target).operators[0]
    operators = Operators(1) if newest is None else newest.operators
    ranges = {} if newest is None else newest.ranges

    def as_newest(manifest: Manifest, uid: str) -> OperatorPlan:
        wanted = {uid: operators.parallelism_of(uid)}
        return plan_restore(manifest, wanted, ranges=ranges).operators[0]

    return as_newest


def _newest(catalog: Catalog, ids: Sequence[int]) -> Manifest | None:
    found = (_load(catalog, checkpoint_id) for checkpoint_id in reversed(ids))
    return next((manifest for manifest in found if isinstance(manifest, Manifest)), None)


def _load(catalog: Catalog, checkpoint_id: int) -> Manifest | UnreadCheckpoint | None:
    """Return a manifest; None if it expired after the listing."""
    try:
        return catalog.load_header(checkpoint_id)
    except CheckpointNotFoundError:
        return None
    except (CorruptionError, FormatVersionError) as error:
        return _unread(checkpoint_id, error)


def _unread(checkpoint_id: int, error: StateStoreError) -> UnreadCheckpoint:
    return UnreadCheckpoint(checkpoint_id, error.kind, str(error))
