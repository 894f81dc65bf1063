"""Layers of changes merged into one, and folded into the base, in a snapshot's background too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from statestore.files.keyed import KeyedTarget, write_grouped
from statestore.files.merge import marked_expired, merged_changes, not_cleaned_up, read_state
from statestore.files.writer import ParquetOptions
from statestore.files.written import WrittenFiles
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import CompactionRule, layers_to_merge, live_without, spans_to_fold
from statestore.format.manifest import KeyedEntry, Layer
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupRange, joined
from statestore.snapshot.attempt import Attempt
from statestore.storage import Storage

__all__ = [
    "Compactions",
    "Compactor",
]


# Layers of changes merged into one, and folded into the base: less to read, the same rows.
#
# Files are written anew beside the old ones, which stay for the checkpoints that name them. What is
# read is checked by SHA-256 first, so that damage is not passed on. In memory is what a restore of
# the same key groups holds.


@dataclass
class Compactor:
    """Compacts states for one checkpoint; ``new`` are the files that it has written.

    What it writes is without the rows that have expired by the clock, ``now_ms``; without a clock
    all are kept.
    """

    storage: Storage
    checkpoint_id: int
    options: ParquetOptions
    now_ms: int | None = None

    def __post_init__(self) -> None:
        """Begin with no files."""
        self.new = WrittenFiles(self.storage)

    def by_rule(self, entry: KeyedEntry, rule: CompactionRule) -> KeyedEntry:
        """Return the state as the rule has it after another layer: spans folded, layers merged.

        Raises MissingFileError, DamagedFileError or StorageError; ``new`` may then be deleted.
        """
        entry = self.fold(entry, spans_to_fold(entry, rule))
        return self.merge(entry, layers_to_merge(entry, rule))

    def fold(
        self,
        entry: KeyedEntry,
        spans: Sequence[KeyGroupRange],
        on_span: Callable[[], object] = lambda: None,
    ) -> KeyedEntry:
        """Return the state with the changes of some key groups in its base.

        The spans, in order, are whole files of the base, and key groups without one
        (:func:`statestore.format.layers.widened_spans`); ``on_span`` is called after each. Errors
        as those of :meth:`by_rule`.
        """
        if not spans or (not entry.layers and entry.state.ttl is None):
            return entry
        # Files of one key group each come out of one pass over neighbours: it reads a layer once.
        passes = joined(spans) if entry.state.layout is Layout.PARTITIONED else spans
        written: list[KeyedStateHandle] = []
        for one in passes:
            ends = [span.last for span in spans if span.intersect(one)]
            written += self._base_of(entry, one, ends, on_span)
        kept = [
            handle
            for handle in entry.handles
            if not any(handle.key_groups.intersect(span) for span in spans)
        ]
        layers = (live_without(layer, spans) for layer in entry.layers)
        folded = replace(
            entry,
            handles=tuple(sorted([*kept, *written], key=lambda one: one.key_groups.first)),
            table=entry.table.without_version(),  # no version of the table has these files
            layers=tuple(layer for layer in layers if layer is not None),
        )
        return folded.recording(entry.contents)

    def _base_of(
        self,
        entry: KeyedEntry,
        key_groups: KeyGroupRange,
        ends: Sequence[int],
        on_span: Callable[[], object],
    ) -> tuple[KeyedStateHandle, ...]:
        every = read_state(self.storage, entry, reads_of(entry, key_groups), verify=True)
        rows = (not_cleaned_up(batch, entry.state, self.now_ms) for batch in every)
        target = KeyedTarget.of(self.storage, entry, self.checkpoint_id, self.options)
        return self._noted(entry, write_grouped(_telling(rows, ends, on_span), target))

    def merge(self, entry: KeyedEntry, count: int) -> KeyedEntry:
        """Return the state with its ``count`` newest layers as one; of less than two nothing is
        done.
        """
        if count < 2:
            return entry
        old = entry.layers[-count:]
        everything = KeyGroupRange.every(entry.state.max_parallelism)
        whole = replace(entry, handles=(), layers=old)
        target = KeyedTarget.of(self.storage, old[-1].entry, self.checkpoint_id, self.options)
        merged = merged_changes(self.storage, reads_of(whole, everything).layers, entry.state)
        rows = (marked_expired(run, entry.state, self.now_ms) for run in merged)
        written = self._noted(old[-1].entry, write_grouped(rows, target))
        layer = Layer(
            entry=replace(old[-1].entry, handles=written),
            checkpoint_id=old[-1].checkpoint_id,
            depth=old[0].depth + 1,
            live=joined(one for layer in old for one in layer.live),
        )
        merged_layers = replace(entry, layers=(*entry.layers[:-count], layer))
        return merged_layers.recording(entry.contents)

    def _noted(
        self, entry: KeyedEntry, handles: tuple[KeyedStateHandle, ...]
    ) -> tuple[KeyedStateHandle, ...]:
        self.new.add(entry.table.path, handles)
        return handles


def _telling(
    batches: Iterable[pa.RecordBatch], ends: Sequence[int], on_span: Callable[[], object]
) -> Iterator[pa.RecordBatch]:
    """Yield batches, which come in order of key group; call back behind each of some key groups."""
    told = 0
    for batch in batches:
        while batch.num_rows and batch.column(KEY_GROUP)[0].as_py() > ends[told]:
            on_span()
            told += 1
        yield batch
    for _ in ends[told:]:
        on_span()


# Compaction in the background of a snapshot: by the rule, in a thread, until the block ends.
#
# What it writes is in the same manifest as the changes that brought it about, so there is nobody to
# agree with: of two writers only one commits.


class Compactions:
    """The states of one checkpoint that are being compacted, one after another."""

    def __init__(self, attempt: Attempt) -> None:
        """Begin with none; no thread is started yet."""
        self._attempt = attempt
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[tuple[Compactor, Future[KeyedEntry]]] = []

    def begin(self, entry: KeyedEntry) -> None:
        """Compact a state as the store's rule says; without a rule nothing is done."""
        attempt = self._attempt
        if attempt.compaction is None:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compaction")
        compactor = Compactor(
            attempt.catalog.storage, attempt.checkpoint_id, attempt.parquet, attempt.now_ms
        )
        self._under_way.append((compactor, self._pool.submit(self._by_rule, compactor, entry)))

    def _by_rule(self, compactor: Compactor, entry: KeyedEntry) -> KeyedEntry:
        assert self._attempt.compaction is not None
        with self._attempt.measuring.phase("compaction"):
            return compactor.by_rule(entry, self._attempt.compaction)

    def finish(self) -> list[tuple[KeyedEntry, list[str]]]:
        """Return the states as they are now, and the names of the files written for each.

        Raises what compacting a state raised, once all have ended.
        """
        done = [(future.result(), compactor.new.names) for compactor, future in self._under_way]
        self._close()
        self._under_way.clear()
        return done

    def abandon(self, reason: BaseException) -> None:
        """End what is under way and delete what it has written."""
        self._close()
        for compactor, _ in self._under_way:
            compactor.new.delete(reason)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
