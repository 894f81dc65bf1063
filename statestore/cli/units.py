"""Numbers as people read them; programs get them exact, from ``--output json``."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["count", "counted", "duration", "size", "when"]

_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, where datetime ends


def count(number: int) -> str:
    """Return a number with its thousands apart: ``12,345``."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return ``1 file``, ``1,200 files``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """Return bytes in the decimal unit that leaves up to four digits: ``12.3 MB``."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _UNITS:
        value /= 1000
        if value < 999.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def duration(milliseconds: int) -> str:
    """Return a span of time in its largest unit: ``350 ms``, ``4 min``, ``12 d``."""
    for length, unit in _SPANS:
        if abs(milliseconds) >= length:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds} ms"


def when(milliseconds: int) -> str:
    """Return a moment since 1970 as ``2026-01-31 12:00:00 UTC``."""
    if milliseconds > _LAST_MS:
        return f"{milliseconds} ms"
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
