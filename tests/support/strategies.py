"""Hypothesis strategies: random states of every kind, with random columns.

A :class:`KeyedCase` is a keyed state as a caller passes it: an Arrow table and the role of each
column. No two rows have the same identity. :func:`element_lists` is operator state.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from statestore.format.state import StateKind, TimeDomain
from statestore.keys.key_types import DEFAULT_HASH_SCHEME, HASH_SCHEMES
from statestore.testing.reference import canonical

if TYPE_CHECKING:
    from statestore.format.manifest import KeyedEntry
    from statestore.snapshot.writer import CheckpointWriter

Values = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Kind:
    """A column's type, and a strategy for its values, which are never null."""

    type: pa.DataType
    values: Values


@dataclass(frozen=True)
class KeyedCase:
    """A keyed state to write."""

    kind: StateKind
    rows: pa.Table
    key: tuple[str, ...]
    namespace: tuple[str, ...]
    entry: tuple[str, ...]
    max_parallelism: int
    hash_scheme: str = DEFAULT_HASH_SCHEME

    def write(
        self, checkpoint: CheckpointWriter, uid: str, name: str, rows: Any = None
    ) -> KeyedEntry:
        """Write the state, or other rows such as a Spark DataFrame instead."""
        written: KeyedEntry = checkpoint.write_keyed(
            uid,
            name,
            self.rows if rows is None else rows,
            key=self.key,
            namespace=self.namespace,
            max_parallelism=self.max_parallelism,
            kind=self.kind,
            entry=self.entry,
            hash_scheme=self.hash_scheme,
            time_domain=TimeDomain.EVENT if self.kind is StateKind.TIMERS else None,
        )
        return written


texts = st.sampled_from(["", "a", "A", "é", "e\u0301", "日本", "😀", "\0", "x" * 10_000]) | st.text(
    st.characters(codec="utf-8"), max_size=12
)
uids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=16)


def integers(bits: int) -> Values:
    return st.integers(-1 << bits - 1, (1 << bits - 1) - 1)


def decimals(precision: int, scale: int) -> Kind:
    largest = 10**precision - 1
    unscaled = st.integers(-largest, largest)
    values = unscaled.map(lambda number: Decimal(f"{number}e-{scale}"))
    return Kind(pa.decimal128(precision, scale), values)


STRINGS = Kind(pa.string(), texts)
LONGS = Kind(pa.int64(), integers(64))
INTEGERS = (
    LONGS,
    Kind(pa.int32(), integers(32)),
    Kind(pa.int16(), integers(16)),
    Kind(pa.int8(), integers(8)),
)
SPECIAL = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf")])
FLOATS = (
    Kind(pa.float64(), SPECIAL | st.floats()),
    Kind(pa.float32(), SPECIAL | st.floats(width=32)),
)
TIMESTAMPS = (
    Kind(pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    Kind(pa.timestamp("us"), st.datetimes()),
)
KEY_KINDS = (
    STRINGS,
    *INTEGERS,
    *FLOATS,
    *TIMESTAMPS,
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.date32(), st.dates()),
    decimals(10, 2),
    decimals(38, 18),
)
BINARY = Kind(pa.binary(), st.binary(max_size=20))


def structs(kinds: list[Kind]) -> Kind:
    """A struct with one field of each kind."""
    names = [f"f{index}" for index in range(len(kinds))]
    type_ = pa.struct([(name, kind.type) for name, kind in zip(names, kinds, strict=True)])
    values = {name: kind.values for name, kind in zip(names, kinds, strict=True)}
    return Kind(type_, st.fixed_dictionaries(values))


def nullable(kind: Kind) -> Kind:
    return Kind(kind.type, st.none() | kind.values)


def arrays(kind: Kind) -> Kind:
    return Kind(pa.list_(kind.type), st.lists(st.none() | kind.values, max_size=3))


def maps(key: Kind, value: Kind) -> Kind:
    entries = st.tuples(key.values, st.none() | value.values)
    unique = st.lists(entries, max_size=3, unique_by=_key_of)
    return Kind(pa.map_(key.type, value.type), unique)


def _key_of(entry: tuple[Any, Any]) -> Any:
    return canonical(with_one_zero(entry[0]))


def with_one_zero(value: Any) -> Any:
    """Return a map's keys with 0.0 for each -0.0.

    Engines that represent maps as dictionaries, and Spark's maps, do not distinguish the two zeros.
    """
    match value:
        case float():
            return value + 0.0
        case list() | tuple():
            return type(value)(map(with_one_zero, value))
        case dict():
            return {name: with_one_zero(part) for name, part in value.items()}
    return value


key_kinds = st.recursive(
    st.sampled_from(KEY_KINDS),
    lambda inner: inner.map(arrays) | st.lists(inner, min_size=1, max_size=3).map(structs),
    max_leaves=3,
)
"""Kinds of one key column: scalars, and arrays and structs of them."""

ordered_kinds = st.recursive(
    st.sampled_from((*KEY_KINDS, BINARY)),
    lambda inner: (
        inner.map(arrays) | st.lists(inner.map(nullable), min_size=1, max_size=3).map(structs)
    ),
    max_leaves=3,
)
"""Kinds of a column that identifies rows, such as a namespace or a map key; none has a map."""

value_kinds = st.recursive(
    st.sampled_from((*KEY_KINDS, BINARY)),
    lambda inner: (
        inner.map(arrays)
        | st.builds(maps, st.sampled_from(KEY_KINDS), inner)
        | st.lists(inner.map(nullable), min_size=1, max_size=2).map(structs)
    ),
    max_leaves=3,
)
"""Kinds of a value column, including nested ones; every level may be null."""

max_parallelisms = st.sampled_from([1, 2, 3, 7, 128, 200, 32_768])


def table(names: list[str], kinds: list[Kind], rows: list[tuple[Any, ...]]) -> pa.Table:
    """Return rows as an Arrow table with exactly these types."""
    arrays = [pa.array([row[index] for row in rows], kind.type) for index, kind in enumerate(kinds)]
    return pa.table(arrays, names=names)


@st.composite
def keyed_cases(draw: st.DrawFn, max_keys: int = 8) -> KeyedCase:
    """A keyed state of any kind: some keys, each with no, one or several entries."""
    kind = draw(st.sampled_from(StateKind))
    scheme = draw(st.sampled_from(HASH_SCHEMES))
    # Flink SQL has no nested types in its keys.
    one_column = st.sampled_from(KEY_KINDS) if scheme == "flink-sql" else key_kinds
    key = draw(st.lists(one_column, min_size=1, max_size=3))
    namespace = draw(st.lists(ordered_kinds.map(nullable), max_size=2))
    entry = draw(_entry_kinds(kind))
    values = draw(st.lists(value_kinds.map(nullable), max_size=2))
    keys = draw(_tuples(key, max_keys, at_least=1))
    rest = [one.values for one in (*namespace, *entry)]
    identities = draw(
        st.lists(
            st.tuples(st.sampled_from(keys), *rest), max_size=2 * max_keys, unique_by=canonical
        )
    )
    rows = [(*keyed, *others, *(draw(v.values) for v in values)) for keyed, *others in identities]
    names = {
        "key": [f"k{i}" for i in range(len(key))],
        "namespace": [f"ns{i}" for i in range(len(namespace))],
        "entry": [f"e{i}" for i in range(len(entry))],
    }
    columns = [*names["key"], *names["namespace"], *names["entry"]]
    columns += [f"v{i}" for i in range(len(values))]
    return KeyedCase(
        kind=kind,
        rows=table(columns, [*key, *namespace, *entry, *values], rows),
        key=tuple(names["key"]),
        namespace=tuple(names["namespace"]),
        entry=tuple(names["entry"]),
        max_parallelism=draw(max_parallelisms),
        hash_scheme=scheme,
    )


def parallelisms(max_parallelism: int, limit: int = 9) -> st.SearchStrategy[int]:
    """Parallelisms at which a state with this max parallelism can be restored."""
    return st.integers(1, min(max_parallelism, limit))


@st.composite
def element_lists(draw: st.DrawFn, parallelism: int) -> list[list[dict[str, Any]]]:
    """Elements of an operator state: one list per subtask, all with the same columns."""
    columns = {
        "topic": texts,
        "partition": integers(32),
        "offset": integers(64),
    }
    element = st.fixed_dictionaries(columns)
    some = st.lists(element, max_size=5)
    return draw(st.lists(some, min_size=parallelism, max_size=parallelism))


def _tuples(kinds: list[Kind], most: int, *, at_least: int) -> st.SearchStrategy[list[Any]]:
    values = st.tuples(*(kind.values for kind in kinds))
    return st.lists(values, min_size=at_least, max_size=most, unique_by=canonical)


def _entry_kinds(kind: StateKind) -> st.SearchStrategy[list[Kind]]:
    if kind is StateKind.LIST:
        return st.sampled_from(INTEGERS).map(lambda one: [one])
    if kind is StateKind.TIMERS:
        return st.sampled_from((LONGS, *TIMESTAMPS)).map(lambda one: [one])
    if kind is StateKind.MAP:
        return st.lists(ordered_kinds.map(nullable), min_size=1, max_size=2)
    return st.just([])
