"""The types of the job that restores the savepoint, as the user of the export declares them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from statestore.errors import InvalidArgumentError, SchemaMismatchError, StateNotFoundError
from statestore.format.state import KeyedState, OperatorState
from statestore.interop.flink.columns.declared_columns import ColumnFitter, JobClass
from statestore.interop.flink.columns.declared_types import DeclaredType, parse_declared_type
from statestore.interop.flink.exporting.scala_classes import ClassMapping, parse_class_mapping
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.versions import parse_flink_major
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink_plans.plan_file import FlinkPlan


@dataclass(frozen=True)
class JobTypes:
    """The declared types of a job.

    Attributes:
        keys: the types of keys, by operator.
        states: the types of states, by operator and state: of a value, a ``List`` or a ``Map``.
        classes: the user's descriptions of classes, by class name.
        flink_major: 1 or 2, the version of Flink, or None if the user does not give it.
        differences: the columns that do not fit; filled while an export is planned.
    """

    keys: Mapping[str, DeclaredType] = field(default_factory=dict)
    states: Mapping[tuple[str, str], DeclaredType] = field(default_factory=dict)
    classes: Mapping[str, ClassMapping] = field(default_factory=dict)
    flink_major: int | None = None
    differences: list[str] = field(default_factory=list)

    def make_fitter(self, state: KeyedState | OperatorState) -> ColumnFitter:
        """Return an object that fits the columns of a state to declared types."""
        described: dict[str, JobClass] = {
            name: mapping.described
            for name, mapping in self.classes.items()
            if mapping.described is not None
        }
        return ColumnFitter(str(state), described, self.flink_major, self.differences)

    def refuse_differences(self) -> None:
        """Raise SchemaMismatchError with each column that does not fit its declared type."""
        if not self.differences:
            return
        count = len(self.differences)
        error = SchemaMismatchError(
            f"{self.differences[0]}. Bootstrap the state with such columns, or correct the type "
            "(--java-type, --classes)"
            if count == 1
            else f"{count} columns do not fit the types of the job; bootstrap the states with such "
            "columns, or correct the types (--java-type, --classes)"
        )
        for difference in self.differences if count > 1 else ():
            error.add_note(difference)
        raise error


def parse_job_types(
    target: FlinkTarget,
    known: Collection[tuple[str, str]],
    uids: Sequence[str],
    record: SavepointRecord | None,
    compiled: FlinkPlan | None,
) -> JobTypes:
    """Parse the declared types of a job.

    Args:
        target: the job.
        known: operator and name of each state of the checkpoint.
        uids: the operators of the checkpoint.
        record: the imported savepoint; None for a store that was not imported.
        compiled: the compiled plan that defines the types of states; None without one.

    Returns:
        The types.

    Raises:
        StateNotFoundError: for the type of an operator or state that the checkpoint does not have.
        InvalidArgumentError: for an invalid type, an invalid description of a class, or a type for
            a state that was imported or that a compiled plan describes.
    """
    imported = {(state.operator, state.state) for state in record.states} if record else set()
    planned = {(state.operator, state.state) for state in compiled.states} if compiled else set()
    keys: dict[str, DeclaredType] = {}
    states: dict[tuple[str, str], DeclaredType] = {}
    for name, text in (target.types or {}).items():
        own = [state for state in known if "/".join(state) == name]
        if name not in uids and not own:
            stored = ", ".join(sorted("/".join(state) for state in known))
            raise StateNotFoundError(
                f"a type is given for {name!r}, which does not exist: name an operator, for its "
                f"keys, or OPERATOR/STATE. The checkpoint has {stored}"
            )
        if own and name in uids:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, which is both an operator and a state of another"
            )
        if imported & {*own, *(state for state in known if state[0] == name)}:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, but it was imported from a savepoint and keeps "
                "the job's own serializers: remove the type"
            )
        if planned & {*own, *(state for state in known if state[0] == name)}:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, but its types are those of a compiled plan: remove "
                "the type"
            )
        declared = parse_declared_type(text, f"the type of {name!r}")
        if own:
            states[own[0]] = declared
        else:
            keys[name] = declared
    classes = parse_class_mapping(target.classes or {})
    major = parse_flink_major(target.version, "the version of the target")
    return JobTypes(keys, states, classes, major)
