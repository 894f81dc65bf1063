"""Select the rows to erase, by the values of columns that identify rows.

A *selection* is one row of some columns. It selects the rows of a state that have its values in
these columns. There are two ways to name a subject:

* A key of one operator. The operator is its operator id, not its label: an operator without a uid
  that was renamed keeps its id. The key selects rows by each list of key columns that the state
  ever had.
* Values of columns. They select rows of every state of every operator that has all of these columns
  among its key, namespace or entry columns, or had them there once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from statestore.arguments import checked_fields
from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.names import table_of
from statestore.format.schema import DataType, Schema, common_type, type_text
from statestore.format.state import KeyedState
from statestore.jobgraph.operators import operator_id
from statestore.restore.lookup import key_batch
from statestore.rows.column_types import arrow_schema, schema_of_arrow, uuid_as_stored
from statestore.rows.lossless_cast import brief_text
from statestore.rows.python_values import column_of

Selection: TypeAlias = pa.RecordBatch
"""One row: the columns that are compared, and the value of each."""

ValueOf = Callable[[DataType], Any]
"""Returns the value of a column of a type; raises InvalidArgumentError or ValueError if the type
does not have it."""

StateId = tuple[str, str]


@dataclass(frozen=True)
class OtherState:
    """A state that was not changed, and the reason."""

    operator: str
    state: str
    reason: str


class Subject(Protocol):
    """The rows to find and remove."""

    operator: str | None
    """The label of the operator, if it is a key of one."""

    columns: tuple[str, ...]
    """The columns, if it is values of these."""

    others: tuple[OtherState, ...]
    """The states that have a column of it and are left alone."""

    def includes(self, manifest: Manifest, state: KeyedState) -> bool:
        """Return whether a state of a checkpoint can have rows of the subject."""

    def selections(self, manifest: Manifest, state: KeyedState) -> tuple[Selection, ...]:
        """Return the selections of the subject's rows in the files of a checkpoint's state."""

    def selections_of_file(self, folder: str, schema: Schema) -> tuple[Selection, ...] | None:
        """Return the selections of the subject's rows in a file that no manifest names.

        Returns None if the file's columns do not determine them.
        """

    def owns_folder(self, folder: str) -> bool:
        """Return whether files in the folder of a table may have the subject's rows."""


SubjectOf = Callable[[Sequence[Manifest]], Subject]
"""Returns the subject by all checkpoints that can be read, oldest first."""


@checked_fields
@dataclass(frozen=True)
class OperatorKey:
    """A key of one operator, in its keyed state ``state`` or in all of them.

    Attributes:
        operator: the operator. It is matched by its operator id, so an operator without a uid that
            was renamed is found under both labels.
        key: a key as for :meth:`RestoredKeyedState.get`, or a function that returns it for a state.
            If a state's key columns were changed, rows are matched by each of its keys.
        state: the state; by default all keyed states of the operator.
    """

    operator: str
    key: Any
    state: str | None = None


def subject_of(wanted: Mapping[str, Any] | OperatorKey) -> SubjectOf:
    """Return a function from the manifests of a store to the subject to find in them.

    A subject is given by the values of identifying columns, or by a key of an operator. A value can
    be a function that returns the value for the column's type.
    """
    if isinstance(wanted, OperatorKey):
        key_of = wanted.key if callable(wanted.key) else lambda state: wanted.key
        return lambda manifests: KeySubject(wanted.operator, key_of, wanted.state, manifests)
    values = {name: _value_of(value) for name, value in wanted.items()}
    return lambda manifests: ColumnSubject(values, manifests)


def _value_of(value: Any) -> ValueOf:
    if callable(value):
        value_of: ValueOf = value
        return value_of
    return lambda data_type: value


def refuse_unknown(catalog: Catalog, subject: Subject, manifests: Sequence[Manifest]) -> None:
    """Raise StateNotFoundError if no checkpoint has a state of a key's operator.

    The columns of a :class:`ColumnSubject` were looked up when it was made.
    """
    states = [entry.state for manifest in manifests for entry in manifest.keyed]
    if not isinstance(subject, KeySubject) or any(
        subject.includes(manifest, entry.state)
        for manifest in manifests
        for entry in manifest.keyed
    ):
        return
    wanted = f"keyed state of operator {subject.operator!r}"
    if subject.name is not None:
        wanted = f"keyed state {subject.name!r} of operator {subject.operator!r}"
    raise StateNotFoundError(
        f"no checkpoint of {catalog.storage.url} has {wanted}; the keyed states are "
        f"{', '.join(sorted(set(map(str, states)))) or 'none'}"
    )


def applies(selection: Selection, schema: Schema) -> bool:
    """Return whether rows with these columns can be compared with a selection."""
    own = schema_of_arrow(selection.schema)
    return set(schema.names).issuperset(own.names) and all(
        common_type(own.type_of(name), schema.type_of(name)) is not None for name in own.names
    )


def _drop_duplicates(selections: Iterable[Selection]) -> tuple[Selection, ...]:
    distinct: list[Selection] = []
    for selection in selections:
        if not any(selection.equals(other, check_metadata=True) for other in distinct):
            distinct.append(selection)
    return tuple(distinct)


def _ids_of(manifest: Manifest, state: KeyedState) -> frozenset[str]:
    return manifest.operators.ids_of(state.uid)


class KeySubject(Subject):
    """A key of one operator, of its keyed state ``name`` or of all of them."""

    columns = ()
    others = ()
    operator: str

    def __init__(
        self,
        uid: str,
        key_of: Callable[[KeyedState], Any],
        name: str | None,
        manifests: Sequence[Manifest],
    ) -> None:
        """Find the operator's ids, and the key columns that its states ever had.

        Args:
            uid: The operator's label. If two operators had it, the newer one is used.
            key_of: Returns the key for a state.
            name: The state; None for all keyed states.
            manifests: All checkpoints that can be read, oldest first.

        Raises:
            InvalidArgumentError: The key does not fit any key that a state had.
        """
        self.operator = uid
        self.name = name
        self._ids = _operator_ids(uid, manifests)
        states: dict[str, list[KeyedState]] = {}
        self._labels = {uid}
        for manifest in manifests:
            for entry in manifest.keyed:
                if self.includes(manifest, entry.state):
                    states.setdefault(entry.state.name, []).append(entry.state)
                    self._labels.add(entry.state.uid)
        self._selections = {
            state: _key_selections(forms, key_of) for state, forms in states.items()
        }

    def includes(self, manifest: Manifest, state: KeyedState) -> bool:
        """Return whether the state belongs to the operator."""
        return self.name in (None, state.name) and not self._ids.isdisjoint(
            _ids_of(manifest, state)
        )

    def selections(self, manifest: Manifest, state: KeyedState) -> tuple[Selection, ...]:
        """Return the key in each form that can be compared with the state."""
        if not self.includes(manifest, state):
            return ()
        known = self._selections.get(state.name, ())
        return tuple(selection for selection in known if applies(selection, state.schema))

    def selections_of_file(self, folder: str, schema: Schema) -> tuple[Selection, ...] | None:
        """Return the key in each form that can be compared with the columns of a file."""
        table = table_of(folder)
        name = None if table is None else table[2]
        known = self._selections.get(name or "", self._all_selections)
        return tuple(selection for selection in known if applies(selection, schema)) or None

    def owns_folder(self, folder: str) -> bool:
        """Return whether the folder is that operator's, for a keyed state."""
        table = table_of(folder)
        return (
            table is not None
            and table[0] in self._labels
            and table[1] != "operator"
            and self.name in (None, table[2])
        )

    @cached_property
    def _all_selections(self) -> tuple[Selection, ...]:
        return _drop_duplicates(
            selection for known in self._selections.values() for selection in known
        )


def _operator_ids(uid: str, manifests: Sequence[Manifest]) -> frozenset[str]:
    """Return the operator ids that a label refers to.

    Without a job graph, a checkpoint knows an operator only by its label. So if the newest
    checkpoint with the label has no graph, all operators that ever had the label are included.
    """
    with_label = [
        manifest for manifest in manifests if any(e.state.uid == uid for e in manifest.entries)
    ]
    if with_label and with_label[-1].graph is not None:
        with_label = with_label[-1:]
    ids = [manifest.operators.ids_of(uid) for manifest in with_label]
    return frozenset({operator_id(uid)}.union(*ids))


def _key_selections(
    forms: Sequence[KeyedState], key_of: Callable[[KeyedState], Any]
) -> tuple[Selection, ...]:
    """Return the key in each of the state's forms that can have such a key."""
    selections: list[Selection] = []
    refused: InvalidArgumentError | None = None
    distinct = {(str(form.schema.select(form.key)), form.key_types): form for form in forms}
    for state in distinct.values():
        try:
            selections.append(key_batch(state, key_of(state)))
        except InvalidArgumentError as error:
            refused = error
    if refused is not None and not selections:
        raise refused
    return _drop_duplicates(selections)


class ColumnSubject(Subject):
    """Rows of all operators that have these values in these columns."""

    operator = None

    def __init__(self, values: Mapping[str, ValueOf], manifests: Sequence[Manifest]) -> None:
        """Find the states that have the columns in their identity.

        Args:
            values: The value of each column.
            manifests: All checkpoints that can be read, oldest first.

        Raises:
            InvalidArgumentError: No column is given, or no state with the columns can hold the
                values, such as a time without a zone.
            StateNotFoundError: No state of any checkpoint has these columns in its identity.
        """
        if not values:
            raise InvalidArgumentError(
                "name at least one column with its value, for example customer=312"
            )
        self.values = dict(values)
        self.columns = tuple(values)
        self._identity: dict[StateId, set[str]] = {}
        self._folders: dict[str, set[StateId]] = {}
        for manifest in manifests:
            for entry in manifest.keyed:
                for number in _state_ids(manifest, entry.state):
                    self._identity.setdefault(number, set()).update(entry.state.identity)
                    for part in entry.parts:
                        self._folders.setdefault(part.table.path, set()).add(number)
        if not any(map(self._has_all, self._identity)):
            known = sorted(set().union(*self._identity.values()))
            raise StateNotFoundError(
                f"no keyed state has {' and '.join(map(repr, self.values))} among its identity "
                f"columns; the identity columns are {', '.join(map(repr, known)) or 'none'}"
            )
        self._refuse_unfit(manifests)
        self.others = tuple(self._others(manifests))

    def includes(self, manifest: Manifest, state: KeyedState) -> bool:
        """Return whether the state's identity has, or once had, the columns."""
        return any(map(self._has_all, _state_ids(manifest, state)))

    def selections(self, manifest: Manifest, state: KeyedState) -> tuple[Selection, ...]:
        """Return the values in the types of the state's columns.

        The result is empty if a column cannot hold its value.
        """
        if not self.includes(manifest, state):
            return ()
        return self._selection(state.schema, str(state))

    def selections_of_file(self, folder: str, schema: Schema) -> tuple[Selection, ...] | None:
        """Return the values in the types of the file's columns.

        A file that lacks one of the columns has no rows of the subject. If no manifest names the
        file's table, the columns are assumed to be part of its identity.
        """
        states = self._folders.get(folder)
        if states is not None and not any(map(self._has_all, states)):
            return ()
        return self._selection(schema, f"the table in {folder}")

    def owns_folder(self, folder: str) -> bool:
        """Return whether the folder belongs to a keyed state."""
        table = table_of(folder)
        return table is not None and table[1] != "operator"

    def _refuse_unfit(self, manifests: Sequence[Manifest]) -> None:
        """Raise InvalidArgumentError, with the reason, if no state can hold the values.

        Otherwise a mistyped value would be reported as removed everywhere.
        """
        reason = None
        for manifest in manifests:
            for entry in manifest.keyed:
                state = entry.state
                if not self.includes(manifest, state) or self._lacks_column(state.schema):
                    continue
                try:
                    _selection_of(self.values, state.schema, str(state))
                except ValueError as error:  # also InvalidArgumentError
                    reason = f"{state}: {error}"
                else:
                    return
        if reason is not None:
            raise InvalidArgumentError(
                f"no state can have the subject in its columns {_quoted(self.values)}; {reason}"
            )

    def _lacks_column(self, schema: Schema) -> bool:
        return not set(schema.names).issuperset(self.values)

    def _has_all(self, number: StateId) -> bool:
        return self._identity[number].issuperset(self.values)

    def _selection(self, schema: Schema, subject: str) -> tuple[Selection, ...]:
        if self._lacks_column(schema):
            return ()
        try:
            return (_selection_of(self.values, schema, subject),)
        except ValueError:  # also InvalidArgumentError
            return ()  # a column of this type cannot hold the value: see ``others``

    def _others(self, manifests: Sequence[Manifest]) -> Iterable[OtherState]:
        """Yield the states that have a column of the subject but are not changed."""
        others: dict[StateId, str] = {}
        for manifest in manifests:
            for entry in manifest.entries:
                named = [name for name in self.values if name in entry.state.schema.names]
                if not named:
                    continue
                place = entry.state.uid, entry.state.name
                if not isinstance(entry, KeyedEntry):
                    others[place] = f"elements of operator state contain {_quoted(named)}"
                elif not self.includes(manifest, entry.state):
                    others[place] = f"it has only {_quoted(named)} of the subject's columns"
                    if len(named) == len(self.values):
                        others[place] = f"{_quoted(named)} is a value column there"
                elif len(named) == len(self.values) and not self.selections(manifest, entry.state):
                    types = (f"{n} {type_text(entry.state.schema.type_of(n))}" for n in named)
                    others[place] = f"its columns cannot hold the value ({', '.join(types)})"
                else:
                    others.pop(place, None)
        return (OtherState(*place, reason) for place, reason in sorted(others.items()))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _state_ids(manifest: Manifest, state: KeyedState) -> list[StateId]:
    return [(number, state.name) for number in sorted(_ids_of(manifest, state))]


def _selection_of(values: Mapping[str, ValueOf], schema: Schema, subject: str) -> Selection:
    fields = arrow_schema(schema.select(tuple(values)))
    columns = []
    for field in fields:
        column_type = schema.type_of(field.name)
        value = uuid_as_stored(values[field.name](column_type), column_type == "string")
        if value is None:
            raise InvalidArgumentError(
                f"the value of {field.name!r} is null, but keys are never null"
            )
        columns.append(
            column_of(
                [value], field.type, name=field.name, subject=brief_text(subject), place=_place
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=fields)


def _place(position: int) -> str:
    return "the subject"


def selections_in_folders(
    subject: Subject, manifests: Iterable[Manifest]
) -> dict[str, tuple[Selection, ...]]:
    """Return the subject's selections by the folder of each table that a manifest names.

    Folders of states that cannot have the subject are omitted.
    """
    selections_by_folder: dict[str, list[Selection]] = {}
    for manifest in manifests:
        for entry in manifest.keyed:
            if not subject.includes(manifest, entry.state):
                continue
            own = subject.selections(manifest, entry.state)
            for part in entry.parts:
                selections_by_folder.setdefault(part.table.path, []).extend(own)
    return {
        folder: _drop_duplicates(selections) for folder, selections in selections_by_folder.items()
    }
