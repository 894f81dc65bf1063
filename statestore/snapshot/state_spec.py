"""The description of a keyed state by its caller: keywords, their checked form, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from statestore.errors import InvalidArgumentError, ParallelismError, SchemaMismatchError
from statestore.format.state import KeyedState, Layout, StateKind, TimeDomain, TimeToLive
from statestore.jobgraph.operators import Operators

Columns = str | Sequence[str]

OFF = "off"
"""The value that turns off the TTL of a stored state, whose column becomes an ordinary one."""

KeyTypes = str | Mapping[str, str | None] | Sequence[str | None] | None
"""The hashed types of key columns: one name, by column, or in order; None for their own types."""


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of a keyed state since a checkpoint.

    Each field accepts a DataFrame, an Arrow table or stream, or dictionaries.

    Attributes:
        upserts: whole rows with the state's columns. Each replaces the row with the same key,
            namespace and entry columns, or is new.
        deletes: rows to delete. A key deletes all rows of the key. A key and namespace deletes the
            rows of both. A row that also has the entry columns deletes one list element, map entry
            or timer. Value columns are ignored. A list of dictionaries may mix the three.
        cleared: deletes of keys that upserts of the same checkpoint may write again.
    """

    upserts: Any = None
    deletes: Any = None
    cleared: Any = None


class StateOptions(TypedDict, total=False):
    """The keywords that describe a keyed state, for each method that writes one.

    Without ``key``, the key, the namespace, the kind, the entry columns and the time domain are the
    stored ones, so rows that were restored from this store are written back without any keyword.
    """

    key: Columns | None
    """The key columns. A state that may not be stored yet requires them."""
    namespace: Columns | None
    """The namespace columns; with ``key``, none by default."""
    kind: StateKind | str | None
    """The kind of a row: ``value``, ``list``, ``map``, ``reducing``, ``aggregating`` or ``timers``.
    With ``key``, the default is ``value``.
    """
    entry: Columns | None
    """The columns that identify the entries of one key: the position of a list's element, the
    key columns of a map, or the time of a timer.
    """
    time_domain: TimeDomain | str | None
    """``event`` or ``processing``, for timers."""
    max_parallelism: int | None
    """The number of key groups, fixed for the life of the operator's state. Defaults to the job
    graph's value, then the stored one, then Flink's default for this parallelism.
    """
    layout: Layout | str | None
    """``partitioned`` (one file per key group), ``ranged`` (few files, each with a range of key
    groups) or ``auto``, which is partitioned from 2,048 rows per key group on and ranged below.
    Defaults to the store's layout, then to ``auto``.
    """
    ttl: TimeToLive | str | None
    """How long rows live. It is kept until another value or ``"off"`` is given. When it is
    turned on, rows may lack its column, and get the checkpoint's clock.
    """
    hash_scheme: str | None
    """How keys are hashed; defaults to the stored scheme, then to Flink's scheme for Java
    objects.
    """
    key_types: KeyTypes
    """The type that a key column is hashed as, if it is not its own type. It is one name, one
    name per column, or a dictionary by column (``{"at": "TIMESTAMP(3)"}``). Defaults to the
    stored types.
    """
    renamed: Mapping[str, str] | None
    """``{"old": "new"}`` gives the new name of a value column. Value columns may also be new,
    left out or wider than before.
    """
    dropped: Columns
    """Value columns that are removed without a replacement."""
    regroup: bool
    """Lets ``max_parallelism`` differ from the stored one."""
    co_located: bool
    """True if Spark partition i of a DataFrame has subtask i's rows, as after a restore at this
    parallelism. In that case nothing is shuffled. A row that belongs to another subtask is
    refused. It applies to all rows of a state, not to changes.
    """


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """A keyed state as its caller describes it, in checked form; see :class:`StateOptions`.

    None stands for the stored value or the default. :meth:`completed` fills in what the store and
    the job know.
    """

    operator: str
    state: str
    key: tuple[str, ...] | None = None
    namespace: tuple[str, ...] | None = None
    kind: StateKind | None = None
    entry: tuple[str, ...] | None = None
    time_domain: TimeDomain | None = None
    max_parallelism: int | None = None
    layout: str | None = None
    ttl: TimeToLive | str | None = None
    hash_scheme: str | None = None
    key_types: KeyTypes = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    regroup: bool = False
    co_located: bool = False

    @classmethod
    def of(cls, operator: str, state: str, options: StateOptions) -> StateSpec:
        """Return a specification. Raises InvalidArgumentError for an unknown choice."""
        fields: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        for name in {"key", "namespace", "entry", "dropped"} & fields.keys():
            columns = fields[name]
            fields[name] = (columns,) if isinstance(columns, str) else tuple(columns)
        for name, choice in (("kind", StateKind), ("time_domain", TimeDomain)):
            if name in fields:
                fields[name] = choice(fields[name])
        return cls(operator=operator, state=state, **fields)

    def __str__(self) -> str:
        """Return the state's name for messages."""
        return f"state {self.state!r} of operator {self.operator!r}"

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The key, namespace and entry columns of a completed specification."""
        return self.key or (), self.namespace or (), self.entry or ()

    def completed(
        self, stored: KeyedState | None, operators: Operators, layout: str | None
    ) -> StateSpec:
        """Return the specification with the values of the store and of the job.

        Args:
            stored: the state as it is stored; None if it is not.
            operators: the operators of the job.
            layout: the store's layout; None if it has no setting.

        Raises:
            InvalidArgumentError: without a key, for a state that is not stored.
            ParallelismError: if the max parallelism contradicts the job graph.
        """
        spec = self if self.key is not None else self._with_stored(stored)
        return replace(
            spec,
            kind=spec.kind or StateKind.VALUE,
            layout=spec.layout or layout,
            max_parallelism=self._wanted_max_parallelism(operators),
        )

    def kept_ttl(self, stored: KeyedState | None) -> TimeToLive | None:
        """Return the state's TTL: the requested one, or the stored one under its column's new name.

        Flink calls turning it on or off a migration; here it is a full snapshot. Raises
        InvalidArgumentError for a value that is neither a TimeToLive nor "off".
        """
        requested, kept = self.ttl, None if stored is None else stored.ttl
        if isinstance(requested, TimeToLive):
            return requested
        if requested == OFF:
            return None
        if requested is not None:
            raise InvalidArgumentError(
                f"invalid ttl={requested!r}: pass ttl=TimeToLive('36h', column), or ttl={OFF!r} "
                "to end the TTL"
            )
        if kept is None or kept.column not in self.renamed:
            return kept
        return replace(kept, column=self.renamed[kept.column])

    def changed_ttl(self, base: KeyedState) -> TimeToLive | None:
        """Return the TTL of a state with changes: its base's, or another one on the same column.

        Raises SchemaMismatchError for another column, or if only one of the two has a TTL.
        """
        ttl = replace(self, renamed={}).kept_ttl(base)
        if (ttl and ttl.column) == (base.ttl and base.ttl.column):
            return ttl
        raise SchemaMismatchError(
            f"{base} has {_ttl_text(base.ttl)} in the checkpoint that its changes are based on, "
            f"but {_ttl_text(ttl)} is requested; take a full snapshot to enable or disable the "
            "TTL, or to use another column"
        )

    def _with_stored(self, stored: KeyedState | None) -> StateSpec:
        if stored is None:
            raise InvalidArgumentError(
                f"the store has no {self}: pass key=, and for entries the kind and their columns; "
                "its rows are then written in full"
            )
        return replace(
            self,
            key=stored.key,
            namespace=stored.namespace if self.namespace is None else self.namespace,
            kind=self.kind or stored.kind,
            entry=stored.entry if self.entry is None else self.entry,
            time_domain=self.time_domain or stored.time_domain,
        )

    def _wanted_max_parallelism(self, operators: Operators) -> int | None:
        """Return the requested max parallelism, or the one in the job graph; None for the store's.

        Raises ParallelismError if both are given and differ.
        """
        of_graph, wanted = operators.max_parallelism_of(self.operator), self.max_parallelism
        if None not in (wanted, of_graph) and wanted != of_graph:
            raise ParallelismError(
                f"operator {self.operator!r} has max parallelism {of_graph} in the job graph, like "
                f"its chain, but {wanted} is requested; set only one of them"
            )
        return of_graph if wanted is None else wanted


def _ttl_text(ttl: TimeToLive | None) -> str:
    return "no TTL" if ttl is None else f"a TTL on {ttl.column!r}"
