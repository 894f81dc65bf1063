"""The half of the front door that asks: what checkpoints there are, and what they know.

It needs no Spark, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from statestore.arguments import checked_methods
from statestore.care import StoreCare
from statestore.format.manifest import Manifest
from statestore.restore import compare_plans as compare_command
from statestore.restore import history as as_of_command
from statestore.restore import history as key_command
from statestore.restore import query as query_command
from statestore.restore import skew as heavy_command
from statestore.restore.compare_plans import Comparison, Prices
from statestore.restore.history import KeyAt, KeyStates
from statestore.restore.placement import LOCALITY
from statestore.restore.plan import Weight
from statestore.restore.query import View
from statestore.restore.skew import FACTOR, HeavyReport, RangeSkew, skews_of
from statestore.restore.target import RestoreTarget, plan_target

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StoreAsking"]


@checked_methods
class StoreAsking(StoreCare):
    """What :class:`~statestore.store.StateStore` answers; see there."""

    def query(
        self,
        sql: str,
        checkpoint: int | str = "latest",
        *,
        now_ms: int | None = None,
        verify: bool = False,
    ) -> pa.RecordBatchReader:
        """Return the answer to an SQL statement over the states of a checkpoint, without Spark.

        Every state is a view: the operator's uid is its schema, and where no other state has the
        name, that alone will do; :meth:`views` lists them. DuckDB answers, reads no columns, key
        groups and row groups that it has no use for, and nothing but the views: one SELECT, without
        files, URLs or extensions. ``now_ms`` and ``verify`` are those of :meth:`restore`. An answer
        is read as it is taken, and need not be read to its end. Raises MissingDependencyError
        without DuckDB, InvalidArgumentError, and, also while the answer is read, MissingFileError,
        DamagedFileError or StorageError.
        """
        return query_command.query(
            self._catalog(), sql, checkpoint=checkpoint, now_ms=now_ms, verify=verify
        )

    def views(self, checkpoint: int | str = "latest") -> tuple[View, ...]:
        """Return what a query of a checkpoint can name, with columns and entry of each state."""
        return query_command.views(self._catalog(), checkpoint=checkpoint)

    def key(
        self,
        key: Any,
        checkpoint: int | str = "latest",
        *,
        uid: str | None = None,
        name: str | None = None,
        now_ms: int | None = None,
    ) -> KeyStates:
        """Return a key's rows in all states of all operators, of operator ``uid``, or of each state
        ``name``; at most one file of each is read.

        ``key`` is what :meth:`RestoredKeyedState.get` takes, or a function that returns it for a
        state; ``now_ms`` is that of :meth:`restore`. States whose key has another type are in
        ``skipped``. Raises InvalidArgumentError when all are, CheckpointNotFoundError,
        StateNotFoundError, or CorruptionError.
        """
        of = key if callable(key) else lambda state: key
        return key_command.key_states(
            self._catalog(), of, checkpoint=checkpoint, uid=uid, name=name, now_ms=now_ms
        )

    def as_of(
        self, a: int | str, b: int | str, uid: str, name: str, *, now_ms: int | None = None
    ) -> pa.RecordBatchReader:
        """Return a keyed state at checkpoint ``a`` joined with that at ``b``, row by row.

        Columns: ``key_group``, ``change`` (``same``, ``changed``, ``added``, ``removed``), those of
        the identity, and each value column as ``<name>_a`` and ``<name>_b``. A row is ``changed``
        when a column that both checkpoints have differs; a wider type is no difference. ``now_ms``
        is that of :meth:`restore`. One run of key groups is in memory. Raises
        CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError when the two cannot be
        joined, and while it is read MissingFileError or DamagedFileError.
        """
        return as_of_command.as_of(self._catalog(), a, b, uid, name, now_ms=now_ms)

    def key_history(
        self, key: Any, uid: str, name: str, *, now_ms: int | None = None
    ) -> tuple[KeyAt, ...]:
        """Return what a key had at each kept checkpoint, oldest first.

        ``key`` is what :meth:`RestoredKeyedState.get` takes, or a function that returns it for the
        state as the newest checkpoint has it; where the state has another key, rows are None.
        ``now_ms`` is that of :meth:`restore`.
        Raises StateNotFoundError when none has the state, InvalidArgumentError for a value that is
        no key, MissingFileError or DamagedFileError.
        """
        of = key if callable(key) else lambda state: key
        found = as_of_command.key_history(self._catalog(), of, uid, name, now_ms=now_ms)
        return tuple(found)

    def heavy(
        self,
        uid: str | None = None,
        name: str | None = None,
        *,
        keys: int = heavy_command.KEYS,
        checkpoint: int | str = "latest",
        by: Weight | str = Weight.BYTES,
        factor: float = FACTOR,
        read_groups: int = heavy_command.READ_GROUPS,
    ) -> HeavyReport:
        """Return key groups with more than ``factor`` times the even share of bytes (or rows), and
        the keys with most rows, of all keyed states, those of operator ``uid``, or its ``name``.

        Key groups are known from the manifest. For the keys, of states in which one may have
        several rows, up to ``read_groups`` key groups are read, those with most rows first, without
        changes their key columns only; ``keys=0`` reads nothing. Raises CheckpointNotFoundError,
        StateNotFoundError, InvalidArgumentError, MissingFileError or DamagedFileError.
        """
        return heavy_command.heavy(
            self._catalog(),
            uid,
            name,
            checkpoint=checkpoint,
            by=Weight(by),
            factor=factor,
            keys=keys,
            read_groups=read_groups,
        )

    def skew(
        self,
        *,
        parallelism: int | None = None,
        by: Weight | str = Weight.BYTES,
        checkpoint: int | str = "latest",
    ) -> tuple[RangeSkew, ...]:
        """Return, per operator with keyed state, the bytes or rows of each subtask with Flink's
        even ranges and with those of ``restore(balance=…)``. Errors are those of :meth:`plan`.
        """
        manifest = self.manifest(checkpoint)
        plan = plan_target(manifest, RestoreTarget(parallelism=parallelism))
        return skews_of(manifest, plan, Weight(by))

    def compare(
        self,
        parallelisms: Iterable[int],
        *,
        checkpoint: int | str = "latest",
        balance: Weight | str | None = None,
        hosts: Mapping[str, int] | None = None,
        strategy: str = LOCALITY,
        rate: float | None = None,
        prices: Prices | None = None,
    ) -> Comparison:
        """Return what a restore at each of some parallelisms would read, move, take and cost, and
        which one would be taken, and why; nothing is read but the manifest.

        Moved are bytes that have no copy on the host where :meth:`place` puts their subtask, with
        ``hosts``, or else that another subtask owns than in the checkpoint. ``rate``, in bytes per
        second, makes expected seconds of the largest subtask, ``prices`` money. Raises
        ParallelismError or InvalidArgumentError.
        """
        return compare_command.compare(
            self.manifest(checkpoint),
            parallelisms,
            balance=balance,
            hosts=hosts,
            strategy=strategy,
            rate=rate,
            prices=prices,
        )

    def manifest(self, checkpoint: int | str = "latest") -> Manifest:
        """Return the manifest of a checkpoint."""
        return self._catalog().load(checkpoint)

    def checkpoints(self) -> tuple[int, ...]:
        """Return the ids of the visible checkpoints, oldest first."""
        return self._catalog().checkpoint_ids()
