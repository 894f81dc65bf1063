"""Map the rows of a Flink state to columns of a store's state, and back.

A row has the parts key, namespace, key of a map's entry, and value. Their columns are defined in
:mod:`statestore.interop.flink.columns.part_columns`. Each element of a list, each entry of
a map and each timer is a row.

Keys or values without a column type stay bytes. Whole entries stay bytes if neither has a column
type, or if the end of a key is unknown. If the store cannot hash keys as Flink does, each row has
Flink's key group in a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.names import RESERVED_COLUMNS
from statestore.format.state import StateKind
from statestore.interop.flink.columns.part_columns import (
    empty_key_part,
    key_types,
    part_columns,
    with_stored_zones,
)
from statestore.interop.flink.columns.store_types import (
    Part,
    as_millis,
    from_millis,
    python_key,
    single_chunk,
)
from statestore.interop.flink.read.keyed_states import (
    FlinkState,
    MapState,
    SavepointRows,
    StateEntries,
    TimerState,
)
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.internal_types import TtlAwareType, TtlType, UndecodedType
from statestore.interop.flink.types.java_types import RowType, Scalar
from statestore.interop.flink.types.kryo import find_kryo_part, is_kryo_bytes
from statestore.interop.flink.types.sql_types import RowDataType
from statestore.keys.arrow_types import check_key_type
from statestore.rows.digests import row_hashes

FLINK_KEY_GROUP = "flink_key_group"
"""Flink's key group of entries that stay bytes, because it cannot be computed from the bytes."""

_KEY_BYTES, _VALUE_BYTES, _NO_KEY = "key_bytes", "value_bytes", "no_key"
_RESERVED = (*RESERVED_COLUMNS, FLINK_KEY_GROUP)
_WINDOW = ("window_start", "window_end")
_VOID = Scalar("VoidNamespace")
_PYFLINK = "pyflink"
_ENTRY = {"list": "position", "timers": "timestamp"}
_PARTS = ("key", "namespace", "map_key", "value")

Groups: TypeAlias = npt.NDArray[np.int32]
Begins: TypeAlias = npt.NDArray[np.intp]

Names = Mapping[str, tuple[str, ...]]
"""Names of columns by part: ``key``, ``namespace``, ``map_key``, ``value`` and others."""


class EntryForm(StrEnum):
    """The parts of an entry that are stored as typed columns, the best form first."""

    COLUMNS = "columns"
    """All parts have columns, and the store hashes keys as Flink does."""

    VALUE_BYTES = "value_bytes"
    """As ``COLUMNS``, but values stay bytes."""

    KEY_COLUMNS = "key_columns"
    """All parts have columns, but only the job can compute the hash of a key."""

    KEY_COLUMNS_VALUE_BYTES = "key_columns_value_bytes"
    """As ``KEY_COLUMNS``, but values stay bytes."""

    KEY_BYTES = "key_bytes"
    """All parts but the key have columns."""

    BYTES = "bytes"
    """Keys, with everything that belongs to them, and values stay bytes."""

    @property
    def has_flink_groups(self) -> bool:
        """Whether each row has a column with Flink's key group, which the store cannot compute."""
        return self not in (EntryForm.COLUMNS, EntryForm.VALUE_BYTES)

    @property
    def has_value_bytes(self) -> bool:
        """Whether only values stay bytes."""
        return self in (EntryForm.VALUE_BYTES, EntryForm.KEY_COLUMNS_VALUE_BYTES)

    def may_name(self, part: str) -> bool:
        """Return whether a part of an entry has columns that a user can name."""
        if self is EntryForm.BYTES:
            return False
        if self is EntryForm.KEY_BYTES:
            return part != "key"
        return part == "key" or not self.has_value_bytes


def first_free(wanted: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken, ignoring case, such as ``sum`` or ``sum_2``."""
    names = {name.lower() for name in taken}
    tries = (wanted if number == 1 else f"{wanted}_{number}" for number in count(1))
    return next(name for name in tries if name.lower() not in names)


@dataclass(frozen=True)
class StateColumns:
    """The columns of a state: the columns of its parts, and two optional ones.

    ``entry`` is the column of list positions or timestamps. ``last_access`` is the column of TTL
    timestamps. ``stored`` are the columns in the store; an import makes them. ``why`` is the reason
    if parts stay bytes. ``python`` is the user's declaration of a PyFlink state.
    """

    state: FlinkState
    form: EntryForm
    kind: StateKind
    key: Part
    namespace: Part
    map_key: Part | None
    value: Part | None
    entry: str | None
    last_access: str | None
    hash_scheme: str
    key_types: tuple[str, ...]
    stored: pa.Schema | None = None
    why: str | None = None
    python: str | None = None

    @property
    def names(self) -> Names:
        """The names of the columns, by part."""
        names_by_part = {"key": self.key.names, "namespace": self.namespace.names}
        for part, columns in (("map_key", self.map_key), ("value", self.value)):
            if columns is not None:
                names_by_part[part] = columns.names
        for part, name in (("entry", self.entry), ("last_access", self.last_access)):
            if name is not None:
                names_by_part[part] = (name,)
        return names_by_part

    @property
    def entry_columns(self) -> tuple[str, ...]:
        """The columns that distinguish the rows of one key and namespace."""
        if self.entry is not None:
            return (self.entry,)
        return () if self.map_key is None else self.map_key.names

    @property
    def schema(self) -> pa.Schema:
        """The columns in their order, with their types."""
        if self.stored is not None:
            return self.stored
        fields: list[tuple[str, pa.DataType]] = []
        for part in (self.key, self.namespace, self.map_key):
            if part is not None:
                fields += zip(part.names, part.types, strict=True)
        if self.entry is not None:
            is_timer = self.kind is StateKind.TIMERS
            fields.append((self.entry, pa.int64() if is_timer else pa.int32()))
        if self.value is not None:
            fields += zip(self.value.names, self.value.types, strict=True)
        if self.last_access is not None:
            fields.append((self.last_access, pa.int64()))
        if self.form.has_flink_groups:
            fields.append((FLINK_KEY_GROUP, pa.int32()))
        return pa.schema(fields)

    @property
    def layout(self) -> dict[str, str]:
        """The kind, and the fields of each part with their types, without the names of columns."""
        parts = {part: getattr(self, part) for part in _PARTS}
        return {
            "kind": str(self.kind),
            **{part: "" if columns is None else columns.text for part, columns in parts.items()},
            "key hash": ", ".join((self.hash_scheme, *self.key_types)),
            "last_access": "" if self.last_access is None else "int64",
        }

    def with_stored_types(self, schema: pa.Schema) -> StateColumns:
        """Return these columns with the types that the store has for them."""
        parts = {
            name: part.with_types([schema.field(column).type for column in part.names])
            for name in _PARTS
            if (part := getattr(self, name)) is not None
        }
        return replace(self, **parts, stored=schema)

    def with_value(self, value: Part) -> StateColumns:
        """Return these columns with the types of another value; its names must be the same."""
        stored = self.stored
        if stored is not None:
            for name, column_type in zip(value.names, value.types, strict=True):
                index = stored.get_field_index(name)
                stored = stored.set(index, stored.field(index).with_type(column_type))
        return replace(self, value=value, stored=stored)

    def with_stored_zones(self, schema: pa.Schema) -> StateColumns:
        """Return these columns with the time zones that the store has for nested timestamps.

        Earlier releases stored a nested ``TIMESTAMP_LTZ`` without the zone UTC. Its values are the
        same, so a later savepoint continues with the column types of the store.
        """
        map_key = None if self.map_key is None else with_stored_zones(self.map_key, schema)
        value = None if self.value is None else with_stored_zones(self.value, schema)
        return replace(self, map_key=map_key, value=value)

    @property
    def has_positions(self) -> bool:
        """Whether a row is an element of a list, with its position."""
        return self.entry is not None and self.kind is StateKind.LIST

    @property
    def _has_lists_in_map(self) -> bool:
        return self.has_positions and isinstance(self.state, MapState)

    def table_of_bytes(self, entries: StateEntries, prefix: int, groups: Groups) -> pa.Table:
        """Return undecoded entries as rows.

        The first ``prefix`` bytes of each key, which are the key group, are cut. ``groups`` are the
        key groups of the entries.
        """
        keys = entries.keys
        whole = Spans(keys.data, keys.starts + prefix, keys.ends, keys.name, keys.base)
        columns = [whole.arrow()]
        if self.value is not None:
            columns.append(entries.values.arrow())
        columns.append(pa.array(groups, pa.int32()))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def table(self, rows: SavepointRows, groups: Groups) -> tuple[pa.Table, Groups]:
        """Return decoded entries as rows of the store.

        Args:
            rows: the entries.
            groups: the key group of each entry.

        Returns:
            The rows, and the key group of each row; an element of a list is a row.

        Raises:
            UnsupportedTypeError: for a value that its column cannot hold.
        """
        schema, value = self.schema, rows.value
        columns = self.key.columns(rows.key) | self.namespace.columns(rows.namespace)
        if self.map_key is not None:
            columns |= self.map_key.columns(rows.map_key)
        if self.entry is not None and rows.time is not None:
            columns[self.entry] = from_millis(rows.time, schema.field(self.entry).type)
        if self._has_lists_in_map:
            value = self._take_times(columns, value, schema)
        if self.entry is not None and value is not None and self.has_positions:
            lengths = np.diff(value.offsets.to_numpy(zero_copy_only=False))
            parents = pa.array(np.repeat(np.arange(len(lengths)), lengths))
            columns = {name: column.take(parents) for name, column in columns.items()}
            columns[self.entry] = _count_from_zero(lengths, schema.field(self.entry).type)
            value, groups = value.flatten(), np.repeat(groups, lengths)
        if not self._has_lists_in_map:
            value = self._take_times(columns, value, schema)
        if self.value is not None:
            columns |= self.value.columns(value)
        if self.form.has_flink_groups:
            columns[FLINK_KEY_GROUP] = pa.array(groups, pa.int32())
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema), groups

    def _take_times(
        self, columns: dict[str, pa.Array], value: pa.Array | None, schema: pa.Schema
    ) -> pa.Array | None:
        """Add the column of TTL timestamps; return the values without them."""
        if self.last_access is None or value is None:
            return value
        times, inner = value.flatten()
        columns[self.last_access] = from_millis(times, schema.field(self.last_access).type)
        return inner

    def rows(self, table: pa.Table) -> tuple[SavepointRows, Begins | None]:
        """Return ordered rows of the store in the form of decoded Flink entries.

        The elements of a list become one list again. For entries that stay bytes, ``key`` and
        ``value`` are these bytes.

        Args:
            table: the rows. The elements of a list are adjacent.

        Returns:
            The entries, and the place of the first row of each list; None if there are no lists.

        Raises:
            InvalidArgumentError: for a value that the type of Flink cannot hold.
            UnsupportedTypeError: for a value that Flink cannot represent.
        """
        batch = _one_batch(table)
        begins, heads = None, batch
        if self.has_positions:
            begins = self._list_begins(batch)
            heads = batch.select(self._head_columns).take(pa.array(begins))
        key, namespace = self.key.values(heads), self.namespace.values(heads)
        map_key = None if self.map_key is None else self.map_key.values(heads)
        if self.entry is not None and self.kind is StateKind.TIMERS:
            times = as_millis(batch[self.entry])
            return SavepointRows(self.state, 0, key, namespace, None, None, times), None
        value = None if self.value is None else self.value.values(batch)
        if not self._has_lists_in_map:
            value = self._add_times(value, batch)
        if begins is not None:
            offsets = np.append(begins, batch.num_rows).astype(np.int32)
            value = pa.ListArray.from_arrays(pa.array(offsets), value)
        if self._has_lists_in_map:
            value = self._add_times(value, heads)
        return SavepointRows(self.state, 0, key, namespace, map_key, value), begins

    def _add_times(self, value: pa.Array | None, rows: pa.RecordBatch) -> pa.Array | None:
        if self.last_access is None:
            return value
        times = as_millis(rows[self.last_access])
        return pa.StructArray.from_arrays([times, value], ["last_access", "value"])

    def normalized(self, rows: pa.Table) -> pa.Table:
        """Return ordered rows in the form that a savepoint can represent.

        TTL timestamps are whole milliseconds. Positions in each list count from 0, without gaps,
        which remain where elements have expired or an edit has deleted them. A list in a map has
        one TTL timestamp, the latest of its elements.
        """
        if self.last_access is not None:
            times = rows.column(self.last_access)
            if pa.types.is_timestamp(times.type):
                whole = pc.floor_temporal(times, unit="millisecond").cast(times.type)
                rows = replace_column(rows, self.last_access, whole)
        if self.entry is None or not self.has_positions or not len(rows):
            return rows
        begins = self._list_begins(_one_batch(rows))
        lengths = np.diff(np.append(begins, len(rows)))
        places = _count_from_zero(lengths, rows.schema.field(self.entry).type)
        rows = replace_column(rows, self.entry, places)
        if self.last_access is None or not self._has_lists_in_map:
            return rows
        times = single_chunk(rows.column(self.last_access))
        latest = np.maximum.reduceat(times.cast(pa.int64()).to_numpy(), begins)
        joined = pa.array(np.repeat(latest, lengths)).cast(times.type)
        return replace_column(rows, self.last_access, joined)

    @property
    def _head_columns(self) -> list[str]:
        """The columns that are the same for all elements of a list."""
        names = [*self.key.names, *self.namespace.names]
        if self.map_key is not None:
            names += self.map_key.names
        if self.last_access is not None and self._has_lists_in_map:
            names.append(self.last_access)
        return list(dict.fromkeys(names))

    def _list_begins(self, batch: pa.RecordBatch) -> Begins:
        """Return the position of the first row of each list."""
        names = [name for name in self._head_columns if name != self.last_access]
        return find_begins(batch.select(names))


def find_begins(rows: pa.RecordBatch) -> Begins:
    """Return the positions of the rows that differ from the previous row."""
    hashes = row_hashes(rows)
    begins = np.concatenate([[True], hashes[1:] != hashes[:-1]])
    return np.flatnonzero(begins[: len(hashes)])


def _count_from_zero(lengths: npt.NDArray[np.int64], data_type: pa.DataType) -> pa.Array:
    """Return the position of each element in its list."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return pa.array(np.arange(len(starts)) - starts).cast(data_type)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks()
    batches = whole.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], whole.schema)


def replace_column(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows with another column of the same name and type."""
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), column)


def state_columns(
    state: FlinkState,
    form: EntryForm,
    max_parallelism: int,
    names: Names | None = None,
    *,
    is_python: bool = False,
) -> StateColumns:
    """Return the columns of a state.

    Args:
        state: the state.
        form: the parts that are stored as typed columns.
        max_parallelism: the number of key groups.
        names: column names by part; by default derived from the names of fields.
        is_python: whether its operator is a PyFlink operator, which wraps each key in a ``Row``.

    Returns:
        The columns.

    Raises:
        UnsupportedTypeError: if the state cannot have this form.
        InvalidArgumentError: for a wrong number of names, or a name that is used twice.
    """
    if form is EntryForm.BYTES:
        columns = _bytes_columns(state)
    else:
        columns = _typed_columns(state, form, max_parallelism, is_python=is_python)
    return _set_names(columns, names or {})


def _bytes_columns(state: FlinkState) -> StateColumns:
    key, nothing = part_columns(None), part_columns(_VOID)
    value = None if isinstance(state, TimerState) else part_columns(None)
    types = ("BYTES",)
    kind = StateKind.VALUE
    return StateColumns(
        state, EntryForm.BYTES, kind, key, nothing, None, value, None, None, "flink-sql", types
    )


def _typed_columns(
    state: FlinkState, form: EntryForm, max_parallelism: int, *, is_python: bool
) -> StateColumns:
    if form is EntryForm.KEY_BYTES:
        state = state.with_key(UndecodedType(state.key))
    key_type, scheme = state.key, "flink-sql" if isinstance(state.key, RowDataType) else "java"
    if is_python and isinstance(key_type, RowType) and len(key_type.fields) == 1:
        key_type, scheme = key_type.fields[0], _PYFLINK
    if isinstance(key_type, UndecodedType):
        key_type.skipper()  # raises an error if the end of a key is unknown
    key = part_columns(key_type, is_key=True)
    if is_kryo_bytes(key_type):
        raise UnsupportedTypeError(f"keys of {key_type.java_name} are bytes")
    if form.has_flink_groups:
        scheme = "flink-sql"  # any scheme would do: the store's key groups differ from Flink's
        types = tuple(check_key_type(stored, scheme) for stored in key.types)
    else:
        types = key_types(key_type, scheme)
    if not types:
        # A single key group needs no hash: there the key is a null, of any type.
        is_hashed = max_parallelism > 1
        stored, types = (pa.int32(), ("INT",)) if is_hashed else (pa.bool_(), ("BOOLEAN",))
        key = empty_key_part(state.key, stored, state.name)
    namespace = part_columns(state.namespace)
    kind = StateKind(state.kind)
    if isinstance(state, TimerState):
        parts = (key, namespace, None, None, _ENTRY["timers"], None)
        return StateColumns(state, form, kind, *parts, scheme, types)
    map_key = None if state.map_key is None else part_columns(state.map_key)
    if map_key is not None and not map_key.types:
        raise UnsupportedTypeError(f"keys of {state.value.java_name} cannot be a column")
    if form.has_value_bytes:
        kind = StateKind.VALUE if kind is StateKind.LIST else kind
        value, entry, stamp = part_columns(None), None, None
    else:
        inner = state.inner.value if isinstance(state.inner, TtlAwareType) else state.inner
        stamp = "last_access" if isinstance(inner, TtlType) else None
        inner = inner.value if isinstance(inner, TtlType) else inner
        if is_kryo_bytes(inner):
            raise UnsupportedTypeError(find_kryo_part(inner))
        # The value of a map entry can be null. It stays one column, because flattened fields of a
        # struct cannot tell a null from a struct of nulls.
        value = part_columns(inner, flat=map_key is None)
        entry = _ENTRY.get(kind)
    return StateColumns(
        state, form, kind, key, namespace, map_key, value, entry, stamp, scheme, types
    )


def _refuse_taken_names(columns: StateColumns, names: list[str], taken: list[str]) -> None:
    lower = [name.lower() for name in taken]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise InvalidArgumentError(
                f"state {columns.state.name!r}: the column name {name!r} occurs twice "
                "(ignoring case), or is reserved for the store"
            )


def _set_names(columns: StateColumns, names: Names) -> StateColumns:
    """Set the column names: the given names, and unique default names for the rest."""
    given_names = [name for part_names in names.values() for name in part_names]
    taken = [*_RESERVED, *given_names]
    _refuse_taken_names(columns, given_names, taken)

    def claim_name(preferred: str) -> str:
        name = first_free(preferred, taken)
        taken.append(name)
        return name

    def choose_names(role: str, preferred: list[str]) -> tuple[str, ...]:
        part_names = names.get(role)
        if part_names is None:
            part_names = tuple(map(claim_name, preferred))
        if len(part_names) != len(preferred):
            raise InvalidArgumentError(
                f"state {columns.state.name!r}: {len(part_names)} names for the {role}, but it "
                f"has {len(preferred)} columns"
            )
        return tuple(part_names)

    def name_part(role: str, unnamed: Part | None) -> Part | None:
        preferred = [] if unnamed is None else _default_names(role, unnamed)
        part_names = choose_names(role, preferred)
        return None if unnamed is None else unnamed.with_names(part_names)

    def name_single(role: str, preferred: str | None) -> str | None:
        return next(iter(choose_names(role, [] if preferred is None else [preferred])), None)

    key, namespace = name_part("key", columns.key), name_part("namespace", columns.namespace)
    assert key is not None, "a state must have a key"
    assert namespace is not None, "a state must have a namespace, possibly without columns"
    if columns.hash_scheme == _PYFLINK and isinstance(columns.state.key, RowType):
        key = python_key(key, columns.state.key)
    return replace(
        columns,
        key=key,
        namespace=namespace,
        map_key=name_part("map_key", columns.map_key),
        value=name_part("value", columns.value),
        entry=name_single("entry", columns.entry),
        last_access=name_single("last_access", columns.last_access),
    )


def _default_names(role: str, part: Part) -> list[str]:
    if isinstance(part.flink_type, UndecodedType):
        return [_KEY_BYTES if role == "key" else _VALUE_BYTES]
    if role == "key" and isinstance(part.flink_type, RowDataType) and not part.is_flat:
        return [_NO_KEY]
    if not part.is_flat:
        return [role] * len(part.fields)
    if isinstance(part.flink_type, Scalar):
        prefix = "" if role == "namespace" else f"{role}_"
        return [f"{prefix}{name}" for name in _WINDOW]
    prefix = "" if role == "value" else f"{role}_"
    return [f"{prefix}{field.name}" for field in part.fields]
