"""``statestore spark show``: list the contents of a query's checkpoint location, read-only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from statestore.interop.spark.location import (
    BatchPlan,
    CheckpointLocation,
    provider_name,
    state_folder,
)
from statestore.interop.spark.operator_reader import Operator, StoreInfo
from statestore.interop.spark.parts import (
    StatePart,
    find_operator_kind,
    find_problem,
    list_parts,
    map_columns,
    read_stored_rows,
)
from statestore.interop.spark.state_damage import refuse_damaged_states
from statestore.interop.spark.state_reader import prepared_session
from statestore.storage import open_storage


@dataclass(frozen=True, kw_only=True)
class ShownVariable:
    """A variable of a transformWithState, or its timers.

    It has the column types in Spark's notation, and the number of rows by partition. ``notes`` are
    the reasons why an import keeps it only as bytes.
    """

    name: str
    form: str
    has_ttl: bool
    key: str
    value: str
    rows: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShownStore:
    """A store: its column types in Spark's notation, and its rows and file sizes by partition.

    ``rows`` is None if the rows cannot be read. ``notes`` are the reasons why an import keeps the
    store as bytes. ``variables`` are the variables of a transformWithState, which share its store.
    """

    name: str
    key: str | None
    value: str | None
    rows: tuple[int, ...] | None
    file_bytes: tuple[int, ...]
    notes: tuple[str, ...]
    variables: tuple[ShownVariable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShownQueryOperator:
    """A stateful operator; ``problem`` is why it cannot be imported, None if it can be."""

    number: int
    name: str
    does: str | None
    stores: tuple[ShownStore, ...]
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class ShownLocation:
    """A query's checkpoint location at a committed micro-batch.

    ``kept`` are the first and last micro-batch that can be imported according to the logs.
    ``uncommitted`` is a planned micro-batch that will run again. ``sources`` are the ends of each
    source's data, as JSON. ``source_names`` are the names of these sources, empty if they have
    none. ``moved_from`` is the location at which the query ran, if its files show that the location
    was moved or copied.
    """

    location: str
    moved_from: str | None
    query_id: str
    batch: int
    kept: tuple[int, int]
    uncommitted: int | None
    provider: str
    checkpoint_version: int
    watermark_ms: int
    planned_at_ms: int
    formats: Mapping[str, str]
    sources: tuple[str, ...]
    source_names: tuple[str, ...]
    operators: tuple[ShownQueryOperator, ...]


def show_location(
    spark: SparkSession,
    location: str,
    *,
    batch: int | None = None,
    operator_names: Mapping[int, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ShownLocation:
    """Return the contents of a query's checkpoint location.

    Args:
        spark: a session of Spark Classic.
        location: the path or URL; the query may be running.
        batch: a committed micro-batch; by default the newest.
        operator_names: the names of operators by number, for a location of Spark 3 that lacks them.
        storage_options: options for fsspec, to access the location.
        on_progress: a callback that receives the number of finished stores, the total, and the next
            store.

    Returns:
        The query, its operators, and their stores.

    Raises:
        InvalidArgumentError: if the location is not a query's checkpoint location, or the
            micro-batch does not exist. Also if the name of an operator is missing or wrong.
        DamagedFileError or MissingFileError: if a file of the query is damaged or missing.
        FormatVersionError: if another version of Spark wrote it.
    """
    query_location = CheckpointLocation(
        open_storage(location, storage_options), operator_names or {}
    )
    number = query_location.batch(batch)
    plan, commit = query_location.plan(number), query_location.commit(number)
    all_operators = query_location.operators(number)
    total = sum(len(operator.stores) for operator in all_operators)
    shown, done = [], 0
    for operator in all_operators:
        problem = find_problem(operator, plan.settings)
        stores = []
        for info in operator.stores:
            if on_progress is not None:
                on_progress(done, total, f"{info.name} of operator {operator.number}")
            done += 1
            stores.append(
                _show_store(spark, query_location, plan, operator, info, is_known=problem is None)
            )
        operator_kind = find_operator_kind(operator.name)
        shown.append(
            ShownQueryOperator(
                number=operator.number,
                name=operator.name,
                does=None if operator_kind is None else operator_kind.does,
                stores=tuple(stores),
                problem=problem,
            )
        )
    return ShownLocation(
        location=query_location.url,
        moved_from=next((known.moved_from for known in all_operators if known.moved_from), None),
        query_id=query_location.query_id,
        batch=number,
        kept=(query_location.committed[0], query_location.committed[-1]),
        uncommitted=query_location.uncommitted,
        provider=provider_name(plan.settings),
        checkpoint_version=commit.version,
        watermark_ms=max(plan.watermark_ms, commit.next_watermark_ms),
        planned_at_ms=plan.planned_at_ms,
        formats={name: value for name, value in plan.settings.items() if "ormatVersion" in name},
        sources=plan.ends,
        source_names=plan.names,
        operators=tuple(shown),
    )


def _show_store(
    spark: SparkSession,
    location: CheckpointLocation,
    plan: BatchPlan,
    operator: Operator,
    info: StoreInfo,
    *,
    is_known: bool,
) -> ShownStore:
    folder = state_folder(operator.number, info.name)
    sizes = tuple(
        sum(location.file_sizes(folder.format(partition)).values())
        for partition in range(info.partitions)
    )
    if not is_known:
        return ShownStore(
            name=info.name, key=None, value=None, rows=None, file_bytes=sizes, notes=()
        )
    with prepared_session(spark, location, plan.number, [operator]) as url:
        this_store = replace(operator, stores=(info,))
        refuse_damaged_states(spark, location, [this_store], plan.number)
        whole, *views = (
            _show_part(spark, url, plan.number, part)
            for part in list_parts(operator)
            if part.store == info.name
        )
    return ShownStore(
        name=info.name,
        key=whole.key,
        value=whole.value,
        rows=whole.rows,
        file_bytes=sizes,
        notes=whole.notes,
        variables=tuple(views),
    )


def _show_part(spark: SparkSession, url: str, batch: int, part: StatePart) -> ShownVariable:
    """Return the columns and row counts of a part of an operator."""
    rows = read_stored_rows(spark, url, batch, part)
    columns = map_columns(rows, part)
    counts: dict[int, int] = dict(rows.groupBy("partition_id").count().collect())
    return ShownVariable(
        name=part.state,
        form=part.form.value,
        has_ttl=part.has_ttl,
        key=columns.key.simpleString(),
        value=columns.value.simpleString(),
        rows=tuple(counts.get(partition, 0) for partition in range(part.partitions)),
        notes=columns.problems,
    )
