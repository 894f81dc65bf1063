"""Positions of entries in a key group are guessed, and equal the result of a sequential scan."""

from __future__ import annotations

from random import Random

import pytest

from statestore.errors import DamagedFileError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.canonical import entry_places
from tests.interop.flink.entries import key_group_bytes

TRAPS = (
    b"",
    bytes(9),
    b"\0\0\0\5\7",
    b"\0\0\0\5\0\7",
    b"\0\0\0\1\7\0\0\0\0\0\0\0\1\7" * 9,
    b"x" * 50,
)
"""Values that look like the start of other entries, and keys that consist of zeros."""


def followed(data: bytes, at: int) -> tuple[list[int], list[int], int]:
    """Follow the entries one by one; raise IndexError if they go past the end."""
    keys, values, is_end = [], [], False
    while not is_end:
        length = int.from_bytes(data[at : at + 4], "big")
        keys.append(at + 4)
        is_end = data[at + 4] >= 0x80
        at += 4 + length
        values.append(at + 4)
        if at + 4 > len(data):
            raise IndexError(at)
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    if at > len(data):
        raise IndexError(at)
    return keys, values, at


def key_group(random: Random, head: bytes, *, rows: int, long: int) -> bytes:
    """Return the entries of two states, some with a key or value of ``long`` bytes."""

    def some() -> bytes:
        if random.random() < 0.0005:
            return random.randbytes(long)
        return random.choice(TRAPS) + random.randbytes(random.randrange(20))

    states = [(number, [(head + some(), some()) for _ in range(rows)]) for number in range(2)]
    return key_group_bytes(states)


@pytest.mark.long_cases(
    "\\x07-300",
    "\\x7f-300",
    "\\x00\\x07-300",
    "\\x00\\x00-300",
    "\\x00\\x00-70000",
    "\\x01\\x00-300",
    "\\x01\\x00-70000",
    "\\x7f\\xff-70000",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "long"),
    [
        pytest.param(
            head,
            long,
            marks=[] if long == 300 or (long, len(head)) == (70_000, 2) else pytest.mark.long,
        )
        for head in (b"\0", b"\7", b"\x7f", b"\0\7", b"\0\0", b"\x01\0", b"\x7f\xff")
        for long in (300, 70_000, 300_000)
    ],
)
def test_entries_are_found_at_their_positions(head: bytes, long: int) -> None:
    random = Random(len(head) * long)
    for rows in (1, 300, 7000):
        data = key_group(random, head, rows=rows, long=long)
        at = 2
        for _ in range(2):
            group = int.from_bytes(head, "big")
            found = entry_places(Reader(data, "f", position=at), group, len(head))
            wanted = followed(data, at)
            assert found.is_end
            assert (found.keys.tolist(), found.values.tolist(), found.stop) == wanted
            for cut in (at, at + 5, *(random.randrange(at, found.stop) for _ in range(20))):
                part = Reader(data[:cut], "f", position=at)
                some = entry_places(part, group, len(head), is_whole=False)
                stops = [*(key - 4 for key in wanted[0][1:]), wanted[2]]
                count = sum(stop <= cut for stop in stops)
                assert not some.is_end
                assert some.keys.tolist() == wanted[0][:count]
                assert some.values.tolist() == wanted[1][:count]
                assert some.stop == wanted[0][count] - 4
            at = found.stop + 2


@pytest.mark.slow
def test_damage_has_the_same_effect_as_in_a_sequential_scan() -> None:
    random = Random(1)
    whole = key_group(random, b"\7", rows=600, long=300)
    errors = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(2, len(data))] = random.choice((0, 5, 7, 0x87, 0xFF))
        cut = bytes(data[: random.choice((len(data), random.randrange(8, len(data))))])
        try:
            wanted = followed(cut, 2)
        except IndexError:
            errors += 1
            with pytest.raises(DamagedFileError, match="exceeds its key group"):
                entry_places(Reader(cut, "f", position=2), 7, 1)
        else:
            found = entry_places(Reader(cut, "f", position=2), 7, 1)
            assert (found.keys.tolist(), found.values.tolist(), found.stop) == wanted
    assert 50 < errors < 390
