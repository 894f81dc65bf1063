"""Byte sizes as users write them: ``256MiB``, ``1.5 GB``, ``4096``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, Literal

from statestore.errors import InvalidArgumentError

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_DECIMAL: Final = {f"{prefix}b": 1000**power for power, prefix in enumerate(" kmgtpe") if power}
_BINARY: Final = {f"{prefix}ib": 1024**power for power, prefix in enumerate(" kmgtpe") if power}
_UNITS: Final = {"": 1, "b": 1, "bytes": 1} | _DECIMAL | _BINARY


def bytes_of(text: str | int) -> int:
    """Parse a number of bytes from a text; an int is returned unchanged.

    Units of 1000 are kB, MB, GB, TB, PB, EB; units of 1024 are KiB, MiB, …; the case is ignored.
    (Flink's MemorySize reads both as 1024.) Raises InvalidArgumentError for anything else, for a
    fraction of a byte, and for less than one byte.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) and len(text) < 400 else None
    if isinstance(text, int) and not isinstance(text, bool):
        size = Fraction(text)
    elif match is not None and match[2].lower() in _UNITS:
        size = Fraction(match[1]) * _UNITS[match[2].lower()]
    else:
        raise InvalidArgumentError(
            f"{text!r:.80} is not a number of bytes; write it for example as 256MiB, 1.5GB or 4096"
        )
    if size < 1 or size.denominator != 1:
        raise InvalidArgumentError(f"{text!r} is not a whole number of at least 1 byte")
    return int(size)


def rate_of(text: str) -> int:
    """Parse bytes per second, such as ``200MB/s``. Raises InvalidArgumentError as above."""
    try:
        return bytes_of(text.strip().removesuffix("/s"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{text!r:.80} is not a rate; write it as 200MB/s") from error


AUTO: Literal["auto"] = "auto"
