"""Refuse states that were changed and no longer fit another state of the same operator.

Two kinds of Spark's operators keep the same facts twice:

- A side of a stream-stream join has a store of numbered rows, and a store with the number of rows
  of each key. Spark reads as many rows as the number says, by their numbers.
- The store of a transformWithState has all families as bytes, and each variable is a state too. If
  a variable was changed, the store is rebuilt from the variables, and the bytes are not used (I17).

An edit of one of the two would make Spark fail, lose rows, or ignore the edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statestore.display import counted
from statestore.errors import UnsupportedTypeError
from statestore.interop.spark.columns import KEY_BYTES, VALUE_BYTES, StoreColumns
from statestore.interop.spark.families import FAMILY, POSITION
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.operators import JOIN
from statestore.interop.spark.parts import PartForm
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.spark.hashing import column_of

_ROWS, _COUNTS = "keyWithIndexToValue", "keyToNumValues"
Part = tuple[ImportedStore, RestoredKeyedState]


def refuse_uneven_joins(restored: RestoredCheckpoint, record: QueryRecord) -> None:
    """Raise UnsupportedTypeError if the two stores of a join's side contradict each other.

    Only sides that were changed since the import are read. A side of a join whose rows are kept as
    bytes cannot be changed.
    """
    for rows, counts in _changed_sides(restored, record):
        for wrong in _uneven_keys(rows, counts).limit(1).collect():
            key = dict(zip(rows[0].columns.key_columns, wrong, strict=False))
            raise UnsupportedTypeError(
                f"states {rows[0].state!r} and {counts[0].state!r} of operator {rows[0].uid!r} "
                f"were changed since their import and contradict each other: the first has "
                f"{counted(wrong.found or 0, 'row')} of the key {key}, but the second counts "
                f"{wrong.stored or 0}. Number the rows of a key from 0 without gaps, and write "
                "their number into the second state, or export a checkpoint with both unchanged"
            )


def refuse_changed_bytes(families: Part, rebuilt: DataFrame, checkpoint_id: int) -> None:
    """Raise UnsupportedTypeError if the bytes of a store are not those of its variables.

    Args:
        families: the state with the bytes.
        rebuilt: the rows of all families, from the states of the variables.
        checkpoint_id: the checkpoint of both.
    """
    store, state = families
    stored, made = (
        rows.select(FAMILY, KEY_BYTES, F.col(POSITION).cast("int"), VALUE_BYTES)
        for rows in (state.to_spark(), rebuilt)
    )
    differences = stored.exceptAll(made).union(made.exceptAll(stored))
    for row in differences.limit(1).collect():
        raise UnsupportedTypeError(
            f"state {store.state!r} of operator {store.uid!r} was changed since its import. It is "
            "read-only, and rebuilt from the states of the variables, but its family "
            f"{row[FAMILY]!r} differs from them in checkpoint {checkpoint_id}, the oldest one with "
            "these rows. Change the variables, or purge a key in all states. Export a checkpoint "
            "in which the state is unchanged"
        )


def _changed_sides(
    restored: RestoredCheckpoint, record: QueryRecord
) -> Iterator[tuple[Part, Part]]:
    joins: dict[int, dict[str, ImportedStore]] = {}
    for store in record.stores:
        if store.operator_name == JOIN and store.form is PartForm.STORE and store.columns.is_typed:
            joins.setdefault(store.operator, {})[store.store] = store
    for stores in joins.values():
        for side in ("left", "right"):
            parts = [
                (store, restored.keyed(store.uid, store.state)) for store in _side(stores, side)
            ]
            if any(state.contents() != store.contents for store, state in parts):
                rows, counts = parts
                yield rows, counts


def _side(stores: Mapping[str, ImportedStore], side: str) -> list[ImportedStore]:
    names = (f"{side}-{_ROWS}", f"{side}-{_COUNTS}")
    return [stores[name] for name in names] if set(names) <= stores.keys() else []


def _uneven_keys(rows: Part, counts: Part) -> DataFrame:
    """Return the keys whose rows do not have the stored number, or are not numbered from 0."""
    (index,) = rows[0].columns.entry_columns
    assert isinstance(counts[0].columns, StoreColumns)
    number = counts[0].columns.state_schema.names[-1]
    numbered = _with_keys(rows, "r", column_of(index).alias("index"))
    found = numbered.groupBy(*(name for name in numbered.columns if name != "index")).agg(
        F.count("*").alias("found"), F.min("index").alias("first"), F.max("index").alias("last")
    )
    stored = _with_keys(counts, "c", column_of(number).alias("stored"))
    pairs = [(f"r{place}", f"c{place}") for place in range(len(counts[0].columns.key_columns))]
    rows_of_key, number_of_key = (F.coalesce(name, F.lit(0)) for name in ("found", "stored"))
    is_even = (
        (rows_of_key == number_of_key)
        & (F.coalesce("first", F.lit(0)) == 0)
        & (F.coalesce("last", F.lit(-1)) == number_of_key - 1)
    )
    keys = [F.coalesce(*pair).alias(f"k{place}") for place, pair in enumerate(pairs)]
    both = found.join(stored, _equal(pairs), "full_outer")
    return both.where(~is_even).select(*keys, "found", "stored")


def _with_keys(part: Part, prefix: str, *others: Column) -> DataFrame:
    """Return a state's key columns, renamed to ``prefix`` and a number, and other columns."""
    store, state = part
    keys = (
        column_of(name).alias(f"{prefix}{place}")
        for place, name in enumerate(store.columns.key_columns)
    )
    return state.to_spark().select(*keys, *others)


def _equal(pairs: Sequence[tuple[str, str]]) -> Column:
    """Return whether all pairs of columns are equal; null equals null."""
    return reduce(and_, (F.col(one).eqNullSafe(F.col(other)) for one, other in pairs))
