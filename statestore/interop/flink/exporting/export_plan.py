"""Plan an export: select operators, states and Flink types, and refuse unsupported ones.

The plan uses only the state descriptions in the manifest. So types that Flink does not support are
refused before anything is written. States that are left out are named, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from statestore.errors import (
    InvalidArgumentError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.left_out import LeftOutState, left_out_text, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.format.state import KeyedState, OperatorState
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.exporting.column_plan import (
    MODES,
    plan_keyed,
    plan_operator_state,
    plan_planned,
    refuse_older_flink,
)
from statestore.interop.flink.exporting.export_types import (
    ExportPlan,
    KeyedExport,
    LeftOut,
    OperatorExport,
    OperatorStatePlan,
)
from statestore.interop.flink.exporting.flink_versions import (
    is_converted,
    migrate_keyed,
    migrate_operator,
)
from statestore.interop.flink.exporting.job_types import (
    JobTypes,
    list_collections,
    parse_job_types,
    replace_scala_types,
)
from statestore.interop.flink.importing.import_operators import element_columns
from statestore.interop.flink.importing.import_record import (
    RECORD,
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.importing.stored_import import checkpoint_left_out
from statestore.interop.flink.options import ANY_JOB, EVERYTHING, ExportSelection, FlinkTarget
from statestore.interop.flink.read.operator_state import SOURCE_READER_STATE
from statestore.interop.flink.types.internal_types import plain_type
from statestore.interop.flink.types.kryo import without_kryo_version
from statestore.interop.flink_plans.layouts import PlanState
from statestore.interop.flink_plans.plan_file import PLAN_RECORD, FlinkPlan
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import (
    KeyGroupAssignment,
    check_parallelism,
    default_max_parallelism,
)
from statestore.rows.column_types import arrow_schema

_CARRYING = "; --carry copies a whole operator unchanged from the imported savepoint"

_Problem = tuple[str, UnsupportedTypeError]
"""A state, as an option names it, and the reason why it cannot be written."""


class _StatePlans(NamedTuple):
    """The plans of an operator's states."""

    keyed: list[KeyedExport]
    operator: list[OperatorStatePlan]


def plan_export(
    manifest: Manifest,
    record: SavepointRecord | None = None,
    compiled: FlinkPlan | None = None,
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
        SchemaMismatchError: for columns that do not fit the declared types, with each of them.
        InvalidArgumentError: if no state is left to write, or for a wrong version or parallelism.
        IncompatibleStateError: for an operator of Flink 1 to carry to Flink 2.
        ParallelismError: for an invalid parallelism.
    """
    operators = selection.operators
    states = ((entry.state.uid, entry.state.name) for entry in manifest.entries)
    records = ([] if record is None else [RECORD]) + ([] if compiled is None else [PLAN_RECORD])
    known = {state for state in states if state[0] not in records}
    uids = sorted({uid for uid, _ in known})
    _refuse_unknown(uids, operators)
    types = parse_job_types(target, known, uids, record, compiled)
    refuse_older_flink(compiled, target)
    lacking = checkpoint_left_out(manifest, record)
    # Without an import record it is unknown from which savepoint operators could be copied.
    operators_lacking = [state for state in lacking if state.state is None and record is not None]
    carried = _select_carried(operators_lacking, selection.carry, manifest.checkpoint_id)
    missing = [state for state in lacking if state not in carried]
    named = {name if isinstance(name, str) else "/".join(name) for name in selection.leave_out}
    unwanted = _select_unwanted(manifest, known, missing, named)
    selected = set(uids if operators is None else operators)
    # If the user selected operators, only missing state of these operators matters.
    relevant = [state for state in missing if operators is None or state.operator in selected]
    refuse_left_out(
        relevant,
        named,
        manifest.checkpoint_id,
        "a job that restores the savepoint",
        otherwise=_CARRYING if record is not None else "",
    )
    lost = {state for state in known if any(each.lacks(*state) for each in missing)}
    views = [] if record is None else _find_views(known - unwanted - lost, record)
    left = [*_list_left_out(known, unwanted, selected, missing), *views]
    skipped = {(state.operator, state.state) for state in left}
    converts = is_converted(record, target, carried)
    plans = []
    problems: list[_Problem] = []
    for uid in uids:
        names = {name for owner, name in known if owner == uid and (uid, name) not in skipped}
        own = _OperatorSelection(names, record, types, converts, compiled)
        planned = _plan_states(manifest, uid, own, problems)
        if names and not types.differences:
            plan = _plan_operator(manifest, uid, own, planned, parallelism, max_parallelism)
            offsets = next((view.state for view in views if view.operator == uid), None)
            plans.append(replace(plan, offsets=offsets))
    types.refuse_differences()
    _refuse_problems(problems)
    if not plans and not carried:
        raise InvalidArgumentError(
            "no state is left to write, but a savepoint must have at least one; leave out less"
        )
    whole = record if operators is None else None
    return ExportPlan(tuple(plans), tuple(left), whole, carried)


@dataclass(frozen=True)
class _OperatorSelection:
    """The states of an operator to write, the import record, and the declared types.

    ``converts`` is whether imported state is converted from Flink 1 to Flink 2. ``compiled`` is the
    compiled plan that defines the types of states.
    """

    names: set[str]
    record: SavepointRecord | None
    types: JobTypes
    converts: bool
    compiled: FlinkPlan | None

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
            planned = self.find_planned(state.uid, state.name)
            if planned is not None:
                return plan_planned(state, planned)
            return plan_keyed(state, self.types)
        if not self.converts:
            return _plan_imported_keyed(state, known)
        replaced = replace_scala_types(known, self.types.classes)
        is_rekeyed = replaced.key_serializer != known.key_serializer
        plan = _plan_imported_keyed(state, replaced)
        migrated = migrate_keyed(plan, list_collections(self.types.classes))
        return replace(migrated, is_rekeyed=is_rekeyed)

    def plan_operator_state(self, state: OperatorState) -> OperatorStatePlan:
        """Return the plan of an operator state."""
        known = self.find_state(state.uid, state.name)
        if known is None:
            return plan_operator_state(state, self.types)
        if not self.converts:
            return _plan_imported_operator_state(state, known)
        replaced = replace_scala_types(known, self.types.classes)
        return migrate_operator(_plan_imported_operator_state(state, replaced))

    def find_planned(self, uid: str, name: str) -> PlanState | None:
        """Return a state of the compiled plan, None if there is none."""
        states = () if self.compiled is None else self.compiled.states
        return next(
            (state for state in states if (state.operator, state.state) == (uid, name)), None
        )

    def find_operator(self, uid: str) -> ImportedOperator | None:
        """Return the import record of an operator, None if it was not imported."""
        operators = () if self.record is None else self.record.operators
        return next((operator for operator in operators if operator.operator == uid), None)


def _plan_states(
    manifest: Manifest, uid: str, selection: _OperatorSelection, problems: list[_Problem]
) -> _StatePlans:
    """Return the plans of an operator's states; add the errors of other states to ``problems``."""
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
    _refuse_beside_splits(uid, states)
    imported = selection.find_operator(uid)
    subtasks = manifest.operators.parallelism_of(uid)
    if parallelism is not None:
        subtasks = check_parallelism(parallelism)
    if most is not None:
        check_parallelism(most, "max parallelism")
    stored = {plan.state.max_parallelism for plan in keyed}
    before = stored.pop() if stored else manifest.operators.max_parallelism_of(uid)
    groups = choose_key_groups(imported, most or before) or default_max_parallelism(subtasks)
    is_single = any(plan.planned is not None and plan.planned.is_single for plan in keyed)
    if is_single:
        groups = 1
    if groups == 1 and (is_single or imported is not None):
        subtasks = 1
    share = KeyGroupAssignment(max_parallelism=groups, parallelism=subtasks)
    number = manifest.operators.id_of(uid) if imported is None else imported.id
    return OperatorExport(uid, number, share, tuple(keyed), tuple(operator), imported)


def _refuse_beside_splits(uid: str, states: _StatePlans) -> None:
    """Refuse an operator with states in addition to its source splits."""
    names = [*(plan.state.name for plan in states.keyed)]
    names += [plan.state.name for plan in states.operator if plan.source_name is None]
    sources = [plan.state for plan in states.operator if plan.source_name is not None]
    if sources and len(sources) + len(names) > 1:
        others = [*(source.name for source in sources[1:]), *names]
        raise UnsupportedTypeError(
            f"{sources[0]} becomes the state of a source, which has no other state in Flink, but "
            f"the operator also has {', '.join(others)}: write the offsets under the uid of the "
            f"source, or leave the rest out (--leave-out {uid}/{others[0]})"
        )


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
    return KeyedExport(state, columns, known)


def _plan_imported_operator_state(state: OperatorState, known: ImportedState) -> OperatorStatePlan:
    mode = MODES[RedistributionMode(state.mode)]
    names = dict(known.names)
    if known.form is EntryForm.BYTES:
        value = element_columns(None, None, names)["value"]
        return OperatorStatePlan(state, mode, value, None, known)
    serializers = known.info.serializers
    key = serializers["KEY_SERIALIZER"].flink_type if mode == "broadcast" else None
    schema = arrow_schema(state.schema)
    parts = {
        name: part.with_types([schema.field(column).type for column in part.names])
        for name, part in element_columns(
            serializers["VALUE_SERIALIZER"].flink_type, key, names
        ).items()
    }
    return OperatorStatePlan(state, mode, parts["value"], parts.get("map_key"), known)


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


def _list_left_out(
    known: Collection[tuple[str, str]],
    unwanted: Collection[tuple[str, str]],
    selected: Collection[str],
    missing: Sequence[LeftOutState],
) -> Iterator[LeftOut]:
    """Yield the states that are not written: unwanted, not selected, or missing in the store."""
    for uid, name in sorted(known):
        if (uid, name) in unwanted or uid not in selected:
            reason = "as requested" if (uid, name) in unwanted else "not selected"
            yield LeftOut(uid, name, reason)
    for state in missing:
        if (state.operator, state.part) not in unwanted:
            yield LeftOut(state.operator, state.part, state.reason)


def _select_carried(
    operators: Sequence[LeftOutState], names: Collection[str], checkpoint_id: int
) -> tuple[LeftOutState, ...]:
    """Return the operators to copy; StateNotFoundError for a name that matches none of them."""
    for name in names:
        if not any(operator.is_named(name) for operator in operators):
            raise StateNotFoundError(
                f"no operator {name!r} can be carried unchanged from an imported savepoint; "
                f"checkpoint {checkpoint_id} lacks these whole operators: "
                f"{left_out_text(operators) or 'none'}"
            )
    return tuple(operator for operator in operators if any(map(operator.is_named, names)))


def _select_unwanted(
    manifest: Manifest,
    known: set[tuple[str, str]],
    missing: Sequence[LeftOutState],
    named: Collection[str],
) -> set[tuple[str, str]]:
    """Return the states of the checkpoint that the user asked to leave out.

    The name of an already missing state selects nothing here. Raises StateNotFoundError for a name
    that matches neither a state of the checkpoint nor a missing state.
    """
    unwanted = set()
    for text in named:
        matching = {
            (uid, name)
            for uid, name in known
            if text in (uid, f"{uid}/{name}", manifest.operators.id_of(uid))
        }
        if not matching and not any(state.is_named(text) for state in missing):
            stored = ", ".join(f"{uid}/{name}" for uid, name in sorted(known))
            raise StateNotFoundError(
                f"{text!r} cannot be left out because it does not exist: name an operator or "
                f"OPERATOR/STATE. Checkpoint {manifest.checkpoint_id} lacks "
                f"{left_out_text(missing) or 'nothing of its source'}; it has {stored}"
            )
        unwanted |= matching
    return unwanted


def _find_views(known: set[tuple[str, str]], record: SavepointRecord) -> list[LeftOut]:
    """Return the offset states that an import added; their offsets are written to the splits."""
    splits = {state.operator for state in record.states if state.name == SOURCE_READER_STATE}
    imported = {(state.operator, state.state) for state in record.states}
    return [
        LeftOut(
            uid,
            name,
            f"the offsets are written into the splits of {SOURCE_READER_STATE}",
            is_written_elsewhere=True,
        )
        for uid, name in sorted(known - imported)
        if uid in splits and name.startswith("offsets")
    ]


def _refuse_unknown(uids: Sequence[str], operators: Collection[str] | None) -> None:
    """Raise StateNotFoundError for an operator that the checkpoint does not have."""
    for uid in operators or ():
        if uid not in uids:
            raise StateNotFoundError(
                f"the checkpoint has no operator {uid!r}; it has {', '.join(uids)}"
            )
