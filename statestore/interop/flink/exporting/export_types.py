"""The parts of a checkpoint that an export writes: operators, their states, and the columns.

The Flink types of a state that was never in Flink follow from its columns. A state that was
imported from a savepoint has the types in its import record, with exact copies of the serializers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from statestore.errors import UnsupportedTypeError
from statestore.format.left_out import LeftOutState
from statestore.format.state import KeyedState, OperatorState, StateKind
from statestore.interop.flink.columns.declared_types import bytes_state
from statestore.interop.flink.columns.state_columns import EntryForm, StateColumns
from statestore.interop.flink.columns.store_types import Part
from statestore.interop.flink.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.metadata.handles import Mode
from statestore.interop.flink.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink.read.keyed_states import FlinkState
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot, make_snapshot
from statestore.interop.flink_plans.layouts import PlanState
from statestore.keys.groups import KeyGroupAssignment
from statestore.rows.column_types import arrow_schema

_VALUE = "VALUE_SERIALIZER"
_DISTRIBUTIONS = {"split": "SPLIT_DISTRIBUTE", "union": "UNION", "broadcast": "BROADCAST"}


@dataclass(frozen=True)
class LeftOut:
    """A state that is not in the savepoint, and the reason; an empty ``state`` is a whole operator.

    ``is_written_elsewhere`` is true if its rows are part of another state of the savepoint, so that
    nothing is missing.
    """

    operator: str
    state: str
    reason: str
    is_written_elsewhere: bool = False


@dataclass(frozen=True)
class KeyedExport:
    """The export plan of a keyed state: the columns of its parts, and their types in Flink.

    For a state that was imported from a savepoint, ``imported`` is its record. ``is_migrated`` is
    True if its values are converted for Flink 2, and ``is_rekeyed`` if its keys get another hash
    there. ``read_value`` is the type that decodes the bytes of values, if it differs from the type
    in ``flink``. ``stored_value`` are the stored columns that these bytes are made from, if the
    store does not have the bytes themselves.

    ``planned`` is the state in a compiled plan of Flink SQL, if its types are those of a plan.
    """

    state: KeyedState
    columns: StateColumns
    imported: ImportedState | None = None
    is_migrated: bool = False
    read_value: FlinkType | None = None
    stored_value: Part | None = None
    is_rekeyed: bool = False
    planned: PlanState | None = None

    @property
    def flink(self) -> FlinkState:
        """The state in Flink."""
        return self.columns.state

    @property
    def info(self) -> StateInfo:
        """The description of the state in the header of a savepoint."""
        if self.imported is not None:
            return self.imported.info
        is_python = self.state.hash_scheme == "pyflink"
        return (bytes_state(self.flink) if is_python else self.flink).info

    @property
    def key_snapshot(self) -> SerializerSnapshot:
        """The serializer of its keys."""
        return make_snapshot(self.flink.key) if self.imported is None else self.imported.key

    @property
    def is_bytes(self) -> bool:
        """Whether its entries are bytes."""
        return self.columns.form is EntryForm.BYTES

    @property
    def has_flink_groups(self) -> bool:
        """Whether each row has Flink's key group in a column, because its key stays bytes."""
        return self.columns.form.has_flink_groups

    @property
    def has_class_keys(self) -> bool:
        """Whether the state was not imported, and its keys are a class of the job with a recipe.

        Flink then has other key groups than the store.
        """
        return self.imported is None and self.flink.recipe is not None


def stored_columns(
    state: KeyedState,
    flink: FlinkState,
    *,
    key: Part,
    namespace: Part,
    map_key: Part | None,
    value: Part,
) -> StateColumns:
    """Return the columns of a state that was not imported."""
    return StateColumns(
        flink,
        EntryForm.COLUMNS,
        state.kind,
        key,
        namespace,
        map_key,
        None if state.kind is StateKind.TIMERS else value,
        state.entry[0] if state.kind in (StateKind.LIST, StateKind.TIMERS) else None,
        None if state.ttl is None else state.ttl.column,
        state.hash_scheme,
        state.key_types,
        arrow_schema(state.schema),
    )


@contextmanager
def column_in_errors(state: KeyedState | OperatorState, column: str) -> Iterator[None]:
    """Add the operator, state and column to an UnsupportedTypeError."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{state}: the column {column!r}: {error}") from error


@dataclass(frozen=True)
class OperatorStatePlan:
    """The export plan of an operator state; ``key`` is set for a broadcast map only.

    ``source_name`` is the name in Flink of a state that has the splits of a source. ``is_migrated``
    is True if its values are converted for Flink 2. ``read_value`` is the type of the values in
    Flink 1, if it differs from the type in ``flink``.
    """

    state: OperatorState
    mode: Mode
    value: Part
    key: Part | None
    imported: ImportedState | None = None
    is_migrated: bool = False
    source_name: str | None = None

    @property
    def name(self) -> str:
        """The state's name in Flink."""
        own = self.state.name if self.imported is None else self.imported.name
        return self.source_name or own

    @property
    def is_bytes(self) -> bool:
        """Whether its elements are the bytes that Flink wrote."""
        return self.imported is not None and self.imported.form is EntryForm.BYTES

    @property
    def info(self) -> StateInfo:
        """The description of the state in the header of a savepoint."""
        if self.imported is not None:
            return self.imported.info
        options = {"OPERATOR_STATE_DISTRIBUTION_MODE": _DISTRIBUTIONS[self.mode]}
        serializers = {_VALUE: make_snapshot(self.value.flink_type)}
        if self.key is None:
            return StateInfo(self.name, "operator", options, serializers)
        serializers["KEY_SERIALIZER"] = make_snapshot(self.key.flink_type)
        return StateInfo(self.name, "broadcast", options, serializers)

    @property
    def type_name(self) -> str:
        """The name of the element type in Flink."""
        if self.key is None:
            return self.value.flink_type.java_name
        return f"{self.key.flink_type.java_name} to {self.value.flink_type.java_name}"


@dataclass(frozen=True)
class OperatorExport:
    """The export plan of an operator: its id, its key-group assignment, and its states.

    ``offsets`` is the name of the state that an import added for the splits of a Kafka source.
    """

    uid: str
    id: str
    share: KeyGroupAssignment
    keyed: tuple[KeyedExport, ...]
    operator: tuple[OperatorStatePlan, ...]
    imported: ImportedOperator | None = None
    offsets: str | None = None

    @property
    def header(self) -> KeyedHeader:
        """The header of its streams of keyed state."""
        return KeyedHeader(
            False, self.keyed[0].key_snapshot, tuple(plan.info for plan in self.keyed)
        )


@dataclass(frozen=True)
class ExportPlan:
    """The parts of a checkpoint that are written to a savepoint, and the parts that are left out.

    ``carried`` are operators that are not in the checkpoint. They are copied from the imported
    savepoint.
    """

    operators: tuple[OperatorExport, ...]
    left_out: tuple[LeftOut, ...]
    record: SavepointRecord | None = None
    carried: tuple[LeftOutState, ...] = ()

    @property
    def others(self) -> tuple[ImportedOperator, ...]:
        """Operators of the imported savepoint that have no state with rows."""
        known = {operator.uid for operator in self.operators} | {
            state.operator for state in self.left_out
        }
        every = () if self.record is None else self.record.operators
        return tuple(
            operator
            for operator in every
            if operator.is_imported and operator.operator not in known
        )
