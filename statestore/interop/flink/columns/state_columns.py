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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.names import RESERVED_COLUMNS
from statestore.format.state import StateKind
from statestore.interop.flink.columns.part_columns import PartColumns, key_types, part_columns
from statestore.interop.flink.read.keyed_states import KeyedStateInfo
from statestore.interop.flink.read.savepoint import SavepointRows, StateEntries
from statestore.interop.flink.types.families.kryo import find_kryo_part
from statestore.interop.flink.types.flink_types import (
    KryoType,
    ListType,
    MapType,
    RowDataType,
    RowType,
    Scalar,
    TtlAwareType,
    TtlType,
    UndecodedType,
)
from statestore.keys.arrow_types import check_key_type
from statestore.rows.digests import row_hashes

__all__ = [
    "FLINK_KEY_GROUP",
    "EntryForm",
    "Names",
    "PartColumns",
    "StateColumns",
    "empty_key",
    "first_free",
    "state_columns",
]

FLINK_KEY_GROUP = "flink_key_group"
"""Flink's key group of entries that stay bytes, because it cannot be computed from the bytes."""

_KEY_BYTES, _VALUE_BYTES, _NO_KEY = "key_bytes", "value_bytes", "no_key"
_HASH_OF_NO_KEY = pa.scalar(-1404071217, pa.int32())
"""The only INT that Flink SQL hashes like a row without columns, so it is in its key group."""

_RESERVED = (*RESERVED_COLUMNS, FLINK_KEY_GROUP)
_ROW_KIND = "row_kind"
_WINDOW = ("window_start", "window_end")
_VOID = Scalar("VoidNamespace")
_PYFLINK = "pyflink"
_ENTRY = {"list": "position", "timers": "timestamp"}

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
    timestamps.
    """

    state: KeyedStateInfo
    form: EntryForm
    kind: StateKind
    key: PartColumns
    namespace: PartColumns
    map_key: PartColumns | None
    value: PartColumns | None
    entry: str | None
    last_access: str | None
    hash_scheme: str
    key_types: tuple[str, ...]

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
        fields: list[tuple[str, pa.DataType]] = []
        for part in (self.key, self.namespace, self.map_key):
            if part is not None:
                fields += zip(part.names, part.stored, strict=True)
        if self.entry is not None:
            is_timer = self.kind is StateKind.TIMERS
            fields.append((self.entry, pa.int64() if is_timer else pa.int32()))
        if self.value is not None:
            fields += zip(self.value.names, self.value.stored, strict=True)
        if self.last_access is not None:
            fields.append((self.last_access, pa.int64()))
        if self.form.has_flink_groups:
            fields.append((FLINK_KEY_GROUP, pa.int32()))
        return pa.schema(fields)

    @property
    def layout(self) -> dict[str, str]:
        """The kind, and the fields of each part with their types, without the names of columns."""
        parts = {part: getattr(self, part) for part in ("key", "namespace", "map_key", "value")}
        return {
            "kind": str(self.kind),
            **{part: "" if columns is None else columns.text for part, columns in parts.items()},
            "key hash": ", ".join((self.hash_scheme, *self.key_types)),
            "last_access": "" if self.last_access is None else "int64",
        }

    def with_stored_types(self, schema: pa.Schema) -> StateColumns:
        """Return these columns with the types that the store has for them."""
        parts = {
            name: part.with_stored_types(schema)
            for name in ("key", "namespace", "map_key", "value")
            if (part := getattr(self, name)) is not None
        }
        return replace(self, **parts)

    def with_stored_zones(self, schema: pa.Schema) -> StateColumns:
        """Return these columns with the time zones that the store has for nested timestamps.

        Earlier releases stored a nested ``TIMESTAMP_LTZ`` without the zone UTC. Its values are the
        same, so a later savepoint continues with the column types of the store.
        """
        map_key = None if self.map_key is None else self.map_key.with_stored_zones(schema)
        value = None if self.value is None else self.value.with_stored_zones(schema)
        return replace(self, map_key=map_key, value=value)

    @property
    def has_empty_key(self) -> bool:
        """Whether all keys are the same row of Flink SQL without columns."""
        return isinstance(self.key.flink_type, RowDataType) and not self.key.flink_type.columns

    def table_of_bytes(self, entries: StateEntries, prefix: int) -> pa.Table:
        """Return undecoded entries of one key group as rows.

        The first ``prefix`` bytes of each key, which are the key group, are cut.
        """
        keys = entries.keys
        whole = type(keys)(keys.data, keys.starts + prefix, keys.ends, keys.name, keys.base)
        columns = [whole.arrow()]
        if self.value is not None:
            columns.append(entries.values.arrow())
        columns.append(pa.array(np.full(len(keys), entries.key_group, np.int32)))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def table(self, rows: SavepointRows) -> pa.Table:
        """Return the decoded rows of one key group as rows of the store.

        Raises UnsupportedTypeError for a value that its column cannot hold.
        """
        columns = self._key_columns(rows)
        columns += self.namespace.columns(rows.namespace)
        if self.kind is StateKind.TIMERS:
            return self._build_table([*columns, rows.time], rows.key_group)
        value, map_key = rows.value, rows.map_key
        assert value is not None, "only timers have no value"
        if self.map_key is not None:
            assert map_key is not None, "a map must have keys"
            columns += self.map_key.columns(map_key)
        if self.entry is not None:
            counts = np.diff(np.asarray(value.offsets))
            parents = np.repeat(np.arange(len(counts)), counts)
            starts = np.repeat(np.cumsum(counts) - counts, counts)
            columns = [column.take(pa.array(parents)) for column in columns]
            columns.append(pa.array((np.arange(len(parents)) - starts).astype(np.int32)))
            value = value.flatten()
        times = []
        if self.last_access is not None:
            times, value = [value.field("last_access")], value.field("value")
        assert self.value is not None, "only timers have no value"
        return self._build_table([*columns, *self.value.columns(value), *times], rows.key_group)

    def _build_table(self, columns: list[pa.Array], key_group: int) -> pa.Table:
        """Return the columns as a table, with Flink's key group if the form has it."""
        if self.form.has_flink_groups:
            columns = [*columns, pa.array(np.full(len(columns[0]), key_group, np.int32))]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _key_columns(self, rows: SavepointRows) -> list[pa.Array]:
        if self.has_empty_key:
            return [pa.repeat(empty_key(self.key.stored[0]), len(rows))]
        key = rows.key
        if self.hash_scheme == _PYFLINK:
            key = key.field("f0")
            if key.null_count:
                raise UnsupportedTypeError("a PyFlink key is null, which has no key group")
        if isinstance(self.key.flink_type, RowType):
            fields = list(key.type)[-len(self.key.flink_type.fields) :]
            arrays = [key.field(field.name) for field in fields]
            key = pa.StructArray.from_arrays(arrays, fields=fields)
        return self.key.columns(key)

    def rows(self, table: pa.Table, key_group: int) -> SavepointRows:
        """Return ordered rows of one key group of the store in the form of decoded Flink entries.

        The elements of a list become one list again. For entries that stay bytes, ``key`` and
        ``value`` are these bytes.
        """
        whole = table.combine_chunks()
        batches = whole.to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], whole.schema)
        key, namespace = self._key_array(batch), self.namespace.array(batch)
        if self.kind is StateKind.TIMERS:
            time = batch.column(self.entry_columns[0])
            return SavepointRows(self.state, key_group, key, namespace, None, None, time)
        map_key = None if self.map_key is None else self.map_key.array(batch)
        value = None if self.value is None else self.value.array(batch)
        if self.last_access is not None:
            stamps = batch.column(self.last_access)
            value = pa.StructArray.from_arrays([stamps, value], ["last_access", "value"])
        if self.has_positions:
            begins = self._list_begins(batch)
            offsets = pa.array(np.append(begins, batch.num_rows).astype(np.int32))
            value = pa.ListArray.from_arrays(offsets, value)
            places = pa.array(begins)
            key, namespace = key.take(places), namespace.take(places)
        return SavepointRows(self.state, key_group, key, namespace, map_key, value)

    @property
    def has_positions(self) -> bool:
        """Whether a row is an element of a list, with its position."""
        return self.entry is not None and self.kind is StateKind.LIST

    def renumbered(self, rows: pa.Table) -> pa.Table:
        """Return ordered rows whose positions in each list count from 0, without gaps.

        Gaps remain where elements have expired or an edit has deleted them. A savepoint has no
        positions.
        """
        if self.entry is None or not self.has_positions:
            return rows
        whole = rows.combine_chunks()
        (batch,) = whole.to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]
        begins = self._list_begins(batch)
        lengths = np.diff(np.append(begins, batch.num_rows))
        places = np.arange(batch.num_rows) - np.repeat(begins, lengths)
        field = rows.schema.field(self.entry)
        column = pa.array(places).cast(field.type)
        return rows.set_column(rows.schema.get_field_index(self.entry), field, column)

    def _list_begins(self, batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
        """Return the position of the first row of each list."""
        hashes = row_hashes(batch.select([*self.key.names, *self.namespace.names]))
        begins = np.concatenate([[True], hashes[1:] != hashes[:-1]])
        return np.flatnonzero(begins[: len(hashes)])

    def _key_array(self, batch: pa.RecordBatch) -> pa.Array:
        if self.has_empty_key:
            _refuse_other_keys(batch.column(self.key.names[0]), self.state.name)
            kinds = pa.array(np.zeros(batch.num_rows, np.int8))
            return pa.StructArray.from_arrays([kinds], [_ROW_KIND])
        key = self.key.array(batch)
        if isinstance(self.key.flink_type, RowType):
            key = _build_insert_rows(key.flatten(), self.key.flink_type)
        wrapped = self.state.key
        if self.hash_scheme == _PYFLINK and isinstance(wrapped, RowType):
            return _build_insert_rows([key], wrapped)
        return key


def empty_key(stored: pa.DataType) -> pa.Scalar:
    """Return the stored value of a key without columns; with one key group it is null."""
    return _HASH_OF_NO_KEY if stored == _HASH_OF_NO_KEY.type else pa.scalar(None, stored)


def _refuse_other_keys(keys: pa.Array, state: str) -> None:
    """Raise InvalidArgumentError for a key that is not the key without columns."""
    only = empty_key(keys.type)
    other = next((key for key in pc.unique(keys) if not key.equals(only)), None)
    if other is not None:
        raise InvalidArgumentError(
            f"state {state!r} has the key {other}, but its keys in Flink have no columns, so the "
            f"only key is {only}; delete the rows of the other key"
        )


def _build_insert_rows(fields: list[pa.Array], row_type: RowType) -> pa.Array:
    """Build rows from fields; rows of keys always have the kind INSERT, which is 0."""
    if row_type.has_kind:
        fields = [pa.array(np.zeros(len(fields[0]), np.int8)), *fields]
    return pa.StructArray.from_arrays(fields, fields=list(row_type.arrow_type()))


def state_columns(
    state: KeyedStateInfo,
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


def _bytes_columns(state: KeyedStateInfo) -> StateColumns:
    key, nothing = part_columns(None), part_columns(_VOID)
    value = None if state.kind == "timers" else part_columns(None)
    types = ("BYTES",)
    kind = StateKind.VALUE
    return StateColumns(
        state, EntryForm.BYTES, kind, key, nothing, None, value, None, None, "flink-sql", types
    )


def _typed_columns(
    state: KeyedStateInfo, form: EntryForm, max_parallelism: int, *, is_python: bool
) -> StateColumns:
    if form is EntryForm.KEY_BYTES:
        state = state.with_key(UndecodedType(state.key))
    key_type, scheme = state.key, "flink-sql" if isinstance(state.key, RowDataType) else "java"
    if is_python and isinstance(key_type, RowType) and len(key_type.fields) == 1:
        key_type, scheme = key_type.fields[0], _PYFLINK
    if isinstance(key_type, UndecodedType):
        key_type.skipper()  # raises an error if the end of a key is unknown
    key = part_columns(key_type, is_key=True)
    if isinstance(key_type, KryoType):
        raise UnsupportedTypeError(f"keys of {key_type.java_name} are bytes")
    if form.has_flink_groups:
        scheme = "flink-sql"  # any scheme would do: the store's key groups differ from Flink's
        types = tuple(check_key_type(stored, scheme) for stored in key.stored)
    else:
        types = key_types(key_type, scheme)
    if not types:
        # A single key group needs no hash: there the key is a null, of any type.
        is_hashed = max_parallelism > 1
        stored, types = (pa.int32(), ("INT",)) if is_hashed else (pa.bool_(), ("BOOLEAN",))
        key = PartColumns(state.key, (pa.field("", stored),), (stored,), False)
    namespace = part_columns(state.namespace)
    if state.kind == "timers":
        parts = (key, namespace, None, None, _ENTRY["timers"], None)
        return StateColumns(state, form, StateKind.TIMERS, *parts, scheme, types)
    inner, map_key = state.value, None
    if state.kind == "list" and isinstance(inner, ListType):
        inner = inner.element
    if state.kind == "map" and isinstance(inner, MapType):
        map_key, inner = part_columns(inner.key), inner.value
        if not map_key.fields:
            raise UnsupportedTypeError(f"keys of {state.value.java_name} cannot be a column")
    kind = StateKind(state.kind)
    if form.has_value_bytes:
        kind = StateKind.VALUE if kind is StateKind.LIST else kind
        value, entry, stamp = part_columns(None), None, None
    else:
        inner = inner.value if isinstance(inner, TtlAwareType) else inner
        stamp = "last_access" if isinstance(inner, TtlType) else None
        inner = inner.value if isinstance(inner, TtlType) else inner
        if isinstance(inner, KryoType):
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

    def name_part(role: str, unnamed: PartColumns | None) -> PartColumns | None:
        preferred = [] if unnamed is None else _default_names(role, unnamed)
        part_names = choose_names(role, preferred)
        return None if unnamed is None else replace(unnamed, names=part_names)

    def name_single(role: str, preferred: str | None) -> str | None:
        return next(iter(choose_names(role, [] if preferred is None else [preferred])), None)

    key, namespace = name_part("key", columns.key), name_part("namespace", columns.namespace)
    assert key is not None, "a state must have a key"
    assert namespace is not None, "a state must have a namespace, possibly without columns"
    return StateColumns(
        columns.state,
        columns.form,
        columns.kind,
        key,
        namespace,
        name_part("map_key", columns.map_key),
        name_part("value", columns.value),
        name_single("entry", columns.entry),
        name_single("last_access", columns.last_access),
        columns.hash_scheme,
        columns.key_types,
    )


def _default_names(role: str, part: PartColumns) -> list[str]:
    if part.flink_type is None or isinstance(part.flink_type, UndecodedType):
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
