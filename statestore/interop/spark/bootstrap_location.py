"""Write a checkpoint location from which a query that has never run starts, with rows of tables.

:mod:`.planned_query` lets Spark plan the query's first micro-batch without data, which shows the
states that the query needs. The rows of the tables become the state stores of the new location.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.digest import RowSet
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.location_writer import (
    ExportedStore,
    ProgressReporter,
    Target,
    check_shape,
    write_location,
)
from statestore.interop.spark.parts import PartForm
from statestore.interop.spark.planned_query import PlannedQuery, SourcePosition, plan_again
from statestore.interop.spark.rewriter import check_spark
from statestore.interop.spark.rows import encode_rows
from statestore.interop.spark.state_files import Provider
from statestore.interop.spark.state_reader import (
    digest_state,
    observe_columns,
    observe_table,
)
from statestore.interop.spark.stores import (
    StoreRows,
    needs_rewriter,
    number_list,
    rebuilt_store,
    refuse_unwritable,
)
from statestore.interop.spark.table_fit import fit_table, refuse_unfit_rows
from statestore.interop.spark.wanted_states import (
    JOIN_COUNTS,
    JOIN_ROWS,
    PlannedPart,
    WantedState,
)
from statestore.spark.hashing import column_of
from statestore.spark.structs import KEY_BYTES, VALUE_BYTES
from statestore.storage import open_storage


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
) -> StoreRows:
    variables = []
    for state in planned.states:
        if state.planned.part.operator == store.part.operator:
            table = tables[state.name]
            if state.planned.part.form is PartForm.LIST:
                table = number_list(state.store_columns, table)
            part = _imported(state.planned, table, partitions)
            variables.append((part, table, part.contents))
    own = ImportedStore(**vars(store.part), columns=store.columns, contents=RowSet(0, 0))
    return rebuilt_store(own, variables)


def _table_store(
    planned: PlannedQuery, store: PlannedPart, tables: Mapping[str, DataFrame], partitions: int
) -> StoreRows:
    name = store.part.state.removesuffix(f"-{JOIN_ROWS}").removesuffix(f"-{JOIN_COUNTS}")
    state = planned.state(f"{store.part.uid}/{name}")
    table = tables[state.name]
    if state.is_join_side:
        table = _number_rows(table, state)
    if store.part.store.endswith(JOIN_COUNTS):
        table = _count_rows(table, state, store)
    own = _imported(store, table, partitions)
    rows = partial(own.columns.to_bytes, table)
    return StoreRows(own, rows, observe_columns, [(own, own.contents)])


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


@dataclass(frozen=True, kw_only=True)
class BootstrappedLocation:
    """The new location (with ``dry_run``, the location that would be written).

    ``watermark_ms`` is the query's first watermark in milliseconds since 1970, 0 for none.
    """

    location: str
    query_id: str
    partitions: int
    provider: str
    watermark_ms: int
    sources: tuple[SourcePosition, ...]
    stores: tuple[ExportedStore, ...]
    dry_run: bool


def bootstrap_location(
    planned: PlannedQuery,
    location: str,
    tables: Mapping[str, Any],
    *,
    partitions: int | None = None,
    provider: Provider | None = None,
    watermark: datetime | None = None,
    fingerprint: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> BootstrappedLocation:
    """Write a new checkpoint location for a query that has never run, with state from tables.

    The location looks as if micro-batch 0 had produced the state. The query starts with micro-batch
    1, with the data after the positions of its sources. All rows are read and checked before the
    location is created. Then Spark's own reader reads them back, and their number, digest and
    partitions are compared. Only after that can Spark start with the location.

    Args:
        planned: The plan of the query, from :func:`plan_query`.
        location: A new path or URL.
        tables: A table for each of the query's states, by ``operator/state``: a DataFrame, an Arrow
            table or another table that Arrow reads, a SourceTable (Parquet, Delta, CSV or a query
            of DuckDB, with Spark on this machine); None for an empty state. A struct of the key,
            such as ``window``, may be one column.
        partitions: The query's ``spark.sql.shuffle.partitions``; by default the session's.
        provider: ``hdfs`` or ``rocksdb``; by default the session's.
        watermark: The query's watermark at the end of the data in the tables, with a zone. Without
            one the query begins without a watermark, and accepts late events. Only a query with
            ``withWatermark`` has one.
        fingerprint: The fingerprint of the plan for which the tables were made; by default it is
            not compared.
        dry_run: Check everything, and report the rows and bytes of each partition, without writing.
        storage_options: Options for fsspec, to access the location.
        on_progress: A callback that receives the number of finished steps, the total, and the next
            step.

    Returns:
        The written stores. Their bytes are file sizes, or for a dry run the sizes of keys and
        values.

    Raises:
        SchemaMismatchError: If the query's plan has changed, or a table does not have the columns
            of its state (all differences).
        InvalidArgumentError: For a missing or unknown table, an invalid number of partitions,
            provider or watermark, and a location that is not empty or is inside of a store. Also
            for rows that Spark would misread, with examples.
        DuplicateKeyError: For two rows with the same key.
        UnsupportedTypeError: If the provider does not support the state.
        CommitConflictError: If another export to the location is running or did not finish.
        MissingDependencyError: If the state needs Spark's rewriter, and this Spark has none.
        CorruptionError: If Spark reads back something else; the location stays unusable.
        StorageError: If the location cannot be written.
    """
    partitions = planned.partitions if partitions is None else partitions
    check_shape(partitions, provider)
    chosen: Provider = provider or ("rocksdb" if planned.provider == "rocksdb" else "hdfs")
    watermark_ms = _milliseconds(watermark)
    if watermark_ms and not planned.has_watermark:
        raise InvalidArgumentError(
            "the query has no watermark that could begin at a time: leave the watermark out, or "
            "define one with withWatermark"
        )
    record = _build_record(planned, watermark_ms)
    spark = planned.query.sparkSession
    for store in record.stores:
        refuse_unwritable(record, store, chosen)
    if needs_rewriter(record, chosen):
        check_spark(spark)
    _refuse_other_tables(planned, tables)
    _refuse_changed_plan(planned, fingerprint)
    target = Target(open_storage(location, storage_options), 0)
    target.refuse_used(())
    own = sum(not store.is_view for store in record.stores)
    reporter = ProgressReporter(on_progress, len(planned.states) + own)
    with TemporaryDirectory(prefix="statestore-") as folder:
        fitted = {
            state.name: fit_table(spark, state, tables[state.name], Path(folder))
            for state in planned.states
        }
        for state in planned.states:
            reporter(f"check the table for {state.name}")
            refuse_unfit_rows(fitted[state.name], state)
        stores = build_stores(planned, fitted, partitions)
        shape = (partitions, chosen)
        written = write_location(spark, target, record, stores, shape, reporter, dry_run=dry_run)
    return BootstrappedLocation(
        location=target.storage.url,
        query_id=record.query_id,
        partitions=partitions,
        provider=chosen,
        watermark_ms=watermark_ms,
        sources=planned.sources,
        stores=written,
        dry_run=dry_run,
    )


def _milliseconds(watermark: datetime | None) -> int:
    if watermark is None:
        return 0
    if watermark.tzinfo is None:
        raise InvalidArgumentError(
            f"the watermark must have a time zone, as in datetime.now(UTC), not {watermark}"
        )
    return int(watermark.timestamp() * 1000)


def _refuse_other_tables(planned: PlannedQuery, tables: Mapping[str, Any]) -> None:
    wanted = {state.name for state in planned.states}
    missing, unknown = sorted(wanted - tables.keys()), sorted(tables.keys() - wanted)
    if missing or unknown:
        raise InvalidArgumentError(
            "; ".join(
                [
                    *(
                        f"no table is given for {name}: pass None for a state without rows"
                        for name in missing
                    ),
                    *(f"the query has no state {name}" for name in unknown),
                ]
            )
            + f". The query's states are {', '.join(state.name for state in planned.states)}"
        )


def _refuse_changed_plan(planned: PlannedQuery, fingerprint: str | None) -> None:
    if fingerprint is not None and fingerprint != planned.fingerprint:
        raise SchemaMismatchError(
            f"the query's plan has fingerprint {planned.fingerprint}, not {fingerprint}: its "
            "operators, the columns of their states, its sources or its settings have changed. "
            "Check the states that the query needs now, and make tables for them"
        )
    if plan_again(planned).fingerprint != planned.fingerprint:
        raise SchemaMismatchError(
            "the query's plan has changed since plan_query, because settings of the session have "
            "changed. Call plan_query again"
        )


def _build_record(planned: PlannedQuery, watermark_ms: int) -> QueryRecord:
    """Return the record of a query that has finished micro-batch 0."""
    query_id = str(uuid4())
    ends = tuple(source.begins for source in planned.sources)
    files = {
        **dict(planned.files),
        "metadata": json.dumps({"id": query_id}).encode(),
        "offsets/0": planned.offsets(ends, watermark_ms),
        "commits/0": planned.commit(watermark_ms),
    }
    stores = tuple(
        ImportedStore(**vars(part.part), columns=part.columns, contents=RowSet(0, 0))
        for part in planned.parts
    )
    names = [source.folder for source in planned.sources]
    is_named = not all(map(str.isdecimal, names))
    return QueryRecord(
        query_id, 0, "", ends, stores, tuple(files.items()), tuple(names) if is_named else ()
    )
