"""Skip values: values have no length prefix, so the end of each follows from its type.

These are the functions that several types share.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore.interop.flink.metadata.java_binary import Reader

Skip = Callable[[Reader], None]
"""A function that advances a reader past one value."""


def make_fixed_skip(width: int) -> Skip:
    """Return a function for values of ``width`` bytes."""

    def skip(reader: Reader) -> None:
        reader.take(width)

    return skip


def skip_sized(reader: Reader) -> None:
    """Skip bytes with a length prefix."""
    reader.take(reader.i32())


def make_sequence_skip(*skips: Skip) -> Skip:
    """Return a function for parts that follow one another."""

    def skip(reader: Reader) -> None:
        for skip_part in skips:
            skip_part(reader)

    return skip


def make_counted_skip(element: Skip) -> Skip:
    """Return a function for a number of elements, and the elements."""

    def skip(reader: Reader) -> None:
        for _ in range(reader.count(1, "elements")):
            element(reader)

    return skip
