"""Operator state: split and union lists, broadcast maps, and offsets of sources.

A subtask's stream begins with i32 5, or with 6 and a flag for compression
(``OperatorBackendSerializationProxy``), followed by the descriptions of list states and broadcast
states. The positions of their elements are in ``_metadata``. A source of FLIP-27 stores its splits
as bytes in a list state named ``SourceReaderState``: i32 version, i32 length, and the bytes of its
serializer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.handles import Mode, OperatorHandle, OperatorPart
from statestore.interop.flink.metadata.java_binary import Reader, i32, i64, utf
from statestore.interop.flink.metadata.versions import unsupported_version
from statestore.interop.flink.read.canonical import StateInfo, read_state_infos
from statestore.interop.flink.read.savepoint_files import ByteSource
from statestore.interop.flink.read.snappy import SNAPPY_HEAD, chunks
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Cursor, Spans
from statestore.interop.flink.types.column_bytes import decode_values, read_elements
from statestore.interop.flink.types.java_types import TupleType

SOURCE_READER_STATE = "SourceReaderState"
_PLAIN, _WITH_COMPRESSION = 5, 6  # from Flink 1.7 and 1.18 on
_VALUE, _KEY = "VALUE_SERIALIZER", "KEY_SERIALIZER"
_KAFKA_VERSION = 0


@dataclass(frozen=True, slots=True)
class OperatorStateInfo:
    """An operator state: its name, its redistribution mode, and its types.

    ``key`` is the key type of a broadcast map, None for a list. ``header`` is the description of
    the state in the stream.
    """

    name: str
    mode: Mode
    value: FlinkType
    key: FlinkType | None
    header: StateInfo


@dataclass(frozen=True, slots=True, eq=False)
class SubtaskElements:
    """The part of a state that one subtask has: elements of a list, or entries of a broadcast map.

    ``raw`` has the bytes of each element of a list.
    """

    info: OperatorStateInfo
    subtask: int
    raw: Spans

    def count(self) -> int:
        """Return the number of elements, or of entries of a broadcast map."""
        if self.info.key is None:
            return len(self.raw)
        return int(Cursor(self.raw, self.raw.starts, self.raw.ends).counts(2).sum())

    def values(self) -> pa.Array:
        """Return the elements as a column; entries of a map are structs of ``f0`` and ``f1``.

        Raises UnsupportedTypeError for a type without a column type, and DamagedFileError if the
        bytes do not match the type.
        """
        if self.info.key is None:
            return decode_values(self.info.value, self.raw)
        entry = TupleType("", (self.info.key, self.info.value))
        cursor = Cursor(self.raw, self.raw.starts, self.raw.ends)
        entries, cursor.position = read_elements(entry, cursor, cursor.counts(2))
        cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a broadcast state")
        return entries


@dataclass(frozen=True, slots=True)
class KafkaSplit:
    """A partition of a Kafka topic, the source's next offset in it, and its stopping offset."""

    topic: str
    partition: int
    offset: int
    stop: int


def kafka_split_bytes(split: KafkaSplit) -> bytes:
    """Encode a split as an element of a Kafka source's ``SourceReaderState``."""
    data = utf(split.topic) + i32(split.partition) + i64(split.offset) + i64(split.stop)
    return i32(_KAFKA_VERSION) + i32(len(data)) + data


def read_operator_state(
    source: ByteSource, handle: OperatorHandle, subtask: int
) -> Iterator[SubtaskElements]:
    """Yield the elements that a subtask has of each of its operator states.

    Args:
        source: the bytes of the handle's stream.
        handle: the handle in ``_metadata``.
        subtask: the subtask's number.

    Yields:
        The elements, state by state.

    Raises:
        FormatVersionError: for an unsupported version of the stream.
        UnsupportedTypeError: for an unsupported serializer.
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    whole = source.read(0, source.size)
    reader = Reader(whole, source.name)
    is_compressed, infos = _read_header(reader)
    edges = sorted({offset for part in handle.parts for offset in part.offsets})
    if is_compressed and bytes(reader.take(len(SNAPPY_HEAD))) != SNAPPY_HEAD:
        raise reader.error("the elements do not begin with a Snappy header")
    if (edges or [len(whole)])[0] != reader.position or (edges and edges[-1] > len(whole)):
        raise reader.error(
            f"the elements begin at byte {edges[0] if edges else len(whole)} instead of 0"
        )
    if len(edges) != sum(len(part.offsets) for part in handle.parts):
        raise reader.error("two elements begin at the same byte")
    elements = dict(zip(edges, _split_elements(reader, edges, is_compressed), strict=True))
    for part in handle.parts:
        info = _build_info(infos.get(part.name), part, reader)
        name = f"{source.name} ({part.name})"
        yield SubtaskElements(
            info, subtask, Spans.from_values([elements[offset] for offset in part.offsets], name)
        )


def read_descriptions(source: ByteSource, handle: OperatorHandle) -> tuple[OperatorStateInfo, ...]:
    """Return the states of a stream, of which only the descriptions are read.

    Raises the errors of :func:`read_operator_state`.
    """
    offsets = (offset for part in handle.parts for offset in part.offsets)
    stop = min(offsets, default=source.size)
    reader = Reader(source.read(0, min(stop, source.size)), source.name)
    _, infos = _read_header(reader)
    return tuple(_build_info(infos.get(part.name), part, reader) for part in handle.parts)


def _read_header(reader: Reader) -> tuple[bool, dict[str, StateInfo]]:
    """Return whether elements are compressed, and the states by name."""
    version = reader.i32()
    if version not in (_PLAIN, _WITH_COMPRESSION):
        raise unsupported_version(reader.name, "operator state", version)
    is_compressed = reader.bool() if version == _WITH_COMPRESSION else False
    return is_compressed, {info.name: info for _ in range(2) for info in read_state_infos(reader)}


def _split_elements(reader: Reader, edges: list[int], is_compressed: bool) -> Iterator[bytes]:
    """Yield the bytes between offsets; with Snappy each element has its own chunks."""
    for start, stop in pairwise([*edges, len(reader.data)] if edges else []):
        part = Reader(reader.take(stop - start), reader.name, base=start)
        yield (
            b"".join(data for _, data in chunks(part))
            if is_compressed
            else part.bytes(part.remaining)
        )


def _build_info(header: StateInfo | None, part: OperatorPart, reader: Reader) -> OperatorStateInfo:
    if header is None or _VALUE not in header.serializers:
        raise reader.error(f"the header does not list the state {part.name!r}")
    if (header.kind == "broadcast") != (part.mode == "broadcast"):
        raise reader.error(
            f"the state {part.name!r} has kind {header.kind} in the header, but mode {part.mode}"
        )
    key = header.serializers.get(_KEY)
    return OperatorStateInfo(
        part.name,
        part.mode,
        header.serializers[_VALUE].flink_type,
        None if part.mode != "broadcast" or key is None else key.flink_type,
        header,
    )


def kafka_splits(splits: pa.Array, name: str) -> tuple[KafkaSplit, ...]:
    """Decode the splits of a Kafka source from the bytes of its ``SourceReaderState``.

    ``name`` is the state's name in messages. Raises UnsupportedTypeError for splits that
    ``KafkaPartitionSplitSerializer`` did not write, such as the splits of other sources.
    """
    decoded_splits = []
    for data in splits.to_pylist():
        reader = Reader(data or b"", name)
        version, length = reader.i32(), reader.i32()
        whole = length == reader.remaining and version == _KAFKA_VERSION and length >= 2
        topic = int.from_bytes(reader.data[8:10], "big") if whole else -1
        if not whole or length != 2 + topic + 4 + 8 + 8:
            raise UnsupportedTypeError(f"{name} has splits of a source other than Kafka")
        decoded_splits.append(KafkaSplit(reader.utf(), reader.i32(), reader.i64(), reader.i64()))
    return tuple(decoded_splits)
