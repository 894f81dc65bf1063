"""A stateful query whose state lives in a store: each micro-batch is one checkpoint.

Of a micro-batch only the keys that it touches are brought in. What the update returns, where each
source ended, and the number of the micro-batch are in one manifest: so a micro-batch that Spark
runs again, because it does not know whether it was done, finds its checkpoint and writes nothing,
and a query that was killed goes on at any parallelism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, NullKeyError
from statestore.format.manifest import Manifest
from statestore.format.names import KEY_GROUP
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark.cached import compute
from statestore.spark.read import KeysInUse, keys_in_use
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.progress import MicroBatch, Progress, planned
from statestore.streaming.updates import Changes

__all__ = ["StatefulQuery"]

_log = logging.getLogger(__name__)

Update = Callable[[DataFrame, DataFrame], "DataFrame | Changes"]


@dataclass(frozen=True, kw_only=True)
class StatefulQuery:
    """A keyed state, and how a micro-batch changes it.

    ``update(events, state)`` gets a micro-batch and the stored rows of the keys in it, as
    DataFrames of one session, and returns rows to put in their place, or :class:`Changes`. Both
    DataFrames have the columns ``key``; ``schema`` is the state's, in Spark's words (``"user
    string, n long"``), and ``options`` go to ``checkpoint.keyed`` (``namespace``, ``kind``,
    ``entry``, ``ttl``, ``max_parallelism``, …). Times to live go by when Spark planned the
    micro-batch, which is the same when it runs again.

    The number of the micro-batch, and where the sources end, are kept as operator state of
    ``source``; other states of the newest checkpoint are in each new one as they are. A query with
    another checkpoint location than the last one is refused unless it ``succeeds`` that.

    The driver, or each of Spark's Python workers where those look rows up, holds up to
    ``cache_bytes`` of decoded files, so that they are not read again for the next micro-batch. With
    ``retain`` no more than about so many checkpoints are kept (savepoints and pins stay): of every
    ``expire_every`` one expires what is beyond. ``on_commit`` is called with each manifest.
    """

    store: StateStore
    uid: str
    name: str
    key: str | Sequence[str]
    schema: str
    update: Update
    parallelism: int
    source: str = "source"
    succeeds: bool = False
    cache_bytes: int = 256 * 2**20
    retain: int | None = None
    expire_every: int = 16
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
        ``trigger`` is what ``DataStreamWriter.trigger`` takes. An error ends the query, and
        :meth:`process` says which there are; it is logged in one line, as Spark's own exception
        has it among the stacks of two languages.
        """
        location = open_storage(checkpoint_location, storage_options)

        def run(batch: DataFrame, number: int) -> None:
            try:
                self.process(batch, planned(location, number))
            except Exception as error:
                _log.error(
                    "micro-batch %d of state %r of operator %r is not committed: %s: %s",
                    *(number, self.name, self.uid),
                    *(type(error).__name__, str(error).partition("\n")[0]),
                )
                raise

        writer = events.writeStream.foreachBatch(run)
        # As a URL: a relative path would be one of the JVM's working folder, if that is another.
        writer = writer.option("checkpointLocation", location.spark_url("").rstrip("/"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def process(self, events: DataFrame, batch: MicroBatch) -> Manifest | None:
        """Commit one micro-batch; return its manifest, None when the store has it already.

        Raises CommitConflictError when another writer has taken the store over, NullKeyError for
        events without a key, SchemaMismatchError when the update returns other columns than the
        state's, InvalidArgumentError for a query or a micro-batch that cannot be the next one, and
        what ``checkpoint.changes`` raises; nothing is committed.
        """
        # The store is claimed before it is looked at: what is newest then stays so until we commit.
        checkpoint = self.store.snapshot(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        try:
            restored = self._newest(batch)
            done = self._progress(restored, batch)
        except BaseException:
            checkpoint.give_up()
            raise
        if done.has(batch):
            checkpoint.give_up()
            return None
        with checkpoint, _kept() as keep:
            # What is in Spark's cache has a known size: few rows then need no Python worker.
            events = keep(events)
            compute(events)
            state = self._touched(self._keys(events, batch, restored), restored, events)
            changes = self._updated(events, state if state.isLocal() else keep(state))
            if changes.shared is not None:
                compute(keep(changes.shared))
            self._write(checkpoint, changes, restored)
            done.with_done(batch).write(checkpoint, self.source, self.parallelism)
            checkpoint.carry_rest()
        self._after(checkpoint.manifest)
        return checkpoint.manifest

    @property
    def _key(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key)

    @property
    def _columns(self) -> list[str]:
        schema = DataType.fromDDL(self.schema)
        assert isinstance(schema, StructType)  # a list of columns is no other type
        return schema.names

    def _newest(self, batch: MicroBatch) -> RestoredCheckpoint | None:
        try:
            return self.store.restore(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        except CheckpointNotFoundError:
            return None

    def _progress(self, restored: RestoredCheckpoint | None, batch: MicroBatch) -> Progress:
        """Return what the newest checkpoint says; InvalidArgumentError for a micro-batch that
        cannot be the next one.
        """
        has_state = restored is not None and self._has_state(restored)
        done = Progress() if restored is None else Progress.of(restored, self.source)
        subject = f"state {self.name!r} of operator {self.uid!r}"
        done.check(batch, subject, has_state=has_state, succeeds=self.succeeds)
        return done

    def _has_state(self, restored: RestoredCheckpoint) -> bool:
        return any(
            (entry.state.uid, entry.state.name) == (self.uid, self.name)
            for entry in restored.manifest.keyed
        )

    def _keys(
        self, events: DataFrame, batch: MicroBatch, restored: RestoredCheckpoint | None
    ) -> KeysInUse:
        keys = keys_in_use(events, self._key)
        if keys.null_keys and self._hash_scheme(restored) != "flink-sql":
            raise NullKeyError(
                f"{keys.null_keys} events of micro-batch {batch.number} have a null key "
                f"({', '.join(self._key)}), which has no key group: leave them out of the "
                "streaming DataFrame, or fill them",
                keys.null_keys,
            )
        return keys

    def _hash_scheme(self, restored: RestoredCheckpoint | None) -> str | None:
        """Return how keys are hashed, if that is not the default: there may be null ones then."""
        if restored is None or not self._has_state(restored):
            return self.options.get("hash_scheme")
        return restored.keyed(self.uid, self.name).entry.state.hash_scheme

    def _touched(
        self, keys: KeysInUse, restored: RestoredCheckpoint | None, events: DataFrame
    ) -> DataFrame:
        """Return the stored rows of the keys in a micro-batch, in the columns of the schema."""
        spark, names = events.sparkSession, self._columns
        if restored is None or not keys.rows.num_rows or not self._has_state(restored):
            return spark.createDataFrame([], self.schema)
        state = restored.keyed(self.uid, self.name)
        stored = {KEY_GROUP, *state.entry.state.schema.names}
        missing = [name for name in names if name not in stored]
        if missing:
            raise InvalidArgumentError(
                f"{state.entry.state} is stored without the column {missing[0]!r} of the query's "
                "schema; change the columns first, with a snapshot that has all rows of the state, "
                "and checkpoint.carry_rest() for all else, the query's progress too"
            )
        return state.lookup_in_spark(keys.rows, names, cache_bytes=self.cache_bytes, spark=spark)

    def _updated(self, events: DataFrame, state: DataFrame) -> Changes:
        changes = self.update(events, state)
        if isinstance(changes, DataFrame):
            changes = Changes(upserts=changes)
        if not isinstance(changes, Changes):
            raise InvalidArgumentError(
                f"update returns a DataFrame or Changes, not {type(changes).__name__}"
            )
        if changes.upserts is not None:
            return changes
        return replace(changes, upserts=state.sparkSession.createDataFrame([], self.schema))

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
        checkpoint.changes(
            self.uid,
            self.name,
            changes.upserts,
            changes.deletes,
            cleared=changes.cleared,
            base=restored.checkpoint_id,
            **options,
        )

    def _after(self, manifest: Manifest) -> None:
        if self.retain is not None and manifest.checkpoint_id % self.expire_every == 0:
            self.store.maintenance.expire(retain=self.retain)
        if self.on_commit is not None:
            self.on_commit(manifest)


@contextmanager
def _kept() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Return what keeps DataFrames, computed once, until the block ends."""
    frames: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        frames.append(frame.persist())
        return frame

    try:
        yield keep
    finally:
        for frame in reversed(frames):
            frame.unpersist()
