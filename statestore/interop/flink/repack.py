"""A savepoint becomes one with another number of key groups, which Flink itself refuses to make.

Of a key only its key group changes, those bytes with which it begins in a savepoint, and with that
its place. Values are never looked into, so state of any class goes through. The key group is the
product's own function of the key, and before it is trusted it has to say where each key lies now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from statestore.errors import (
    IncompatibleStateError,
    MissingFileError,
    StateStoreError,
)
from statestore.interop.flink.canonical import (
    KeyedHeader,
    StateInfo,
    key_group_bytes,
    prefix_bytes,
    read_header,
    read_key_group,
)
from statestore.interop.flink.canonical_writer import METADATA, SavepointWriter
from statestore.interop.flink.cursor import Cursor
from statestore.interop.flink.key_groups import key_groups_at
from statestore.interop.flink.metadata import (
    EmptyHandle,
    FileHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    OperatorState,
    RelativeHandle,
    SavepointMetadata,
    StreamHandle,
    Subtask,
    read_metadata,
)
from statestore.interop.flink.spans import Spans
from statestore.keys.groups import KeyGroupAssignment
from statestore.storage import Storage, open_storage

__all__ = ["Repacked", "RepackedOperator", "repack_savepoint"]

_TIME_BYTES = 8
Progress: TypeAlias = Callable[[int, int], None]
Group: TypeAlias = dict[int, list[tuple[bytes, bytes]]]
"""The entries of a key group, by the place of their state in the header."""


@dataclass(frozen=True)
class RepackedOperator:
    """What was done to an operator: its entries by state, and how many subtasks share them."""

    id: str
    name: str | None
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


@dataclass(frozen=True)
class _Source:
    """The savepoint that is read."""

    storage: Storage

    def read(self, handle: StreamHandle, what: str) -> tuple[bytes, str]:
        """Return the bytes of a stream, and what messages call them."""
        match handle:
            case InlineHandle(_, data):
                return data, f"{self.storage.url}/{METADATA} ({what})"
            case RelativeHandle(path):
                return self._file(self.storage, path, what)
            case FileHandle(path):
                folder, _, name = path.rpartition("/")
                return self._file(open_storage(folder), name, what)
            case EmptyHandle() | None:
                return b"", self.storage.url
        raise IncompatibleStateError(
            f"{what} lies in a file that several share: take a canonical savepoint of the job"
        )

    def _file(self, storage: Storage, name: str, what: str) -> tuple[bytes, str]:
        try:
            return storage.read(name), f"{storage.url}/{name}"
        except FileNotFoundError as error:
            raise MissingFileError(
                f"{storage.url}/{name} is missing, which holds {what}"
            ) from error


def repack_savepoint(
    source: str,
    target: str,
    *,
    max_parallelism: int,
    parallelism: int | None = None,
    on_progress: Progress | None = None,
) -> Repacked:
    """Make a savepoint with another number of key groups, from which Flink restores.

    Every operator gets this maximum. The state of one operator at a time is held in memory.

    Args:
        source: the folder of a canonical savepoint, which is only read.
        target: a folder that is empty or not there.
        max_parallelism: the new number of key groups, 1 to 32768.
        parallelism: among how many subtasks keyed state is shared; by default as it was. A restore
            may be at any other.
        on_progress: is told how many operators are done, and of how many.

    Returns:
        What was done.

    Raises:
        ParallelismError: when the numbers do not fit.
        InvalidArgumentError: when the target is not empty.
        UnsupportedTypeError: for a key whose hash no savepoint tells, or a serializer that is not
            known.
        IncompatibleStateError: for state in another than the canonical form.
        CorruptionError: when the savepoint is damaged, or a key lies in another key group than it
            should.
    """
    storage = open_storage(source.removesuffix(f"/{METADATA}"))
    opened = _Source(storage)
    metadata = read_metadata(*_metadata(storage))
    plans = [_planned(one, max_parallelism, parallelism) for one in metadata.operators]
    writer = SavepointWriter(open_storage(target))
    done: list[RepackedOperator] = []
    operators: list[OperatorState] = []
    for number, (operator, shared_by) in enumerate(zip(metadata.operators, plans, strict=True)):
        try:
            made, entries = _repacked(opened, writer, operator, max_parallelism, shared_by)
        except StateStoreError as error:
            error.add_note(f"operator {operator.uid or operator.name or operator.id} of {source}")
            raise
        operators.append(made)
        name = operator.uid or operator.name
        done.append(
            RepackedOperator(operator.id, name, shared_by, operator.max_parallelism, entries)
        )
        if on_progress is not None:
            on_progress(number + 1, len(plans))
    writer.finish(
        SavepointMetadata(3, metadata.checkpoint_id, tuple(operators), metadata.master_states)
    )
    return Repacked(source, target, max_parallelism, tuple(done))


def _metadata(storage: Storage) -> tuple[bytes, str]:
    name = f"{storage.url}/{METADATA}"
    try:
        return storage.read(METADATA), name
    except FileNotFoundError as error:
        raise MissingFileError(f"{name} is missing: this is the folder of no savepoint") from error


def _planned(operator: OperatorState, most: int, parallelism: int | None) -> int:
    """Return among how many subtasks an operator's state is shared.

    State that is not keyed stays with its subtask, so there cannot be fewer.
    """
    has_keyed = any(one.keyed is not None for one in operator.subtasks)
    shared_by = parallelism if parallelism is not None and has_keyed else operator.parallelism
    others = [one.index for one in operator.subtasks if one.operator or one.raw_operator]
    shared_by = max([shared_by, *(index + 1 for index in others)])
    KeyGroupAssignment(max_parallelism=most, parallelism=shared_by)  # checks the two
    for subtask in operator.subtasks:
        if subtask.raw_keyed is not None or subtask.channels:
            what = "records in flight" if subtask.channels else "raw keyed state"
            raise IncompatibleStateError(
                f"operator {operator.id} has {what}, as a checkpoint may: take a canonical "
                "savepoint of the job"
            )
        if subtask.keyed is not None and not (
            isinstance(subtask.keyed, KeyGroupsHandle) and subtask.keyed.is_savepoint
        ):
            raise IncompatibleStateError(
                f"operator {operator.id} has keyed state in its backend's own form: take a "
                "canonical savepoint of the job"
            )
    return shared_by


def _repacked(
    source: _Source, writer: SavepointWriter, operator: OperatorState, most: int, shared_by: int
) -> tuple[OperatorState, Mapping[str, int]]:
    """Write an operator's state; return it with its new handles, and its entries by state."""
    subtasks: dict[int, Subtask] = {
        one.index: replace(
            one,
            operator=_copied(source, writer, one.operator),
            raw_operator=_copied(source, writer, one.raw_operator),
            keyed=None,
        )
        for one in operator.subtasks
    }
    streams = [
        _Stream.read(source, one.keyed, operator.max_parallelism)
        for one in operator.subtasks
        if isinstance(one.keyed, KeyGroupsHandle)
    ]
    entries: dict[str, int] = {}
    if streams:
        header = _united([one.header for one in streams])
        groups: dict[int, Group] = {}
        for stream in streams:
            stream.sort_into(groups, header, most, entries)
        shares = KeyGroupAssignment(max_parallelism=most, parallelism=shared_by).ranges()
        for index, part in enumerate(shares):
            written = (_group_bytes(groups.get(number), header) for number in part)
            keyed = writer.keyed(header, part.first, written)
            subtasks[index] = replace(subtasks.get(index) or Subtask(index), keyed=keyed)
    found = tuple(subtasks[index] for index in sorted(subtasks))
    made = replace(operator, parallelism=shared_by, max_parallelism=most, subtasks=found)
    return made, entries


def _copied(
    source: _Source, writer: SavepointWriter, handle: OperatorHandle | None
) -> OperatorHandle | None:
    if handle is None or isinstance(handle.stream, InlineHandle):
        return handle
    data, _ = source.read(handle.stream, "operator state")
    return OperatorHandle(handle.parts, writer.file([data]))


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


def _group_bytes(group: Group | None, header: KeyedHeader) -> bytes:
    if not group:
        return b""
    return key_group_bytes(sorted(group.items()), is_compressed=header.is_compressed)


@dataclass(frozen=True)
class _Stream:
    """The keyed state of one subtask, as it is."""

    header: KeyedHeader
    handle: KeyGroupsHandle
    data: bytes
    name: str
    max_parallelism: int

    @staticmethod
    def read(source: _Source, handle: KeyGroupsHandle, max_parallelism: int) -> _Stream:
        data, name = source.read(handle.stream, "keyed state")
        return _Stream(read_header(data, name), handle, data, name, max_parallelism)

    def sort_into(
        self, groups: dict[int, Group], united: KeyedHeader, most: int, entries: dict[str, int]
    ) -> None:
        """Put every entry into its new key group, and count those of each state."""
        places = {state.name: place for place, state in enumerate(united.states)}
        for place, (keys, values, old) in self._by_state().items():
            state = self.header.states[place]
            new = self._new_groups(state, keys, old, most)
            entries[state.name] = entries.get(state.name, 0) + len(keys)
            width, at = prefix_bytes(most), places[state.name]
            prefixes = {int(one): int(one).to_bytes(width, "big") for one in np.unique(new)}
            for number, key, value in zip(new.tolist(), keys, values, strict=True):
                entry = (prefixes[number] + key, value)
                groups.setdefault(number, {}).setdefault(at, []).append(entry)

    def _by_state(self) -> dict[int, tuple[list[bytes], list[bytes], list[int]]]:
        """Return, by the state's place, keys without their key group, values, and key groups."""
        found: dict[int, tuple[list[bytes], list[bytes], list[int]]] = {}
        prefix = prefix_bytes(self.max_parallelism)
        for number, begin, end in self._places():
            piece = memoryview(self.data)[begin:end]
            for one in read_key_group(piece, self.header, number, prefix, self.name, begin):
                keys, values, groups = found.setdefault(one.state, ([], [], []))
                keys += _pieces(one.keys, prefix)
                values += _pieces(one.values, 0)
                groups += [number] * len(one.keys)
        return found

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yield each key group that has entries, and where in the stream it lies."""
        begins = sorted(offset for offset in self.handle.offsets if offset)
        ends = dict(zip(begins, [*begins[1:], len(self.data)], strict=True))
        for number, offset in enumerate(self.handle.offsets, self.handle.first):
            if offset:
                yield number, offset, ends[offset]

    def _new_groups(self, state: StateInfo, keys: list[bytes], old: list[int], most: int) -> _Array:
        spans = Spans.of(keys, f"{self.name} (a key of state {state.name!r})")
        starts = spans.starts + (_TIME_BYTES if state.kind == "timers" else 0)
        groups_of = key_groups_at(self.header.key.kind, Cursor(spans, starts, spans.ends))
        wrong = np.flatnonzero(groups_of(self.max_parallelism) != np.array(old, np.int32))
        if len(wrong):
            raise IncompatibleStateError(
                f"{len(wrong)} of {len(keys)} keys of state {state.name!r} in {self.name} do not "
                "lie in the key group that follows from them: the job hashes them in another way"
            )
        return groups_of(most)


_Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


def _pieces(spans: Spans, skipped: int) -> list[bytes]:
    data = spans.data.tobytes()
    starts = (spans.starts + skipped).tolist()
    return [data[start:end] for start, end in zip(starts, spans.ends.tolist(), strict=True)]
