"""Decides whether a stream of tables fits in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

__all__ = ["fit_or_stream"]


def fit_or_stream(
    tables: Iterator[pa.Table], most_bytes: int
) -> list[pa.Table] | Iterator[pa.Table]:
    """Return all tables as a list if they have at most ``most_bytes``; otherwise an iterator.

    The iterator yields all tables, also those that were read to find out. A yielded table is not
    kept in memory.
    """
    held: deque[pa.Table] = deque()
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > most_bytes:
            return chain(_drain(held), tables)
    return list(held)


def _drain(held: deque[pa.Table]) -> Iterator[pa.Table]:
    while held:
        yield held.popleft()
