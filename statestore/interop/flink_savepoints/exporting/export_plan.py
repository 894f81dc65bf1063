"""Plan an export: select operators, states and Flink types, and refuse unsupported ones.

The plan uses only the state descriptions in the manifest. So types that Flink does not support are
refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from statestore.errors import (
    InvalidArgumentError,
    UnsupportedTypeError,
)
from statestore.format.left_out import refuse_left_out
from statestore.format.manifest import Manifest
from statestore.format.schema import Schema
from statestore.format.state import KeyedState, OperatorState, StateKind, TimeDomain
from statestore.interop.flink_savepoints.exporting.export_types import (
    NO_VALUE,
    ExportPart,
    ExportPlan,
    ImportedPart,
    KeyedExport,
    OperatorExport,
    OperatorStatePlan,
)
from statestore.interop.flink_savepoints.exporting.flink_versions import (
    find_class_mapping,
    migrate_keyed,
    migrate_operator,
)
from statestore.interop.flink_savepoints.exporting.scala_classes import (
    ClassMapping,
    list_collections,
    replace_scala_types,
)
from statestore.interop.flink_savepoints.exporting.state_selection import (
    find_views,
    list_left_out,
    refuse_unknown,
    select_carried,
    select_unwanted,
)
from statestore.interop.flink_savepoints.importing.import_operators import element_columns
from statestore.interop.flink_savepoints.importing.import_record import (
    RECORD,
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink_savepoints.importing.left_out_state import checkpoint_left_out
from statestore.interop.flink_savepoints.metadata.handles import (
    Mode,
)
from statestore.interop.flink_savepoints.options import (
    ANY_JOB,
    EVERYTHING,
    ExportSelection,
    FlinkTarget,
)
from statestore.interop.flink_savepoints.read.keyed_states import KeyedStateInfo as FlinkState
from statestore.interop.flink_savepoints.types.arrow_types import WINDOW
from statestore.interop.flink_savepoints.types.families.kryo import without_kryo_version
from statestore.interop.flink_savepoints.types.families.undecoded import plain_type
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    PythonType,
    Scalar,
    TimerType,
    TtlType,
)
from statestore.interop.flink_savepoints.types.named_columns import EntryForm
from statestore.interop.flink_savepoints.types.python_types import python_name, to_python_type
from statestore.interop.flink_savepoints.types.store_types import (
    FlinkColumn,
    as_millis,
    combine_columns,
    from_millis,
    key_column,
    python_key,
    sql_key,
    value_column,
)
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import KeyGroupAssignment, default_max_parallelism
from statestore.keys.key_types import java_type
from statestore.rows.column_types import arrow_schema

__all__ = ["choose_key_groups", "plan_export"]

_NO_NAMESPACE = Scalar("VoidNamespace")
_TIMERS = "_timer_state/"
_OFFSETS = {"topic", "partition", "offset"}
_MODES: Mapping[RedistributionMode, Mode] = {
    RedistributionMode.SPLIT: "split",
    RedistributionMode.UNION: "union",
    RedistributionMode.BROADCAST: "broadcast",
}


_Problem = tuple[str, UnsupportedTypeError]
"""A state, as an option names it, and the reason why it cannot be written."""


class _StatePlans(NamedTuple):
    """The plans of an operator's states."""

    keyed: list[KeyedExport]
    operator: list[OperatorStatePlan]


def plan_export(
    manifest: Manifest,
    record: SavepointRecord | None = None,
    *,
    selection: ExportSelection = EVERYTHING,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    target: FlinkTarget = ANY_JOB,
) -> ExportPlan:
    """Plan the export of a checkpoint; see ``export_savepoint`` for the parameters.

    Raises:
        StateNotFoundError: for an operator or a state that the checkpoint does not have.
        LeftOutStateError: for state of its source that the checkpoint does not have, unless it is
            named in the selection.
        UnsupportedTypeError: for a type that Flink does not support, with the operator, state and
            column.
        InvalidArgumentError: if no state is left to write, or for a wrong version of the target.
        IncompatibleStateError: for an operator of Flink 1 to carry to Flink 2.
        ParallelismError: for an invalid parallelism.
    """
    operators = selection.operators
    states = ((entry.state.uid, entry.state.name) for entry in manifest.entries)
    known = {state for state in states if record is None or state[0] != RECORD}
    uids = sorted({uid for uid, _ in known})
    refuse_unknown(known, uids, operators, target.tuples)
    lacking = checkpoint_left_out(manifest, record)
    # Without an import record it is unknown from which savepoint operators could be copied.
    operators_lacking = [state for state in lacking if state.state is None and record is not None]
    carried = select_carried(operators_lacking, selection.carry, manifest.checkpoint_id)
    missing = [state for state in lacking if state not in carried]
    named = {name if isinstance(name, str) else "/".join(name) for name in selection.leave_out}
    unwanted = select_unwanted(manifest, known, missing, named)
    selected = set(uids if operators is None else operators)
    # If the user selected operators, only missing state of these operators matters.
    relevant = [state for state in missing if operators is None or state.operator in selected]
    refuse_left_out(
        relevant,
        named,
        manifest.checkpoint_id,
        "a job that restores the savepoint",
        otherwise="; --carry copies a whole operator unchanged from the imported savepoint",
    )
    views = [] if record is None else find_views(known, record)
    left = [*list_left_out(known, unwanted, selected, missing), *views]
    skipped = {(state.operator, state.state) for state in left}
    classes = find_class_mapping(record, target, carried)
    plans = []
    problems: list[_Problem] = []
    for uid in uids:
        names = {name for owner, name in known if owner == uid and (uid, name) not in skipped}
        if names:
            tupled = {name for owner, name in target.tuples if owner == uid}
            own = _OperatorSelection(names, tupled, record, classes)
            planned = _plan_states(manifest, uid, own, problems)
            operator_plan = _plan_operator(
                manifest, uid, own, planned, parallelism, max_parallelism
            )
            offsets = next((view.state for view in views if view.operator == uid), None)
            plans.append(replace(operator_plan, offsets=offsets))
    _refuse_problems(problems)
    if not plans and not carried:
        raise InvalidArgumentError(
            "no state is left to write, but a savepoint must have at least one; leave out less"
        )
    whole = record if operators is None else None
    return ExportPlan(tuple(plans), tuple(left), whole, carried)


@dataclass(frozen=True)
class _OperatorSelection:
    """The states of an operator to write, the states to write as tuples, and the import record.

    ``classes`` are those that replace classes of Scala if the state is converted from Flink 1 to
    Flink 2; None if it is not.
    """

    names: set[str]
    tuples: set[str]
    record: SavepointRecord | None
    classes: Mapping[str, ClassMapping] | None

    def find_state(self, uid: str, name: str) -> ImportedState | None:
        """Return the import record of a state, None if it was not imported."""
        states = () if self.record is None else self.record.states
        return next(
            (state for state in states if (state.operator, state.state) == (uid, name)), None
        )

    def plan_keyed(self, state: KeyedState) -> KeyedExport:
        """Return the plan of a keyed state."""
        known = self.find_state(state.uid, state.name)
        if known is None:
            return _plan_keyed(state, as_tuple=state.name in self.tuples)
        if self.classes is None:
            return _plan_imported_keyed(state, known)
        replaced = replace_scala_types(known, self.classes)
        is_rekeyed = replaced.key_serializer != known.key_serializer
        plan = _plan_imported_keyed(state, replaced)
        migrated = migrate_keyed(plan, list_collections(self.classes))
        return replace(migrated, is_rekeyed=is_rekeyed)

    def plan_operator_state(self, state: OperatorState) -> OperatorStatePlan:
        """Return the plan of an operator state."""
        known = self.find_state(state.uid, state.name)
        if known is None:
            return _plan_operator_state(state, as_tuple=state.name in self.tuples)
        if self.classes is None:
            return _plan_imported_operator_state(state, known)
        replaced = replace_scala_types(known, self.classes)
        return migrate_operator(_plan_imported_operator_state(state, replaced))

    def find_operator(self, uid: str) -> ImportedOperator | None:
        """Return the import record of an operator, None if it was not imported."""
        operators = () if self.record is None else self.record.operators
        return next((operator for operator in operators if operator.operator == uid), None)


def _plan_states(
    manifest: Manifest, uid: str, selection: _OperatorSelection, problems: list[_Problem]
) -> _StatePlans:
    """Return the plans of an operator's states; add what is wrong with others to ``problems``."""
    plans = _StatePlans([], [])
    for entry in manifest.entries:
        state = entry.state
        if state.uid != uid or state.name not in selection.names:
            continue
        try:
            if isinstance(state, KeyedState):
                plans.keyed.append(selection.plan_keyed(state))
            else:
                plans.operator.append(selection.plan_operator_state(state))
        except UnsupportedTypeError as error:
            problems.append((f"{uid}/{state.name}", error))
    return plans


def _refuse_problems(problems: Sequence[_Problem]) -> None:
    """Raise the error of a state, or one that names several."""
    if len(problems) == 1:
        raise problems[0][1]
    if problems:
        options = " ".join(f"--leave-out {name}" for name, _ in problems)
        error = UnsupportedTypeError(
            f"{len(problems)} states cannot be written; without them, the rest can: {options}"
        )
        for _, problem in problems:
            error.add_note(str(problem))
        raise error


def _plan_operator(
    manifest: Manifest,
    uid: str,
    selection: _OperatorSelection,
    states: _StatePlans,
    parallelism: int | None,
    most: int | None,
) -> OperatorExport:
    keyed, operator = states
    _refuse_mixed(keyed)
    imported = selection.find_operator(uid)
    subtasks = parallelism or manifest.operators.parallelism_of(uid)
    stored = {plan.state.max_parallelism for plan in keyed}
    before = stored.pop() if stored else manifest.operators.max_parallelism_of(uid)
    groups = choose_key_groups(imported, most or before) or default_max_parallelism(subtasks)
    if imported is not None and groups == 1:
        subtasks = 1
    share = KeyGroupAssignment(max_parallelism=groups, parallelism=subtasks)
    number = manifest.operators.id_of(uid) if imported is None else imported.id
    return OperatorExport(uid, number, share, tuple(keyed), tuple(operator), imported)


def choose_key_groups(imported: ImportedOperator | None, wanted: int | None) -> int | None:
    """Return the number of key groups of an exported operator, None if it is not specified.

    ``wanted`` takes precedence over the imported number. An operator that was imported with one key
    group keeps it, because it can never be parallel.
    """
    if imported is None or imported.max_parallelism < 1:
        return wanted
    return 1 if imported.max_parallelism == 1 else wanted or imported.max_parallelism


def _plan_imported_keyed(state: KeyedState, known: ImportedState) -> KeyedExport:
    columns = known.columns(state.max_parallelism).with_stored_types(arrow_schema(state.schema))
    map_key = (
        ExportPart((), NO_VALUE)
        if columns.map_key is None
        else ImportedPart.from_columns(columns.map_key)
    )
    value = (
        ExportPart((), NO_VALUE)
        if columns.value is None
        else ImportedPart.from_columns(columns.value)
    )
    key, namespace = (
        ImportedPart.from_columns(columns.key),
        ImportedPart.from_columns(columns.namespace),
    )
    return KeyedExport(state, columns.state, key, namespace, map_key, value, columns, known)


def _plan_imported_operator_state(state: OperatorState, known: ImportedState) -> OperatorStatePlan:
    mode = _MODES[RedistributionMode(state.mode)]
    names = dict(known.names)
    if known.form is EntryForm.BYTES:
        value = ImportedPart.from_columns(element_columns(None, None, names)["value"])
        return OperatorStatePlan(state, mode, value, None, known)
    serializers = known.info.serializers
    key = serializers["KEY_SERIALIZER"].flink_type if mode == "broadcast" else None
    schema = arrow_schema(state.schema)
    parts = {
        name: part.with_stored_types(schema)
        for name, part in element_columns(
            serializers["VALUE_SERIALIZER"].flink_type, key, names
        ).items()
    }
    map_key = ImportedPart.from_columns(parts["map_key"]) if key is not None else None
    return OperatorStatePlan(state, mode, ImportedPart.from_columns(parts["value"]), map_key, known)


def _refuse_mixed(keyed: Sequence[KeyedExport]) -> None:
    """Refuse states whose key types or names cannot be together in one Flink operator."""
    names: dict[str, KeyedExport] = {}
    for plan in keyed:
        # In some states of an operator, it may be known which Kryo wrote parts of the keys.
        own, first = (
            without_kryo_version(plain_type(other.flink.key)) for other in (plan, keyed[0])
        )
        if own != first:
            raise UnsupportedTypeError(
                f"{plan.state} has keys of type {plan.flink.key.java_name}, but "
                f"{keyed[0].state} "
                f"has keys of type {keyed[0].flink.key.java_name}: a Flink operator has only "
                "one key type; leave one of the two states out"
            )
        other = names.setdefault(plan.flink.name, plan)
        if other is not plan:
            raise UnsupportedTypeError(
                f"{plan.state} and {other.state} would both be named {plan.flink.name!r} in Flink, "
                "which allows one timer service per name; leave one of the two states out"
            )


def _plan_keyed(state: KeyedState, *, as_tuple: bool) -> KeyedExport:
    key = _plan_key(state)
    namespace, value = _plan_namespace(state), _plan_value(state, as_tuple=as_tuple)
    map_key, name = ExportPart((), NO_VALUE), state.name
    if state.kind is StateKind.MAP:
        entry = _find_columns(state, state.entry, state.schema)
        map_key = _build_part(state.entry, entry, as_tuple=as_tuple)
    if state.kind is StateKind.TIMERS:
        name = _timer_name(state, namespace.flink_type)
    elif state.hash_scheme == "pyflink":
        if state.namespace:
            raise UnsupportedTypeError(
                f"{state} has the namespace {', '.join(state.namespace)}: PyFlink windows "
                "cannot be written from the columns of a store; leave the state out"
            )
        name = python_name(state.name)
        map_key = _to_python_part(state, map_key) if state.kind is StateKind.MAP else map_key
        value = _to_python_part(state, value)
    flink_value = _build_value_type(
        state, key.flink_type, namespace.flink_type, map_key.flink_type, value.flink_type
    )
    flink = FlinkState(name, state.kind.value, key.flink_type, namespace.flink_type, flink_value)
    return KeyedExport(state, flink, key, namespace, map_key, value)


def _to_python_part(state: KeyedState, part: ExportPart) -> ExportPart:
    """Return columns as the bytes that PyFlink's coders write."""
    with _column_in_errors(state, ", ".join(part.names)):
        return replace(part, flink_type=PythonType(to_python_type(part.flink_type)))


def _plan_key(state: KeyedState) -> ExportPart:
    """Return the key: a Java object or a row of Flink SQL.

    Several columns are a Java tuple. For PyFlink, the key is wrapped in a row.
    """
    types = arrow_schema(state.schema)
    if state.hash_scheme == "flink-sql":
        stored = [types.field(column).type for column in state.key]
        row = sql_key(state.key, stored, state.key_types)
        return ExportPart(state.key, row.flink_type, row)
    keys = []
    for column, java in zip(state.key, state.key_types, strict=True):
        with _column_in_errors(state, column):
            keys.append(key_column(types.field(column).type, java_type(java)))
    part = _build_part(state.key, keys, as_tuple=True)
    if state.hash_scheme != "pyflink" or part.column is None:
        return part
    row = python_key(part.column)
    return ExportPart(state.key, row.flink_type, row)


def _build_value_type(
    state: KeyedState, key: FlinkType, namespace: FlinkType, map_key: FlinkType, value: FlinkType
) -> FlinkType:
    """Return the type of a state's values in the header of a savepoint."""
    element = value if state.ttl is None else TtlType(value)
    match state.kind:
        case StateKind.LIST:
            return ListType(element)
        case StateKind.MAP:
            return MapType(map_key, element)
        case StateKind.TIMERS:
            return TimerType(key, namespace)
        case _:
            return element


@contextmanager
def _column_in_errors(state: KeyedState | OperatorState, column: str) -> Iterator[None]:
    """Add the operator, state and column to an UnsupportedTypeError."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{state}: the column {column!r}: {error}") from error


def _find_columns(
    state: KeyedState | OperatorState, names: Sequence[str], schema: Schema
) -> list[FlinkColumn]:
    """Return the Flink types of value columns."""
    types = arrow_schema(schema)
    columns = []
    for name in names:
        with _column_in_errors(state, name):
            columns.append(value_column(types.field(name).type))
    return columns


def _build_part(
    names: Sequence[str], columns: Sequence[FlinkColumn], *, as_tuple: bool
) -> ExportPart:
    if not columns:
        return ExportPart((), NO_VALUE)
    column = columns[0] if len(columns) == 1 else combine_columns(columns, names, as_tuple=as_tuple)
    return ExportPart(tuple(names), column.flink_type, column)


def _plan_value(state: KeyedState, *, as_tuple: bool) -> ExportPart:
    clock = None if state.ttl is None else state.ttl.column
    names = [name for name in state.values if name != clock]
    if state.kind is StateKind.TIMERS and state.values:
        raise UnsupportedTypeError(
            f"{state} are timers with the value column {state.values[0]!r}, but a Flink timer has "
            "only a time, a key and a namespace; remove the column, or leave the state out"
        )
    return _build_part(names, _find_columns(state, names, state.schema), as_tuple=as_tuple)


def _plan_namespace(state: KeyedState) -> ExportPart:
    """Return the namespace: none, a window of two times, or a value, such as a tuple."""
    names, types = state.namespace, arrow_schema(state.schema)
    column_types = [types.field(name).type for name in names]
    if not names:
        return ExportPart((), _NO_NAMESPACE)
    if len(names) == 2 and all(map(_is_time, column_types)):
        window = _build_window(names, column_types)
        return ExportPart(names, window.flink_type, window)
    if len(names) == 1 and column_types[0] == WINDOW:
        window = _build_window(("start", "end"), [pa.int64(), pa.int64()])
        return ExportPart(names, window.flink_type, window)
    return _build_part(names, _find_columns(state, names, state.schema), as_tuple=True)


def _is_time(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_int64(column_type) or pa.types.is_timestamp(column_type))


def _build_window(names: Sequence[str], column_types: Sequence[pa.DataType]) -> FlinkColumn:
    """Return two columns of times as a ``TimeWindow``, which uses milliseconds."""
    stored = pa.struct([pa.field(*field) for field in zip(names, column_types, strict=True)])

    def to_flink(array: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(
            [as_millis(side) for side in array.flatten()], fields=list(WINDOW)
        )

    def from_flink(array: pa.Array) -> pa.Array:
        sides = zip(array.flatten(), column_types, strict=True)
        return pa.StructArray.from_arrays(
            [from_millis(side, column_type) for side, column_type in sides], fields=list(stored)
        )

    return FlinkColumn(stored, Scalar("TimeWindow"), to_flink, from_flink)


def _timer_name(state: KeyedState, namespace: FlinkType) -> str:
    """Return Flink's name for a timer queue, of functions or of windows."""
    if state.name.startswith(_TIMERS):
        return state.name
    domain = "event" if state.time_domain is TimeDomain.EVENT else "processing"
    service = "window-timers" if namespace.serializer_length == 16 else "user-timers"
    return f"{_TIMERS}{domain}_{service}"


def _plan_operator_state(state: OperatorState, *, as_tuple: bool) -> OperatorStatePlan:
    names = state.schema.names
    if set(names) >= _OFFSETS:
        raise UnsupportedTypeError(
            f"{state} has Kafka offsets, which cannot be written without the state of the "
            "source's coordinator: the source would read all topics from its configured "
            "start. Leave the state out, and start the job's source at these offsets "
            "(OffsetsInitializer.offsets) under another uid"
        )
    columns = _find_columns(state, names, state.schema)
    mode = _MODES[RedistributionMode(state.mode)]
    if mode != "broadcast":
        return OperatorStatePlan(state, mode, _build_part(names, columns, as_tuple=as_tuple), None)
    key = _build_part(names[:1], columns[:1], as_tuple=as_tuple)
    value = _build_part(names[1:], columns[1:], as_tuple=as_tuple)
    return OperatorStatePlan(state, mode, value, key)
