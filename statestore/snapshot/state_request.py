"""Turn a caller's request into a checked state: columns, key types and max parallelism (I3).

Stored values take precedence: an operator's max parallelism and a state's key never change, and its
value columns change as ``format/schema.py`` allows. Any other difference is refused before a byte
is written, with an error that shows both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from statestore.display import counted
from statestore.engines.choice import Engine, is_frame, rows_on_driver
from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.format.manifest import KeyedEntry
from statestore.format.names import refuse_reserved
from statestore.format.schema import Schema, names_with_nul, refuse_too_deep, same_columns
from statestore.format.schema_evolution import changed_columns
from statestore.format.state import (
    AUTO_LAYOUT,
    SUBTASK,
    KeyedState,
    Layout,
    OperatorState,
    StateKind,
    TimeDomain,
)
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.jobgraph.stored_operators import Operators
from statestore.keys.groups import default_max_parallelism, effective_max_parallelism
from statestore.keys.hashing import DEFAULT_HASH_SCHEME, HASH_SCHEMES
from statestore.parquet.operator_elements import (
    elements_table,
    place_elements,
    refuse_large_elements,
    schema_of_elements,
)
from statestore.rows.uuids import is_uuid, uuid_columns
from statestore.snapshot.prior_checkpoints import StoredFacts
from statestore.snapshot.state_ttl import TtlAsked, kept_ttl
from statestore.snapshot.write_options import Columns, KeyedArguments, KeyTypes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ROWS_WORTH_A_FILE",
    "KeyedRequest",
    "keyed_request",
    "keyed_state",
    "operator_state",
    "uuid_columns_of",
    "with_stored",
]


ROWS_WORTH_A_FILE = 2048
"""Rows of a key group from which a file of its own costs little in comparison."""


@dataclass(frozen=True, kw_only=True)
class KeyedRequest:
    """A keyed state as requested by the caller; None stands for the stored value or the default."""

    uid: str
    name: str
    kind: StateKind
    key: tuple[str, ...]
    namespace: tuple[str, ...]
    entry: tuple[str, ...]
    max_parallelism: int | None
    hash_scheme: str | None
    time_domain: TimeDomain | None
    layout: str | None
    key_types: KeyTypes = None
    rows: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    regroup: bool = False
    ttl: TtlAsked = None

    def __str__(self) -> str:
        """Return the state's name for messages."""
        return f"state {self.name!r} of operator {self.uid!r}"


def keyed_request(
    operators: Operators, layout: str | None, arguments: KeyedArguments
) -> KeyedRequest:
    """Return a caller's request with the defaults filled in.

    Args:
        operators: the operators of the job.
        layout: the store's layout; None if it has no setting.
        arguments: what the caller passed.

    Raises:
        ParallelismError: if the max parallelism contradicts the job graph.
    """
    options = arguments.options
    return KeyedRequest(
        uid=arguments.operator,
        name=arguments.state,
        kind=StateKind.VALUE if options.kind is None else StateKind(options.kind),
        key=_names(arguments.key),
        namespace=_names(arguments.namespace),
        entry=_names(options.entry),
        max_parallelism=_wanted_max_parallelism(
            operators, arguments.operator, arguments.max_parallelism
        ),
        hash_scheme=options.hash_scheme,
        key_types=options.key_types,
        time_domain=None if options.time_domain is None else TimeDomain(options.time_domain),
        layout=arguments.layout or layout,
        renamed=options.renamed or {},
        dropped=_names(options.dropped),
        regroup=options.regroup,
        ttl=arguments.ttl,
    )


def with_stored(arguments: KeyedArguments, state: KeyedState | None) -> KeyedArguments:
    """Return arguments without a key, with the key, namespace and kind of the stored state.

    Raises InvalidArgumentError if the state is not stored.
    """
    if state is None:
        raise InvalidArgumentError(
            f"the store has no state {arguments.state!r} of operator {arguments.operator!r}: pass "
            "key=, and for entries the kind and their columns; its rows are then written in full"
        )
    options = arguments.options
    options = replace(
        options,
        kind=options.kind or state.kind,
        entry=state.entry if options.entry is None else options.entry,
        time_domain=options.time_domain or state.time_domain,
    )
    namespace = state.namespace if arguments.namespace is None else arguments.namespace
    return replace(arguments, key=state.key, namespace=namespace, options=options)


def _wanted_max_parallelism(operators: Operators, uid: str, wanted: int | None) -> int | None:
    """Return the requested max parallelism, or the one in the job graph; None for the store's.

    Raises ParallelismError if both are given and differ.
    """
    of_graph = operators.max_parallelism_of(uid)
    if None not in (wanted, of_graph) and wanted != of_graph:
        raise ParallelismError(
            f"operator {uid!r} has max parallelism {of_graph} in the job graph, like its "
            f"chain, but {wanted} is requested; set only one of them"
        )
    return of_graph if wanted is None else wanted


def _names(columns: Columns | None) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns or ())


def keyed_state(
    request: KeyedRequest,
    engine: Engine,
    rows: Any,
    *,
    parallelism: int,
    stored: StoredFacts,
    so_far: Sequence[KeyedEntry],
) -> KeyedState:
    """Return the state to write, with its columns in the order key, namespace, entry, values.

    ``rows`` have its columns, and ``so_far`` are the keyed states of the new checkpoint.

    Raises InvalidArgumentError, UnsupportedTypeError, ParallelismError or SchemaMismatchError.
    """
    schema, old = engine.schema_of(rows), stored.state
    scheme = request.hash_scheme or (old.hash_scheme if old else DEFAULT_HASH_SCHEME)
    if scheme not in HASH_SCHEMES:
        raise InvalidArgumentError(
            f"unknown hash scheme {scheme!r}; the hash schemes are {', '.join(HASH_SCHEMES)}"
        )
    first = (*request.key, *request.namespace, *request.entry)
    known = old.schema.names if old else ()  # older releases accepted a reserved name
    new = [name for name in (*first, *schema.names) if name not in known]
    refuse_reserved(new, str(request))
    for name in first:
        if name not in schema.names:
            raise InvalidArgumentError(
                f"{request}: no column {name!r}; the columns are {', '.join(schema.names)}"
            )
    rest = [name for name in schema.names if name not in first]
    state = KeyedState(
        uid=request.uid,
        name=request.name,
        kind=request.kind,
        schema=schema.select((*dict.fromkeys(first), *rest)),  # refuses repeated columns
        key=request.key,
        namespace=request.namespace,
        entry=request.entry,
        key_types=_key_types(request, engine, rows, scheme, old),
        max_parallelism=_max_parallelism(request, parallelism, stored, so_far),
        hash_scheme=scheme,
        time_domain=request.time_domain,
        layout=Layout.RANGED,
        ttl=kept_ttl(request.ttl, old.ttl if old else None, request.renamed),
    )
    _refuse_unreadable(state.schema, str(state))
    state = replace(state, layout=_layout(request, state.max_parallelism, stored))
    return state if old is None else _as_stored(state, old, request)


def _key_types(
    request: KeyedRequest, engine: Engine, rows: Any, scheme: str, stored: KeyedState | None
) -> tuple[str, ...]:
    """Return the type that each key column is hashed as.

    This is the requested type, or the stored one if the column can carry it, or the column's own
    type.
    """
    requested_types = _requested_types(request)
    if stored is not None and (stored.key, stored.hash_scheme) == (request.key, scheme):
        kept = [
            requested or stored_type
            for requested, stored_type in zip(requested_types, stored.key_types, strict=True)
        ]
        with suppress(UnsupportedTypeError):  # the columns have changed, which is reported below
            return engine.key_types(rows, request.key, scheme, kept)
    return engine.key_types(rows, request.key, scheme, requested_types)


def _requested_types(request: KeyedRequest) -> list[str | None]:
    types, key = request.key_types, request.key
    if types is None:
        return [None] * len(key)
    if isinstance(types, Mapping):
        for name in types:
            if name not in key:
                raise InvalidArgumentError(
                    f"key_types names {name!r}, which is not a key column of state "
                    f"{request.name!r} of operator {request.uid!r}; the key is ({', '.join(key)})"
                )
        return [types.get(name) for name in key]
    by_column: list[str | None] = [types] if isinstance(types, str) else list(types)
    if len(by_column) != len(key):
        raise InvalidArgumentError(
            f"state {request.name!r} of operator {request.uid!r} has {len(key)} key columns "
            f"({', '.join(key)}) but {len(by_column)} key types; pass one for each column, or a "
            "mapping by column"
        )
    return by_column


def uuid_columns_of(request: KeyedRequest, stored: KeyedState | None) -> dict[str, bool]:
    """Return the key columns that are hashed as UUIDs, by whether they contain text.

    These are the stored state's, and the newly requested ones, which are bytes.
    """
    typed_key = zip(request.key, _requested_types(request), strict=True)
    is_text = {name: False for name, key_type in typed_key if is_uuid(key_type)}
    return is_text if stored is None else is_text | uuid_columns(stored)


def _layout(request: KeyedRequest, max_parallelism: int, stored: StoredFacts) -> Layout:
    """Return the requested layout; the default ``auto`` depends on the number of rows.

    This is the number of the given rows if it is known, or the number in the newest checkpoint that
    has the state. A new state of unknown size is ranged: it gets few files if it is small, and if
    it is large, a ranged file ends at the next key group anyway.
    """
    if request.layout not in (None, AUTO_LAYOUT):
        return Layout(request.layout)
    rows = stored.base_rows if request.rows is None else request.rows
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
    request: KeyedRequest,
    parallelism: int,
    stored: StoredFacts,
    so_far: Sequence[KeyedEntry],
) -> int:
    """Return the operator's max parallelism.

    This is the first that exists of: the max parallelism of the operator's other states in this
    checkpoint, the stored one, the requested one, and Flink's default.
    """
    uid, requested = request.uid, request.max_parallelism
    siblings = (entry.state.max_parallelism for entry in so_far if entry.state.uid == uid)
    known = next(siblings, None)
    if known is None and not request.regroup:
        known = stored.max_parallelism
    try:
        if known is None and requested is None:
            return default_max_parallelism(parallelism)
        return effective_max_parallelism(known, parallelism, requested)
    except (InvalidArgumentError, ParallelismError) as error:
        error.add_note(f"for state {request.name!r} of operator {uid!r}")
        if known is not None and parallelism > known:
            error.add_note(
                "to snapshot rows that were restored this way, pass KeyedOptions(regroup=True)"
            )
        raise


def _as_stored(state: KeyedState, stored: KeyedState, request: KeyedRequest) -> KeyedState:
    """Return the state with the stored column order, followed by new columns.

    Raises SchemaMismatchError with both schemas if anything but value columns has changed, or if
    the change loses values.
    """
    for property_name, old, new in (
        ("kind", stored.kind.value, state.kind.value),
        ("key", stored.key, state.key),
        ("key types", stored.key_types, state.key_types),
        ("namespace", stored.namespace, state.namespace),
        ("entry columns", stored.entry, state.entry),
        ("time domain", str(stored.time_domain), str(state.time_domain)),
        ("hash scheme", stored.hash_scheme, state.hash_scheme),
    ):
        if old != new:
            raise SchemaMismatchError(
                f"{state} was stored with {property_name} {_text(old)} and the columns "
                f"({stored.schema}), but now has {_text(new)} and the columns ({state.schema}); "
                f"the {property_name} of a stored state cannot change. Keep it, or use a new "
                "state name"
            )
    columns = changed_columns(
        stored.schema,
        state.schema,
        subject=str(state),
        fixed=stored.identity,
        renamed=request.renamed,
        dropped=request.dropped,
    )
    return replace(
        stored,
        uid=state.uid,
        schema=columns,
        max_parallelism=state.max_parallelism,
        layout=state.layout,
        ttl=state.ttl,
    )


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else f"({', '.join(value)})"
