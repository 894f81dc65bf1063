"""Plan states that were not imported.

The user declares their types in Flink. Types that are not declared follow from the columns. The
store hashes a key like Flink does, because the key has the type in Flink that it is hashed as. A
key that is a class of the job has the hash of its ``hashCode()``, which only the user knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.format.schema import Schema
from statestore.format.state import KeyedState, OperatorState, StateKind, TimeDomain
from statestore.interop.flink.columns.declared_types import (
    BOXES,
    DeclaredType,
    python_name,
    to_python_type,
)
from statestore.interop.flink.columns.store_types import (
    Part,
    as_millis,
    columns_part,
    combine_columns,
    from_millis,
    key_column,
    no_columns,
    python_key,
    sql_key,
    struct_part,
    value_column,
)
from statestore.interop.flink.exporting.export_types import (
    KeyedExport,
    OperatorStatePlan,
    column_in_errors,
    stored_columns,
)
from statestore.interop.flink.exporting.job_types import JobTypes
from statestore.interop.flink.exporting.kafka_source import KAFKA_SOURCE, list_misfits, split_column
from statestore.interop.flink.metadata.handles import Mode
from statestore.interop.flink.metadata.logical_types import WINDOW
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.keyed_states import flink_state
from statestore.interop.flink.read.operator_state import SOURCE_READER_STATE
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import PythonType, TimerType, TtlType
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar
from statestore.interop.flink.types.key_recipes import SCALA, recipe_hash_codes
from statestore.interop.flink_plans.layouts import NO_NAMESPACE, PlanState
from statestore.interop.flink_plans.plan_file import FlinkPlan
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.key_types import java_type
from statestore.rows.column_types import arrow_schema

_TIME_WINDOW = Scalar("TimeWindow")
_TIMERS = "_timer_state/"
_OFFSETS = {"topic", "partition", "offset"}

MODES: Mapping[RedistributionMode, Mode] = {
    RedistributionMode.SPLIT: "split",
    RedistributionMode.UNION: "union",
    RedistributionMode.BROADCAST: "broadcast",
}
"""The modes of operator state in Flink."""

_DIGITS = re.compile(r"\(\d+,\d+\)")
_EXAMPLE = "record(a, b)"


def plan_keyed(state: KeyedState, types: JobTypes) -> KeyedExport:
    """Return the plan of a keyed state.

    Args:
        state: the state.
        types: the declared types; receives the columns that do not fit.

    Returns:
        The plan. It can be used if all columns fit.

    Raises:
        UnsupportedTypeError: for a type that Flink does not support, with the state and column.
    """
    key, recipe = _plan_key(state, types)
    map_type, value_type = _split_declared(state, types)
    namespace, value = _plan_namespace(state), _plan_value(state, value_type, types)
    map_key, name = None, state.name
    if state.kind is StateKind.MAP:
        map_key = _plan_part(state, state.entry, map_type, types)
    if state.kind is StateKind.TIMERS:
        name = _timer_name(state, namespace.flink_type)
    elif state.hash_scheme == "pyflink":
        if state.namespace:
            raise UnsupportedTypeError(
                f"{state} has the namespace {', '.join(state.namespace)}: PyFlink windows "
                "cannot be written from the columns of a store; leave the state out"
            )
        name = python_name(state.name)
        map_key = None if map_key is None else _to_python_part(state, map_key)
        value = _to_python_part(state, value)
    header_value = _build_value_type(state, key, namespace, map_key, value)
    flink = flink_state(
        name, state.kind.value, key.flink_type, namespace.flink_type, header_value, recipe
    )
    columns = stored_columns(
        state, flink, key=key, namespace=namespace, map_key=map_key, value=value
    )
    return KeyedExport(state, columns)


def _to_python_part(state: KeyedState, part: Part) -> Part:
    """Return columns as the bytes that PyFlink's coders write."""
    with column_in_errors(state, ", ".join(part.names)):
        return replace(part, flink_type=PythonType(to_python_type(part.flink_type)))


def _build_value_type(
    state: KeyedState, key: Part, namespace: Part, map_key: Part | None, value: Part
) -> FlinkType:
    """Return the type of a state's values in the header of a savepoint."""
    element = value.flink_type if state.ttl is None else TtlType(value.flink_type)
    if state.kind is StateKind.TIMERS:
        return TimerType(key.flink_type, namespace.flink_type)
    if state.kind is StateKind.LIST:
        return ListType(element)
    return element if map_key is None else MapType(map_key.flink_type, element)


def _find_columns(
    state: KeyedState | OperatorState, names: Sequence[str], schema: Schema
) -> list[Part]:
    """Return the Flink types of value columns."""
    types = arrow_schema(schema)
    columns = []
    for name in names:
        with column_in_errors(state, name):
            columns.append(value_column(types.field(name).type))
    return columns


def _split_declared(
    state: KeyedState, types: JobTypes
) -> tuple[DeclaredType | None, DeclaredType | None]:
    """Return the declared types of a state's map keys and values, None if one is not declared."""
    declared = types.states.get((state.uid, state.name))
    if declared is None:
        return None, None
    fitter = types.make_fitter(state)
    wanted = {StateKind.LIST: "List", StateKind.MAP: "Map"}.get(state.kind)
    if declared.name == KAFKA_SOURCE:
        fitter.add_difference(f"{KAFKA_SOURCE} is operator state, and has no keys")
    elif state.kind is StateKind.TIMERS or state.hash_scheme == "pyflink":
        what = "timers have" if state.kind is StateKind.TIMERS else "PyFlink's own types are"
        fitter.add_difference(f"no type can be declared, because {what} those of the job")
    elif wanted is None:
        return None, declared
    elif declared.name != wanted:
        shape = "List<…>" if wanted == "List" else "Map<…, …>"
        fitter.add_difference(f"the state is a {state.kind.value}, so its type is {shape}")
    elif declared.parts:
        *key, value = declared.parts
        return (key[0] if key else None), value
    return None, None


def _plan_part(
    state: KeyedState | OperatorState,
    names: Sequence[str],
    declared: DeclaredType | None,
    types: JobTypes,
) -> Part:
    """Return columns as a value of a declared type, or of the type that follows from them."""
    if declared is None:
        return combine_columns(_find_columns(state, names, state.schema), names, as_tuple=False)
    fitter, stored = types.make_fitter(state), arrow_schema(state.schema)
    if not names:
        fitter.add_difference(f"it has no column for a value of {declared}")
        return no_columns()
    return fitter.fit_columns(declared, names, [stored.field(name).type for name in names])


def _plan_value(state: KeyedState, declared: DeclaredType | None, types: JobTypes) -> Part:
    clock = None if state.ttl is None else state.ttl.column
    names = [name for name in state.values if name != clock]
    if state.kind is StateKind.TIMERS and state.values:
        raise UnsupportedTypeError(
            f"{state} are timers with the value column {state.values[0]!r}, but a Flink timer has "
            "only a time, a key and a namespace; remove the column, or leave the state out"
        )
    return _plan_part(state, names, declared, types)


def _plan_namespace(state: KeyedState) -> Part:
    """Return the type of the namespace: no namespace, a window of two times, or a value."""
    names, types = state.namespace, arrow_schema(state.schema)
    column_types = [types.field(name).type for name in names]
    if not names:
        return no_columns(NO_NAMESPACE)
    if len(names) == 2 and all(map(_is_time, column_types)):
        times = zip(map(_millis_part, column_types), names, strict=True)
        return columns_part(_TIME_WINDOW, [part.with_names((name,)) for part, name in times])
    if len(names) == 1 and column_types[0] == WINDOW:
        window = struct_part(WINDOW, _TIME_WINDOW, [_millis_part(pa.int64())] * 2)
        return window.with_names(names)
    return combine_columns(_find_columns(state, names, state.schema), names, as_tuple=True)


def _is_time(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_int64(column_type) or pa.types.is_timestamp(column_type))


def _millis_part(column_type: pa.DataType) -> Part:
    return Part(column_type, Scalar("Long"), as_millis, from_millis)


def _timer_name(state: KeyedState, namespace: FlinkType) -> str:
    """Return Flink's name for a timer queue, of functions or of windows."""
    domain = "event" if state.time_domain is TimeDomain.EVENT else "processing"
    if state.name.startswith(_TIMERS):
        if not state.name.startswith(f"{_TIMERS}{domain}_"):
            raise UnsupportedTypeError(
                f"{state} are timers of {domain} time, but Flink would read timers of another time "
                f"from this name: name the state {_TIMERS}{domain}_SERVICE"
            )
        return state.name
    service = "window-timers" if namespace.serializer_length == 16 else "user-timers"
    return f"{_TIMERS}{domain}_{service}"


def plan_operator_state(state: OperatorState, types: JobTypes) -> OperatorStatePlan:
    """Return the plan of an operator state; arguments and errors as in :func:`plan_keyed`."""
    declared = types.states.get((state.uid, state.name))
    names = state.schema.names
    if declared is not None and declared.name == KAFKA_SOURCE:
        return _plan_offsets(state, types)
    if declared is None and set(names) >= _OFFSETS:
        raise UnsupportedTypeError(
            f"{state} has Kafka offsets. If a KafkaSource of the job continues at them, pass "
            f"--java-type {state.uid}/{state.name}={KAFKA_SOURCE}; if they are data of the job, "
            "pass their type, such as List<Row>. Or leave the state out"
        )
    mode = MODES[RedistributionMode(state.mode)]
    shape = "Map" if mode == "broadcast" else "List"
    if declared is not None and declared.name != shape:
        types.make_fitter(state).add_difference(
            f"the state is a {mode} state, so its type is {shape}<…>, not {declared}"
        )
        declared = None
    parts = None if declared is None or not declared.parts else declared.parts
    if mode != "broadcast":
        element = None if parts is None else parts[0]
        return OperatorStatePlan(state, mode, _plan_part(state, names, element, types), None)
    key_type, value_type = (None, None) if parts is None else parts
    key = _plan_part(state, names[:1], key_type, types)
    return OperatorStatePlan(state, mode, _plan_part(state, names[1:], value_type, types), key)


def _plan_offsets(state: OperatorState, types: JobTypes) -> OperatorStatePlan:
    """Return the plan of offsets that become the state of a Kafka source."""
    fitter = types.make_fitter(state)
    misfits = [fitter.add_difference(misfit) for misfit in list_misfits(state)]
    if state.mode is RedistributionMode.BROADCAST:
        misfits.append(fitter.add_difference("the splits of a source are no broadcast state"))
    stored = arrow_schema(state.schema)
    columns = {name: stored.field(name).type for name in stored.names}
    part = misfits[0] if misfits else split_column(columns, str(state))
    return OperatorStatePlan(state, "split", part, None, source_name=SOURCE_READER_STATE)


def _plan_key(state: KeyedState, types: JobTypes) -> tuple[Part, str | None]:
    """Return the key of a state, and the recipe for its hash if it is a class of the job.

    Args:
        state: the state.
        types: the declared types; receives the differences.

    Returns:
        The key and the recipe. Without a recipe, Flink has the same key groups as the store.

    Raises:
        UnsupportedTypeError: for a key that Flink cannot have, or whose hash is not known.
        InvalidArgumentError: for a recipe that is invalid or does not fit the class.
    """
    declared = types.keys.get(state.uid)
    if declared is None:
        return _plan_hashed_key(state), None
    if state.hash_scheme != "java":
        types.make_fitter(state).add_difference(
            f"its keys are hashed by the scheme {state.hash_scheme}, so no type of Java can be "
            "declared for them"
        )
        return _plan_hashed_key(state), None
    if declared.is_class:
        return _plan_class_key(state, declared, types)
    _compare_hashes(state, declared, types)
    return _plan_hashed_key(state), None


def _plan_hashed_key(state: KeyedState) -> Part:
    """Return a key as the type that the store hashes it as: a Java object or a row of Flink SQL.

    Several columns are a Java tuple. For PyFlink, the key is wrapped in a row.
    """
    types = arrow_schema(state.schema)
    if state.hash_scheme == "flink-sql":
        stored = [types.field(column).type for column in state.key]
        return sql_key(state.key, stored, state.key_types)
    keys = []
    for column, java in zip(state.key, state.key_types, strict=True):
        with column_in_errors(state, column):
            keys.append(key_column(types.field(column).type, java_type(java)))
    part = combine_columns(keys, state.key, as_tuple=True)
    return python_key(part) if state.hash_scheme == "pyflink" else part


def _compare_hashes(state: KeyedState, declared: DeclaredType, types: JobTypes) -> None:
    """Record a difference if the job's keys have another hash than the store's."""
    stored = _DIGITS.sub("", ", ".join(state.key_types))
    if len(state.key) > 1:
        stored = f"Tuple{len(state.key)}<{stored}>"
    fitter = types.make_fitter(state)
    wanted = _hashed_name(declared, str(state))
    if not declared.parts and declared.name in ("Tuple", "Row"):
        is_same = stored.startswith(declared.name)
    else:
        is_same = stored == wanted
    if not is_same:
        advice = (
            f"--key-column {state.key[0]}={wanted}"
            if len(state.key) == 1
            else "--key-column COLUMN=TYPE for each column, or one column that is a struct"
        )
        fitter.add_difference(
            f"its keys ({', '.join(state.key)}) are hashed as {stored}, but the job has keys of "
            f"{declared}, which Flink hashes otherwise: make it with {advice}"
        )
    elif declared.names:
        members = [member.name for member in arrow_schema(state.schema).field(state.key[0]).type]
        if members != list(declared.names):
            fitter.add_difference(
                f"the key {state.key[0]!r} has the fields {', '.join(members)}, but the job's row "
                f"has {', '.join(declared.names)}; their order decides the hash"
            )


def _hashed_name(declared: DeclaredType, subject: str) -> str:
    """Return the name of a type as the store records what a key is hashed as."""
    if declared.is_class or declared.name in ("[]", "Set", "Map", "java.util.Date"):
        raise UnsupportedTypeError(
            f"{subject}: no key can be hashed as {declared}: use a simple type, a tuple, a row, or "
            "a class with hash = in --classes FILE as the whole key"
        )
    inner = ", ".join(_hashed_name(part, subject) for part in declared.parts)
    if not inner:
        return BOXES.get(declared.name, declared.name)
    count = len(declared.parts) if declared.name == "Tuple" else ""
    return f"{declared.name}{count}<{inner}>"


def _plan_class_key(state: KeyedState, declared: DeclaredType, types: JobTypes) -> tuple[Part, str]:
    name = declared.name
    mapping = types.classes.get(name)
    if mapping is not None and mapping.described is not None and mapping.described.constants:
        raise UnsupportedTypeError(
            f"{state} has keys of the enum {name}, whose hashes differ in every Java process, so a "
            "savepoint cannot contain them"
        )
    recipe = None if mapping is None else mapping.key_hash
    if recipe is None or recipe == SCALA:
        raise UnsupportedTypeError(
            f"{state} has keys of {name}, whose hashCode() decides their key groups: add its "
            f"recipe to the class, as hash = {_EXAMPLE!r} in --classes FILE (classes=)"
        )
    stored = arrow_schema(state.schema)
    part = types.make_fitter(state).fit_columns(
        declared, state.key, [stored.field(key).type for key in state.key]
    )
    if not types.differences:
        _try_recipe(recipe, part, f"the hash of {name}")
    return part, recipe


def _try_recipe(recipe: str, key: Part, subject: str) -> None:
    """Raise the error of a recipe that is invalid or does not fit, before any key is hashed."""
    nothing = pa.array([], key.flink_type.arrow_type())
    try:
        recipe_hash_codes(recipe, key.flink_type, nothing)
    except InvalidArgumentError as error:
        raise type(error)(f"{subject}: {error}") from error


def plan_planned(state: KeyedState, planned: PlanState) -> KeyedExport:
    """Return the export plan of a state of a store with the types of a compiled plan.

    The types of such a state do not follow from its columns. A part of an entry, such as the key
    or the row, is made of columns by name, and several parts can have the same column.

    Raises SchemaMismatchError if the state has other columns than the plan.
    """
    stored = arrow_schema(state.schema)
    _refuse_other_columns(stored, planned)
    columns = stored_columns(
        state,
        planned.flink_state,
        key=planned.key.part(stored),
        namespace=no_columns(NO_NAMESPACE),
        map_key=None if planned.map_key is None else planned.map_key.part(stored),
        value=planned.value.part(stored),
    )
    return KeyedExport(state, columns, planned=planned)


def refuse_older_flink(plan: FlinkPlan | None, target: FlinkTarget) -> None:
    """Raise IncompatibleStateError if the job has an older Flink than the one of its plan."""
    if plan is None or target.version is None:
        return
    wanted, own = (
        tuple(map(int, version.split("."))) for version in (target.version, plan.version)
    )
    if wanted[: len(own)] < own[: len(wanted)]:
        raise IncompatibleStateError(
            f"the plan {plan.place} was compiled by Flink {plan.version}, and Flink "
            f"{target.version} cannot run it: compile the statement with that version, and "
            "bootstrap the states of the new plan"
        )


def _refuse_other_columns(stored: pa.Schema, planned: PlanState) -> None:
    wrong = [
        f"{column.name} {column.type}"
        for column in planned.columns
        if column.name not in stored.names or stored.field(column.name).type != column.stored
    ]
    if wrong:
        raise SchemaMismatchError(
            f"{planned} cannot be written with the types of its plan: the store does not have the "
            f"columns {', '.join(wrong)}. Bootstrap the state again, or leave it out"
        )
