"""Compact a state: merge layers of changes into one, and fold changes into the base.

Merging and folding layers leaves less to read, with the same rows.

The compacted files are new; the old ones stay for the checkpoints that name them. The SHA-256 of
each file is checked before it is read, so that damage is not copied. Memory holds as much as
during a restore of the same key groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from statestore.format.layers import (
    CompactionRule,
    layers_to_merge,
    overdue_layers,
    overdue_spans,
    spans_to_fold,
)
from statestore.format.manifest import KeyedEntry, Layer
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupRange, merge_ranges
from statestore.layers.expiry import MERGED_BYTES, replace_expired, rows_to_keep
from statestore.layers.merge import merged_changes, read_pieces
from statestore.layers.rewrite import rewrite_spans
from statestore.parquet.keyed_writer import CheckpointFiles


@dataclass(frozen=True)
class Compactor:
    """Compacts states for one checkpoint; ``new`` writes and records the checkpoint's new files.

    Rows that have expired at ``now_ms`` are removed; if it is None, all rows are kept. Rows are
    merged about ``piece_bytes`` at a time. ``before_batch`` is called before each batch of rows,
    and can end the compaction with an exception.
    """

    new: CheckpointFiles
    now_ms: int | None = None
    piece_bytes: int = MERGED_BYTES
    before_batch: Callable[[], object] = lambda: None

    def apply_policy(self, entry: KeyedEntry, rule: CompactionRule) -> KeyedEntry:
        """Apply the policy to a state after a new layer: fold spans, then merge layers.

        Raises MissingFileError, DamagedFileError or StorageError; afterwards the caller may delete
        ``new``.
        """
        entry = self.fold(entry, spans_to_fold(entry, rule))
        return self.merge(entry, layers_to_merge(entry, rule))

    def reduce_backlog(
        self,
        entry: KeyedEntry,
        rule: CompactionRule,
        changed_rows: int,
        compacting: int | None = None,
    ) -> KeyedEntry:
        """Fold some of the overdue changes of a state, if there are any.

        ``changed_rows`` is the number of rows that this checkpoint has written; about twice as many
        change rows are folded. ``compacting`` is the number of the oldest layers that a compaction
        under way folds or merges, None without one. Raises the errors of ``apply_policy``.
        """
        is_compacting = compacting is not None
        spans = overdue_spans(entry, rule, changed_rows, is_compacting=is_compacting)
        entry = self.fold(entry, spans)
        return self.merge(entry, overdue_layers(entry, rule, compacting))

    def fold(
        self,
        entry: KeyedEntry,
        spans: Sequence[KeyGroupRange],
        on_span: Callable[[], object] = lambda: None,
    ) -> KeyedEntry:
        """Fold the changes of some key groups into the base of a state.

        The spans, in order, are whole files of the base, or key groups without a file
        (:func:`statestore.format.layers.widened_spans`). ``on_span`` is called after each of them.
        Raises the errors of ``apply_policy``.
        """
        if not spans or (not entry.layers and entry.state.ttl is None):
            return entry
        # Adjacent files with one key group each are written in one pass, which reads a layer once.
        passes = merge_ranges(spans) if entry.state.layout is Layout.PARTITIONED else spans
        rows = ((part, self._live_rows(entry, part, spans, on_span)) for part in passes)
        return rewrite_spans(entry, rows, self.new.write).entry.recording(entry.contents)

    def _live_rows(
        self,
        entry: KeyedEntry,
        key_groups: KeyGroupRange,
        spans: Sequence[KeyGroupRange],
        on_span: Callable[[], object],
    ) -> Iterator[pa.Table]:
        """Yield the rows of some key groups with their changes, except expired rows."""
        ends = [span.last for span in spans if span.intersect(key_groups)]
        reads = reads_of(entry, key_groups)
        every = read_pieces(self.new.storage, entry, reads, self.piece_bytes)
        rows = (rows_to_keep(piece, entry.state, self.now_ms) for piece in self._read_each(every))
        return _report_spans(rows, ends, on_span)

    def merge(self, entry: KeyedEntry, count: int) -> KeyedEntry:
        """Merge the ``count`` newest layers of a state into one; do nothing for fewer than two."""
        if count < 2:
            return entry
        old = entry.layers[-count:]
        everything = KeyGroupRange.every(entry.state.max_parallelism)
        whole = replace(entry, handles=(), layers=old)
        layers = reads_of(whole, everything).layers
        merged = merged_changes(self.new.storage, layers, entry.state, self.piece_bytes)
        rows = (replace_expired(run, entry.state, self.now_ms) for run in self._read_each(merged))
        written = self.new.write(old[-1].entry, rows)
        layer = Layer(
            entry=replace(old[-1].entry, handles=written),
            checkpoint_id=old[-1].checkpoint_id,
            depth=max(layer.depth for layer in old) + 1,
            live=merge_ranges(span for layer in old for span in layer.live),
        )
        merged_layers = replace(entry, layers=(*entry.layers[:-count], layer))
        return merged_layers.recording(entry.contents)

    def _read_each(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for piece in pieces:
            self.before_batch()
            yield piece


def _report_spans(
    pieces: Iterable[pa.Table], ends: Sequence[int], on_span: Callable[[], object]
) -> Iterator[pa.Table]:
    """Yield the pieces unchanged, and call ``on_span`` when all pieces of a span were consumed."""
    reported = 0
    for piece in pieces:
        while piece.num_rows and piece.column(KEY_GROUP)[0].as_py() > ends[reported]:
            on_span()
            reported += 1
        yield piece
    for _ in ends[reported:]:
        on_span()
