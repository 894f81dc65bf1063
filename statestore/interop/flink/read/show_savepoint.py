"""``statestore flink show``: list the contents of a savepoint or checkpoint, read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    IncompatibleStateError,
    MissingFileError,
    UnsupportedTypeError,
)
from statestore.interop.flink.options import ACCESS, SavepointAccess
from statestore.interop.flink.read.keyed_states import FlinkState, StateEntries, StateForm
from statestore.interop.flink.read.operator_state import (
    SOURCE_READER_STATE,
    KafkaSplit,
    SubtaskElements,
    kafka_splits,
)
from statestore.interop.flink.read.plausibility import (
    ImplausibleState,
    access_bounds,
    find_implausible_classes,
    find_implausible_times,
    lost_timers,
)
from statestore.interop.flink.read.refusals import transactions, transactions_reason
from statestore.interop.flink.read.savepoint import (
    FlinkOperator,
    FlinkSavepoint,
    open_savepoint,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.kryo import find_kryo_part


@dataclass(frozen=True, kw_only=True)
class ShownKeyedState:
    """A keyed state: its types in Java's notation, and the number of its entries.

    ``entries`` are counts by key group, without empty key groups. ``size_bytes`` is the size of
    keys and values. Both are None if they cannot be read. ``note`` is the reason if values have no
    column type.
    """

    state: str
    kind: StateForm
    key: str
    namespace: str | None
    value: str
    has_ttl: bool
    entries: Mapping[int, int] | None
    size_bytes: int | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class ShownOperatorState:
    """An operator state: its redistribution mode, its type, and element counts by subtask.

    ``splits`` are the splits of a Kafka source, None for any other state.
    """

    state: str
    mode: str
    type: str
    elements: Mapping[int, int]
    size_bytes: int
    splits: tuple[KafkaSplit, ...] | None


@dataclass(frozen=True, kw_only=True)
class ShownOperator:
    """An operator; ``problem`` is the reason if its state cannot be read, otherwise None.

    ``is_damaged`` is true if the reason is a damaged or missing file.
    ``warnings`` describe state that the savepoint may have lost, or that an import refuses.
    ``implausible`` are the states with a sign of damage that is no error.
    """

    operator_id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    is_finished: bool
    coordinator_bytes: int | None
    keyed: tuple[ShownKeyedState, ...]
    operator: tuple[ShownOperatorState, ...]
    problem: str | None
    warnings: tuple[str, ...]
    is_damaged: bool = False
    implausible: tuple[ImplausibleState, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShownSavepoint:
    """A savepoint or checkpoint, and the version of its ``_metadata``."""

    savepoint: str
    version: int
    checkpoint_id: int
    operators: tuple[ShownOperator, ...]


def show_savepoint(
    place: str,
    *,
    access: SavepointAccess = ACCESS,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ShownSavepoint:
    """Return the contents of a savepoint or checkpoint of a Flink job.

    Args:
        place: its folder or its ``_metadata`` file, as a path or URL.
        access: how the savepoint's files are found and read.
        on_progress: a callback that receives the number of finished operators, the total, and the
            next operator.

    Returns:
        Its operators and their states. An operator that cannot be read has a ``problem``.

    Raises:
        InvalidArgumentError: if the ``_metadata`` file does not exist.
        DamagedFileError: if ``_metadata`` does not follow Flink's format.
        FormatVersionError: for an unsupported version of it.
    """
    savepoint = open_savepoint(place, access=access)
    shown = []
    for number, operator in enumerate(savepoint.operators):
        if on_progress is not None:
            on_progress(number, len(savepoint.operators), operator.title)
        shown.append(_show_operator(savepoint, operator))
    return ShownSavepoint(
        savepoint=savepoint.url,
        version=savepoint.metadata.version,
        checkpoint_id=savepoint.metadata.checkpoint_id,
        operators=tuple(shown),
    )


@dataclass
class _Tally:
    """The entries of a keyed state by key group, its bytes, and the bounds of last accesses."""

    state: FlinkState
    entries: Counter[int] = field(default_factory=Counter)
    size_bytes: int = 0
    accesses: list[tuple[int, int]] = field(default_factory=list)

    def add(self, entries: StateEntries) -> None:
        """Count entries of the state."""
        self.entries[entries.key_group] += len(entries.keys)
        spans = (entries.keys, entries.values)
        self.size_bytes += sum(int((span.ends - span.starts).sum()) for span in spans)
        if self.state.has_ttl and _find_type_problem(self.state.value) is None:
            self.accesses += access_bounds(self.state, self.state.decode(entries.values))


def _show_operator(savepoint: FlinkSavepoint, operator: FlinkOperator) -> ShownOperator:
    problem, is_damaged = operator.problem, operator.is_damaged
    tallies = {state.name: _Tally(state) for state in operator.states}
    elements: list[SubtaskElements] = []
    try:
        elements = list(operator.operator_state())
        for entries in operator.entries(is_checked=True) if problem is None else ():
            tallies[entries.state.name].add(entries)
    except (DamagedFileError, MissingFileError) as error:
        where = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        problem, is_damaged = f"{error}{where}", True
    except (
        FormatVersionError,
        IncompatibleStateError,
        UnsupportedTypeError,
    ) as error:
        problem = str(error)
    metadata = operator.metadata
    return ShownOperator(
        operator_id=metadata.id,
        uid=metadata.uid,
        name=metadata.name,
        parallelism=metadata.parallelism,
        max_parallelism=metadata.max_parallelism,
        is_finished=metadata.is_finished,
        coordinator_bytes=None if metadata.coordinator is None else len(metadata.coordinator.data),
        keyed=tuple(_show_keyed(tally, is_read=problem is None) for tally in tallies.values()),
        operator=_show_operator_states(elements),
        problem=problem,
        is_damaged=is_damaged,
        warnings=tuple(_list_warnings(savepoint, operator)),
        implausible=tuple(_find_implausible(operator, tallies.values(), elements)),
    )


def _find_implausible(
    operator: FlinkOperator, tallies: Iterable[_Tally], elements: Iterable[SubtaskElements]
) -> Iterator[ImplausibleState]:
    described = {element.info.name: element.info for element in elements}
    yield from find_implausible_classes(operator, described.values())
    for tally in tallies:
        yield from find_implausible_times(operator.title, tally.state.name, tally.accesses)


def _list_warnings(savepoint: FlinkSavepoint, operator: FlinkOperator) -> Iterator[str]:
    lost = lost_timers(savepoint, operator)
    if lost is not None:
        yield lost
    for name in dict.fromkeys(transactions(operator.metadata)):
        yield transactions_reason(name)


def _show_keyed(tally: _Tally, *, is_read: bool) -> ShownKeyedState:
    state = tally.state
    return ShownKeyedState(
        state=state.name,
        kind=state.kind,
        key=state.key.java_name,
        namespace=None if state.namespace == Scalar("VoidNamespace") else state.namespace.java_name,
        value=state.value.java_name,
        has_ttl=state.has_ttl,
        entries=dict(sorted(tally.entries.items())) if is_read else None,
        size_bytes=tally.size_bytes if is_read else None,
        note=_find_type_problem(state.key) or _find_type_problem(state.value),
    )


def _find_type_problem(flink_type: FlinkType) -> str | None:
    try:
        flink_type.arrow_type()
    except UnsupportedTypeError as error:
        return str(error)
    return find_kryo_part(flink_type)


def _show_operator_states(elements: list[SubtaskElements]) -> tuple[ShownOperatorState, ...]:
    shown = []
    for name in dict.fromkeys(element.info.name for element in elements):
        parts = [element for element in elements if element.info.name == name]
        info = parts[0].info
        value = info.value.java_name
        shown.append(
            ShownOperatorState(
                state=name,
                mode=info.mode,
                type=value if info.key is None else f"Map<{info.key.java_name}, {value}>",
                elements={part.subtask: part.count() for part in parts},
                size_bytes=sum(int((part.raw.ends - part.raw.starts).sum()) for part in parts),
                splits=_read_splits(parts),
            )
        )
    return tuple(shown)


def _read_splits(parts: list[SubtaskElements]) -> tuple[KafkaSplit, ...] | None:
    """Return the splits of a Kafka source; None for other sources, whose format is private."""
    if parts[0].info.name != SOURCE_READER_STATE or parts[0].info.value != Scalar("byte[]"):
        return None
    try:
        splits = [split for part in parts for split in kafka_splits(part.values(), part.raw.name)]
    except UnsupportedTypeError:
        return None
    return tuple(sorted(splits, key=lambda split: (split.topic, split.partition)))
