"""The supported stateful operators, and their parts that become states.

The parts are each of an operator's stores, and each variable of a store.

Most stores become one state. The store of a transformWithState has many column families: for the
variables that the user's code declares, and for internal data of Spark. All of them together become
one state of bytes, from which Spark's store can be rebuilt. In addition, each variable and the
timers become a state: a view of the same rows with typed columns.

A row of a store belongs to the state partition ``pmod(Murmur3(shuffle key), partitions)``, as
computed by ``HashPartitioning`` with seed 42. The shuffle key consists of the grouping, join or
deduplication fields. A store's own key can have another field, which distinguishes rows with the
same shuffle key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.format.state import StateKind, TimeDomain
from statestore.interop.spark.columns import GROUPING_KEY, FamilyColumns, StoreColumns
from statestore.interop.spark.location import provider_name
from statestore.interop.spark.operator_reader import Operator
from statestore.interop.spark.query_settings import (
    AGGREGATION_FORMAT,
    ENCODING,
    GROUPS_FORMAT,
    JOIN_FORMAT,
)
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause, is_damage
from statestore.spark.structs import first_free


@dataclass(frozen=True)
class OperatorKind:
    """The purpose of an operator, and the fields of a store's key that are not in the shuffle key.

    If ``has_variables`` is true, its store has a column family for each variable.
    """

    does: str
    entries: Mapping[str, str]
    has_variables: bool = False

    def entry(self, store: str) -> str | None:
        """Return the key field that distinguishes rows with the same shuffle key, if any."""
        return self.entries.get(store)


JOIN = "symmetricHashJoin"
_JOIN_ENTRIES = {f"{side}-keyWithIndexToValue": "index" for side in ("left", "right")}
JOIN_STORES = (*_JOIN_ENTRIES, "left-keyToNumValues", "right-keyToNumValues")
_KINDS = {
    "stateStoreSave": OperatorKind("aggregation", {}),
    "sessionWindowStateStoreSaveExec": OperatorKind(
        "aggregation by session", {"default": "sessionStartTime"}
    ),
    "StatefulStreamlineAggregate": OperatorKind("aggregation in real-time mode", {}),
    "dedupe": OperatorKind("deduplication", {}),
    "dedupeWithinWatermark": OperatorKind("deduplication within the watermark", {}),
    JOIN: OperatorKind("stream-stream join", _JOIN_ENTRIES),
    "flatMapGroupsWithState": OperatorKind("flatMapGroupsWithState", {}),
    "applyInPandasWithState": OperatorKind("applyInPandasWithState", {}),
    "globalLimit": OperatorKind("limit", {}),
    **{
        f"transformWithState{form}Exec": OperatorKind("transformWithState", {}, has_variables=True)
        for form in ("", "InPandas", "InPySpark")
    },
}

PREFIXED = frozenset({"sessionWindowStateStoreSaveExec"})
"""Operators that use prefix scans; for these RocksDB has another encoding of keys."""

NOT_REWRITTEN = frozenset({"globalLimit"})
"""Operators that Spark's own rewriter does not support."""

# Settings of a query that determine the layout of its state, and the supported values.
_FORMATS: dict[str, tuple[str, ...]] = {
    AGGREGATION_FORMAT: ("1", "2"),
    GROUPS_FORMAT: ("1", "2"),
}


def find_operator_kind(operator_name: str) -> OperatorKind | None:
    """Return the properties of an operator; None for an unsupported operator."""
    return _KINDS.get(operator_name)


def find_problem(operator: Operator, settings: Mapping[str, str]) -> str | None:
    """Return why an operator's state cannot be imported, None if it can be.

    ``settings`` are the settings of the micro-batch, as in :class:`BatchPlan`.
    """
    operator_kind = find_operator_kind(operator.name)
    if operator_kind is None:
        return f"the operator {operator.name} is not supported; supported are {', '.join(_KINDS)}"
    provider = provider_name(settings)
    if provider not in ("hdfs", "rocksdb"):
        return f"its state store provider {provider} is not one of Spark's own"
    formats = dict(_FORMATS)
    if operator.name == JOIN:
        formats[JOIN_FORMAT] = ("1", "2", "3", "4")
    for name, known in formats.items():
        version = settings[name]
        if version not in known:
            return f"its state has format {version} ({name}); supported is {' and '.join(known)}"
    encodings = ("unsaferow", "avro") if operator_kind.has_variables else ("unsaferow",)
    if settings[ENCODING] not in encodings:
        known_too = " and ".join(encodings)
        return (
            f"its rows are encoded as {settings[ENCODING]} ({ENCODING}); supported is {known_too}"
        )
    return None


Columns = StoreColumns | FamilyColumns
TTL = "ttlExpirationMs"
_EVENT_TIMERS = "$event"
_EVENT_TIME = "__event_time"
"""The last key field of a join in state format 4. It has no influence on the partition of a row."""


class PartForm(StrEnum):
    """The kind of rows of a part."""

    STORE = "store"
    FAMILIES = "families"
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMERS = "timers"


_FORMS = {
    "ValueState": PartForm.VALUE,
    "ListState": PartForm.LIST,
    "MapState": PartForm.MAP,
    "TimerState": PartForm.TIMERS,
}


@dataclass(frozen=True, kw_only=True)
class StatePart:
    """The part of an operator that becomes ``state``: a store, or one ``variable`` in it."""

    operator: int
    operator_name: str
    store: str
    partitions: int
    state: str
    form: PartForm = PartForm.STORE
    variable: str = ""
    has_ttl: bool = False

    @property
    def uid(self) -> str:
        """The uid of the operator in the store."""
        return f"{self.operator_name}-{self.operator}"

    @property
    def is_view(self) -> bool:
        """Whether its rows are also in another part, from which Spark's store is rebuilt."""
        return bool(self.variable)

    @property
    def time_domain(self) -> TimeDomain | None:
        """The time domain of timers; None for any other state."""
        if self.form is not PartForm.TIMERS:
            return None
        is_event = self.variable.startswith(_EVENT_TIMERS)
        return TimeDomain.EVENT if is_event else TimeDomain.PROCESSING

    def kind(self, columns: Columns) -> StateKind:
        """Return the kind of the state."""
        if self.is_view:
            return StateKind(self.form)
        return StateKind.MAP if columns.entry_columns else StateKind.VALUE


def list_parts(operator: Operator) -> tuple[StatePart, ...]:
    """Return the parts of a supported operator; a store comes before its variables.

    Raises:
        DamagedFileError: if its description names a store that such an operator does not have.
    """
    names = {"default", *(JOIN_STORES if operator.name == JOIN else ())}
    for info in operator.stores:
        if info.name not in names:
            raise DamagedFileError(
                f"operator {operator.number} ({operator.name}) has no store {info.name!r}, which "
                f"state/{operator.number}/…/metadata names: replace that folder with an intact copy"
            )
    stores = tuple(
        StatePart(
            operator=operator.number,
            operator_name=operator.name,
            store=info.name,
            partitions=info.partitions,
            state=info.name,
        )
        for info in operator.stores
    )
    if not operator.has_families:
        return stores
    (store,) = stores
    return (replace(store, form=PartForm.FAMILIES), *_list_variable_parts(store, operator))


def _list_variable_parts(store: StatePart, operator: Operator) -> Iterator[StatePart]:
    taken = {store.state}
    for variable in sorted(operator.variables, key=lambda variable: variable.name):
        form = _FORMS[variable.kind]
        name = first_free("timers" if form is PartForm.TIMERS else variable.name, taken)
        taken.add(name)
        yield replace(
            store, state=name, form=form, variable=variable.name, has_ttl=variable.has_ttl
        )


def read_stored_rows(spark: SparkSession, url: str, batch: int, part: StatePart) -> DataFrame:
    """Return the rows of a part from Spark's reader, with their ``partition_id``.

    The rows have the structs ``key`` and ``value``. For a list, a map or timers, the last field of
    the key distinguishes rows with the same grouping key. Rows of families have bytes, and a struct
    ``partition_key``.

    Raises:
        DamagedFileError: if the description of the store is missing or damaged.
    """
    return _opened(_load_rows, spark, url, batch, part)


def read_changes(spark: SparkSession, url: str, batch: int, part: StatePart) -> DataFrame:
    """Return the rows that a micro-batch put into a whole store, with their ``partition_id``.

    Spark reads them from the changelogs of RocksDB, and does not load them into a database, which
    would take most of the time. There is a row for each record of a changelog, in the form of
    :func:`read_stored_rows`; the value of a removed key is null.

    Raises:
        DamagedFileError: if the description of the store is missing or damaged.
    """
    return _opened(_load_changes, spark, url, batch, part)


def _opened(
    load: Callable[[SparkSession, str, int, StatePart], DataFrame],
    spark: SparkSession,
    url: str,
    batch: int,
    part: StatePart,
) -> DataFrame:
    try:
        return load(spark, url, batch, part)
    except SPARK_ERRORS as error:
        if not is_damage(error):
            raise  # prepared_session names the location
        raise DamagedFileError(
            f"Spark cannot open store {part.store!r} of operator {part.operator} "
            f"({part.operator_name}) in {url} at micro-batch {batch}: its description in "
            f"state/{part.operator}/…/_metadata is missing or damaged. Replace it with an intact "
            f"copy (Spark reports {describe_cause(error)})"
        ) from error


def _load_changes(spark: SparkSession, url: str, batch: int, part: StatePart) -> DataFrame:
    reader = _store_reader(spark, url, part)
    only = {"changeStartBatchId": batch, "changeEndBatchId": batch}
    return reader.options(readChangeFeed=True, **only).load()


def _store_reader(spark: SparkSession, url: str, part: StatePart) -> DataFrameReader:
    reader = spark.read.format("statestore").option("path", url)
    return reader.options(operatorId=part.operator, storeName=part.store)


def _load_rows(spark: SparkSession, url: str, batch: int, part: StatePart) -> DataFrame:
    reader = _store_reader(spark, url, part).option("batchId", batch)
    if part.form is PartForm.STORE:
        return reader.load()
    if part.form is PartForm.FAMILIES:
        # The reader has one task per partition, and no other way to return the partition.
        rows = reader.option("_readAllColumnFamilies", "true").load()
        if part.operator_name == JOIN:
            shuffled = F.col(GROUPING_KEY).dropFields(_EVENT_TIME)
            rows = rows.withColumn(GROUPING_KEY, shuffled)
        return rows.withColumn("partition_id", F.spark_partition_id())
    if part.form is PartForm.TIMERS:
        rows = reader.option("readRegisteredTimers", "true").load()
        return _add_key_field(rows, F.col("expiration_timestamp_ms"), "expiration", F.struct())
    # Flattened rows of a list do not have a position.
    is_flat = str(part.form is not PartForm.LIST).lower()
    rows = reader.options(stateVarName=part.variable, flattenCollectionTypes=is_flat).load()
    if part.form is PartForm.VALUE:
        return rows.select("key", _value_column("value", part).alias("value"), "partition_id")
    if part.form is PartForm.MAP:
        return _add_key_field(
            rows, F.col("user_map_key"), "user_key", _value_column("user_map_value", part)
        )
    elements = rows.select("key", "partition_id", F.posexplode("list_value").alias("at", "element"))
    return _add_key_field(elements, F.col("at"), "position", _value_column("element", part))


def _add_key_field(rows: DataFrame, entry: Column, field_name: str, value: Column) -> DataFrame:
    """Return rows whose key has an additional field with an unused name."""
    shape = rows.schema["key"].dataType
    assert isinstance(shape, T.StructType)
    key = F.struct("key.*", entry.alias(first_free(field_name, shape.names)))
    return rows.select(key.alias("key"), value.alias("value"), "partition_id")


def _value_column(name: str, part: StatePart) -> Column:
    """Return the value of a variable; with a TTL, the expiration time is its last field."""
    return F.struct(f"{name}.value.*", f"{name}.{TTL}") if part.has_ttl else F.col(name)


def map_columns(rows: DataFrame, part: StatePart) -> Columns:
    """Return the mapping of a part's rows to columns of a state."""
    if part.form is PartForm.FAMILIES:
        return FamilyColumns(_struct_type(rows, GROUPING_KEY))
    key, value = _struct_type(rows, "key"), _struct_type(rows, "value")
    if part.form is PartForm.STORE:
        operator_kind = find_operator_kind(part.operator_name)
        entry = None if operator_kind is None else operator_kind.entry(part.store)
        if entry is not None and entry not in key.names:
            raise DamagedFileError(
                f"the keys of store {part.store!r} of operator {part.operator} "
                f"({part.operator_name}) have no {entry}; they have {', '.join(key.names)}: the "
                "operator's metadata belong to another state"
            )
        return StoreColumns(key, value, entry)
    if part.form is PartForm.VALUE:
        return StoreColumns(key, value)
    *grouping, last = key.fields  # never null, even if the reader's schema allows it
    last = T.StructField(last.name, last.dataType, nullable=False)
    return StoreColumns(T.StructType([*grouping, last]), value, last.name)


def _struct_type(rows: DataFrame, name: str) -> T.StructType:
    column_type = rows.schema[name].dataType
    assert isinstance(column_type, T.StructType)
    return column_type


def refuse_misplaced_rows(rows: DataFrame, columns: Columns, part: StatePart) -> None:
    """Refuse rows of a store in other partitions than their keys imply.

    Spark sends an event to the partition of its key, and looks for the key's state there. For a
    processor in pandas, the key is converted to Python and back before Spark looks for it. A null
    number becomes NaN, for example, and a time becomes another one if the session and Python have
    different time zones. Then the row of the state is in the partition of the event's key, and has
    another key. With another number of partitions, the two keys are in different partitions, and
    Spark would find no state.

    Args:
        rows: the rows of Spark's reader.
        columns: their columns.
        part: the store.

    Raises:
        UnsupportedTypeError: for such a row; the message has its key.
    """
    key = GROUPING_KEY if isinstance(columns, FamilyColumns) else "key"
    misplaced = rows.where(F.col("partition_id") != columns.owner_in_spark(part.partitions))
    text = F.to_json(F.col(key), {"ignoreNullFields": "false"})
    (first,) = misplaced.agg(F.first(text)).collect()
    if first[0] is not None:
        raise UnsupportedTypeError(
            f"store {part.store!r} of operator {part.uid} has a row in another partition than its "
            f"key implies, {first[0]}: the events that it belongs to have another key, and Spark "
            "would not find it in other partitions. transformWithStateInPandas does this to a null "
            "number in a key, and to a time if the time zones of the session and of Python "
            "differ. Start the query with a new location and without such keys, or with "
            "transformWithState"
        )
