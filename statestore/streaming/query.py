"""A stateful query whose state lives in a store: each micro-batch is one checkpoint.

Of a micro-batch only the keys that it touches are brought in. What the update returns, where each
source ended, and the number of the micro-batch are in one manifest: so a micro-batch that Spark
runs again, because it does not know whether it was done, finds its checkpoint and writes nothing,
and a query that was killed goes on at any parallelism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from statestore.commands.restore import RestoredCheckpoint
from statestore.commands.snapshot import CheckpointWriter
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, StoreNotFoundError
from statestore.model.manifest import Manifest
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.progress import (
    OFFSETS,
    POSITIONS,
    PROGRESS,
    Progress,
    kafka_offsets,
    positions,
    query_id,
)

__all__ = ["Changes", "StatefulQuery"]


@dataclass(frozen=True)
class Changes:
    """What an update does to the state: rows that come, and keys or entries that go."""

    upserts: DataFrame | None = None
    deletes: DataFrame | None = None


Update = Callable[[DataFrame, DataFrame], "DataFrame | Changes"]


@dataclass(frozen=True, kw_only=True)
class StatefulQuery:
    """A keyed state, and how a micro-batch changes it.

    ``update(events, state)`` gets a micro-batch and the stored rows of the keys in it, as
    DataFrames, and returns rows to put in their place, or :class:`Changes`. Both DataFrames have
    the columns ``key``; ``schema`` is the state's, in Spark's words (``"user string, n long"``).
    Where the sources end is kept as operator state of ``source``. Each of Spark's Python workers
    holds up to ``cache_bytes`` of decoded files, so that they are not read again for the next
    micro-batch. ``options`` go to ``checkpoint.keyed`` (``namespace``, ``kind``, ``entry``, ``ttl``
    …).
    """

    store: StateStore
    uid: str
    name: str
    key: str | Sequence[str]
    schema: str
    update: Update
    parallelism: int
    source: str = "source"
    cache_bytes: int = 256 * 2**20
    options: Mapping[str, Any] = field(default_factory=dict)
    on_commit: Callable[[Manifest], object] | None = None

    def start(
        self,
        events: DataFrame,
        checkpoint_location: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **trigger: Any,
    ) -> StreamingQuery:
        """Start the query over a streaming DataFrame; return Spark's handle of it.

        ``checkpoint_location`` is Spark's, a path or URL for this query alone: a query that is
        started again with it goes on. ``storage_options`` say how to read it, as those of a store;
        ``trigger`` is what ``DataStreamWriter.trigger`` takes. An error of the store ends the
        query, and :meth:`process` says which there are.
        """
        location = open_storage(checkpoint_location, storage_options)

        def run(batch: DataFrame, batch_id: int) -> None:
            at = Progress(query_id(location), batch_id)
            self.process(batch, at, lambda: positions(location, batch_id))

        writer = events.writeStream.foreachBatch(run)
        writer = writer.option("checkpointLocation", checkpoint_location)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def process(
        self, batch: DataFrame, at: Progress, ends: Callable[[], tuple[str, ...]]
    ) -> Manifest | None:
        """Commit one micro-batch; return its manifest, None when the store has it already.

        ``ends`` says where each source's data of it end. Raises CommitConflictError when another
        writer has taken the store over, SchemaMismatchError when the update returns other columns
        than the state's, and what ``checkpoint.keyed(…).changes`` raises; nothing is committed.
        """
        restored = self._newest()
        stored = None if restored is None else Progress.of(restored, self.source)
        if at.is_done(stored):
            return None
        batch = batch.persist()
        state = self._touched(batch, restored).persist()
        try:
            changes = self._updated(batch, state)
            with self.store.snapshot(parallelism=self.parallelism) as checkpoint:
                self._write(checkpoint, changes, restored)
                self._write_progress(checkpoint, at, ends())
        finally:
            state.unpersist()
            batch.unpersist()
        if self.on_commit is not None:
            self.on_commit(checkpoint.manifest)
        return checkpoint.manifest

    @property
    def _key(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key)

    def _newest(self) -> RestoredCheckpoint | None:
        try:
            restored = self.store.restore(parallelism=self.parallelism)
        except (CheckpointNotFoundError, StoreNotFoundError):
            return None
        return restored

    def _has_state(self, restored: RestoredCheckpoint | None) -> bool:
        return restored is not None and any(
            (entry.state.uid, entry.state.name) == (self.uid, self.name)
            for entry in restored.manifest.keyed
        )

    def _touched(self, batch: DataFrame, restored: RestoredCheckpoint | None) -> DataFrame:
        """Return the stored rows of the keys in a micro-batch."""
        if restored is None or not self._has_state(restored):
            return self._none(batch)
        keys = batch.select(*self._key).distinct().toArrow()
        state = restored.keyed(self.uid, self.name)
        return state.rows_of(keys, cache_bytes=self.cache_bytes).drop("key_group")

    def _updated(self, batch: DataFrame, state: DataFrame) -> Changes:
        changes = self.update(batch, state)
        if isinstance(changes, DataFrame):
            changes = Changes(upserts=changes)
        if not isinstance(changes, Changes):
            raise InvalidArgumentError(
                f"update returns a DataFrame or Changes, not {type(changes).__name__}"
            )
        return (
            changes if changes.upserts is not None else replace(changes, upserts=self._none(batch))
        )

    def _none(self, batch: DataFrame) -> DataFrame:
        """Return no rows, in the state's columns."""
        spark = batch.sparkSession
        return spark.createDataFrame([], schema=self.schema)

    def _write(
        self,
        checkpoint: CheckpointWriter,
        changes: Changes,
        restored: RestoredCheckpoint | None,
    ) -> None:
        options = {"key": self._key, **self.options}
        if restored is None or not self._has_state(restored):
            checkpoint.keyed(self.uid, self.name, changes.upserts, **options)
            return
        checkpoint.keyed(self.uid, self.name, **options).changes(
            changes.upserts, changes.deletes, base=restored.checkpoint_id
        )

    def _write_progress(
        self, checkpoint: CheckpointWriter, at: Progress, ends: tuple[str, ...]
    ) -> None:
        elements = [{"source": number, "ends_at": text} for number, text in enumerate(ends)]
        checkpoint.broadcast(self.source, PROGRESS, [at.element()])
        checkpoint.broadcast(self.source, POSITIONS, elements)
        if offsets := kafka_offsets(ends):
            none: list[list[dict[str, Any]]] = [[] for _ in range(self.parallelism - 1)]
            checkpoint.union(self.source, OFFSETS, [offsets, *none])
