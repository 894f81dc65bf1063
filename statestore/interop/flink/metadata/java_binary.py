"""Read and write Java's binary encoding: big-endian numbers and three text formats.

A :class:`Reader` never reads past the end of its bytes. It also limits the nesting of values to
``MAX_DEPTH`` levels. A negative or too large length raises a DamagedFileError that names the file
and the byte. The module's functions write the formats that the reader reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from statestore.errors import DamagedFileError, InvalidArgumentError

_U16 = struct.Struct(">H")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")
_MAX_VARINT_BYTES = 5
_MAX_UTF_BYTES = 0xFFFF

MAX_DEPTH = 100
"""The limit for nested types, objects or handles; each level takes up to five Python calls."""


class Reader:
    """A read position in a buffer.

    ``name`` is the file of the bytes and ``base`` is the position of the first byte in that file;
    both are used in messages. ``position`` is relative to the first byte. ``depth`` is the current
    nesting level.
    """

    __slots__ = ("base", "data", "depth", "name", "position")

    def __init__(
        self,
        data: bytes | memoryview,
        name: str,
        *,
        position: int = 0,
        base: int = 0,
        depth: int = 0,
    ) -> None:
        self.data = memoryview(data)
        self.name = name
        self.position = position
        self.base = base
        self.depth = depth

    def part(self, length: int) -> Reader:
        """Return a reader for the next ``length`` bytes, and skip them here."""
        base = self.base + self.position
        return Reader(self.take(length), self.name, base=base, depth=self.depth)

    @contextmanager
    def nested(self, what: str) -> Iterator[None]:
        """Read one level deeper.

        Raises DamagedFileError if ``what``, such as "types", is nested too deeply.
        """
        if self.depth >= MAX_DEPTH:
            raise self.error(f"{what} are nested more than {MAX_DEPTH} levels deep")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @property
    def whole(self) -> bytes:
        """All bytes, without a copy if the reader was created from ``bytes``."""
        buffer = self.data.obj
        return (
            buffer
            if isinstance(buffer, bytes) and len(buffer) == len(self.data)
            else bytes(self.data)
        )

    @property
    def remaining(self) -> int:
        """The number of bytes that are still unread."""
        return len(self.data) - self.position

    def error(self, problem: str, *, position: int | None = None) -> DamagedFileError:
        """Return an error with the problem, the file and the byte (by default the next byte)."""
        offset = self.base + (self.position if position is None else position)
        return DamagedFileError(f"{self.name} is damaged at byte {offset}: {problem}")

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes and advance."""
        start = self.position
        if count < 0:
            raise self.error(f"the length {count} is negative")
        if count > len(self.data) - start:
            raise self.error(
                f"{count} bytes are required, but only {len(self.data) - start} are left"
            )
        self.position = start + count
        return self.data[start : start + count]

    def bytes(self, count: int) -> bytes:
        """Return a copy of the next bytes."""
        return bytes(self.take(count))

    def bool(self) -> bool:
        """Read a boolean: a byte that must be 0 or 1."""
        value = self.take(1)[0]
        if value > 1:
            raise self.error(f"the byte {value} should be 0 or 1", position=self.position - 1)
        return value == 1

    def u8(self) -> int:
        """Read an unsigned byte."""
        return self.take(1)[0]

    def peek(self) -> int:
        """Return the next byte without advancing."""
        value = self.take(1)[0]
        self.position -= 1
        return value

    def i8(self) -> int:
        """Read a signed byte."""
        value = self.take(1)[0]
        return value - 256 if value > 127 else value

    def u16(self) -> int:
        """Read an unsigned 16-bit number."""
        return int(_U16.unpack(self.take(2))[0])

    def i16(self) -> int:
        """Read a signed 16-bit number."""
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """Read a signed 32-bit number."""
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        """Read a signed 64-bit number."""
        return int(_I64.unpack(self.take(8))[0])

    def f32(self) -> float:
        """Read a 32-bit float."""
        return float(_F32.unpack(self.take(4))[0])

    def f64(self) -> float:
        """Read a 64-bit double."""
        return float(_F64.unpack(self.take(8))[0])

    def count(self, item_bytes: int, what: str) -> int:
        """Read the 32-bit number of items that follow, each of at least ``item_bytes``."""
        count = self.i32()
        if not 0 <= count * item_bytes <= self.remaining:
            raise self.error(
                f"{count} {what} do not fit in {self.remaining} bytes", position=self.position - 4
            )
        return count

    def expect(self, expected: int, what: str) -> None:
        """Read a 32-bit constant and check its value."""
        value = self.i32()
        if value != expected:
            problem = f"{what} is {value & 4294967295:#x} instead of {expected & 4294967295:#x}"
            raise self.error(problem, position=self.position - 4)

    def expect_prefix(self, prefix: memoryview, what: str) -> None:
        """Read bytes that are always the same at the beginning of ``what``."""
        if self.remaining < len(prefix) or self.take(len(prefix)) != prefix:
            raise self.error(f"it does not begin like {what}", position=0)

    def utf(self) -> str:
        """Read text in the format of ``DataOutput.writeUTF``: a 16-bit length, then the text."""
        length = self.u16()
        return self._decode_text(self.take(length))

    def long_utf(self) -> str:
        """Read text with a 64-bit length."""
        return self._decode_text(self.take(self.i64()))

    def _decode_text(self, data: memoryview) -> str:
        try:
            text = bytes(data).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return text if text.isascii() else _join_surrogates_strictly(text)
        except UnicodeDecodeError:
            position = self.position - len(data)
            problem = "a text does not have Java's encoding, or ends with half a character"
            raise self.error(problem, position=position) from None

    def varint(self) -> int:
        """Read a varint: 7 bits per byte, lowest bits first, until a byte is below 128."""
        value = 0
        for number in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise self.error(
            "a variable-length number does not end", position=self.position - _MAX_VARINT_BYTES
        )

    def characters(self, length: int) -> str:
        """Read ``length`` 16-bit characters in the format of ``StringValue``."""
        if length > self.remaining:
            raise self.error(
                f"a text of {length} characters does not fit in {self.remaining} bytes"
            )
        whole = bytes(self.data[self.position : self.position + length])
        if whole.isascii():
            self.position += length
            return whole.decode("ascii")
        units = [self.varint() for _ in range(length)]
        if any(unit > 0xFFFF for unit in units):
            raise self.error("a character is above 65535")
        return _join_surrogates("".join(map(chr, units)))

    def end(self, what: str) -> None:
        """Raise an error if any bytes are left."""
        if self.remaining:
            raise self.error(f"{self.remaining} unexpected bytes follow {what}")


def _join_surrogates_strictly(text: str) -> str:
    """Join surrogate pairs; UnicodeDecodeError for a surrogate without its pair."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs; a surrogate without its pair stays."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _code_units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def i8(value: int) -> bytes:
    """Encode a signed byte."""
    return value.to_bytes(1, "big", signed=True)


def i16(value: int) -> bytes:
    """Encode a signed 16-bit number."""
    return value.to_bytes(2, "big", signed=True)


def i32(value: int) -> bytes:
    """Encode a signed 32-bit number."""
    return value.to_bytes(4, "big", signed=True)


def i64(value: int) -> bytes:
    """Encode a signed 64-bit number."""
    return value.to_bytes(8, "big", signed=True)


def _encode_modified_utf8(text: str) -> bytes:
    """Encode text as Java's modified UTF-8: NUL in two bytes, each surrogate in three."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    units = "".join(map(chr, _code_units(text)))
    return units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def utf(text: str) -> bytes:
    """Encode text like ``DataOutput.writeUTF``; InvalidArgumentError if it is too long."""
    data = _encode_modified_utf8(text)
    if len(data) > _MAX_UTF_BYTES:
        raise InvalidArgumentError(
            f"a name has {len(data)} bytes, but Flink allows at most {_MAX_UTF_BYTES}; shorten it"
        )
    return len(data).to_bytes(2, "big") + data


def varint(value: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, lowest bits first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string_value(text: str | None) -> bytes:
    """Encode text like ``StringValue.writeString``."""
    if text is None:
        return b"\0"
    if text.isascii():
        return varint(len(text) + 1) + text.encode("ascii")
    units = _code_units(text)
    return varint(len(units) + 1) + b"".join(map(varint, units))
