"""The specification of a keyed state: its keywords, their checked form, and the resulting state.

Stored values take precedence: an operator's max parallelism and a state's key never change, and its
value columns change as ``format/schema.py`` allows (I3). Any other difference is refused before a
byte is written, with an error that shows both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from statestore.display import counted
from statestore.engines.given_rows import is_frame, rows_on_driver
from statestore.engines.rows import Rows
from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.format.manifest import KeyedEntry
from statestore.format.names import SUBTASK, refuse_reserved
from statestore.format.schema import (
    Schema,
    changed_columns,
    names_with_nul,
    refuse_too_deep,
    same_columns,
)
from statestore.format.state import (
    AUTO_LAYOUT,
    KeyedState,
    Layout,
    OperatorState,
    StateKind,
    TimeDomain,
    TimeToLive,
)
from statestore.jobgraph.operators import Operators
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import default_max_parallelism, effective_max_parallelism
from statestore.keys.key_types import DEFAULT_HASH_SCHEME, check_hash_scheme
from statestore.parquet.operator_elements import (
    elements_table,
    place_elements,
    refuse_large_elements,
    schema_of_elements,
)
from statestore.rows.column_types import is_uuid, uuid_columns
from statestore.snapshot.pending_checkpoint import StoredFacts

if TYPE_CHECKING:
    import pyarrow as pa

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


ROWS_WORTH_A_FILE = 2048
"""Rows of a key group from which a file of its own costs little in comparison."""


def keyed_state(
    spec: StateSpec,
    rows: Rows,
    *,
    ttl: TimeToLive | None,
    parallelism: int,
    stored: StoredFacts,
    so_far: Sequence[KeyedEntry],
) -> KeyedState:
    """Return the state to write, with its columns in the order key, namespace, entry, values.

    Args:
        spec: the completed specification.
        rows: the rows, which have the state's columns.
        ttl: the state's TTL.
        parallelism: the parallelism of the operator.
        stored: the facts about the stored state.
        so_far: the keyed states of the new checkpoint.

    Raises:
        InvalidArgumentError, UnsupportedTypeError, ParallelismError or SchemaMismatchError: for a
            state that cannot be written, or that conflicts with the stored one.
    """
    old, (key, namespace, entry) = stored.state, spec.columns
    scheme, columns = _hash_scheme(spec, old), _state_columns(spec, rows.schema, old)
    key_types = _key_types(spec, rows, scheme, old)
    max_parallelism = _max_parallelism(spec, parallelism, stored, so_far)
    layout = _layout(spec, rows.count, max_parallelism, stored)
    _refuse_unreadable(columns, str(spec))
    if old is not None:
        return replace(
            old,
            uid=spec.operator,
            schema=_evolved_columns(spec, columns, key_types, scheme, old),
            max_parallelism=max_parallelism,
            layout=layout,
            ttl=ttl,
        )
    assert spec.kind is not None, "the specification is completed"
    return KeyedState(
        uid=spec.operator,
        name=spec.state,
        kind=spec.kind,
        schema=columns,
        key=key,
        namespace=namespace,
        entry=entry,
        key_types=key_types,
        max_parallelism=max_parallelism,
        hash_scheme=scheme,
        time_domain=spec.time_domain,
        layout=layout,
        ttl=ttl,
    )


def refuse_other_form(
    spec: StateSpec,
    rows: Rows,
    base: KeyedState,
    *,
    parallelism: int,
    stored: StoredFacts,
    so_far: Sequence[KeyedEntry],
) -> None:
    """Refuse changes that differ from their base in columns, hash scheme or max parallelism.

    The arguments and errors are those of :func:`keyed_state`. ``base`` is the state that the
    changes build on.
    """
    old = stored.state or base
    scheme, columns = _hash_scheme(spec, old), _state_columns(spec, rows.schema, old)
    key_types = _key_types(spec, rows, scheme, old)
    max_parallelism = _max_parallelism(spec, parallelism, stored, so_far)
    columns = _evolved_columns(spec, columns, key_types, scheme, old)
    if not same_columns(columns, base.schema):
        raise SchemaMismatchError(
            f"{spec} is stored with the columns ({base.schema}), but its changes "
            f"have ({columns}); changes must have the stored columns. Take a full "
            "snapshot to change the columns"
        )
    if (max_parallelism, scheme) != (base.max_parallelism, base.hash_scheme):
        raise SchemaMismatchError(
            f"{spec} is stored with max parallelism {base.max_parallelism} and hash "
            f"scheme {base.hash_scheme} in the checkpoint that the changes are based "
            f"on, but with {max_parallelism} and {scheme} in the newest; "
            "take a full snapshot"
        )


def _hash_scheme(spec: StateSpec, stored: KeyedState | None) -> str:
    scheme = spec.hash_scheme or (stored.hash_scheme if stored else DEFAULT_HASH_SCHEME)
    return check_hash_scheme(scheme)


def _state_columns(spec: StateSpec, schema: Schema, stored: KeyedState | None) -> Schema:
    """Return the columns of the rows in the order key, namespace, entry, values.

    Raises InvalidArgumentError for a reserved name, and for an identity column that the rows lack.
    """
    first = [name for names in spec.columns for name in names]
    known = stored.schema.types if stored else {}  # older releases accepted a reserved name
    refuse_reserved([name for name in (*first, *schema.names) if name not in known], str(spec))
    for name in first:
        if name not in schema.types:
            raise InvalidArgumentError(
                f"{spec}: no column {name!r}; the columns are {', '.join(schema.names)}"
            )
    rest = [name for name in schema.names if name not in first]
    return schema.select((*dict.fromkeys(first), *rest))  # refuses repeated columns


def _key_types(
    spec: StateSpec, rows: Rows, scheme: str, stored: KeyedState | None
) -> tuple[str, ...]:
    """Return the type that each key column is hashed as.

    This is the requested type, or the stored one if the column can carry it, or the column's own
    type.
    """
    requested_types, (key, _, _) = _requested_types(spec), spec.columns
    if stored is not None and (stored.key, stored.hash_scheme) == (key, scheme):
        kept = [
            requested or stored_type
            for requested, stored_type in zip(requested_types, stored.key_types, strict=True)
        ]
        with suppress(UnsupportedTypeError):  # the columns have changed, which is reported below
            return rows.key_types(key, scheme, kept)
    return rows.key_types(key, scheme, requested_types)


def _requested_types(spec: StateSpec) -> list[str | None]:
    types, (key, _, _) = spec.key_types, spec.columns
    if types is None:
        return [None] * len(key)
    if isinstance(types, Mapping):
        for name in types:
            if name not in key:
                raise InvalidArgumentError(
                    f"key_types names {name!r}, which is not a key column of {spec}; "
                    f"the key is ({', '.join(key)})"
                )
        return [types.get(name) for name in key]
    by_column: list[str | None] = [types] if isinstance(types, str) else list(types)
    if len(by_column) != len(key):
        raise InvalidArgumentError(
            f"{spec} has {len(key)} key columns "
            f"({', '.join(key)}) but {len(by_column)} key types; pass one for each column, or a "
            "mapping by column"
        )
    return by_column


def uuid_columns_of(spec: StateSpec, stored: KeyedState | None) -> dict[str, bool]:
    """Return the key columns that are hashed as UUIDs, by whether they contain text.

    These are the stored state's, and the newly requested ones, which are bytes.
    """
    typed_key = zip(spec.columns[0], _requested_types(spec), strict=True)
    is_text = {name: False for name, key_type in typed_key if is_uuid(key_type)}
    return is_text if stored is None else is_text | uuid_columns(stored)


def _layout(
    spec: StateSpec, row_count: int | None, max_parallelism: int, stored: StoredFacts
) -> Layout:
    """Return the requested layout; the default ``auto`` depends on the number of rows.

    This is the number of the given rows if it is known, or the number in the newest checkpoint that
    has the state. A new state of unknown size is ranged: it gets few files if it is small, and if
    it is large, a ranged file ends at the next key group anyway.
    """
    if spec.layout not in (None, AUTO_LAYOUT):
        return Layout(spec.layout)
    rows = stored.base_rows if row_count is None else row_count
    is_large = rows is not None and rows >= ROWS_WORTH_A_FILE * max_parallelism
    return Layout.PARTITIONED if is_large else Layout.RANGED


def operator_state(
    uid: str,
    name: str,
    elements: Any,
    mode: RedistributionMode,
    parallelism: int,
    stored: OperatorState | None,
) -> tuple[OperatorState, pa.Table, tuple[int, ...]]:
    """Return the state, its elements with ``subtask`` and ``position``, and the count per subtask.

    ``stored`` is the state as an earlier checkpoint has it, None if there is none.

    Raises InvalidArgumentError if there is not one list per subtask, or if the elements are too
    large. Raises SchemaMismatchError if mode or columns differ from the stored ones.
    """
    if stored is not None and stored.mode is mode and not stored.schema.fields:
        stored = None  # it never had an element, so its columns are unknown
    copies = 1 if mode is RedistributionMode.BROADCAST else parallelism
    subject = f"{mode.value} state {name!r} of operator {uid!r}"
    if is_frame(elements):
        table = place_elements(rows_on_driver(elements, subject), copies, subject)
    else:
        several = mode is not RedistributionMode.BROADCAST and isinstance(elements, Iterable)
        lists = list(elements) if several else [elements]
        if len(lists) != copies:
            raise InvalidArgumentError(
                f"operator state {name!r} of operator {uid!r} has {counted(len(lists), 'list')} "
                f"of elements, but the parallelism is {parallelism}: pass one list per subtask, "
                "which can be empty"
            )
        table = elements_table(lists, stored.schema if stored else None, subject)
    refuse_large_elements(table, subject)
    state = OperatorState(uid=uid, name=name, mode=mode, schema=schema_of_elements(table))
    _refuse_unreadable(state.schema, str(state))
    if stored is not None and (
        stored.mode is not mode or not same_columns(stored.schema, state.schema)
    ):
        raise SchemaMismatchError(
            f"{state} was stored as {stored.mode.value} state of ({stored.schema}), but is "
            f"now {mode.value} state of ({state.schema}); keep the mode and columns, or use a "
            "new state name"
        )
    counts = [0] * copies
    for subtask in table.column(SUBTASK).to_pylist():
        counts[subtask] += 1
    return state, table, tuple(counts)


def _refuse_unreadable(schema: Schema, subject: str) -> None:
    """Refuse a schema that can be written, but that one of the readers cannot read."""
    refuse_too_deep(schema, subject)
    for name in names_with_nul(schema):
        raise InvalidArgumentError(
            f"{subject} has a column or field {name!r} with a NUL character, at which DuckDB "
            "and Polars truncate names; rename it"
        )


def _max_parallelism(
    spec: StateSpec,
    parallelism: int,
    stored: StoredFacts,
    so_far: Sequence[KeyedEntry],
) -> int:
    """Return the operator's max parallelism.

    This is the first that exists of: the max parallelism of the operator's other states in this
    checkpoint, the stored one, the requested one, and Flink's default.
    """
    uid, requested = spec.operator, spec.max_parallelism
    siblings = (entry.state.max_parallelism for entry in so_far if entry.state.uid == uid)
    known = next(siblings, None)
    if known is None and not spec.regroup:
        known = stored.max_parallelism
    try:
        if known is None and requested is None:
            return default_max_parallelism(parallelism)
        return effective_max_parallelism(known, parallelism, requested)
    except (InvalidArgumentError, ParallelismError) as error:
        error.add_note(f"for {spec}")
        if known is not None and parallelism > known:
            error.add_note("to snapshot rows that were restored this way, pass regroup=True")
        raise


def _evolved_columns(
    spec: StateSpec,
    columns: Schema,
    key_types: tuple[str, ...],
    scheme: str,
    stored: KeyedState,
) -> Schema:
    """Return the stored columns as these change them.

    Raises SchemaMismatchError if anything but value columns has changed, or if the change loses
    values.
    """
    (key, namespace, entry), kind = spec.columns, spec.kind or StateKind.VALUE
    for property_name, old, new in (
        ("kind", stored.kind.value, kind.value),
        ("key", stored.key, key),
        ("key types", stored.key_types, key_types),
        ("namespace", stored.namespace, namespace),
        ("entry columns", stored.entry, entry),
        ("time domain", str(stored.time_domain), str(spec.time_domain)),
        ("hash scheme", stored.hash_scheme, scheme),
    ):
        if old != new:
            raise SchemaMismatchError(
                f"{spec} was stored with {property_name} {_text(old)} and the columns "
                f"({stored.schema}), but now has {_text(new)} and the columns ({columns}); "
                f"the {property_name} of a stored state cannot change. Keep it, or use a new "
                "state name"
            )
    return changed_columns(
        stored.schema,
        columns,
        subject=str(spec),
        fixed=stored.identity,
        renamed=spec.renamed,
        dropped=spec.dropped,
    )


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else f"({', '.join(value)})"
