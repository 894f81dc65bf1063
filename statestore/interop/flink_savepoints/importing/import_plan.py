"""Plan an import: the names of operators and columns, and the form of each state."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    LeftOutStateError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.interop.flink_savepoints.importing.import_record import (
    RECORD,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink_savepoints.importing.key_probes import ProbedKeys, probe_keys
from statestore.interop.flink_savepoints.importing.losses import transactions, transactions_reason
from statestore.interop.flink_savepoints.importing.refusals import Refused
from statestore.interop.flink_savepoints.importing.value_probes import (
    find_kryo_parts,
    find_value_types,
    set_value_class,
)
from statestore.interop.flink_savepoints.metadata.handles import (
    KeyGroupsHandle,
)
from statestore.interop.flink_savepoints.options import SavepointHints
from statestore.interop.flink_savepoints.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink_savepoints.read.keyed_states import KeyedStateInfo, keyed_state
from statestore.interop.flink_savepoints.read.savepoint import FlinkOperator, FlinkSavepoint
from statestore.interop.flink_savepoints.types.families.kryo import find_kryo_part
from statestore.interop.flink_savepoints.types.named_columns import (
    EntryForm,
    StateColumns,
    first_free,
    state_columns,
)
from statestore.interop.flink_savepoints.types.python_types import (
    UNDECLARED,
    declared_state,
    is_python_state,
)
from statestore.jobgraph.operators import operator_id

__all__ = ["PlannedOperator", "PlannedState", "plan_import"]

_LONGEST_NAME = 120
_TWO_PHASE_COMMIT = "TwoPhaseCommitSinkFunction"  # it has its own, unsupported serializer


@dataclass(frozen=True)
class PlannedState:
    """A keyed state: its description in the header, and the forms to try, the best form first.

    ``why`` is the reason if the first form is not columns. ``python`` is the state's declaration,
    as in :class:`ImportedState`.
    """

    info: StateInfo
    state: KeyedStateInfo
    forms: tuple[StateColumns, ...]
    why: str | None
    python: str | None = None


@dataclass(frozen=True)
class PlannedOperator:
    """An operator: its name in the store, its header and its keyed states.

    ``problem`` is the reason if it cannot be read. ``is_wanted`` is true if it was selected.
    ``dropped`` are the names of operator states that the user dropped.
    """

    name: str
    operator: FlinkOperator
    header: KeyedHeader | None
    states: tuple[PlannedState, ...]
    problem: str | None
    is_wanted: bool
    dropped: tuple[str, ...]


def plan_import(
    savepoint: FlinkSavepoint,
    *,
    operators: Collection[str],
    hints: SavepointHints,
    before: SavepointRecord | None,
    drop: Collection[Refused],
) -> tuple[PlannedOperator, ...]:
    """Plan the import of each operator.

    Args:
        savepoint: the savepoint.
        operators: the selected operators, by uid, name or id; if empty, all.
        hints: what the savepoint does not contain: uids, column names, and recipes for the hashes
            of keys.
        before: the savepoint from which the store's newest checkpoint was imported. States of this
            savepoint keep their form and names.
        drop: the kinds of unsupported state to leave out, instead of an error.

    Returns:
        The operators.

    Raises:
        StateNotFoundError: for an operator or a state that does not exist.
        UnsupportedTypeError: for a selected operator that cannot be read.
        DamagedFileError: if a file of a selected operator is damaged.
        InvalidArgumentError: for column names that do not fit, or a recipe that does not hold.
        SchemaMismatchError: for a state that has other columns in the store.
        LeftOutStateError: for an operator of the store that the import would leave out.
    """
    names = _choose_names(savepoint, hints.uids or {})
    selected_ids = {_find_operator(savepoint, name, names).metadata.id for name in operators}
    tables_by_id = {
        _find_operator(savepoint, name, names).metadata.id: tables
        for name, tables in (hints.columns or {}).items()
    }
    recipes = {
        _find_operator(savepoint, name, names).metadata.id: recipe
        for name, recipe in (hints.key_hash or {}).items()
    }
    stored_recipes = _stored_recipes(before)
    planned = []
    for operator in savepoint.operators:
        number = operator.metadata.id
        is_wanted = not operators or number in selected_ids
        if is_wanted and operator.is_damaged:
            raise DamagedFileError(
                f"cannot read operator {operator.title}: {operator.problem}. To import the other "
                "operators, name each of them (--operator, operators=)"
            )
        dropped, refused = _find_transactions(operator, drop)
        problem = operator.problem or _find_unreadable_type(operator) or refused
        states: tuple[PlannedState, ...] = ()
        header = operator.header
        if header is None and problem is None and number in recipes:
            probe_keys(operator, recipes[number])  # raises an error
        if header is not None and problem is None and is_wanted:
            tables = tables_by_id.get(number, {})
            _check_tables(tables, operator)
            keys = probe_keys(operator, recipes.get(number), stored_recipes.get(names[number]))
            planning = _Planning(operator, header, keys, names[number], savepoint.metadata.version)
            states = tuple(planning.plan(info, tables, before) for info in header.states)
        planned.append(
            PlannedOperator(
                names[number], operator, header, states, problem, is_wanted, tuple(dropped)
            )
        )
        if operators and is_wanted and problem is not None:
            raise UnsupportedTypeError(f"cannot read operator {operator.title}: {problem}")
    if before is not None:
        _refuse_left_out(planned, before)
    return tuple(planned)


def _stored_recipes(before: SavepointRecord | None) -> dict[str, str]:
    """Return the recipes of the states of a store, by operator."""
    states = () if before is None else before.states
    return {state.operator: state.key_hash for state in states if state.key_hash is not None}


def _refuse_left_out(planned: Iterable[PlannedOperator], before: SavepointRecord) -> None:
    """Refuse to lose the store's state of an operator that is still in the savepoint."""
    stored = {state.operator for state in before.states}
    left = [
        f"{operator.name} (unreadable: {operator.problem})" if operator.is_wanted else operator.name
        for operator in planned
        if operator.name in stored and (not operator.is_wanted or operator.problem is not None)
    ]
    if left:
        raise LeftOutStateError(
            f"the store has state of {', '.join(left)}, which the new checkpoint would lack "
            "although a checkpoint has the state of the whole job: import all operators that "
            "the store has, or import into a separate store"
        )


def _find_transactions(
    operator: FlinkOperator, drop: Collection[Refused]
) -> tuple[Collection[str], str | None]:
    """Return the operator states to leave out, or the reason why the operator is refused."""
    names = tuple(dict.fromkeys(transactions(operator.metadata)))
    try:
        for _ in operator.operator_state(names):
            pass
    except FormatVersionError as error:
        return (), str(error)
    except UnsupportedTypeError as error:
        if _TWO_PHASE_COMMIT not in str(error):
            return (), str(error)
        handles = (subtask.operator for subtask in operator.metadata.subtasks)
        parts = (part for handle in handles if handle is not None for part in handle.parts)
        names = tuple(dict.fromkeys(part.name for part in parts))
    if names and Refused.TRANSACTIONS not in drop:
        return (), transactions_reason(f"operator state {', '.join(map(repr, names))}")
    return names, None


def _choose_names(savepoint: FlinkSavepoint, uids: Mapping[str, str]) -> dict[str, str]:
    """Return the operators' names in the store, by operator id."""
    known = {operator.metadata.id for operator in savepoint.operators}
    for number, uid in uids.items():
        if number not in known:
            raise InvalidArgumentError(
                f"{savepoint.url} has no operator with the id {number}, which is the hash of "
                f"the uid {uid!r}; check the uid"
            )
    preferred = {}
    for operator in savepoint.operators:
        data = operator.metadata
        name = data.name if data.name and len(data.name.encode()) <= _LONGEST_NAME else None
        preferred[data.id] = uids.get(data.id) or data.uid or name or data.id
    counts = Counter(name.lower() for name in preferred.values())
    taken = [RECORD]
    assigned = {}
    for number, name in preferred.items():
        has_uid = number in uids or name != number
        plain = name if counts[name.lower()] == 1 else f"{name}-{number[:8]}"
        assigned[number] = first_free(plain if has_uid else number, taken)
        taken.append(assigned[number])
    return assigned


def _find_operator(savepoint: FlinkSavepoint, name: str, names: Mapping[str, str]) -> FlinkOperator:
    for operator in savepoint.operators:
        if name in (names[operator.metadata.id], operator.metadata.id):
            return operator
    hashed = operator_id(name)
    if any(operator.metadata.id == hashed for operator in savepoint.operators):
        return savepoint.operator(hashed)
    return savepoint.operator(name)


def _find_unreadable_type(operator: FlinkOperator) -> str | None:
    """Return why the hashmap backend's format cannot be read: a value without a known end.

    Whether the end of a Kryo value is known depends on its class. If a state has such values, all
    are visited here, before anything is written.
    """
    for part in operator.parts:
        if not isinstance(part.handle, KeyGroupsHandle) or part.is_canonical:
            continue
        for state in filter(None, part.states):
            types = (state.key, state.namespace, state.value)
            try:
                for flink_type in types:
                    flink_type.skipper()
                if find_kryo_part(types):
                    deque(part.entries([state.name]), maxlen=0)
            except UnsupportedTypeError as error:
                return f"state {state.name!r}: {error}"
    return None


@dataclass(frozen=True)
class _Planning:
    """An operator whose states are planned: the types of its keys, and its name in the store."""

    operator: FlinkOperator
    header: KeyedHeader
    keys: ProbedKeys
    name: str
    metadata_version: int

    def plan(
        self, info: StateInfo, tables: Mapping[str, Any], before: SavepointRecord | None
    ) -> PlannedState:
        """Return the forms to try for a state; only the stored form if the store has the state."""
        title = f"operator {self.operator.title}"
        state = self.keys.describe(keyed_state(info, self.header.key.flink_type, title))
        most = self.operator.metadata.max_parallelism
        for stored in () if before is None else before.states:
            if (stored.operator, stored.name, stored.sort) == (self.name, info.name, "keyed"):
                if stored.value_class is not None:
                    with_parts = find_kryo_parts(self.operator, state, self.metadata_version)
                    state = with_parts or set_value_class(
                        state, stored.value_class, self.metadata_version
                    )
                columns = _match_stored_columns(state, stored, most)
                return PlannedState(info, columns.state, (columns,), stored.why, stored.python)
        is_python = any(is_python_state(own.name) for own in self.operator.states)
        declared = tables.get("states", {}).get(info.name, {}).get(_TYPE, "")
        if declared:
            state = declared_state(state, declared)
        forms: list[StateColumns] = []
        why = None
        typed = list(find_value_types(self.operator, state, self.metadata_version))
        parts = find_kryo_parts(self.operator, state, self.metadata_version)
        for variant in (*typed, *([] if parts is None else [parts]), state):
            for form in EntryForm:
                if form.has_value_bytes and (state.kind == "timers" or variant is not state):
                    continue
                if form is EntryForm.BYTES and variant is not state:
                    continue
                if form is EntryForm.COLUMNS and is_python_state(info.name) and not declared:
                    why = UNDECLARED
                    continue
                configured = _configured_names(tables, info.name)
                given = {part: names for part, names in configured if form.may_name(part)}
                try:
                    forms.append(state_columns(variant, form, most, given, is_python=is_python))
                except UnsupportedTypeError as error:
                    why = why or (None if forms else str(error))
        return PlannedState(info, state, tuple(forms), why, declared if is_python else None)


def _match_stored_columns(
    state: KeyedStateInfo, stored: ImportedState, max_parallelism: int
) -> StateColumns:
    """Return a state's stored columns; SchemaMismatchError if it now has other fields or types.

    Columns have no identity but the names of their fields: a field of the same type in the same
    place can be another one.
    """
    before = stored.columns(max_parallelism).layout
    try:
        now = stored.map_columns(state, max_parallelism, {}).layout
    except UnsupportedTypeError as error:
        changes = [str(error)]
    else:
        changes = [
            f"its {part} was {text or 'nothing'} and is {now[part] or 'nothing'}"
            for part, text in before.items()
            if now[part] != text
        ]
    if changes:
        raise SchemaMismatchError(
            f"state {stored.name!r} of operator {stored.operator} has other types than in the "
            f"previous checkpoint: {'; '.join(changes)}. Import the savepoint into a separate store"
        )
    return stored.map_columns(state, max_parallelism)


def _configured_names(
    tables: Mapping[str, Any], state: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the configured names for the parts of a state; the state overrides its operator."""
    state_table = tables.get("states", {}).get(state, {})
    both = {part: names for part, names in tables.items() if part != "states"} | state_table
    for part, names in both.items():
        if part == _TYPE:
            continue
        yield part, (names,) if isinstance(names, str) else tuple(names)


def _check_tables(tables: Mapping[str, Any], operator: FlinkOperator) -> None:
    for name in tables.get("states", {}):
        operator.state(name)
    for place in (tables, *tables.get("states", {}).values()):
        for part, names in place.items():
            if place is tables and part == "states":
                continue
            if part == _TYPE and place is not tables and isinstance(names, str):
                continue
            is_list = isinstance(names, list | tuple) and all(isinstance(x, str) for x in names)
            allowed = ("key", "namespace") if place is tables else (*_PARTS,)
            if part not in allowed or not (is_list or isinstance(names, str)):
                raise InvalidArgumentError(
                    f"column names of operator {operator.title}: {part} = {names!r} is not "
                    f"valid: give {', '.join(allowed)} a name or a list of names, and a "
                    f"PyFlink state a {_TYPE}, for example 'ValueState<LONG>'"
                )


_TYPE = "type"
_PARTS = ("key", "namespace", "map_key", "value", "entry", "last_access")
