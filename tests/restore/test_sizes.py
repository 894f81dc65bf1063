"""Sizes in bytes, parsed from text."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.restore.byte_sizes import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 * 2**20),
        ("16 mib", 16 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1kB", 1000),
        ("2 TiB", 2 * 2**40),
        ("4096", 4096),
        (" 7 bytes ", 7),
        ("7B", 7),
        (4096, 4096),
        ("9" * 28 + "1", int("9" * 28 + "1")),
    ],
)
def test_a_size_in_bytes(text: str | int, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "MiB", "-1MiB", "0", "0.5", "1.0001kB", f"1.{'0' * 30}1", "1 parsec", "1,5GB"),
        *("1e6", 0, -4, True),
    ],
)
def test_an_invalid_size_is_refused(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="byte"):
        bytes_of(text)
