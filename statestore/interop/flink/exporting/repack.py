"""Rewrite a savepoint with another number of key groups, which Flink itself cannot do.

A key changes only in its key group, which is the prefix of the key in a savepoint, and in its
position. The values of all classes are copied unchanged; they are decoded only to detect damage, if
their types are known. The new key group is computed from the key. Before that computation is
trusted, it must yield the current key group of every key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from statestore.errors import IncompatibleStateError, StateStoreError
from statestore.interop.flink.importing.probes import ProbedKeys, probe_keys
from statestore.interop.flink.importing.stored_import import dropped_parts
from statestore.interop.flink.metadata.handles import OperatorHandles, SavepointMetadata, Subtask
from statestore.interop.flink.options import ACCESS, SavepointAccess
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_states import StateEntries
from statestore.interop.flink.read.refusals import refused_kinds
from statestore.interop.flink.read.savepoint import FlinkOperator, open_savepoint
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Spans, join_parts
from statestore.interop.flink.write import (
    EntrySort,
    Groups,
    SavepointWriter,
    join_entries,
    key_group_bytes,
    prefixes,
)
from statestore.keys.groups import KeyGroupAssignment
from statestore.rows.sorting import MEMORY_BYTES
from statestore.storage import open_storage

Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class RepackedOperator:
    """The result for an operator: its entries by state, and the number of subtasks."""

    operator_id: str
    operator: str
    parallelism: int
    max_parallelism_before: int
    """The previous number of key groups."""

    entries: Mapping[str, int]
    left_out: Mapping[str, str]
    """Dropped parts of its state, and the reasons."""


@dataclass(frozen=True)
class RepackResult:
    """A savepoint that was rewritten from another."""

    source: str
    savepoint: str
    max_parallelism: int
    operators: tuple[RepackedOperator, ...]


def repack_savepoint(
    source: str,
    target: str,
    *,
    max_parallelism: int,
    parallelism: int | None = None,
    access: SavepointAccess = ACCESS,
    key_hash: Mapping[str, str] | None = None,
    drop: Collection[str] = (),
    on_progress: Progress | None = None,
) -> RepackResult:
    """Write a canonical savepoint with another number of key groups, from which Flink restores.

    Every operator gets this max parallelism, except operators with one key group: Flink uses that
    for operators that cannot be parallel, such as an aggregate over all rows. Entries are sorted by
    their new key groups in about 256 MiB of memory. If there are more, they are spilled to a
    temporary folder.

    Args:
        source: the folder of a savepoint or checkpoint, which is only read.
        target: an empty or new folder.
        max_parallelism: the new number of key groups, 1 to 32768.
        parallelism: the number of subtasks that share keyed state; by default unchanged. Flink can
            restore the savepoint with any other.
        access: how the source's files are found and read. The storage options also apply to the
            target.
        key_hash: recipes for the hashes of keys of the job's own class, by operator, as in
            :class:`SavepointHints`.
        drop: the kinds of unsupported state to leave out instead of an error, as the names of
            :class:`Refused`.
        on_progress: a callback that receives the number of finished operators, and the total.

    Returns:
        The result for each operator.

    Raises:
        ParallelismError: if the numbers do not fit.
        InvalidArgumentError: if the source is not a savepoint, the target is not empty, or a recipe
            does not hold.
        StateNotFoundError: for a recipe of an operator that does not exist.
        UnsupportedTypeError: for a key whose hash cannot be computed from a savepoint.
        IncompatibleStateError: for state that cannot be read.
        CorruptionError: if the savepoint is damaged, or a key is in a wrong key group.
    """
    dropped_kinds = refused_kinds(drop)
    savepoint = open_savepoint(source, access=access, drop=dropped_kinds)
    shares = [
        _assign_key_groups(operator, max_parallelism, parallelism)
        for operator in savepoint.operators
    ]
    recipes = {
        savepoint.operator(name).metadata.id: recipe for name, recipe in (key_hash or {}).items()
    }
    writer = SavepointWriter(open_storage(target, access.storage_options))
    done: list[RepackedOperator] = []
    operators: list[OperatorHandles] = []
    every = zip(savepoint.metadata.operators, savepoint.operators, shares, strict=True)
    for number, (whole, operator, share) in enumerate(every):
        try:
            handles, entries = _repack_operator(
                operator, writer, share, recipes.get(operator.metadata.id)
            )
        except StateStoreError as error:
            error.add_note(f"operator {operator.title} of {savepoint.url}")
            raise
        operators.append(handles)
        previous = operator.metadata.max_parallelism
        left_out = dict(dropped_parts(whole, operator))
        done.append(
            RepackedOperator(
                handles.id, operator.title, share.parallelism, previous, entries, left_out
            )
        )
        if on_progress is not None:
            on_progress(number + 1, len(shares))
    before = savepoint.metadata
    writer.finish(
        SavepointMetadata(3, before.checkpoint_id, tuple(operators), before.master_states)
    )
    return RepackResult(savepoint.url, target, max_parallelism, tuple(done))


def _assign_key_groups(
    operator: FlinkOperator, most: int, parallelism: int | None
) -> KeyGroupAssignment:
    """Return how an operator's key groups are assigned to subtasks.

    Operator state stays with its subtask, so the parallelism cannot be lower than its subtasks.
    """
    operator.refuse_problem()
    known = operator.metadata
    subtask_count = parallelism if parallelism is not None and operator.parts else known.parallelism
    if known.max_parallelism == 1:
        most, subtask_count = 1, 1
    others = [subtask.index + 1 for subtask in known.subtasks if subtask.operator is not None]
    return KeyGroupAssignment(max_parallelism=most, parallelism=max([subtask_count, *others]))


def _repack_operator(
    operator: FlinkOperator,
    writer: SavepointWriter,
    share: KeyGroupAssignment,
    recipe: str | None,
) -> tuple[OperatorHandles, Mapping[str, int]]:
    """Write an operator's state; return its metadata with new handles, and entries by state."""
    subtasks: dict[int, Subtask] = {
        subtask.index: replace(
            subtask,
            operator=writer.copy_operator_state(subtask.operator, operator.places, operator.title),
            keyed=None,
        )
        for subtask in operator.metadata.subtasks
        if subtask.index < share.parallelism  # the others have no operator state
    }
    entries: dict[str, int] = {}
    keys = probe_keys(operator, recipe)
    header = operator.header
    if header is not None:
        places = {state.name: place for place, state in enumerate(header.states)}
        most = share.max_parallelism
        with EntrySort(most, MEMORY_BYTES) as sort:
            entries = _sort_entries(operator, keys, places, most, sort)
            groups = key_group_bytes(sort.runs(), most, is_compressed=header.is_compressed)
            for index, part in enumerate(share.ranges()):
                keyed = writer.write_keyed(header, part.first, islice(groups, len(part)))
                subtasks[index] = replace(subtasks.get(index) or Subtask(index), keyed=keyed)
    handles = replace(
        operator.metadata,
        parallelism=share.parallelism,
        max_parallelism=share.max_parallelism,
        subtasks=tuple(subtasks[index] for index in sorted(subtasks)),
    )
    return handles, entries


def _sort_entries(
    operator: FlinkOperator,
    probed: ProbedKeys,
    places: Mapping[str, int],
    most: int,
    sort: EntrySort,
) -> dict[str, int]:
    """Sort all entries of an operator by their new key groups; return the counts by state."""
    prefix = prefix_bytes(operator.metadata.max_parallelism)
    counts: dict[str, int] = {}
    for entry in operator.entries(is_checked=True):
        name, keys = entry.state.name, entry.keys
        keys = Spans(keys.data, keys.starts + prefix, keys.ends, keys.name, keys.base)
        state = probed.describe(entry.state)
        groups = _compute_groups(operator, replace(entry, state=state), keys, most)
        whole = join_parts(prefixes(groups, most), keys.arrow().cast(BYTES))
        sort.add(join_entries(whole, entry.values.arrow().cast(BYTES)), groups, places[name])
        counts[name] = counts.get(name, 0) + len(keys)
    return counts


def _compute_groups(
    operator: FlinkOperator, entries: StateEntries, keys: Spans, most: int
) -> Groups:
    """Return the new key group of each key, after checking that the old one can be computed."""
    state = entries.state
    cursor = Cursor(keys, keys.starts + state.before_key, keys.ends)
    groups_of = state.key_groups(cursor)
    known = groups_of(operator.metadata.max_parallelism)
    wrong = np.flatnonzero(known != entries.key_group)
    if len(wrong):
        raise IncompatibleStateError(
            f"{len(wrong)} of {len(keys)} keys of state {state.name!r} of operator "
            f"{operator.title} are in the wrong key group: the first is in key group "
            f"{entries.key_group}, but its hash belongs to {known[wrong[0]]}. The savepoint is "
            "damaged, or the job uses another hash"
        )
    return groups_of(most)
