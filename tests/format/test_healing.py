"""One changed byte of a small document is found with its checksum. No other damage is repaired."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.format.documents import document_bytes, repair_byte

RAW = document_bytes({"format": "x", "name": "zoë", "number": 7})


def test_any_changed_byte_is_repaired() -> None:
    for at in range(len(RAW)):
        for change in (1, 0x80, 0x55):
            assert repair_byte(RAW[:at] + bytes([RAW[at] ^ change]) + RAW[at + 1 :]) == RAW


@given(st.binary(max_size=200))
@settings(max_examples=20, deadline=None)
def test_another_document_is_not_repaired(raw: bytes) -> None:
    assert repair_byte(raw) is None


def test_damage_of_several_bytes_is_not_guessed() -> None:
    twice = bytearray(RAW)
    twice[3] ^= 1
    twice[9] ^= 1
    long = document_bytes({"a": "x" * 2000})
    for raw in (bytes(twice), RAW[:-1], RAW[1:], RAW + b" ", b"", RAW[:40], b"?" + long[1:]):
        assert repair_byte(raw) is None
