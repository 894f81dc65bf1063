"""Counts what makes rows unfit for a keyed state, without writing them.

A writer stops at the first such row. Here all rows are read, so that a user who prepares a table
sees how many rows are wrong, with examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.engines.rows import ArrowRows, fitted
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.parquet.writer import ParquetOptions
from statestore.rows.key_group_runs import NullKeys, check_and_sort, equal_neighbours
from statestore.rows.lossless_cast import shorten
from statestore.rows.python_values import display_rows
from statestore.rows.sorting import add_key_groups, slices_of, sorted_pieces

_MOST_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class CheckedRows:
    """The rows that were checked, and those that a writer would refuse.

    ``null_keys`` counts the rows with a null key. ``duplicates`` counts the rows whose key,
    namespace and entry columns an earlier row has. The examples are the first rows of each, as
    text, or for duplicates the columns that are equal.
    """

    rows: int
    null_keys: int
    null_key_examples: tuple[str, ...]
    duplicates: int
    duplicate_examples: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether a writer would accept the rows."""
        return not (self.null_keys or self.duplicates)


def check_rows(rows: ArrowRows, state: KeyedState, options: ParquetOptions) -> CheckedRows:
    """Count the rows that a state cannot store.

    Args:
        rows: all rows of the state.
        state: the state that they would become.
        options: the memory in which they are sorted.

    Returns:
        The counts, with examples.

    Raises:
        InvalidArgumentError: for a value that the state cannot store, at the first one.
        StorageError: if the temporary folder for the sort cannot be written.
    """
    checking = _Checking(state)
    most = min(options.block_bytes, options.memory_bytes)
    parts = (part for table in rows.tables for part in slices_of(table, most))
    pieces = sorted_pieces(checking.with_keys(parts), state, options.memory_bytes)
    for _ in check_and_sort(checking.without_duplicates(pieces), state):
        pass  # it raises an error for other rows that cannot be stored
    return CheckedRows(
        rows=checking.rows,
        null_keys=checking.nulls.rows,
        null_key_examples=checking.nulls.examples,
        duplicates=checking.duplicates,
        duplicate_examples=tuple(checking.examples),
    )


class _Checking:
    """The invalid rows that were found so far."""

    def __init__(self, state: KeyedState) -> None:
        self.state = state
        self.rows = self.duplicates = 0
        self.examples: list[str] = []
        self.nulls = NullKeys(state)

    def with_keys(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows that have a key, with their key groups."""
        for part in parts:
            stored = fitted(part, self.state, self.rows)
            self.rows += part.num_rows
            batches = map(self.nulls.without, stored.to_batches())
            yield add_key_groups(pa.Table.from_batches(batches, stored.schema), self.state)

    def without_duplicates(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield sorted rows without those that have the identity of the previous row."""
        last: pa.RecordBatch | None = None
        names = [KEY_GROUP, *self.state.identity]
        for piece in pieces:
            for batch in piece.combine_chunks().to_batches():
                identities = batch.select(names)
                before = identities.slice(0, 1) if last is None else last
                joined = pa.concat_batches([before, identities])
                is_repeated = equal_neighbours(joined, self.state)
                if last is None:
                    is_repeated[:1] = False  # the first row was compared with itself
                last = identities.slice(batch.num_rows - 1)
                self._count(identities, is_repeated)
                yield pa.Table.from_batches([batch.filter(pa.array(~is_repeated))])

    def _count(self, identities: pa.RecordBatch, is_repeated: np.ndarray) -> None:
        places = np.flatnonzero(is_repeated)
        self.duplicates += len(places)
        if len(places) and len(self.examples) < _MOST_EXAMPLES:
            shown = identities.select(list(self.state.identity)).take(pa.array(places))
            texts = (shorten(str(row)) for row in display_rows(shown))
            self.examples = [*dict.fromkeys((*self.examples, *texts))][:_MOST_EXAMPLES]
