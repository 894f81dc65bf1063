"""The JSON documents of ``statestore spark``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statestore.cli.documents import Document, LeftOutDocument

if TYPE_CHECKING:
    from statestore.interop.spark_checkpoints.show_location import (
        ShownQueryOperator,
        ShownVariable,
    )

__all__ = [
    "ExportedPartitionDocument",
    "ExportedStoreDocument",
    "ImportedStoreDocument",
    "KeptBatchesDocument",
    "LocationDocument",
    "ProgressDocument",
    "QueryOperatorDocument",
    "ShownPartitionDocument",
    "ShownStoreDocument",
    "ShownVariableDocument",
    "SparkExportDocument",
    "SparkImportDocument",
    "operator_document",
]


class KeptBatchesDocument(Document):
    """The first and the last batch."""

    first: int
    last: int


class ShownVariableDocument(Document):
    """A state variable of a processor. ``key`` and ``value`` are types in Spark's notation.

    ``no_columns`` has the reasons why an import keeps it as bytes. ``partitions`` has the rows of
    each partition.
    """

    variable: str
    kind: str
    ttl: bool
    key: str
    value: str
    no_columns: list[str]
    rows: int
    partitions: list[int]


class ShownPartitionDocument(Document):
    """A partition. ``rows`` is null if they cannot be read."""

    partition: int
    rows: int | None
    file_bytes: int


class ShownStoreDocument(Document):
    """A state store. ``key`` and ``value`` are types in Spark's notation.

    ``kept_as_bytes`` has the reasons why an import keeps it as bytes. ``rows`` is null if its rows
    cannot be read.
    """

    store: str
    key: str | None
    value: str | None
    kept_as_bytes: list[str]
    variables: list[ShownVariableDocument]
    rows: int | None
    partitions: list[ShownPartitionDocument]


class QueryOperatorDocument(Document):
    """A stateful operator. ``problem`` is the reason why it cannot be imported, or null."""

    operator: int
    name: str
    does: str | None
    problem: str | None
    stores: list[ShownStoreDocument]


class LocationDocument(Document):
    """The content of a checkpoint location.

    ``kept`` are the batches that can be imported. ``uncommitted`` is a planned batch that will run
    again, or null. ``formats`` has the version of each setting. ``sources`` are the ends of each
    source's data, as Spark writes them.
    """

    location: str
    query: str
    batch: int
    kept: KeptBatchesDocument
    uncommitted: int | None
    provider: str
    checkpoint_version: int
    watermark_ms: int
    planned_at_ms: int
    formats: dict[str, Any]
    sources: list[Any]
    operators: list[QueryOperatorDocument]


class ImportedStoreDocument(Document):
    """An imported state. ``kept_as_bytes`` has the reasons why it was kept as bytes."""

    operator: str
    state: str
    rows: int
    key: list[str]
    entry: list[str]
    kept_as_bytes: list[str]


class SparkImportDocument(Document):
    """A query's state, imported as checkpoint ``id``.

    ``found`` is true if it had been imported before.
    """

    location: str
    query: str
    batch: int
    store: str
    id: int
    found: bool
    incremental: bool
    states: list[ImportedStoreDocument]


class ExportedPartitionDocument(Document):
    """A partition of a state store."""

    partition: int
    rows: int
    size_bytes: int


class ExportedStoreDocument(Document):
    """A state store.

    Bytes are those of files, and of keys and values with ``--dry-run``.
    """

    operator: str
    store: str
    partitions: list[ExportedPartitionDocument]


class SparkExportDocument(Document):
    """A checkpoint location for Spark."""

    store: str
    id: int
    location: str
    query: str
    batch: int
    shuffle_partitions: int
    provider: str
    dry_run: bool
    complete: bool
    left_out: list[LeftOutDocument]
    stores: list[ExportedStoreDocument]


class ProgressDocument(Document):
    """A checkpoint location without state, from which a query continues."""

    store: str
    id: int
    location: str
    query: str
    batch: int
    left_out: list[LeftOutDocument]


def operator_document(operator: ShownQueryOperator) -> QueryOperatorDocument:
    """Return a stateful operator, its stores and their partitions."""
    return QueryOperatorDocument(
        operator=operator.number,
        name=operator.name,
        does=operator.does,
        problem=operator.problem,
        stores=[
            ShownStoreDocument(
                store=store.name,
                key=store.key,
                value=store.value,
                kept_as_bytes=list(store.notes),
                variables=[_variable(variable) for variable in store.variables],
                rows=None if store.rows is None else sum(store.rows),
                partitions=[
                    ShownPartitionDocument(
                        partition=number,
                        rows=None if store.rows is None else store.rows[number],
                        file_bytes=size_bytes,
                    )
                    for number, size_bytes in enumerate(store.file_bytes)
                ],
            )
            for store in operator.stores
        ],
    )


def _variable(variable: ShownVariable) -> ShownVariableDocument:
    return ShownVariableDocument(
        variable=variable.name,
        kind=variable.form,
        ttl=variable.has_ttl,
        key=variable.key,
        value=variable.value,
        no_columns=list(variable.notes),
        rows=sum(variable.rows),
        partitions=list(variable.rows),
    )
