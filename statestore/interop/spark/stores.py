"""Select the states from which each of Spark's stores is written, and rebuild column families.

States that do not fit each other, and unsupported ones, are refused.

Most stores are written from one state. The store of a transformWithState is kept twice: as Spark's
bytes, and as the states of its variables. The bytes are written unchanged, unless a variable was
changed or one of its keys was purged. In this case all families are rebuilt from the variables, and
the bytes are not used.

Each variable has a column family with its own rows. Spark also has auxiliary families, whose names
begin with ``$``:

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

A changed state that no longer fits another state of the same operator is refused. Two kinds of
operators keep the same facts twice:

- A side of a stream-stream join has a store of numbered rows, and a store with the number of rows
  of each key. Spark reads as many rows as the number says, by their numbers.
- The store of a transformWithState has all families as bytes, and each variable is a state too. If
  a variable was changed, the store is rebuilt from the variables, and the bytes are not used (I17).

An edit of one of the two would make Spark fail, lose rows, or ignore the edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from statestore.display import counted
from statestore.errors import UnsupportedTypeError
from statestore.format.digest import RowSet
from statestore.interop.spark.columns import FAMILY, OWNER, POSITION, FamilyColumns, StoreColumns
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.parts import JOIN, NOT_REWRITTEN, PREFIXED, PartForm, StatePart
from statestore.interop.spark.query_settings import ENCODING, JOIN_FORMAT
from statestore.interop.spark.rows import encode_rows
from statestore.interop.spark.state_files import Provider
from statestore.interop.spark.state_reader import Observe, digest_state, observe_state
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.spark.hashing import column_of
from statestore.spark.structs import KEY_BYTES, VALUE_BYTES
from statestore.store import StateStore

_TO_TIME, _TO_KEY = "_keyToTimestamp", "_timestampToKey"
_TTL, _FIRST, _COUNT, _ROWS = "$ttl_", "$min_", "$count_", "$rowCounter_"
_GROUP, _ENTRY, _VALUE, _ROW = "grouping_key", "entry", "value", "row"


@dataclass(frozen=True)
class StoreRows:
    """One of Spark's stores, with the rows that are written.

    ``rows`` returns them for a number of shuffle partitions, as Spark's bytes, with one Spark
    partition per state partition. ``observe`` reads the store back. ``proofs`` are the parts that
    Spark must read back, with their rows; a part other than the store is observed by the digest
    of its columns.
    """

    imported: ImportedStore
    rows: Callable[[int], DataFrame]
    observe: Observe
    proofs: Sequence[tuple[ImportedStore, RowSet]]


Variable = tuple[ImportedStore, DataFrame, RowSet]
"""A variable of a transformWithState, and its rows, as Spark's reader will return them."""


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


def rebuilt_store(store: ImportedStore, variables: Sequence[Variable]) -> StoreRows:
    """Return a store whose rows are made from the states of all its variables."""
    columns = store.columns
    assert isinstance(columns, FamilyColumns)

    def rows(partitions: int) -> DataFrame:
        return columns.partition_by_owner(rebuild_variables(variables, partitions), partitions)

    proofs = [(part, contents) for part, _, contents in variables]
    return StoreRows(store, rows, observe_state, proofs)


def rebuild_variables(variables: Sequence[Variable], partitions: int) -> DataFrame:
    """Return the rows of all families of all variables; see :func:`rebuild_families`."""
    families = []
    for part, rows, _ in variables:
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


_JOINED_ROWS, _JOINED_COUNTS = "keyWithIndexToValue", "keyToNumValues"
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
    names = (f"{side}-{_JOINED_ROWS}", f"{side}-{_JOINED_COUNTS}")
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


_NOT_WRITTEN = "4"
"""The state format of joins that Spark's rewriter writes wrongly, up to Spark 4.3."""


def select_stores(
    store: StateStore, restored: RestoredCheckpoint, record: QueryRecord, provider: Provider
) -> tuple[StoreRows, ...]:
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
) -> StoreRows:
    refuse_unwritable(record, part, provider)
    state = restored.keyed(part.uid, part.state)
    variables: tuple[Variable, ...] = ()
    if part.form is PartForm.FAMILIES:
        variables = _find_changed_variables(restored, record, part, state)
    if variables:
        if state.contents() != part.contents:
            _refuse_changed_bytes(store, restored, record, part)
        return rebuilt_store(part, variables)
    if not part.columns.is_typed and state.contents() != part.contents:
        raise UnsupportedTypeError(
            f"state {part.state!r} of operator {part.uid!r} is kept as Spark's bytes "
            f"({part.columns.problems[0]}), and its rows have changed since the import. Export "
            "a checkpoint in which they are unchanged"
        )
    contents = state.contents()  # of the manifest, as the observed digest

    def rows(partitions: int) -> DataFrame:
        return part.columns.to_bytes(state.to_spark(), partitions)

    return StoreRows(part, rows, observe_state, [(part, contents)])


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
            rebuilt = rebuild_variables(states, part.partitions)
            refuse_changed_bytes((part, families), rebuilt, earlier.checkpoint_id)
            return


def _list_variables(record: QueryRecord, store: ImportedStore) -> list[ImportedStore]:
    return [part for part in record.stores if part.is_view and part.operator == store.operator]


def _find_changed_variables(
    restored: RestoredCheckpoint,
    record: QueryRecord,
    store: ImportedStore,
    families: RestoredKeyedState,
) -> tuple[Variable, ...]:
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


def _stored_variable(variable: ImportedStore, state: RestoredKeyedState) -> Variable:
    rows = state.to_spark()
    if variable.form is not PartForm.LIST:
        return variable, rows, state.contents()
    assert isinstance(variable.columns, StoreColumns)
    numbered = number_list(variable.columns, rows)
    return variable, numbered, digest_state(numbered, variable.columns)
