"""A savepoint becomes one with another number of key groups, which Flink itself refuses to make.

Of a key only its key group changes, those bytes with which it begins in a savepoint, and with that
its place. Values are never looked into, so state of any class goes through. The key group is the
product's own function of the key, and before it is trusted it has to say where each key lies now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from statestore.errors import IncompatibleStateError, StateStoreError
from statestore.interop.flink.canonical import (
    KeyedHeader,
    StateInfo,
    key_group_bytes,
    prefix_bytes,
)
from statestore.interop.flink.canonical_writer import SavepointWriter
from statestore.interop.flink.cursor import Cursor
from statestore.interop.flink.key_groups import key_groups_at
from statestore.interop.flink.metadata import OperatorState, SavepointMetadata, Subtask
from statestore.interop.flink.savepoint import FlinkOperator, open_savepoint
from statestore.interop.flink.spans import Spans
from statestore.interop.flink.states import KeyedState
from statestore.keys.groups import KeyGroupAssignment
from statestore.storage import open_storage

__all__ = ["Repacked", "RepackedOperator", "repack_savepoint"]

_TIME_BYTES = 8
Progress: TypeAlias = Callable[[int, int], None]
Group: TypeAlias = dict[int, list[tuple[bytes, bytes]]]
"""The entries of a key group, by the place of their state; keys have no key group yet."""


@dataclass(frozen=True)
class RepackedOperator:
    """What was done to an operator: its entries by state, and how many subtasks share them."""

    id: str
    title: str
    parallelism: int
    was: int
    """The number of key groups that it had."""

    entries: Mapping[str, int]


@dataclass(frozen=True)
class Repacked:
    """A savepoint that was made of another."""

    source: str
    target: str
    max_parallelism: int
    operators: tuple[RepackedOperator, ...]


def repack_savepoint(
    source: str,
    target: str,
    *,
    max_parallelism: int,
    parallelism: int | None = None,
    moved: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Repacked:
    """Make a canonical savepoint with another number of key groups, from which Flink restores.

    Every operator gets this maximum, but for those with one key group: Flink gives that to what
    cannot be parallel, such as an aggregate over all rows, and it stays. The state of one operator
    at a time is held in memory.

    Args:
        source: the folder of a savepoint or checkpoint, which is only read.
        target: a folder that is empty or not there.
        max_parallelism: the new number of key groups, 1 to 32768.
        parallelism: among how many subtasks keyed state is shared; by default as it was. A restore
            may be at any other.
        moved: where folders lie now that the source names by absolute paths.
        options: for the file system of both, as of ``open_storage``.
        on_progress: is told how many operators are done, and of how many.

    Returns:
        What was done.

    Raises:
        ParallelismError: when the numbers do not fit.
        InvalidArgumentError: when the source is no savepoint, or the target is not empty.
        UnsupportedTypeError: for a key whose hash no savepoint tells.
        IncompatibleStateError: for state that cannot be read.
        CorruptionError: when the savepoint is damaged, or a key lies in another key group than it
            should.
    """
    savepoint = open_savepoint(source, moved=moved, options=options)
    shares = [_share(one, max_parallelism, parallelism) for one in savepoint.operators]
    writer = SavepointWriter(open_storage(target, options))
    done: list[RepackedOperator] = []
    operators: list[OperatorState] = []
    for number, (operator, share) in enumerate(zip(savepoint.operators, shares, strict=True)):
        try:
            made, entries = _repacked(operator, writer, share)
        except StateStoreError as error:
            error.add_note(f"operator {operator.title} of {savepoint.url}")
            raise
        operators.append(made)
        was = operator.metadata.max_parallelism
        done.append(RepackedOperator(made.id, operator.title, share.parallelism, was, entries))
        if on_progress is not None:
            on_progress(number + 1, len(shares))
    before = savepoint.metadata
    writer.finish(
        SavepointMetadata(3, before.checkpoint_id, tuple(operators), before.master_states)
    )
    return Repacked(savepoint.url, target, max_parallelism, tuple(done))


def _share(operator: FlinkOperator, most: int, parallelism: int | None) -> KeyGroupAssignment:
    """Return among how many subtasks an operator's state is shared.

    State that is not keyed stays with its subtask, so there cannot be fewer.
    """
    if operator.problem is not None:
        raise IncompatibleStateError(f"operator {operator.title} is not read: {operator.problem}")
    known = operator.metadata
    wanted = parallelism if parallelism is not None and operator.parts else known.parallelism
    if known.max_parallelism == 1:
        most, wanted = 1, 1
    others = [one.index + 1 for one in known.subtasks if one.operator is not None]
    return KeyGroupAssignment(max_parallelism=most, parallelism=max([wanted, *others]))


def _repacked(
    operator: FlinkOperator, writer: SavepointWriter, share: KeyGroupAssignment
) -> tuple[OperatorState, Mapping[str, int]]:
    """Write an operator's state; return it with its new handles, and its entries by state."""
    subtasks: dict[int, Subtask] = {
        one.index: replace(
            one, operator=writer.copied(one.operator, operator.places, operator.title), keyed=None
        )
        for one in operator.metadata.subtasks
    }
    entries: dict[str, int] = {}
    if operator.parts:
        header = _united([one.header for one in operator.parts])
        piles = _piles(operator)
        groups = _sorted(operator, header, piles, share.max_parallelism)
        prefix = prefix_bytes(share.max_parallelism)
        entries = {
            one.name: len(piles[one.name].keys) for one in header.states if one.name in piles
        }
        for index, part in enumerate(share.ranges()):
            written = (
                _group_bytes(groups, number, prefix, header.is_compressed) for number in part
            )
            keyed = writer.keyed(header, part.first, written)
            subtasks[index] = replace(subtasks.get(index) or Subtask(index), keyed=keyed)
    made = replace(
        operator.metadata,
        parallelism=share.parallelism,
        max_parallelism=share.max_parallelism,
        subtasks=tuple(subtasks[index] for index in sorted(subtasks)),
    )
    return made, entries


def _united(headers: list[KeyedHeader]) -> KeyedHeader:
    """Return a header with the states of all, each as the one that says most of it has it.

    A subtask knows only those subclasses that it met.
    """
    states: dict[str, StateInfo] = {}
    for header in headers:
        for state in header.states:
            known = states.get(state.name)
            if known is None or _said(state) > _said(known):
                states[state.name] = state
    return replace(headers[0], states=tuple(states.values()))


def _said(state: StateInfo) -> int:
    return sum(len(one.raw) for one in state.serializers.values())


@dataclass(frozen=True)
class _Pile:
    """All entries of a state: keys without their key group, values, and the key groups."""

    keys: list[bytes]
    values: list[bytes]
    groups: list[int]

    def new_groups(self, operator: FlinkOperator, state: KeyedState, most: int) -> list[int]:
        """Return the key group of each among ``most``, once it is known to say the present one."""
        spans = Spans.of(self.keys, f"a key of state {state.name!r} of operator {operator.title}")
        starts = spans.starts + (_TIME_BYTES if state.kind == "timers" else 0)
        groups_of = key_groups_at(state.key, Cursor(spans, starts, spans.ends))
        known = groups_of(operator.metadata.max_parallelism)
        wrong = np.flatnonzero(known != np.array(self.groups, np.int32))
        if len(wrong):
            raise IncompatibleStateError(
                f"{len(wrong)} of {len(self.keys)} keys of state {state.name!r} of operator "
                f"{operator.title} do not lie in the key group that follows from them, the first "
                f"in {self.groups[wrong[0]]} and not in {known[wrong[0]]}: the savepoint is "
                "damaged, or the job hashes them in another way"
            )
        found: list[int] = groups_of(most).tolist()
        return found


def _piles(operator: FlinkOperator) -> dict[str, _Pile]:
    """Return the entries of an operator by state."""
    prefix = prefix_bytes(operator.metadata.max_parallelism)
    piles: dict[str, _Pile] = {}
    for found in operator.entries():
        pile = piles.setdefault(found.state.name, _Pile([], [], []))
        pile.keys.extend(_pieces(found.keys, prefix))
        pile.values.extend(_pieces(found.values, 0))
        pile.groups.extend([found.key_group] * len(found.keys))
    return piles


def _sorted(
    operator: FlinkOperator, header: KeyedHeader, piles: Mapping[str, _Pile], most: int
) -> dict[int, Group]:
    """Return the entries by their new key groups."""
    groups: dict[int, Group] = {}
    for place, info in enumerate(header.states):
        pile = piles.get(info.name)
        if pile is not None:
            new = pile.new_groups(operator, operator.state(info.name), most)
            for number, entry in zip(new, zip(pile.keys, pile.values, strict=True), strict=True):
                groups.setdefault(number, {}).setdefault(place, []).append(entry)
    return groups


def _group_bytes(groups: Mapping[int, Group], number: int, prefix: int, packs: bool) -> bytes:
    """Return a key group as it is written, with its number before each key."""
    group = groups.get(number)
    if group is None:
        return b""
    before = number.to_bytes(prefix, "big")
    states = [
        (place, [(before + key, value) for key, value in entries])
        for place, entries in sorted(group.items())
    ]
    return key_group_bytes(states, is_compressed=packs)


def _pieces(spans: Spans, skipped: int) -> list[bytes]:
    data = spans.data.tobytes()
    starts = (spans.starts + skipped).tolist()
    return [data[start:end] for start, end in zip(starts, spans.ends.tolist(), strict=True)]
