"""Key groups of a canonical savepoint, one entry at a time."""

from __future__ import annotations

from pathlib import Path

from statestore.interop.flink.metadata.java_binary import i16, i32
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.interop.flink.read.snappy import frame_pieces

_END_OF_STATE = 0x80


def key_group_bytes(
    states: list[tuple[int, list[tuple[bytes, bytes]]]], *, is_compressed: bool = False
) -> bytes:
    """Return a key group: the entries of each nonempty state, in the order of the header."""
    parts = []
    for state, entries in states:
        parts.append(i16(state))
        for number, (key, value) in enumerate(entries, 1):
            first = key[0] | _END_OF_STATE if number == len(entries) else key[0]
            parts += [i32(len(key)), bytes([first]), key[1:], i32(len(value)), value]
    whole = b"".join(parts) + b"\xff\xff"
    return b"".join(frame_pieces([whole])) if is_compressed else whole


def entries_in(folder: Path) -> set[tuple[int, bytes, bytes]]:
    """Return the key group, key and value of each entry of a savepoint in a folder."""
    return {
        (part.key_group, key, value)
        for operator in open_savepoint(str(folder)).operators
        for part in operator.entries()
        for key, value in zip(
            part.keys.arrow().to_pylist(), part.values.arrow().to_pylist(), strict=True
        )
    }
