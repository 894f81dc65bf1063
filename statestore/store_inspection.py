"""``store.inspect``: what checkpoints hold, and what tells them apart. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from statestore.arguments import checked_methods
from statestore.flink.graph import JobGraph
from statestore.maintenance import diff as diff_command
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_rows import CheckpointDifference
from statestore.restore import compare_plans as compare_command
from statestore.restore import history as as_of_command
from statestore.restore import history as key_command
from statestore.restore import skew as heavy_command
from statestore.restore.compare_plans import Comparison, Prices
from statestore.restore.export import Progress
from statestore.restore.history import KeyAt, KeyStates
from statestore.restore.placement import LOCALITY, OperatorPlacement, place_operators
from statestore.restore.plan import Weight
from statestore.restore.skew import FACTOR, HeavyReport, RangeSkew, skews_of
from statestore.restore.target import RestoreTarget, plan, plan_target
from statestore.store_parts import Opened, OpenStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StoreInspection"]


@checked_methods
class StoreInspection:
    """Ask a store about keys, differences and sizes; from ``store.inspect``. It needs no Spark."""

    def __init__(self, store: OpenStore) -> None:
        """Use ``StateStore.inspect``."""
        self._store = store

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
        state; ``now_ms`` is that of :meth:`StateStore.restore`. States whose key has another type
        are in ``skipped``. Raises InvalidArgumentError when all are, CheckpointNotFoundError,
        StateNotFoundError, or CorruptionError.
        """
        of = key if callable(key) else lambda state: key
        return key_command.key_states(
            self._store.catalog(), of, checkpoint=checkpoint, uid=uid, name=name, now_ms=now_ms
        )

    def history(
        self, key: Any, uid: str, name: str, *, now_ms: int | None = None
    ) -> tuple[KeyAt, ...]:
        """Return what a key had at each kept checkpoint, oldest first.

        ``key`` is what :meth:`RestoredKeyedState.get` takes, or a function that returns it for the
        state as the newest checkpoint has it; where the state has another key, rows are None.
        ``now_ms`` is that of :meth:`StateStore.restore`.
        Raises StateNotFoundError when none has the state, InvalidArgumentError for a value that is
        no key, MissingFileError or DamagedFileError.
        """
        of = key if callable(key) else lambda state: key
        found = as_of_command.key_history(self._store.catalog(), of, uid, name, now_ms=now_ms)
        return tuple(found)

    def as_of(
        self, a: int | str, b: int | str, uid: str, name: str, *, now_ms: int | None = None
    ) -> pa.RecordBatchReader:
        """Return a keyed state at checkpoint ``a`` joined with that at ``b``, row by row.

        Columns: ``key_group``, ``change`` (``same``, ``changed``, ``added``, ``removed``), those of
        the identity, and each value column as ``<name>_a`` and ``<name>_b``. A row is ``changed``
        when a column that both checkpoints have differs; a wider type is no difference. ``now_ms``
        is that of :meth:`StateStore.restore`. One run of key groups is in memory. Raises
        CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError when the two cannot be
        joined, and while it is read MissingFileError or DamagedFileError.
        """
        return as_of_command.as_of(self._store.catalog(), a, b, uid, name, now_ms=now_ms)

    def diff(
        self,
        a: int | str,
        b: int | str = "latest",
        *,
        other: Opened | None = None,
        uid: str | None = None,
        name: str | None = None,
        keys: int = DEFAULT_EXAMPLES,
        on_progress: Progress | None = None,
    ) -> CheckpointDifference:
        """Return what tells checkpoint ``a`` from ``b``, which lies in the store ``other`` if one
        is given: rows added, removed and changed per state and key group, elements, schemas, job
        graphs, parallelism.

        What is stored is compared, expired rows too; a wider type is no difference. Only key groups
        whose digests differ, or say nothing under other types, are read; the answer has the bytes
        read of each side, and up to ``keys`` examples per state. With ``uid`` only that operator is
        compared, with ``name`` only the state of that name. ``on_progress`` hears of the key groups
        that are done, and of how many. Raises StoreNotFoundError, CheckpointNotFoundError,
        StateNotFoundError, CorruptionError or StorageError.
        """
        return diff_command.diff(
            (self._store.storage, a),
            ((self._store if other is None else other.parts).storage, b),
            uid=uid,
            name=name,
            keys=keys,
            progress=on_progress or (lambda done, total: None),
        )

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
            self._store.catalog(),
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
        even ranges and with those of ``restore(balance=…)``. Errors: as :meth:`StateStore.plan`.
        """
        manifest = self._store.catalog().load(checkpoint)
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

        Moved are bytes that have no copy on the host where :meth:`placement` puts their subtask,
        with ``hosts``, or else that another subtask owns than in the checkpoint. ``rate``, in bytes
        per second, makes expected seconds of the largest subtask, ``prices`` money. Raises
        ParallelismError or InvalidArgumentError.
        """
        return compare_command.compare(
            self._store.catalog().load(checkpoint),
            parallelisms,
            balance=balance,
            hosts=hosts,
            strategy=strategy,
            rate=rate,
            prices=prices,
        )

    def placement(
        self,
        hosts: Mapping[str, int],
        *,
        strategy: str = LOCALITY,
        parallelism: int | Literal["auto"] | None = None,
        checkpoint: int | str = "latest",
        bytes_per_task: int | None = None,
        graph: JobGraph | None = None,
    ) -> tuple[OperatorPlacement, ...]:
        """Return, per operator, on which host each subtask should run to find its state there.

        ``hosts`` says the slots of each host. As in Flink, subtask i of every operator of a slot
        sharing group runs in one slot, chained operators so always together; copies lie where they
        were written with a local cache. ``strategy`` is ``locality`` (Flink's adaptive scheduler),
        ``default``, ``evenly``, ``previous-default`` or ``previous-evenly`` (its default
        scheduler); the other arguments are those of :meth:`StateStore.plan`. Raises
        InvalidArgumentError for too few slots or an unknown strategy, and what a plan raises.
        """
        manifest = self._store.catalog().load(checkpoint)
        target = RestoreTarget(parallelism=parallelism, bytes_per_task=bytes_per_task, graph=graph)
        operators = plan(manifest, target).operators
        return place_operators(manifest, operators, hosts, strategy, graph)
