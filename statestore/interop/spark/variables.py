"""Rebuild the rows of a transformWithState's store from its variables and timers.

Each variable has a family with its own rows. Spark also has auxiliary families, whose names begin
with ``$``:

=============  ======================================  =========================================
what           key of its own family                   auxiliary families
=============  ======================================  =========================================
a value        grouping key
a list         grouping key, a row for each element    ``$rowCounter_``: grouping key -> count
a map          grouping key, user key
timers         grouping key, expiration                expiration, grouping key
=============  ======================================  =========================================

If there is a TTL, a value is followed by its expiration time. ``$ttl_`` has this time and the key
of the row. A list has a single such row, with the earliest time of its elements. This time is also
in ``$min_``, and the list's length is in ``$count_``.

The sources are these classes of Spark: StateStoreColumnFamilySchemaUtils and
TransformWithStateKeyValueRowSchemaUtils define the schemas of the families. ValueStateImplWithTTL,
ListStateImplWithTTL, MapStateImplWithTTL and TimerStateImpl write the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from statestore.interop.spark.columns import KEY_BYTES, VALUE_BYTES, StoreColumns
from statestore.interop.spark.families import FAMILY, OWNER, POSITION, FamilyColumns
from statestore.interop.spark.import_record import ImportedStore
from statestore.interop.spark.parts import PartForm, StatePart
from statestore.interop.spark.rows import encode_rows
from statestore.spark.hashing import column_of

_TO_TIME, _TO_KEY = "_keyToTimestamp", "_timestampToKey"
_TTL, _FIRST, _COUNT, _ROWS = "$ttl_", "$min_", "$count_", "$rowCounter_"
_GROUP, _ENTRY, _VALUE, _ROW = "grouping_key", "entry", "value", "row"


def family_names(part: StatePart) -> frozenset[str]:
    """Return the names of all families that can contain rows of a variable."""
    name = part.variable
    if part.form is PartForm.TIMERS:
        return frozenset({name, name.replace(_TO_TIME, _TO_KEY)})
    return frozenset({name, *(f"{prefix}{name}" for prefix in (_TTL, _FIRST, _COUNT, _ROWS))})


def number_list(columns: StoreColumns, rows: DataFrame) -> DataFrame:
    """Number the elements of each list from 0, in the order of their positions.

    Spark's lists have no positions. Gaps remain where an edit has deleted elements.
    """
    (position,) = columns.entry_columns
    data_type = columns.state_schema[position].dataType
    stored = F.struct(*map(column_of, rows.columns)).alias(_ROW)
    # All elements of a list have the same key then, and keys are compared as Spark's bytes.
    unnumbered = rows.withColumn(position, F.lit(0).cast(data_type))
    encoded = encode_rows(columns.to_structs(unnumbered, stored))
    order = Window.partitionBy(KEY_BYTES).orderBy(F.col(_ROW)[position])
    number = (F.row_number().over(order) - 1).cast(data_type)
    return encoded.select(
        *((number if name == position else F.col(_ROW)[name]).alias(name) for name in rows.columns)
    )


def rebuild_store(
    store: FamilyColumns, variables: Sequence[tuple[ImportedStore, DataFrame]], partitions: int
) -> DataFrame:
    """Return a store's rows as Spark's bytes, from the rows of the states of all its variables."""
    return store.partition_by_owner(rebuild_variables(variables, partitions), partitions)


def rebuild_variables(
    variables: Sequence[tuple[ImportedStore, DataFrame]], partitions: int
) -> DataFrame:
    """Return the rows of all families of all variables; see :func:`rebuild_families`."""
    families = []
    for part, rows in variables:
        assert isinstance(part.columns, StoreColumns)
        families.append(rebuild_families(part, part.columns, rows, partitions))
    return reduce(DataFrame.union, families)


def rebuild_families(
    part: StatePart, columns: StoreColumns, rows: DataFrame, partitions: int
) -> DataFrame:
    """Return the rows of all families of a variable, from the rows of its state.

    The columns are the same as in :class:`FamilyColumns`, except that ``owner``, the state
    partition of a row, replaces the key columns.
    """
    structs = columns.to_structs(rows, columns.owner(partitions).alias(OWNER))
    names = [f"f{index}" for index in range(len(columns.key))]
    group = [F.col("key")[name] for name in (names if columns.entry is None else names[:-1])]
    parts = structs.select(
        OWNER,
        F.struct(*group).alias(_GROUP),
        (F.lit(None) if columns.entry is None else F.col("key")[names[-1]]).alias(_ENTRY),
        _VALUE,
    )
    return reduce(DataFrame.union, _build_families(part, len(columns.value), parts))


def _build_families(part: StatePart, fields: int, rows: DataFrame) -> Iterator[DataFrame]:
    name, group, entry, value = part.variable, F.col(_GROUP), F.col(_ENTRY), F.col(_VALUE)
    if part.form is PartForm.TIMERS:
        yield _build_family(rows, name, F.struct(group, entry), _null_struct())
        yield _build_family(
            rows, name.replace(_TO_TIME, _TO_KEY), F.struct(entry, group), _null_struct()
        )
        return
    ends = value[f"f{fields - 1}"]
    if part.has_ttl:
        value = F.struct(F.struct(*(value[f"f{index}"] for index in range(fields - 1))), ends)
    if part.form is PartForm.LIST:
        family = _build_family(rows, name, group, value, entry)
        yield family
        yield from _build_list_families(part, rows, ends)
        return
    key = group if part.form is PartForm.VALUE else F.struct(group, entry)
    yield _build_family(rows, name, key, value)
    if part.has_ttl:
        yield _build_family(rows, f"{_TTL}{name}", F.struct(ends, key), _null_struct())


def _build_list_families(part: StatePart, rows: DataFrame, ends: Column) -> Iterator[DataFrame]:
    """Yield the families with one row per list: lengths and earliest expiration times."""
    # Group by the bytes of the key: -0.0 and 0.0 are different keys, but equal in an aggregation.
    keys = encode_rows(
        rows.select(OWNER, _GROUP, ends.alias("ends"), F.col(_GROUP).alias("key"), _VALUE)
    )
    lists = keys.groupBy(KEY_BYTES).agg(
        F.first(OWNER).alias(OWNER),
        F.first(_GROUP).alias(_GROUP),
        F.min("ends").alias("ends"),
        F.count("*").alias("count"),
    )
    name, group, count = part.variable, F.col(_GROUP), F.struct("count")
    if not part.has_ttl:
        yield _build_family(lists, f"{_ROWS}{name}", group, count)
        return
    first = F.col("ends")
    yield _build_family(lists, f"{_COUNT}{name}", group, count)
    yield _build_family(lists, f"{_FIRST}{name}", group, F.struct(first))
    yield _build_family(lists, f"{_TTL}{name}", F.struct(first, group), _null_struct())


def _null_struct() -> Column:
    """Return the value of a row whose data is all in its key."""
    return F.struct(F.lit(None))


def _build_family(
    rows: DataFrame, name: str, key: Column, value: Column, position: Column | None = None
) -> DataFrame:
    position_column = F.lit(0) if position is None else position
    encoded_rows = encode_rows(
        rows.select(OWNER, position_column.alias(POSITION), key.alias("key"), value.alias("value"))
    )
    return encoded_rows.select(OWNER, F.lit(name).alias(FAMILY), KEY_BYTES, POSITION, VALUE_BYTES)
