"""``store.inspect``: query the content of checkpoints, and compare them, without any change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from statestore.arguments import checked_methods
from statestore.catalog.catalog import CheckpointRef
from statestore.format.state import clock_ms
from statestore.jobgraph.graph import JobGraph
from statestore.maintenance import bisect as bisect_command
from statestore.maintenance import diff as diff_command
from statestore.maintenance import trend as trend_command
from statestore.maintenance.diff_rows import join_checkpoints
from statestore.maintenance.store_context import HasContext
from statestore.restore import compare_plans as compare_command
from statestore.restore import key_states as key_command
from statestore.restore import skew as skew_command
from statestore.restore.compare_plans import Comparison, Prices
from statestore.restore.key_group_weights import Weight
from statestore.restore.key_states import KeyHistory, KeyStates, key_history
from statestore.restore.placement import LOCALITY, OperatorPlacement, place_operators
from statestore.restore.plan import RestorePlan
from statestore.restore.restart_time import RestoreSpeed
from statestore.restore.skew import FACTOR, KEYS, READ_GROUPS, RangeSkew, SkewReport, skews_of
from statestore.rows.dataframes import RowStream


@checked_methods
class StoreInspection(HasContext):
    """Queries a store about keys, differences and sizes; from ``store.inspect``.

    It needs no Spark.
    """

    bisect = bisect_command.bisect
    diff = diff_command.diff
    trend = trend_command.trend

    def key(
        self,
        key: Any,
        checkpoint: CheckpointRef = "latest",
        *,
        operator: str | None = None,
        state: str | None = None,
        now_ms: int | None = None,
        times_as_text: bool = False,
    ) -> KeyStates:
        """Return a key's rows in all states.

        At most one file of each state is read.

        Args:
            key: a key as for :meth:`RestoredKeyedState.get`, or a function that returns it for a
                state.
            checkpoint: as in :meth:`StateStore.restore`.
            operator: restricts the search to this operator's states; by default all operators are
                searched.
            state: restricts the search to states of this name.
            now_ms: as in :meth:`StateStore.restore`.
            times_as_text: as in :meth:`RestoredKeyedState.get`.

        Returns:
            The rows per state. States whose key has another type are in ``skipped``.

        Raises:
            InvalidArgumentError: if all states are skipped.
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            CorruptionError: if the manifest or a file is damaged.
        """
        key_of = key if callable(key) else lambda state: key
        return key_command.key_states(
            self.parts.checkpoint(checkpoint),
            key_of,
            uid=operator,
            name=state,
            now_ms=now_ms,
            times_as_text=times_as_text,
        )

    def history(
        self,
        key: Any,
        operator: str,
        state: str,
        *,
        now_ms: int | None = None,
        times_as_text: bool = False,
    ) -> KeyHistory:
        """Return a key's rows at each kept checkpoint, oldest first.

        Args:
            key: a key as for :meth:`RestoredKeyedState.get`, or a function that returns it for the
                state in the newest checkpoint.
            operator: the operator.
            state: the state.
            now_ms: as in :meth:`StateStore.restore`.
            times_as_text: as in :meth:`RestoredKeyedState.get`.

        Returns:
            The rows per checkpoint. They are None if the state has other key columns there.
            ``to_arrow()``, ``to_pandas()`` and ``to_polars()`` return all of them as one table.

        Raises:
            StateNotFoundError: if no checkpoint has the state.
            InvalidArgumentError: for a value that is not a key of the state.
            MissingFileError or DamagedFileError: for a damaged file.
        """
        key_of = key if callable(key) else lambda state: key
        checkpoints = key_history(
            self.parts.catalog(),
            key_of,
            operator,
            state,
            now_ms=now_ms,
            times_as_text=times_as_text,
        )
        return KeyHistory(checkpoints)

    def as_of(
        self,
        a: CheckpointRef,
        b: CheckpointRef,
        operator: str,
        state: str,
        *,
        now_ms: int | None = None,
    ) -> RowStream:
        """Join a keyed state at checkpoint ``a`` with the same state at ``b``, row by row.

        Memory holds one run of key groups at a time.

        Args:
            a: the first checkpoint.
            b: the second checkpoint.
            operator: the operator.
            state: the state.
            now_ms: as in :meth:`StateStore.restore`.

        Returns:
            The columns ``key_group``, ``change`` (``same``, ``changed``, ``added``, ``removed``),
            the identity columns, and each value column as ``<name>_a`` and ``<name>_b``. A row is
            ``changed`` if a common column differs; a wider type does not count as a difference. The
            result is a stream, as for :meth:`StateStore.query`.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            InvalidArgumentError: if the two cannot be joined.
            MissingFileError or DamagedFileError: while the rows are read.
        """
        catalog = self.parts.catalog()
        sides = catalog.checkpoint(a), catalog.checkpoint(b)
        old, new = (side.manifest.keyed_entry(operator, state) for side in sides)
        rows = join_checkpoints(sides[0].storage, old, new, now_ms=clock_ms(now_ms))
        return RowStream(rows)

    def skew(
        self,
        operator: str | None = None,
        state: str | None = None,
        *,
        keys: int = KEYS,
        checkpoint: CheckpointRef = "latest",
        by: Weight | str = Weight.BYTES,
        factor: float = FACTOR,
        read_groups: int = READ_GROUPS,
    ) -> SkewReport:
        """Return skewed key groups, and the keys with the most rows.

        A key group is skewed when it has more than ``factor`` times the even share of bytes (or
        rows). Key groups are weighed from the manifest. Keys are read from states in which one key
        may have several rows. In states without changes, only the key columns are read.

        Args:
            operator: restricts the search to this operator's keyed states; by default all keyed
                states are searched.
            state: restricts the search to the state of this name, of operator ``operator``.
            keys: the maximum number of keys per state; by default 10. 0 reads nothing.
            checkpoint: as in :meth:`StateStore.restore`.
            by: the weight, ``bytes`` or ``rows``.
            factor: the multiple of the even share above which a key group is skewed. It is 1 or
                more; by default 2.
            read_groups: the maximum number of key groups per state that are read to find keys,
                starting with the largest; by default 8.

        Returns:
            The key groups and the keys.

        Raises:
            CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
                exist.
            InvalidArgumentError: for an invalid weight or number.
            MissingFileError or DamagedFileError: for a damaged file.
        """
        return skew_command.skew(
            self.parts.checkpoint(checkpoint),
            operator,
            state,
            by=Weight(by),
            factor=factor,
            keys=keys,
            read_groups=read_groups,
        )

    def balance(
        self, plan: RestorePlan, *, by: Weight | str = Weight.BYTES
    ) -> tuple[RangeSkew, ...]:
        """Return the bytes or rows of each subtask of a plan, per operator with keyed state.

        Both Flink's even ranges and the ranges of ``restore(balance=…)`` are covered.

        Args:
            plan: a plan of :meth:`StateStore.plan`.
            by: the weight, ``bytes`` or ``rows``.

        Returns:
            The two distributions of each operator.

        Raises:
            CheckpointNotFoundError: if the checkpoint was collected since it was planned.
        """
        manifest = self.parts.catalog().load_header(plan.checkpoint_id)
        return skews_of(manifest, plan, Weight(by))

    def compare(
        self,
        parallelisms: Iterable[int],
        *,
        checkpoint: CheckpointRef = "latest",
        balance: Weight | str | None = None,
        hosts: Mapping[str, int] | None = None,
        strategy: str = LOCALITY,
        rate: float | RestoreSpeed | None = None,
        prices: Prices | None = None,
    ) -> Comparison:
        """Compare restores at several parallelisms by bytes read and moved, time, and cost.

        The result also has the recommended parallelism, and the reason. Only the manifest is read.

        With ``hosts``, moved bytes are the bytes without a copy on the host where :meth:`placement`
        puts their subtask. Without ``hosts``, moved bytes are the bytes whose owner is another
        subtask than in the checkpoint.

        Args:
            parallelisms: the parallelisms to compare.
            checkpoint: as in :meth:`StateStore.restore`.
            balance: as in :meth:`StateStore.restore`.
            hosts: the slots of each host.
            strategy: as in :meth:`placement`.
            rate: bytes per second, or a speed with the time of requests, to estimate the time of
                the slowest subtask.
            prices: prices, to compute the cost.

        Returns:
            The comparison.

        Raises:
            ParallelismError or InvalidArgumentError: for an impossible parallelism or option.
        """
        return compare_command.compare(
            self.parts.checkpoint(checkpoint).manifest,
            parallelisms,
            balance=balance,
            hosts=hosts,
            strategy=strategy,
            rate=rate,
            prices=prices,
        )

    def placement(
        self,
        plan: RestorePlan,
        hosts: Mapping[str, int],
        *,
        strategy: str = LOCALITY,
        graph: JobGraph | None = None,
    ) -> tuple[OperatorPlacement, ...]:
        """Return, per operator, the host on which each subtask finds its state.

        As in Flink, subtask i of every operator of a slot sharing group runs in one slot. So
        chained operators always run together. Copies are on the hosts that wrote them with a local
        cache.

        Args:
            plan: a plan of :meth:`StateStore.plan`, at the stored max parallelism.
            hosts: the slots of each host.
            strategy: ``locality`` (Flink's adaptive scheduler), ``default``, ``evenly``,
                ``previous-default`` or ``previous-evenly`` (its default scheduler).
            graph: the job graph of the plan.

        Returns:
            The placement of each operator.

        Raises:
            InvalidArgumentError: for too few slots, an unknown strategy, or a plan at another max
                parallelism.
            CheckpointNotFoundError: if the checkpoint was collected since it was planned.
        """
        manifest = self.parts.catalog().load_header(plan.checkpoint_id)
        return place_operators(manifest, plan.operators, hosts, strategy, graph)
