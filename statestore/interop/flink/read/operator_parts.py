"""Open the keyed state of an operator's subtasks: parse its headers and find its format.

The kind of the handle does not tell whether key groups have the canonical form, or the native form
of the heap: savepoints of RocksDB up to Flink 1.12, and its non-incremental checkpoints up to Flink
1.15, have the canonical form under a plain ``KeyGroupsStateHandle``. In the native form each key
group begins with its own number, and none has the offset 0. In the canonical form an empty key
group has the offset 0, and the others begin with the number of a state and the length of a key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    ParallelismError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.handles import (
    IncrementalHandle,
    KeyGroupsHandle,
    OperatorHandles,
    Subtask,
)
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_part import KeyedPart
from statestore.interop.flink.read.keyed_states import keyed_states
from statestore.interop.flink.read.raw_timers import TimersPart, begins_with_timers, open_timers
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.read.savepoint_files import METADATA, ByteSource, Places, open_source
from statestore.interop.flink.read.unknown_snapshots import read_whole_header
from statestore.keys.groups import KeyGroupAssignment

_NUMBER_BYTES = 4
_TRIED = 3  # a key of 64 KiB can look like the number of one key group, but not of three


def recognize_timers(operator: OperatorHandles, places: Places) -> OperatorHandles:
    """Return an operator whose raw keyed state with timers is in ``Subtask.timers``.

    Raises DamagedFileError or MissingFileError if a file is damaged or missing.
    """
    return replace(
        operator,
        subtasks=tuple(_recognize_timers(subtask, places) for subtask in operator.subtasks),
    )


def _recognize_timers(subtask: Subtask, places: Places) -> Subtask:
    raw = subtask.raw_keyed
    if not isinstance(raw, KeyGroupsHandle):
        return subtask
    if not raw.offsets:
        return replace(subtask, raw_keyed=None)
    source = open_source(raw.stream, places, f"raw keyed state of subtask {subtask.index}")
    if not begins_with_timers(raw, source):
        return subtask
    return replace(subtask, raw_keyed=None, timers=raw)


def open_parts(
    operator: OperatorHandles, places: Places, drop: Collection[Refused]
) -> Iterator[KeyedPart | TimersPart]:
    """Yield the keyed state and the timers of each subtask.

    Args:
        operator: the operator, after :func:`recognize_timers`.
        places: where its files are.
        drop: the kinds of unsupported state to ignore.

    Raises:
        FormatVersionError: for the format of another Flink.
        IncompatibleStateError or UnsupportedTypeError: for unsupported state.
        DamagedFileError or MissingFileError: if a file is damaged or missing.
    """
    for part in _set_unknown_forms([*_open_keyed(operator, places, drop)]):
        _ = part.tables  # an unsupported file concerns this operator only
        yield part
    title, prefix = _title(operator), prefix_bytes(operator.max_parallelism)
    for subtask in operator.subtasks:
        if subtask.timers is not None:
            _check_range(subtask.timers, subtask.index, operator, _metadata_file(places))
            timers = open_timers(subtask.timers, subtask.index, title, prefix, places)
            if timers is not None:
                yield timers


def _open_keyed(
    operator: OperatorHandles, places: Places, drop: Collection[Refused]
) -> Iterator[tuple[KeyedPart, bool | None]]:
    """Yield the keyed state of each subtask, and whether it is canonical, None if unknown."""
    title, prefix = _title(operator), prefix_bytes(operator.max_parallelism)
    for subtask in operator.subtasks:
        handle, what = subtask.keyed, f"keyed state of subtask {subtask.index}"
        if not isinstance(handle, KeyGroupsHandle | IncrementalHandle):
            continue
        _check_range(handle, subtask.index, operator, _metadata_file(places))
        stream, offsets = (
            (handle.meta, ())
            if isinstance(handle, IncrementalHandle)
            else (handle.stream, handle.offsets)
        )
        source = open_source(stream, places, what)
        stop = min((offset for offset in offsets if offset), default=source.size)
        data = source.read(0, min(stop, source.size))
        header = read_whole_header(data, source.name)
        if header.length != len(data):
            raise DamagedFileError(
                f"{source.name} is damaged at byte {header.length}: "
                f"{len(data) - header.length} unexpected bytes follow the header"
            )
        states = keyed_states(header, source.name, drop)
        form = False if isinstance(handle, IncrementalHandle) else _find_form(handle, source)
        part = KeyedPart(subtask.index, handle, header, states, title, prefix, places, bool(form))
        yield part, form


def _set_unknown_forms(parts: Sequence[tuple[KeyedPart, bool | None]]) -> Iterator[KeyedPart]:
    """Yield the parts; a part whose bytes do not tell its form gets the form of the other parts.

    If no part tells its form, a part is canonical if it can be read as canonical, because only that
    form has lengths and an end mark.
    """
    known = {form for _, form in parts if form is not None}
    for part, form in parts:
        if form is not None:
            yield part
        elif known:
            yield replace(part, is_canonical=known == {True})
        else:
            canonical = replace(part, is_canonical=True)
            yield canonical if _can_be_read(canonical) else part


def _can_be_read(part: KeyedPart) -> bool:
    names = [state.name for state in part.states if state is not None]
    try:
        deque(part.entries(names), maxlen=0)
    except (DamagedFileError, UnsupportedTypeError):
        return False
    return True


def _title(operator: OperatorHandles) -> str:
    return operator.uid or operator.name or operator.id


def _metadata_file(places: Places) -> str:
    return f"{places.storage.url}/{METADATA}"


def _check_range(
    handle: KeyGroupsHandle | IncrementalHandle, subtask: int, operator: OperatorHandles, name: str
) -> None:
    """Refuse key groups that do not belong to the subtask (``KeyGroupRangeAssignment``).

    The RocksDB reader reads only the subtask's own key groups, so other rows would be lost.
    """
    count = handle.count if isinstance(handle, IncrementalHandle) else len(handle.offsets)
    most, parallelism = operator.max_parallelism, operator.parallelism
    try:
        share = KeyGroupAssignment(max_parallelism=most, parallelism=parallelism)
        expected = share.range_of(subtask)
        is_right = (handle.first, count) == (expected.first, len(expected))
    except (InvalidArgumentError, ParallelismError):
        is_right = False
    if not is_right:
        raise DamagedFileError(
            f"{name} is damaged: subtask {subtask} of {parallelism} has {count} key groups "
            f"from {handle.first} on (of {most}), which it does not own"
        )


def _find_form(handle: KeyGroupsHandle, source: ByteSource) -> bool | None:
    """Return whether a subtask's keyed state is canonical; None if its bytes do not tell.

    They do not tell it if key group 0 is the only one, because both forms begin with zeros.

    Args:
        handle: the handle of the keyed state.
        source: its bytes.

    Raises:
        DamagedFileError: if a key group begins after the end of the bytes.
    """
    if handle.is_savepoint or 0 in handle.offsets:
        return True
    numbered = ((group, at) for group, at in enumerate(handle.offsets, handle.first) if group > 0)
    matches = [
        int.from_bytes(source.read(at, min(at + _NUMBER_BYTES, source.size)), "big") == group
        for group, at in islice(numbered, _TRIED)
    ]
    return not any(matches) if matches else None
