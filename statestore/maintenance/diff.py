"""Compare two checkpoints, of one store or of two.

The manifests are compared first: states, schemas, job graphs, offsets, and the digest of every key
group. Only key groups whose digests differ are read, whatever the file layout on either side. A key
group with changes is equal if its base and its changes are equal. If not, it is read and merged.

If the sides have no common key groups (another max parallelism, hash scheme or key type), all rows
are read and compared by identity. This is skipped if the two states have the same digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa

from statestore.catalog.catalog import Checkpoint, CheckpointRef
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.left_out import left_out_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.format.schema import digests_compare
from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.diff_report import (
    CheckpointDifference,
    Example,
    Other,
    Side,
    StateDifference,
    others,
    state_others,
)
from statestore.maintenance.diff_rows import (
    ComparedRows,
    ComparedSide,
    compare_groups,
    compare_whole,
    differing_groups,
    examples_of,
)
from statestore.maintenance.diff_rule import ALL, DiffRule, reduced
from statestore.maintenance.store_context import HasContext
from statestore.parquet.operator_elements import elements_of
from statestore.rows.equality import comparable_tables
from statestore.rows.equality import matching_positions as matched
from statestore.storage import MeteredStorage, Storage

DEFAULT_EXAMPLES = 10


def diff(
    store: HasContext,
    a: CheckpointRef,
    b: CheckpointRef = "latest",
    *,
    operator: str | None = None,
    state: str | None = None,
    keys: int = DEFAULT_EXAMPLES,
    rule: DiffRule | None = None,
    on_progress: Progress | None = None,
) -> CheckpointDifference:
    """Return the differences between checkpoints ``a`` and ``b``.

    These are added, removed and changed rows per state and key group, and differences in
    elements, schemas, job graphs and parallelism. Stored rows are compared, including expired
    ones; a wider type does not count as a difference. Only key groups whose digests differ, or
    cannot be compared because types differ, are read.

    Args:
        a: the first checkpoint.
        b: the second checkpoint. Of another store, it is the result of that store's
            :meth:`checkpoint`.
        operator: restricts the comparison to this operator.
        state: restricts the comparison to the state of this name.
        keys: the maximum number of examples per state; by default 10.
        rule: which differences between rows of keyed state count; by default all.
        on_progress: called with the number of done key groups and the total.

    Returns:
        The differences, with examples and the bytes read from each side.

    Raises:
        StoreNotFoundError, CheckpointNotFoundError or StateNotFoundError: if the store,
            checkpoint or state does not exist.
        CorruptionError or StorageError: if a side cannot be read.
    """
    if type(keys) is not int or keys < 0:
        raise InvalidArgumentError(
            f"keys is the number of examples to show and must be 0 or more, not {keys!r}"
        )
    first = store.parts.checkpoint(a)
    second = b if isinstance(b, Checkpoint) else store.parts.checkpoint(b)
    old, new = first.manifest, second.manifest
    pairs = _pairs(old, new, operator, state)
    comparison = _Comparison(
        MeteredStorage(first.storage),
        MeteredStorage(second.storage),
        keys,
        rule or ALL,
        on_progress or ignore_progress,
    )
    states = comparison.run(pairs)
    whole = operator is None and state is None
    return CheckpointDifference(
        a=_side(comparison.a, old, [pair[0] for pair in pairs], (operator, state)),
        b=_side(comparison.b, new, [pair[1] for pair in pairs], (operator, state)),
        others=others([("parallelism", old.parallelism, new.parallelism)]) if whole else (),
        graph=graph_others(old.graph, new.graph) if whole else (),
        states=states,
    )


def _side(
    storage: MeteredStorage,
    manifest: Manifest,
    entries: list[Entry | None],
    selection: tuple[str | None, str | None],
) -> Side:
    size = sum(entry.size_bytes for entry in entries if entry is not None)
    lacking = left_out_of(manifest.left_out, *selection)
    return Side(storage.url, manifest.checkpoint_id, size, storage.bytes_read, lacking)


def _pairs(old: Manifest, new: Manifest, uid: str | None, name: str | None) -> list[Pair]:
    """Pair the requested states of both sides, ordered by operator."""
    sides = [{(e.state.uid, e.state.name): e for e in manifest.entries} for manifest in (old, new)]
    names = [
        state_id
        for state_id in sorted({*sides[0], *sides[1]})
        if uid in (None, state_id[0]) and name in (None, state_id[1])
    ]
    if not names and (uid is not None or name is not None):
        known = ", ".join(f"{u!r} {n!r}" for u, n in sorted({*sides[0], *sides[1]})) or "none"
        raise StateNotFoundError(
            f"neither checkpoint {old.checkpoint_id} nor {new.checkpoint_id} has "
            f"{'a state' if name is None else f'the state {name!r}'}"
            f"{'' if uid is None else f' of operator {uid!r}'}; they have (operator, state) {known}"
        )
    return [(sides[0].get(state_id), sides[1].get(state_id)) for state_id in names]


class _Comparison:
    """One running comparison: both storages, and the bytes read from each."""

    def __init__(
        self,
        a: MeteredStorage,
        b: MeteredStorage,
        keys: int,
        rule: DiffRule,
        progress: Progress,
    ) -> None:
        self.a, self.b, self._keys, self._rule, self._progress = a, b, keys, rule, progress
        self._done = self._total = 0

    def run(self, pairs: list[Pair]) -> tuple[StateDifference, ...]:
        """Compare the states, one after another."""
        self._total = sum(self._expected(*pair) for pair in pairs)
        self._progress(0, self._total)
        return tuple(self._compare_state(*pair) for pair in pairs)

    def _expected(self, a: Entry | None, b: Entry | None) -> int:
        """Return the number of key groups to compare; 1 if the state is compared as a whole."""
        if isinstance(a, KeyedEntry) and isinstance(b, KeyedEntry) and has_common_groups(a, b):
            return len(differing_groups(*self._compared_sides(a, b)))
        return 1

    def _compare_state(self, a: Entry | None, b: Entry | None) -> StateDifference:
        entry = a or b
        assert entry is not None
        difference = StateDifference(
            operator=entry.state.uid,
            state=entry.state.name,
            sort="keyed" if isinstance(entry, KeyedEntry) else "operator",
            rows_a=_row_count_if_known(a),
            rows_b=_row_count_if_known(b),
            file_rows_a=0 if a is None else a.rows,
            file_rows_b=0 if b is None else b.rows,
            changed_rows_a=a.changed_rows if isinstance(a, KeyedEntry) else 0,
            changed_rows_b=b.changed_rows if isinstance(b, KeyedEntry) else 0,
        )
        if a is None or b is None:
            rows_a, rows_b = self._count_rows(self.a, a), self._count_rows(self.b, b)
            self._report_progress()
            only = "b" if a is None else "a"
            difference = replace(difference, rows_a=rows_a, rows_b=rows_b)
            return replace(difference, only_in=only, added=rows_b, removed=rows_a)
        reduced_a, reduced_b = reduced(self._rule, a), reduced(self._rule, b)
        difference = replace(difference, others=state_others(reduced_a, reduced_b))
        names_a, names_b = reduced_a.state.schema.names, reduced_b.state.schema.names
        columns = tuple(name for name in names_a if name in names_b)
        if set(names_a) != set(names_b):
            difference = replace(difference, compared_columns=columns)
        if isinstance(a, KeyedEntry) and isinstance(b, KeyedEntry):
            return self._compare_keyed(difference, a, b)
        self._report_progress()
        if isinstance(a, OperatorEntry) and isinstance(b, OperatorEntry):
            return self._compare_operator_elements(difference, a, b)
        return replace(difference, not_compared="the state is keyed on only one side")

    def _compare_keyed(
        self, difference: StateDifference, a: KeyedEntry, b: KeyedEntry
    ) -> StateDifference:
        if sorted(a.state.identity) != sorted(b.state.identity):
            self._report_progress()
            return replace(
                difference,
                not_compared=(
                    f"rows are identified by ({', '.join(a.state.identity)}) in a, but by "
                    f"({', '.join(b.state.identity)}) in b"
                ),
            )
        sides = self._compared_sides(a, b)
        if has_common_groups(a, b):
            compared = compare_groups(*sides, self._keys, self._report_progress, self._rule)
            difference = replace(
                difference, key_groups_differing=compared.differing, key_groups_read=compared.read
            )
        else:
            self._report_progress()
            tell = digests_compare(a.state.schema, b.state.schema)
            known = not a.layers and not b.layers
            if known and tell and (a.rows, a.digest) == (b.rows, b.digest):
                return difference
            compared = compare_whole(*sides, self._keys, self._rule)
        rows_a, rows_b = difference.rows_a, difference.rows_b
        return replace(
            difference,
            rows_a=compared.rows_a if rows_a is None else rows_a,
            rows_b=compared.rows_b if rows_b is None else rows_b,
            key_groups=tuple(compared.groups),
            **compared.found,
        )

    def _compare_operator_elements(
        self, difference: StateDifference, a: OperatorEntry, b: OperatorEntry
    ) -> StateDifference:
        tell = digests_compare(a.state.schema, b.state.schema)
        if tell and (a.counts, a.digest) == (b.counts, b.digest):
            return difference
        compared = compare_elements((self.a, a), (self.b, b), self._keys)
        difference = replace(difference, **compared.found)
        if not difference.differs:
            moved = others([("order of the elements", "one", "another")])
            return replace(difference, others=moved)
        return difference

    def _compared_sides(self, a: KeyedEntry, b: KeyedEntry) -> tuple[ComparedSide, ComparedSide]:
        side_a = ComparedSide(self.a, a, b.state.schema)
        return side_a, ComparedSide(self.b, b, a.state.schema)

    def _count_rows(self, storage: Storage, entry: Entry | None) -> int:
        """Return the number of rows of a state; key groups with changes must be read for it."""
        if not isinstance(entry, KeyedEntry):
            return 0 if entry is None else entry.rows
        return ComparedSide(storage, entry, entry.state.schema).rows()

    def _report_progress(self) -> None:
        self._done += 1
        self._progress(self._done, self._total)


def _row_count_if_known(entry: Entry | None) -> int | None:
    """Return the number of rows of a state; None if its changes must be read for it."""
    if isinstance(entry, KeyedEntry):
        return None if entry.contents is None else entry.contents.rows
    return 0 if entry is None else entry.rows


def has_common_groups(a: KeyedEntry, b: KeyedEntry) -> bool:
    """Return whether each key is in the same key group on both sides (I1)."""
    old, new = a.state, b.state
    return (old.key, old.key_types, old.max_parallelism, old.hash_scheme) == (
        new.key,
        new.key_types,
        new.max_parallelism,
        new.hash_scheme,
    ) and sorted(old.identity) == sorted(new.identity)


_OPTIONS = ("chaining", "chain_different_max", "auto_generate_uids")


def graph_others(a: JobGraph | None, b: JobGraph | None) -> tuple[Other, ...]:
    """Return the differences; none if both graphs are missing.

    Operators are matched by uid, or by name if they have no uid.
    """
    if a is None or b is None:
        return others([("job graph", a and _size(a), b and _size(b))])
    options = others((name, getattr(a, name), getattr(b, name)) for name in _OPTIONS)
    return (*options, *_nodes(a, b), *_edges(a, b))


def _size(graph: JobGraph) -> str:
    return f"{len(graph.nodes)} operators"


def _nodes(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = _nodes_by_label(a), _nodes_by_label(b)
    for name in (*old, *(name for name in new if name not in old)):
        label = f"operator {name}"
        if name not in old or name not in new:
            yield from others([(label, _node(old.get(name)), _node(new.get(name)))])
            continue
        for field in fields(Node):
            values = getattr(old[name], field.name), getattr(new[name], field.name)
            yield from others([(f"{field.name} of {label}", *values)])


def _nodes_by_label(graph: JobGraph) -> dict[str, Node]:
    """Return the operators by uid, or by name if they have no uid.

    Operators with the same name are numbered.
    """
    names = [node.uid or node.name for node in graph.nodes]
    occurrences: Counter[str] = Counter()
    nodes = {}
    for name, node in zip(names, graph.nodes, strict=True):
        occurrences[name] += 1
        nodes[repr(name) if occurrences[name] == 1 else f"{name!r} ({occurrences[name]})"] = node
    return nodes


def _node(node: Node | None) -> str | None:
    return None if node is None else f"parallelism {node.parallelism}"


def _edges(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = Counter(map(_edge, a.edges)), Counter(map(_edge, b.edges))
    for edge in sorted((old - new).elements()):
        yield Other("edge", edge, None)
    for edge in sorted((new - old).elements()):
        yield Other("edge", None, edge)


def _edge(edge: Edge) -> str:
    words = [edge.partitioner and edge.partitioner.value, edge.exchange.value]
    text = ", ".join(word for word in words if word)
    return f"{edge.source} → {edge.target} (input {edge.number}, {text})"


def compare_elements(
    a: tuple[Storage, OperatorEntry],
    b: tuple[Storage, OperatorEntry],
    limit: int,
) -> ComparedRows:
    """Compare the elements of two states by their common columns, in memory.

    If all subtasks have as many elements on both sides, an element with other values at the same
    subtask and position counts as changed. In all other cases it counts as removed, and another one
    as added. An element that only moved is not counted.
    """
    old, new = elements_of(*a), elements_of(*b)
    both = comparable_tables((old, a[1].state.schema), (new, b[1].state.schema))
    if not both[0].num_columns:
        return ComparedRows()
    in_a, in_b = matched(*map(_number_duplicates, both))
    removed = np.setdiff1d(np.arange(old.num_rows), in_a, assume_unique=True)
    added = np.setdiff1d(np.arange(new.num_rows), in_b, assume_unique=True)
    changed = np.zeros(0, np.intp)
    if a[1].counts == b[1].counts:
        changed = np.intersect1d(removed, added, assume_unique=True)
        removed, added = np.setdiff1d(removed, changed), np.setdiff1d(added, changed)
    examples: list[Example] = []
    for change, *places in (
        ("changed", changed, changed),
        ("added", None, added),
        ("removed", removed, None),
    ):
        room = max(limit - len(examples), 0)
        before, after = (
            None if found is None else elements.take(pa.array(found[:room]))
            for elements, found in zip((old, new), places, strict=True)
        )
        examples += examples_of(change, before, after)
    return ComparedRows(
        added=len(added), removed=len(removed), changed=len(changed), examples=tuple(examples)
    )


def _number_duplicates(elements: pa.Table) -> pa.Table:
    """Number equal elements in a new column, which makes all of them distinct."""
    rows = elements.rename_columns([str(column) for column in range(elements.num_columns)])
    _, like = matched(rows, rows)
    order = np.argsort(like, kind="stable")
    starts = np.searchsorted(like[order], like[order])
    before = np.empty(len(order), np.intp)
    before[order] = np.arange(len(order)) - starts
    return rows.append_column("before", pa.array(before))


Pair = tuple[Entry | None, Entry | None]
