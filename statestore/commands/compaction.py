"""Compaction in the background of a snapshot: by the rule, in a thread, until the block ends.

What it writes is in the same manifest as the changes that brought it about, so there is nobody to
agree with: of two writers only one commits.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from statestore.commands.attempt import Attempt
from statestore.format.manifest import KeyedEntry
from statestore.table.compact import Compactor

__all__ = ["Compactions"]


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
        done = [(future.result(), compactor.new) for compactor, future in self._under_way]
        self._close()
        self._under_way.clear()
        return done

    def abandon(self, reason: BaseException) -> None:
        """End what is under way and delete what it has written."""
        self._close()
        for compactor, _ in self._under_way:
            compactor.forget(reason)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
