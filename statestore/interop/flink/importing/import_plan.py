"""Plan an import: the names of operators and columns, and the form of each state."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    LeftOutStateError,
    MissingFileError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.interop.flink.columns.declared_types import (
    UNDECLARED,
    declared_state,
    is_python_state,
)
from statestore.interop.flink.columns.state_columns import (
    EntryForm,
    StateColumns,
    first_free,
    state_columns,
)
from statestore.interop.flink.importing.import_record import RECORD, ImportedState, SavepointRecord
from statestore.interop.flink.importing.probes import (
    ProbedKeys,
    find_kryo_parts,
    find_value_types,
    probe_keys,
    set_value_class,
)
from statestore.interop.flink.metadata.handles import KeyGroupsHandle
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink.read.keyed_states import FlinkState, TimerState, keyed_state
from statestore.interop.flink.read.refusals import Refused, transactions, transactions_reason
from statestore.interop.flink.read.savepoint import (
    FlinkOperator,
    FlinkSavepoint,
    describe_operator_state,
    open_operators,
)
from statestore.interop.flink.read.savepoint_files import content_digest
from statestore.interop.flink.types.kryo import find_kryo_part
from statestore.jobgraph.operators import operator_id

_LONGEST_NAME = 120
_TWO_PHASE_COMMIT = "TwoPhaseCommitSinkFunction"  # it has its own, unsupported serializer

Candidates: TypeAlias = tuple[StateColumns, ...]
"""The columns to try for a state, in the best form first; the last ones hold any value."""


@dataclass(frozen=True)
class PlannedOperator:
    """An operator: its name in the store, its header and its keyed states.

    ``states`` has for each state the columns to try. ``is_wanted`` is true if it was selected; no
    file of another operator is read. ``problem`` is the reason if it cannot be read. ``dropped``
    are the names of operator states that the user dropped. ``content`` is the digest of its bytes,
    None if they are not imported.
    """

    name: str
    operator: FlinkOperator
    is_wanted: bool
    header: KeyedHeader | None = None
    states: tuple[Candidates, ...] = ()
    problem: str | None = None
    dropped: tuple[str, ...] = ()
    content: str | None = None

    def info(self, name: str) -> StateInfo:
        """Return the description of a keyed state in the header."""
        assert self.header is not None, "an operator with states must have a header"
        return next(info for info in self.header.states if info.name == name)


def plan_import(
    savepoint: FlinkSavepoint,
    *,
    operators: Collection[str],
    hints: SavepointHints,
    before: SavepointRecord | None,
    drop: Collection[Refused],
) -> tuple[FlinkSavepoint, tuple[PlannedOperator, ...]]:
    """Open the selected operators, and plan the import of each operator.

    Args:
        savepoint: the savepoint, unopened.
        operators: the selected operators, by uid, name or id; if empty, all.
        hints: what the savepoint does not contain: uids, column names, and recipes for the hashes
            of keys.
        before: the savepoint from which the store's newest checkpoint was imported. States of this
            savepoint keep their form and names.
        drop: the kinds of unsupported state to leave out, instead of an error.

    Returns:
        The opened savepoint, and the operators.

    Raises:
        StateNotFoundError: for an operator or a state that does not exist.
        UnsupportedTypeError: for a selected operator that cannot be read.
        DamagedFileError or MissingFileError: if a file of a selected operator is damaged or
            missing.
        InvalidArgumentError: for column names that do not fit, or a recipe that does not hold. Also
            for a uid, column name, type or recipe that differs from the one in the store.
        SchemaMismatchError: for a state that has other columns in the store.
        LeftOutStateError: for an operator of the store that the import would leave out.
    """
    names = _choose_names(savepoint, hints.uids or {}, before)
    selected_ids = {_find_operator(savepoint, name, names).metadata.id for name in operators}
    tables_by_id = {
        _find_operator(savepoint, name, names).metadata.id: tables
        for name, tables in (hints.columns or {}).items()
    }
    recipes = {
        _find_operator(savepoint, name, names).metadata.id: recipe
        for name, recipe in (hints.key_hash or {}).items()
    }
    wanted = selected_ids if operators else names.keys()
    savepoint = open_operators(savepoint, wanted, drop)
    planned = []
    for operator in savepoint.operators:
        number = operator.metadata.id
        if number not in wanted:
            planned.append(PlannedOperator(names[number], operator, is_wanted=False))
            continue
        plan = _plan_operator(
            operator,
            names[number],
            savepoint.metadata.version,
            drop,
            before,
            tables_by_id.get(number, {}),
            recipes.get(number),
        )
        if operators and plan.problem is not None:
            raise UnsupportedTypeError(f"cannot read operator {operator.title}: {plan.problem}")
        planned.append(plan)
    if before is not None:
        _refuse_left_out(planned, before)
    return savepoint, tuple(planned)


def _plan_operator(
    operator: FlinkOperator,
    name: str,
    metadata_version: int,
    drop: Collection[Refused],
    before: SavepointRecord | None,
    tables: Mapping[str, Any],
    recipe: str | None,
) -> PlannedOperator:
    """Plan the import of a selected operator with the hints for it; see :func:`plan_import`."""
    content = _read_content(operator)
    problem, dropped = operator.problem, tuple[str, ...]()
    if problem is None:
        dropped, refused = _find_transactions(operator, drop)
        problem = _find_unreadable_type(operator) or refused
    if problem is not None:
        return PlannedOperator(name, operator, is_wanted=True, problem=problem, dropped=dropped)
    states: tuple[Candidates, ...] = ()
    header = operator.header
    if header is None and recipe is not None:
        probe_keys(operator, recipe)  # raises an error
    if header is not None:
        _check_tables(tables, operator)
        keys = probe_keys(operator, recipe, _stored_recipes(before).get(name))
        planning = _Planning(operator, header, keys, name, metadata_version, recipe)
        states = tuple(planning.plan(info, tables, before) for info in header.states)
    return PlannedOperator(
        name,
        operator,
        is_wanted=True,
        header=header,
        states=states,
        dropped=dropped,
        content=content,
    )


def _read_content(operator: FlinkOperator) -> str | None:
    """Return the digest of an operator's bytes; None if they cannot be read.

    Raises DamagedFileError or MissingFileError if a file is damaged or missing.
    """
    try:
        if operator.is_damaged:
            operator.refuse_problem()
        if operator.problem is not None:
            return None
        return content_digest(operator.metadata, operator.places)
    except (DamagedFileError, MissingFileError) as error:
        raise type(error)(
            f"operator {operator.title}: {error}. To import the other operators, name each of "
            "them (--operator, operators=)"
        ) from error


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
) -> tuple[tuple[str, ...], str | None]:
    """Return the operator states to leave out, or the reason why the operator is refused."""
    names = tuple(dict.fromkeys(transactions(operator.metadata)))
    try:
        describe_operator_state(operator, names)
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


def _choose_names(
    savepoint: FlinkSavepoint, uids: Mapping[str, str], before: SavepointRecord | None
) -> dict[str, str]:
    """Return the operators' names in the store, by operator id.

    An operator that the store has keeps its name. Another uid for it raises InvalidArgumentError.
    """
    stored = {} if before is None else before.stored_names
    known = {operator.metadata.id for operator in savepoint.operators}
    for number, uid in uids.items():
        if number not in known:
            raise InvalidArgumentError(
                f"{savepoint.url} has no operator with the id {number}, which is the hash of "
                f"the uid {uid!r}; check the uid"
            )
        if stored.get(number, uid) != uid:
            raise InvalidArgumentError(
                f"the operator {number} is {stored[number]!r} in the store, so it cannot become "
                f"{uid!r}: omit its uid, or import the savepoint into a separate store"
            )
    preferred = {}
    for operator in savepoint.operators:
        data = operator.metadata
        name = data.name if data.name and len(data.name.encode()) <= _LONGEST_NAME else None
        preferred[data.id] = uids.get(data.id) or data.uid or name or data.id
    counts = Counter(name.lower() for name in preferred.values())
    taken = [RECORD, *stored.values()]
    assigned = {}
    for number, name in preferred.items():
        if number in stored:
            assigned[number] = stored[number]
            continue
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
    """An operator whose states are planned: the types of its keys, and its name in the store.

    ``recipe`` is the recipe for the hash of its keys that the user gave.
    """

    operator: FlinkOperator
    header: KeyedHeader
    keys: ProbedKeys
    name: str
    metadata_version: int
    recipe: str | None

    def plan(
        self, info: StateInfo, tables: Mapping[str, Any], before: SavepointRecord | None
    ) -> Candidates:
        """Return the columns to try for a state; only the stored ones if the store has it."""
        title = f"operator {self.operator.title}"
        state = self.keys.describe(keyed_state(info, self.header.key.flink_type, title))
        most = self.operator.metadata.max_parallelism
        declared = tables.get("states", {}).get(info.name, {}).get(_TYPE, "")
        for stored in () if before is None else before.states:
            if (stored.operator, stored.name, stored.sort) == (self.name, info.name, "keyed"):
                _refuse_other_hints(stored, self.recipe, tables, declared)
                if stored.value_class is not None:
                    with_parts = find_kryo_parts(self.operator, state, self.metadata_version)
                    state = with_parts or set_value_class(
                        state, stored.value_class, self.metadata_version
                    )
                columns = _match_stored_columns(state, stored, most)
                return (replace(columns, why=stored.why, python=stored.python),)
        is_python = any(is_python_state(own.name) for own in self.operator.states)
        if declared:
            state = declared_state(state, declared)
        forms: list[StateColumns] = []
        why = None
        typed = list(find_value_types(self.operator, state, self.metadata_version))
        parts = find_kryo_parts(self.operator, state, self.metadata_version)
        for variant in (*typed, *([] if parts is None else [parts]), state):
            for form in EntryForm:
                if form.has_value_bytes and (isinstance(state, TimerState) or variant is not state):
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
        python = declared if is_python else None
        return tuple(replace(form, why=why, python=python) for form in forms)


def _match_stored_columns(
    state: FlinkState, stored: ImportedState, max_parallelism: int
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


def _refuse_other_hints(
    stored: ImportedState, recipe: str | None, tables: Mapping[str, Any], declared: str
) -> None:
    """Refuse column names, a type or a recipe that a stored state does not have.

    A state with a recipe can get another one, because a job can change the hash of its class.
    """
    key_hash = "" if stored.key_hash is None else recipe or stored.key_hash
    known = {**stored.names, _TYPE: stored.python or "", "key hash": key_hash}
    hints = {
        part: names
        for part, names in _configured_names(tables, stored.name)
        if stored.form.may_name(part)
    }
    asked = hints | {_TYPE: declared or known[_TYPE], "key hash": recipe or known["key hash"]}
    for part, wanted in asked.items():
        if known.get(part, ()) != wanted:
            raise InvalidArgumentError(
                f"state {stored.name!r} of operator {stored.operator} has the {part} "
                f"{known.get(part, ())!r} in the store, which a later import cannot change to "
                f"{wanted!r}: omit the option, or import the savepoint into a separate store"
            )


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
