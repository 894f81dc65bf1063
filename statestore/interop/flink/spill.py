"""Rows on their way to other key groups, through files in a temporary folder.

Where a row goes follows from its key alone, so any row of the new key groups may come last. Each
file has those of a range of key groups, and one of them is in memory at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from statestore.format.names import KEY_GROUP
from statestore.keys.groups import KeyGroupRange
from statestore.storage.temporary import temporary_folder

__all__ = ["Spill"]

_FILE_BYTES = 64 * 2**20
_MOST_FILES = 256  # all are open while they are written


class Spill:
    """Rows with a column ``key_group``: added in any order, read back by key group.

    ``size_bytes``, as far as it is known, says how many files there are: each is to have 64 MB, and
    there are at most 256 of them.
    """

    def __init__(self, schema: pa.Schema, max_parallelism: int, size_bytes: int) -> None:
        """Make the files' folder; leaving the context deletes it."""
        files = min(_MOST_FILES, max_parallelism, size_bytes // _FILE_BYTES + 1)
        self._schema, self._width = schema, -(-max_parallelism // files)
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(temporary_folder("spill"))
        self._sinks: dict[int, pa.RecordBatchFileWriter] = {}
        self._read: tuple[int, pa.Table] = (-1, schema.empty_table())

    def __enter__(self) -> Spill:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the files."""
        self.end()
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        owner = batch.column(KEY_GROUP).to_numpy() // self._width
        order = np.argsort(owner, kind="stable")
        batch = batch.take(pa.array(order))
        numbers, starts = np.unique(owner[order], return_index=True)
        edges = [*starts.tolist(), len(batch)]
        for place, number in enumerate(numbers.tolist()):
            sink = self._sinks.get(number)
            if sink is None:
                sink = pa.ipc.new_file(str(self._path(number)), self._schema)
                self._sinks[number] = sink
            sink.write_batch(batch.slice(edges[place], edges[place + 1] - edges[place]))

    def end(self) -> None:
        """Say that all rows were added."""
        for sink in self._sinks.values():
            sink.close()
        self._sinks.clear()

    def parts(self, key_groups: KeyGroupRange) -> list[KeyGroupRange]:
        """Return a range of key groups cut where files end."""
        edges = range(key_groups.first // self._width * self._width, key_groups.last + 1)
        return [
            KeyGroupRange(
                max(first, key_groups.first), min(first + self._width - 1, key_groups.last)
            )
            for first in edges[:: self._width]
        ]

    def rows(self, key_groups: KeyGroupRange) -> pa.Table:
        """Return the rows of some key groups in order of key group, else as they were added."""
        found = []
        for part in self.parts(key_groups):
            rows = self._file(part.first // self._width)
            groups = rows.column(KEY_GROUP).to_numpy()
            start, stop = np.searchsorted(groups, [part.first, part.last + 1]).tolist()
            found.append(rows.slice(start, stop - start))
        return pa.concat_tables(found).combine_chunks()

    def _file(self, number: int) -> pa.Table:
        if self._read[0] != number:
            path = self._path(number)
            self._read = (number, self._schema.empty_table())
            if path.exists():
                with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                    rows = file.read_all()
                    groups = rows.column(KEY_GROUP).to_numpy()
                    rows = rows.take(pa.array(np.argsort(groups, kind="stable")))
                self._read = (number, rows)
        return self._read[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.arrow"
