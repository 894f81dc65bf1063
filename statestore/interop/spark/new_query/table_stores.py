"""Spark's state stores with the rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from statestore.format.rescale_proof import RowSet
from statestore.interop.spark.columns import KEY_BYTES, VALUE_BYTES, StoreColumns
from statestore.interop.spark.families import FamilyColumns
from statestore.interop.spark.import_record import ImportedStore
from statestore.interop.spark.location_writer import StoreRows
from statestore.interop.spark.new_query.planned_query import PlannedQuery
from statestore.interop.spark.new_query.wanted_states import (
    JOIN_COUNTS,
    JOIN_ROWS,
    PlannedPart,
    WantedState,
)
from statestore.interop.spark.observed_state import (
    digest_state,
    observe_columns,
    observe_state,
    observe_table,
)
from statestore.interop.spark.parts import PartForm
from statestore.interop.spark.rows import encode_rows
from statestore.interop.spark.variables import number_list, rebuild_store
from statestore.spark.hashing import column_of


@dataclass(frozen=True)
class _TableStore:
    """A state store with the rows of one table."""

    imported: ImportedStore
    table: DataFrame

    observe = staticmethod(observe_columns)

    def rows(self, partitions: int) -> DataFrame:
        """Return the store's rows as Spark's bytes, one Spark partition per state partition."""
        return self.imported.columns.to_bytes(self.table, partitions)

    @property
    def proofs(self) -> tuple[tuple[ImportedStore, RowSet], ...]:
        """The store, with the rows of the table."""
        return ((self.imported, self.imported.contents),)


@dataclass(frozen=True)
class _VariablesStore:
    """The store of a transformWithState, with a table for each variable."""

    imported: ImportedStore
    variables: tuple[tuple[ImportedStore, DataFrame], ...]

    observe = staticmethod(observe_state)

    def rows(self, partitions: int) -> DataFrame:
        """Return the store's rows as Spark's bytes, one Spark partition per state partition."""
        assert isinstance(self.imported.columns, FamilyColumns)
        return rebuild_store(self.imported.columns, self.variables, partitions)

    @property
    def proofs(self) -> tuple[tuple[ImportedStore, RowSet], ...]:
        """The variables, with the rows of their tables."""
        return tuple((part, part.contents) for part, _ in self.variables)


def build_stores(
    planned: PlannedQuery, tables: Mapping[str, DataFrame], partitions: int
) -> tuple[StoreRows, ...]:
    """Return all stores of a query, from a fitted table for each of its states.

    All tables are read, for the digests with which the written rows are compared.
    """
    return tuple(
        _variables_store(planned, part, tables, partitions)
        if part.part.form is PartForm.FAMILIES
        else _table_store(planned, part, tables, partitions)
        for part in planned.parts
        if not part.part.is_view
    )


def _variables_store(
    planned: PlannedQuery, store: PlannedPart, tables: Mapping[str, DataFrame], partitions: int
) -> _VariablesStore:
    variables = []
    for state in planned.states:
        if state.planned.part.operator == store.part.operator:
            table = tables[state.name]
            if state.planned.part.form is PartForm.LIST:
                table = number_list(state.store_columns, table)
            variables.append((_imported(state.planned, table, partitions), table))
    own = ImportedStore(**vars(store.part), columns=store.columns, contents=RowSet(0, 0))
    return _VariablesStore(own, tuple(variables))


def _table_store(
    planned: PlannedQuery, store: PlannedPart, tables: Mapping[str, DataFrame], partitions: int
) -> _TableStore:
    name = store.part.state.removesuffix(f"-{JOIN_ROWS}").removesuffix(f"-{JOIN_COUNTS}")
    state = planned.state(f"{store.part.uid}/{name}")
    table = tables[state.name]
    if state.is_join_side:
        table = _number_rows(table, state)
    if store.part.store.endswith(JOIN_COUNTS):
        table = _count_rows(table, state, store)
    return _TableStore(_imported(store, table, partitions), table)


def _imported(planned: PlannedPart, table: DataFrame, partitions: int) -> ImportedStore:
    columns = planned.columns
    assert isinstance(columns, StoreColumns)
    if planned.part.is_view:
        contents = digest_state(table, columns)
    else:
        contents = observe_table(table, columns)
    return ImportedStore(**vars(planned.part), columns=columns, contents=contents)


def _number_rows(table: DataFrame, state: WantedState) -> DataFrame:
    """Number the rows of each key of a side of a join, always in the same order."""
    columns = state.store_columns
    (index,) = columns.entry_columns
    given = F.struct(*(column_of(name) for name in table.columns)).alias("row")
    unnumbered = table.withColumn(index, F.lit(0).cast(columns.state_schema[index].dataType))
    encoded = encode_rows(columns.to_structs(unnumbered, given))
    order = Window.partitionBy(KEY_BYTES).orderBy(VALUE_BYTES)
    number = (F.row_number().over(order) - 1).cast(columns.state_schema[index].dataType)
    return encoded.select("row.*", number.alias(index))


def _count_rows(numbered: DataFrame, state: WantedState, counts: PlannedPart) -> DataFrame:
    """Return the number of rows of each key of a side of a join."""
    assert isinstance(counts.columns, StoreColumns)
    *names, total = counts.columns.state_schema.names
    (index,) = state.store_columns.entry_columns
    keys = state.store_columns.key_columns
    # The last row of a key has the highest number.
    last = numbered.groupBy(*(column_of(name) for name in keys)).agg(F.max(index).alias(index))
    return last.select(
        *(column_of(key).alias(name) for key, name in zip(keys, names, strict=True)),
        (column_of(index) + 1).alias(total),
    )
