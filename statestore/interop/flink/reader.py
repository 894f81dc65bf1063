"""Java's bytes, read and written: big-endian numbers, and its three ways to write text.

A :class:`Reader` never passes the end of its bytes, and never goes deeper than ``MOST_DEEP`` levels
into values within values. Lengths that are negative or too large are a DamagedFileError that names
the file and the byte. The functions below it write what it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from statestore.errors import DamagedFileError, InvalidArgumentError

__all__ = [
    "MOST_DEEP",
    "Reader",
    "i8",
    "i16",
    "i32",
    "i64",
    "string_value",
    "utf",
    "varint",
]

_U16 = struct.Struct(">H")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")
_BYTES_OF_VARINT = 5
_LONGEST_UTF = 0xFFFF

MOST_DEEP = 100
"""Levels of types, objects or handles within each other; a level takes Python up to five calls."""


class Reader:
    """A place in some bytes, and what is read from there on.

    ``name`` says whose bytes they are, and ``base`` where in that file the first of them is, for
    messages. ``at`` counts from the first of the bytes. ``depth`` is the number of levels around
    them.
    """

    __slots__ = ("at", "base", "data", "depth", "name")

    def __init__(
        self, data: bytes | memoryview, name: str, *, at: int = 0, base: int = 0, depth: int = 0
    ) -> None:
        self.data = memoryview(data)
        self.name = name
        self.at = at
        self.base = base
        self.depth = depth

    def part(self, length: int) -> Reader:
        """Return a reader of the next bytes, and pass over them."""
        base = self.base + self.at
        return Reader(self.take(length), self.name, base=base, depth=self.depth)

    @contextmanager
    def nested(self, what: str) -> Iterator[None]:
        """Read one level deeper.

        Raises DamagedFileError if ``what``, such as "types", is nested too deeply.
        """
        if self.depth >= MOST_DEEP:
            raise self.damaged(f"{what} are nested more than {MOST_DEEP} levels deep")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @property
    def whole(self) -> bytes:
        """All of the bytes; where they were given as such, these and no copy."""
        given = self.data.obj
        return (
            given if isinstance(given, bytes) and len(given) == len(self.data) else bytes(self.data)
        )

    @property
    def left(self) -> int:
        """The number of bytes that were not read yet."""
        return len(self.data) - self.at

    def damaged(self, problem: str, *, at: int | None = None) -> DamagedFileError:
        """Return an error with what is wrong, the file and the byte, by default the next."""
        where = self.base + (self.at if at is None else at)
        return DamagedFileError(f"{self.name} is damaged at byte {where}: {problem}")

    def take(self, count: int) -> memoryview:
        """Return the next bytes, and go on behind them."""
        at = self.at
        if count < 0:
            raise self.damaged(f"a length is {count}")
        if count > len(self.data) - at:
            raise self.damaged(f"{count} bytes are needed, and {len(self.data) - at} are left")
        self.at = at + count
        return self.data[at : at + count]

    def bytes(self, count: int) -> bytes:
        """Return a copy of the next bytes."""
        return bytes(self.take(count))

    def bool(self) -> bool:
        """Return a byte that is 0 or 1."""
        value = self.take(1)[0]
        if value > 1:
            raise self.damaged(f"{value} stands where 0 or 1 does", at=self.at - 1)
        return value == 1

    def u8(self) -> int:
        """Return a byte, 0 to 255."""
        return self.take(1)[0]

    def peek(self) -> int:
        """Return the next byte, and stay before it."""
        value = self.take(1)[0]
        self.at -= 1
        return value

    def i8(self) -> int:
        """Return a byte with a sign."""
        value = self.take(1)[0]
        return value - 256 if value > 127 else value

    def u16(self) -> int:
        """Return two bytes without a sign."""
        return int(_U16.unpack(self.take(2))[0])

    def i16(self) -> int:
        """Return two bytes."""
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """Return four bytes."""
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        """Return eight bytes."""
        return int(_I64.unpack(self.take(8))[0])

    def f32(self) -> float:
        """Return four bytes as a float."""
        return float(_F32.unpack(self.take(4))[0])

    def f64(self) -> float:
        """Return eight bytes as a double."""
        return float(_F64.unpack(self.take(8))[0])

    def count(self, each: int, what: str) -> int:
        """Return a number of things in four bytes, each of which has ``each`` bytes or more."""
        count = self.i32()
        if not 0 <= count * each <= self.left:
            raise self.damaged(f"{count} {what} do not fit into {self.left} bytes", at=self.at - 4)
        return count

    def expect(self, wanted: int, what: str) -> None:
        """Read four bytes that are always the same."""
        found = self.i32()
        if found != wanted:
            problem = f"{what} is {found & 0xFFFFFFFF:#x}, not {wanted & 0xFFFFFFFF:#x}"
            raise self.damaged(problem, at=self.at - 4)

    def utf(self) -> str:
        """Return text as ``DataOutput.writeUTF`` wrote it: its length in two bytes, then it."""
        length = self.u16()
        return self._text(self.take(length))

    def long_utf(self) -> str:
        """Return text with its length in eight bytes."""
        return self._text(self.take(self.i64()))

    def _text(self, data: memoryview) -> str:
        try:
            text = bytes(data).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return text if text.isascii() else _characters(text)
        except UnicodeDecodeError:
            at = self.at - len(data)
            problem = "text is not as Java writes it, or has half of a character"
            raise self.damaged(problem, at=at) from None

    def varint(self) -> int:
        """Return seven bits of each byte, lowest first, up to one below 128."""
        value = 0
        for number in range(_BYTES_OF_VARINT):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise self.damaged("a number has no end", at=self.at - _BYTES_OF_VARINT)

    def characters(self, length: int) -> str:
        """Return as many characters of a text of ``StringValue``, each of 16 bits."""
        if length > self.left:
            raise self.damaged(f"a text of {length} characters does not fit into {self.left} bytes")
        whole = bytes(self.data[self.at : self.at + length])
        if whole.isascii():
            self.at += length
            return whole.decode("ascii")
        units = [self.varint() for _ in range(length)]
        if any(unit > 0xFFFF for unit in units):
            raise self.damaged("a character is above 65535")
        return _paired("".join(map(chr, units)))

    def end(self, what: str) -> None:
        """Refuse bytes that are left."""
        if self.left:
            raise self.damaged(f"{self.left} bytes are left behind {what}")


def _characters(text: str) -> str:
    """Join the halves of characters above 65535; UnicodeDecodeError for a half that is alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _paired(text: str) -> str:
    """Join the halves of characters above 65535; a half that is alone stays."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _code_units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def i8(value: int) -> bytes:
    """Write a byte with a sign."""
    return value.to_bytes(1, "big", signed=True)


def i16(value: int) -> bytes:
    """Write two bytes."""
    return value.to_bytes(2, "big", signed=True)


def i32(value: int) -> bytes:
    """Write four bytes."""
    return value.to_bytes(4, "big", signed=True)


def i64(value: int) -> bytes:
    """Write eight bytes."""
    return value.to_bytes(8, "big", signed=True)


def _modified_utf8(text: str) -> bytes:
    """Write text as Java does in a file: NUL in two bytes, halves of pairs in three each."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    units = "".join(map(chr, _code_units(text)))
    return units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def utf(text: str) -> bytes:
    """Write text as ``DataOutput.writeUTF``; InvalidArgumentError when it is too long for that."""
    data = _modified_utf8(text)
    if len(data) > _LONGEST_UTF:
        raise InvalidArgumentError(
            f"a name of {len(data)} bytes is too long for Flink, which takes {_LONGEST_UTF}"
        )
    return len(data).to_bytes(2, "big") + data


def varint(value: int) -> bytes:
    """Write seven bits a byte, lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def string_value(text: str | None) -> bytes:
    """Write text as ``StringValue.writeString``."""
    if text is None:
        return b"\0"
    if text.isascii():
        return varint(len(text) + 1) + text.encode("ascii")
    units = _code_units(text)
    return varint(len(units) + 1) + b"".join(map(varint, units))
