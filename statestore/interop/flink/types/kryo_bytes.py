"""Numbers of a variable length and text, as Kryo's ``Output`` writes them.

Versions 2 and 5 differ only in the longest text that is written as plain ASCII. Text is handled as
its UTF-16 code units, each a character, because Kryo encodes each of them by itself.
"""

from __future__ import annotations

import re
import struct

from statestore.interop.flink.metadata.java_binary import Reader, varint

MARK, MORE = 0x80, 0x40
"""Bits of the first byte of a text's length; the first one is also in the last byte of ASCII."""

_MARKED = re.compile(rb"[\x80-\xff]")
_MOST_SHIFTED_BYTES = 8  # the ninth byte of a long has 8 bits instead of 7


def read_number(reader: Reader) -> int:
    """Read a number of 1 to 9 bytes, lowest bits first, without a sign."""
    value = 0
    for place in range(_MOST_SHIFTED_BYTES):
        byte = reader.u8()
        value |= (byte & ~MARK) << 7 * place
        if byte < MARK:
            return value
    return value | reader.u8() << 7 * _MOST_SHIFTED_BYTES


def encode_number(value: int) -> bytes:
    """Encode a number of up to 64 bits without a sign."""
    if value < 1 << 7 * _MOST_SHIFTED_BYTES:
        return varint(value)
    low = [value >> 7 * place & 0x7F | MARK for place in range(_MOST_SHIFTED_BYTES)]
    return bytes([*low, value >> 7 * _MOST_SHIFTED_BYTES])


def read_text(reader: Reader) -> str | None:
    """Read ``Output.writeString``; DamagedFileError for a text that is not UTF-8."""
    begin = reader.position
    data = read_text_bytes(reader)
    try:
        return None if data is None else data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise reader.error("a text of Kryo is not UTF-8", position=begin) from None


def read_text_bytes(reader: Reader) -> bytes | None:
    """Read the UTF-8 of ``Output.writeString``: ASCII whose last byte is marked, or with a length.

    A null is None.
    """
    begin = reader.position
    first = reader.u8()
    if first < MARK:
        last = _MARKED.search(reader.data, reader.position)
        reader.position = begin
        text = bytearray(reader.take(last.end() - begin if last else reader.remaining + 1))
        text[-1] &= ~MARK
        return bytes(text)
    length = first & (MORE - 1)
    if first & MORE:
        length |= reader.varint() << 6
    if not length:  # it is counted from 1, as 0 is a null
        return None
    begin = reader.position
    for _ in range(length - 1):
        byte = reader.u8()
        reader.take(2 if byte >= 0xE0 else 1 if byte >= 0xC0 else 0)
    return bytes(reader.data[begin : reader.position])


def encode_text(text: str | None, longest_ascii: int) -> bytes:
    """Encode text, of which up to ``longest_ascii`` characters are written as plain ASCII."""
    if text is None:
        return bytes([MARK])
    if 1 < len(text) <= longest_ascii and text.isascii():
        return text[:-1].encode() + bytes([ord(text[-1]) | MARK])
    length = len(text) + 1
    first, rest = length & (MORE - 1) | MARK, length >> 6
    head = bytes([first]) if not rest else bytes([first | MORE]) + varint(rest)
    return head + text.encode("utf-8", "surrogatepass")


def to_code_units(text: str) -> str:
    """Return text with a character for each of its UTF-16 code units."""
    units = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, struct.unpack(f"<{len(units) // 2}H", units)))


def from_code_units(units: str) -> str:
    """Return the text of UTF-16 code units; UnicodeDecodeError if a surrogate stands alone."""
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
