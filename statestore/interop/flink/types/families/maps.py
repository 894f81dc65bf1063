"""Maps: the number of entries, then a key and a nullable value for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.java_objects import read_java_object
from statestore.interop.flink.metadata.snapshot_format import BASE, DATAVIEW, TABLE, encode_nested
from statestore.interop.flink.types.byte_cursor import Cursor, list_offsets
from statestore.interop.flink.types.decode import read_elements
from statestore.interop.flink.types.encode import refuse_nulls, refuse_repeated, write_counted
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
    nested_hashes,
)
from statestore.interop.flink.types.families.key_hash import KeyHash
from statestore.interop.flink.types.families.nullables import NullableType
from statestore.interop.flink.types.families.tuples import TupleType
from statestore.interop.flink.types.value_lengths import Skip, make_counted_skip

_SNAPSHOTS = {
    "Map": f"{BASE}MapSerializerSnapshot",
    "SortedMap": f"{TABLE}SortedMapSerializerSnapshot",
    "NullAwareMap": f"{DATAVIEW}NullAwareMapSerializerSnapshot",
}


@dataclass(frozen=True, slots=True)
class MapType(FlinkType):
    """A ``Map``.

    For the ``SortedMap`` of Flink SQL, ``outer`` is its comparator as Java serialized it. The
    ``NullAwareMap`` of Flink SQL can have a null key.
    """

    key: FlinkType
    value: FlinkType
    form: Literal["Map", "SortedMap", "NullAwareMap"] = "Map"
    outer: bytes = b""

    @property
    def _entry(self) -> FlinkType:
        """The type of an entry as it is written."""
        key = NullableType(self.key) if self.form == "NullAwareMap" else self.key
        return TupleType("", (key, NullableType(self.value)))

    def _java_name(self) -> str:
        return generic_name(self.form, self.key, self.value)

    def _arrow_type(self) -> pa.DataType:
        return pa.map_(self.key.arrow_type(), self.value.arrow_type())

    def _skipper(self) -> Skip:
        return make_counted_skip(self._entry.skipper())

    def _read(self, cursor: Cursor) -> pa.Array:
        """Read ``MapSerializer``: the size, then keys and nullable values."""
        counts = cursor.counts(2)
        entries, cursor.position = read_elements(self._entry, cursor, counts)
        keys, values = entries.flatten()
        if keys.null_count:
            raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
        return pa.MapArray.from_arrays(list_offsets(counts), keys, values)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        entries = flatten_entries(array)
        if not self.key.has_identity:
            refuse_repeated(array, entries.field(0), "a map has the key")
        return write_counted(array, self._entry.write(entries))

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes((self.key, self.value))
        if parts is None or not all(part.is_plain for part in parts):
            return None
        names = ", ".join(part.key_type for part in parts)
        return KeyHash(f"Map<{names}>", lambda column: column, is_column=False)

    def _snapshot(self) -> bytes:
        if self.form == "SortedMap":
            nested = encode_nested(self.key.snapshot(), self.value.snapshot())
            return utf(_SNAPSHOTS[self.form]) + i32(3) + self.outer + nested
        return encode_parts(_SNAPSHOTS[self.form], 1, b"", self.key, self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {
            _SNAPSHOTS["Map"]: _parse_map,
            _SNAPSHOTS["SortedMap"]: _parse_sorted_map,
            _SNAPSHOTS["NullAwareMap"]: _parse_null_aware_map,
        }


def flatten_entries(array: pa.Array) -> pa.Array:
    """Return the keys and values of maps as structs."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    sides = [side.slice(first, last - first) for side in (array.keys, array.items)]
    return pa.StructArray.from_arrays(sides, ["f0", "f1"])


def _parse_map(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return MapType(*snapshot.pair())


def _parse_sorted_map(snapshot: SnapshotReader) -> FlinkType:
    begin = snapshot.reader.position
    read_java_object(snapshot.reader)
    comparator = snapshot.bytes_since(begin)
    return MapType(*snapshot.pair(), "SortedMap", comparator)


def _parse_null_aware_map(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return MapType(*snapshot.pair(), "NullAwareMap")
