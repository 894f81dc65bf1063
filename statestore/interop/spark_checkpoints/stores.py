"""Select the states from which each of Spark's stores is written, and refuse unsupported ones.

Most stores are written from one state. The store of a transformWithState is kept twice: as Spark's
bytes, and as the states of its variables. The bytes are written unchanged, unless a variable was
changed or one of its keys was purged. In this case all families are rebuilt from the variables, and
the bytes are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame

from statestore.errors import UnsupportedTypeError
from statestore.interop.spark_checkpoints.columns import StoreColumns
from statestore.interop.spark_checkpoints.families import FAMILY, FamilyColumns
from statestore.interop.spark_checkpoints.import_record import ImportedStore, QueryRecord
from statestore.interop.spark_checkpoints.operators import (
    ENCODING,
    NOT_REWRITTEN,
    PREFIXED,
    kind_of,
)
from statestore.interop.spark_checkpoints.parts import PartForm
from statestore.interop.spark_checkpoints.state_files import Provider
from statestore.interop.spark_checkpoints.variables import families_of, own_families
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState

__all__ = ["StoreStates", "is_rewritten", "stores_of"]

State = tuple[ImportedStore, RestoredKeyedState]


@dataclass(frozen=True)
class StoreStates:
    """One of Spark's stores with the state of its rows.

    If ``variables`` is not empty, the store is rebuilt from the states of its variables instead.
    """

    one: ImportedStore
    state: RestoredKeyedState
    variables: tuple[State, ...] = ()

    def rows(self, partitions: int) -> DataFrame:
        """Return its rows as Spark's bytes, with one Spark partition per state partition."""
        columns = self.one.columns
        if not self.variables:
            return columns.to_bytes(self.state.to_spark(), partitions)
        assert isinstance(columns, FamilyColumns)
        families = []
        for part, state in self.variables:
            assert isinstance(part.columns, StoreColumns)
            families.append(families_of(part, part.columns, state.to_spark(), partitions))
        return columns.in_place(reduce(DataFrame.union, families), partitions)

    @property
    def proofs(self) -> tuple[State, ...]:
        """The states that Spark must read back, row by row."""
        return self.variables or ((self.one, self.state),)


def stores_of(
    restored: RestoredCheckpoint, record: QueryRecord, provider: Provider
) -> tuple[StoreStates, ...]:
    """Return the stores of a query's operators.

    Raises:
        UnsupportedTypeError: for a store that cannot be written for the provider, for bytes that
            differ from the imported bytes, and for changed variables if the store cannot be
            rebuilt.
    """
    return tuple(
        _store(restored, record, store, provider) for store in record.stores if not store.is_view
    )


def is_rewritten(record: QueryRecord, provider: Provider) -> bool:
    """Return whether only Spark's own rewriter can write the state.

    This is the case for RocksDB, if keys have a special encoding for scans, or if each file has an
    id, in the second format of checkpoints.
    """
    if provider != "rocksdb":
        return False
    if record.commit_version != "1":
        return True
    kinds = ((store.operator_name, kind_of(store.operator_name)) for store in record.stores)
    return any(name in PREFIXED or (kind and kind.has_variables) for name, kind in kinds)


def _store(
    restored: RestoredCheckpoint, record: QueryRecord, one: ImportedStore, provider: Provider
) -> StoreStates:
    kind = kind_of(one.operator_name)
    if is_rewritten(record, provider) and one.operator_name in NOT_REWRITTEN:
        raise UnsupportedTypeError(
            "Spark's own rewriter, which writes RocksDB for this query, does not support "
            f"operator {one.uid}: export with provider hdfs"
        )
    if provider == "hdfs" and kind is not None and kind.has_variables:
        raise UnsupportedTypeError(
            f"Spark supports operator {one.uid} only with provider rocksdb: export with that "
            "provider"
        )
    state = restored.keyed(one.uid, one.state)
    variables = _changed(restored, record, one, state) if one.form is PartForm.FAMILIES else ()
    if variables:
        return StoreStates(one, state, variables)
    if not one.columns.is_typed and state.contents() != one.contents:
        raise UnsupportedTypeError(
            f"state {one.state!r} of operator {one.uid!r} is kept as Spark's bytes "
            f"({one.columns.problems[0]}), and its rows have changed since the import. Export "
            "a checkpoint in which they are unchanged"
        )
    return StoreStates(one, state)


def _changed(
    restored: RestoredCheckpoint,
    record: QueryRecord,
    store: ImportedStore,
    families: RestoredKeyedState,
) -> tuple[State, ...]:
    """Return the variables of a transformWithState if one was changed, otherwise nothing."""
    variables = tuple(
        (one, restored.keyed(one.uid, one.state))
        for one in record.stores
        if one.is_view and one.operator == store.operator
    )
    changed = [one.state for one, state in variables if state.contents() != one.contents]
    if not changed:
        return ()
    what = f"state {changed[0]!r} of operator {store.uid!r} was changed since its import, and"
    encoding = record.settings.get(ENCODING, "unsaferow")
    if encoding != "unsaferow":
        raise UnsupportedTypeError(
            f"{what} Spark stores its variables as {encoding}, which cannot be written. "
            "Export a checkpoint in which the state is unchanged"
        )
    known = frozenset().union(*(own_families(one) for one, _ in variables))
    found = {row[0] for row in families.to_spark().select(FAMILY).distinct().collect()}
    for family in sorted(found - known):
        raise UnsupportedTypeError(
            f"{what} family {family!r} of its store has no state of its own, so the store "
            "cannot be rebuilt. Export a checkpoint in which the state is unchanged"
        )
    return variables
