"""Select the states from which each of Spark's stores is written, and refuse unsupported ones.

Most stores are written from one state. The store of a transformWithState is kept twice: as Spark's
bytes, and as the states of its variables. The bytes are written unchanged, unless a variable was
changed or one of its keys was purged. In this case all families are rebuilt from the variables, and
the bytes are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from pyspark.sql import DataFrame

from statestore.errors import UnsupportedTypeError
from statestore.format.rescale_proof import RowSet
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.dependent_stores import refuse_changed_bytes, refuse_uneven_joins
from statestore.interop.spark.families import FAMILY, FamilyColumns
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.observed_state import digest_state, observe_state
from statestore.interop.spark.operators import JOIN, NOT_REWRITTEN, PREFIXED
from statestore.interop.spark.parts import PartForm
from statestore.interop.spark.query_settings import ENCODING, JOIN_FORMAT
from statestore.interop.spark.state_files import Provider
from statestore.interop.spark.variables import (
    family_names,
    number_list,
    rebuild_store,
    rebuild_variables,
)
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.store import StateStore

_NOT_WRITTEN = "4"
"""The state format of joins that Spark's rewriter writes wrongly, up to Spark 4.3."""


@dataclass(frozen=True)
class StoredVariable:
    """A variable of a transformWithState with its rows, as Spark's reader will return them."""

    imported: ImportedStore
    rows: DataFrame
    contents: RowSet


@dataclass(frozen=True)
class StoreStates:
    """One of Spark's stores with the state of its rows.

    If ``variables`` is not empty, the store is rebuilt from its variables instead.
    """

    imported: ImportedStore
    state: RestoredKeyedState
    variables: tuple[StoredVariable, ...] = ()

    observe = staticmethod(observe_state)  # the digest is that of the manifest

    def rows(self, partitions: int) -> DataFrame:
        """Return the store's rows as Spark's bytes, one Spark partition per state partition."""
        columns = self.imported.columns
        if not self.variables:
            return columns.to_bytes(self.state.to_spark(), partitions)
        assert isinstance(columns, FamilyColumns)
        variables = [(variable.imported, variable.rows) for variable in self.variables]
        return rebuild_store(columns, variables, partitions)

    @property
    def proofs(self) -> tuple[tuple[ImportedStore, RowSet], ...]:
        """The parts that Spark must read back, with their rows."""
        if not self.variables:
            return ((self.imported, self.state.contents()),)
        return tuple((variable.imported, variable.contents) for variable in self.variables)


def select_stores(
    store: StateStore, restored: RestoredCheckpoint, record: QueryRecord, provider: Provider
) -> tuple[StoreStates, ...]:
    """Return the stores of a query's operators.

    Args:
        store: the store of the checkpoint.
        restored: the checkpoint.
        record: its query.
        provider: the provider of the new location.

    Raises:
        UnsupportedTypeError: for a store that cannot be written for the provider, for bytes that
            differ from the imported bytes, for changed variables if the store cannot be rebuilt,
            and for changed states that do not fit each other.
    """
    refuse_uneven_joins(restored, record)
    return tuple(
        _select_store(store, restored, record, part, provider)
        for part in record.stores
        if not part.is_view
    )


def needs_rewriter(record: QueryRecord, provider: Provider) -> bool:
    """Return whether only Spark's own rewriter can write the state.

    This is the case for RocksDB, if keys have a special encoding for scans, or if each file has an
    id, in the second format of checkpoints.
    """
    if provider != "rocksdb":
        return False
    if record.commit_version != "1":
        return True
    return any(
        store.operator_name in PREFIXED or store.form is PartForm.FAMILIES
        for store in record.stores
    )


def refuse_unwritable(record: QueryRecord, store: ImportedStore, provider: Provider) -> None:
    """Raise UnsupportedTypeError for a store that cannot be written for the provider."""
    if needs_rewriter(record, provider) and store.operator_name in NOT_REWRITTEN:
        raise UnsupportedTypeError(
            "Spark's own rewriter, which writes RocksDB for this query, does not support "
            f"operator {store.uid}: export with provider hdfs"
        )
    if store.operator_name == JOIN and record.settings[JOIN_FORMAT] == _NOT_WRITTEN:
        raise UnsupportedTypeError(
            f"Spark's own rewriter writes operator {store.uid}, a join in state format "
            f"{_NOT_WRITTEN}, as files that Spark cannot read. Its state can be imported, but not "
            f"exported: start the query with a new location and {JOIN_FORMAT}=3"
        )
    if provider == "hdfs" and store.form is PartForm.FAMILIES:
        raise UnsupportedTypeError(
            f"Spark supports operator {store.uid} only with provider rocksdb: export with that "
            "provider"
        )


def _select_store(
    store: StateStore,
    restored: RestoredCheckpoint,
    record: QueryRecord,
    part: ImportedStore,
    provider: Provider,
) -> StoreStates:
    refuse_unwritable(record, part, provider)
    state = restored.keyed(part.uid, part.state)
    variables: tuple[StoredVariable, ...] = ()
    if part.form is PartForm.FAMILIES:
        variables = _find_changed_variables(restored, record, part, state)
    if variables:
        if state.contents() != part.contents:
            _refuse_changed_bytes(store, restored, record, part)
        return StoreStates(part, state, variables)
    if not part.columns.is_typed and state.contents() != part.contents:
        raise UnsupportedTypeError(
            f"state {part.state!r} of operator {part.uid!r} is kept as Spark's bytes "
            f"({part.columns.problems[0]}), and its rows have changed since the import. Export "
            "a checkpoint in which they are unchanged"
        )
    return StoreStates(part, state)


def _refuse_changed_bytes(
    store: StateStore, restored: RestoredCheckpoint, record: QueryRecord, part: ImportedStore
) -> None:
    """Refuse bytes that an edit changed, because a rebuilt store would lose the edit (I17).

    A purge removes a key from the bytes and from all variables, in each checkpoint. So the oldest
    checkpoint with these bytes has variables that agree with them, even if others were changed.
    """
    variables = _list_variables(record, part)
    needed = {(each.uid, each.state) for each in (part, *variables)}
    checkpoints = (store.restore(checkpoint=number) for number in store.checkpoints())
    for earlier in chain(checkpoints, [restored]):
        stored = {(entry.state.uid, entry.state.name) for entry in earlier.manifest.keyed}
        if not needed <= stored:
            continue
        families = earlier.keyed(part.uid, part.state)
        if families.contents() == restored.keyed(part.uid, part.state).contents():
            states = [
                _stored_variable(each, earlier.keyed(each.uid, each.state)) for each in variables
            ]
            rows = [(variable.imported, variable.rows) for variable in states]
            rebuilt = rebuild_variables(rows, part.partitions)
            refuse_changed_bytes((part, families), rebuilt, earlier.checkpoint_id)
            return


def _list_variables(record: QueryRecord, store: ImportedStore) -> list[ImportedStore]:
    return [part for part in record.stores if part.is_view and part.operator == store.operator]


def _find_changed_variables(
    restored: RestoredCheckpoint,
    record: QueryRecord,
    store: ImportedStore,
    families: RestoredKeyedState,
) -> tuple[StoredVariable, ...]:
    """Return the variables of a transformWithState if one was changed, otherwise nothing."""
    variables = tuple(
        (variable, restored.keyed(variable.uid, variable.state))
        for variable in _list_variables(record, store)
    )
    changed = [
        variable.state for variable, state in variables if state.contents() != variable.contents
    ]
    if not changed:
        return ()
    what = f"state {changed[0]!r} of operator {store.uid!r} was changed since its import, and"
    encoding = record.settings[ENCODING]
    if encoding != "unsaferow":
        raise UnsupportedTypeError(
            f"{what} Spark stores its variables as {encoding}, which cannot be written. "
            "Export a checkpoint in which the state is unchanged"
        )
    known = frozenset().union(*(family_names(variable) for variable, _ in variables))
    present = {row[0] for row in families.to_spark().select(FAMILY).distinct().collect()}
    for family in sorted(present - known):
        raise UnsupportedTypeError(
            f"{what} family {family!r} of its store has no state of its own, so the store "
            "cannot be rebuilt. Export a checkpoint in which the state is unchanged"
        )
    return tuple(_stored_variable(variable, state) for variable, state in variables)


def _stored_variable(variable: ImportedStore, state: RestoredKeyedState) -> StoredVariable:
    rows = state.to_spark()
    if variable.form is not PartForm.LIST:
        return StoredVariable(variable, rows, state.contents())
    assert isinstance(variable.columns, StoreColumns)
    numbered = number_list(variable.columns, rows)
    return StoredVariable(variable, numbered, digest_state(numbered, variable.columns))
