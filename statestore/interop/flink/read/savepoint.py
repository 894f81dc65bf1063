"""A savepoint or checkpoint of a Flink job: its operators, their states, and the states' rows.

``open_savepoint`` reads ``_metadata`` and the headers. Rows are read in order of key group. One
block of a canonical key group is in memory at a time, or one native key group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from statestore.errors import (
    CorruptionError,
    DamagedFileError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    StateNotFoundError,
    StateStoreError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    OperatorHandles,
    RelativeHandle,
    SavepointMetadata,
    SegmentHandle,
    StreamHandle,
)
from statestore.interop.flink.metadata.metadata_file import read_metadata
from statestore.interop.flink.options import ACCESS, SavepointAccess
from statestore.interop.flink.read.canonical import KeyedHeader, merge_headers, prefix_bytes
from statestore.interop.flink.read.keyed_part import KeyedPart, TimersPart
from statestore.interop.flink.read.keyed_states import (
    FlinkState,
    SavepointRows,
    StateEntries,
    check_key_groups,
)
from statestore.interop.flink.read.operator_parts import open_parts, recognize_timers
from statestore.interop.flink.read.operator_state import (
    OperatorStateInfo,
    SubtaskElements,
    read_descriptions,
    read_operator_state,
)
from statestore.interop.flink.read.refusals import Refused, drop_refused
from statestore.interop.flink.read.savepoint_files import (
    METADATA,
    SavepointFiles,
    open_location,
    open_source,
    read_metadata_file,
)
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.jobgraph.operators import operator_id
from statestore.keys.groups import KeyGroupRange


@dataclass(frozen=True)
class FlinkOperator:
    """An operator of a savepoint.

    ``problem`` is the reason why its state cannot be read, or None. ``states`` are its keyed
    states, merged by name over all subtasks, because subtasks can have different states.
    ``error_type`` is the type of the error for it.
    """

    metadata: OperatorHandles
    states: tuple[FlinkState, ...]
    problem: str | None
    places: SavepointFiles
    parts: tuple[KeyedPart | TimersPart, ...]
    error_type: type[StateStoreError] = IncompatibleStateError

    @property
    def is_damaged(self) -> bool:
        """Whether it cannot be read because a file is damaged or missing."""
        return issubclass(self.error_type, CorruptionError)

    def refuse_problem(self) -> None:
        """Raise the error of its ``problem``, if it has one."""
        if self.problem is not None:
            raise self.error_type(f"cannot read operator {self.title}: {self.problem}")

    @property
    def title(self) -> str:
        """The operator's name in messages: its uid, name or id, the first that is known."""
        return _title(self.metadata)

    @property
    def header(self) -> KeyedHeader | None:
        """The merged header of the operator's keyed states; None if it has no keyed state."""
        if not self.parts:
            return None
        whole = merge_headers([part.header for part in self.parts])
        known = {state.name for state in self.states}
        return replace(whole, states=tuple(state for state in whole.states if state.name in known))

    @property
    def size_bytes(self) -> int:
        """The size of its keyed state in bytes, according to its handles."""
        return sum(_size(part.handle) for part in self.parts)

    def state(self, name: str) -> FlinkState:
        """Return the keyed state with this name; StateNotFoundError if it does not exist."""
        for state in self.states:
            if state.name == name:
                return state
        raise StateNotFoundError(
            f"operator {self.title} has no keyed state {name!r}; it has "
            f"{', '.join(state.name for state in self.states) or 'none'}"
        )

    def entries(
        self,
        *names: str,
        key_groups: KeyGroupRange | None = None,
        is_checked: bool = False,
    ) -> Iterator[StateEntries]:
        """Yield the entries of keyed states as bytes; by default of all states and key groups.

        The entries of a large key group come in several parts.

        With ``is_checked`` each entry is decoded with the types of its state. This is done only for
        entries that are delimited by their lengths alone and have no checksum. Other entries are
        already verified while they are read.

        Raises:
            StateNotFoundError: if no state has one of the names.
            IncompatibleStateError: if the operator has unsupported state; see ``problem``.
            DamagedFileError or MissingFileError: if a file is damaged or missing.
            UnsupportedTypeError: for values of the hashmap backend whose end cannot be determined.
        """
        self.refuse_problem()
        wanted = {self.state(name).name for name in names} or {state.name for state in self.states}
        for part in self.parts:
            with _note_location(f"in the {part.name}"):
                for entry in part.entries(wanted, key_groups):
                    state = part.states[entry.state]
                    if state is None:
                        continue
                    entries = StateEntries(state, entry.key_group, entry.keys, entry.values)
                    if is_checked and part.is_bare:
                        with _note_location(
                            f"in state {state.name!r}, key group {entry.key_group}"
                        ):
                            _check_entries(entries, self._prefix)
                    yield entries

    def rows(
        self,
        *names: str,
        as_bytes: Collection[str] = (),
        declared: FlinkState | None = None,
        key_groups: KeyGroupRange | None = None,
        is_checked: bool = True,
        most_bytes: int | None = None,
    ) -> Iterator[SavepointRows]:
        """Yield the rows of keyed states, by column.

        If the hash of the key type is known, the key group of each key is computed with Flink's
        hash. It must match the key group in which the key is stored.

        Args:
            names: the states; by default all.
            as_bytes: the states whose values stay bytes, which Kryo values require.
            declared: a state with types that its header does not have, such as a PyFlink state.
            key_groups: the key groups whose rows are read; by default all.
            is_checked: whether key groups are compared. If False, the caller must do it.
            most_bytes: how many bytes of entries are decoded at a time; by default as many as are
                read at a time.

        Yields:
            Rows of one state in one key group; a large key group comes in several parts.

        Raises:
            UnsupportedTypeError: for a type without a column type, or a value that does not fit
                into its column.
            DamagedFileError: if a file is damaged, or a key is stored in the wrong key group.
            StateNotFoundError, IncompatibleStateError or MissingFileError: as :meth:`entries`.
        """
        for entries in self.entries(*names, key_groups=key_groups):
            if declared is not None and declared.name == entries.state.name:
                entries = replace(entries, state=declared)
            for part in [entries] if most_bytes is None else entries.parts(most_bytes):
                yield self._read_rows(part, as_bytes, is_checked)

    def operator_state(self, exclude: Collection[str] = ()) -> Iterator[SubtaskElements]:
        """Yield operator state by subtask, except the states named in ``exclude``.

        A stream that has only excluded states is not read. Raises the errors of :meth:`entries`.
        """
        for subtask, handle, what in _operator_streams(self, exclude):
            with _note_location(f"in the {what}"):
                source = open_source(handle.stream, self.places, what)
                for elements in read_operator_state(source, handle, subtask):
                    if elements.info.name not in exclude:
                        yield elements

    @property
    def _prefix(self) -> int:
        return prefix_bytes(self.metadata.max_parallelism)

    def _read_rows(
        self, entries: StateEntries, as_bytes: Collection[str], is_checked: bool
    ) -> SavepointRows:
        state, key_group = entries.state, entries.key_group
        where = f"state {state.name!r} of operator {self.title}"
        with _note_location(f"in {where}, key group {key_group}"):
            rows = entries.rows(self._prefix, as_bytes=state.name in as_bytes)
        if not is_checked:
            return rows
        before = self._prefix + state.before_key
        cursor = Cursor(entries.keys, entries.keys.starts + before, entries.keys.ends)
        check_key_groups(state, cursor, key_group, self.metadata.max_parallelism, where)
        return rows


def describe_operator_state(
    operator: FlinkOperator, exclude: Collection[str] = ()
) -> tuple[OperatorStateInfo, ...]:
    """Return the operator states, of which only the descriptions are read.

    ``exclude`` are the names of states to skip. Raises the errors of :meth:`FlinkOperator.entries`.
    """
    described: dict[str, OperatorStateInfo] = {}
    for _, handle, what in _operator_streams(operator, exclude):
        with _note_location(f"in the {what}"):
            source = open_source(handle.stream, operator.places, what)
            for info in read_descriptions(source, handle):
                described.setdefault(info.name, info)
    return tuple(described.values())


def _operator_streams(
    operator: FlinkOperator, exclude: Collection[str]
) -> Iterator[tuple[int, OperatorHandle, str]]:
    """Yield the subtask, handle and name of each stream that has a state other than ``exclude``."""
    for subtask in operator.metadata.subtasks:
        handle = subtask.operator
        if handle is not None and not {part.name for part in handle.parts} <= {*exclude}:
            yield (
                subtask.index,
                handle,
                f"operator state of {operator.title}, subtask {subtask.index}",
            )


@contextmanager
def _note_location(where: str) -> Iterator[None]:
    """Add the location ``where`` to an error that is raised inside the block.

    Errors that Python and Arrow raise for invalid bytes become errors of this package. This is a
    last resort, because such an error cannot name the byte.
    """
    try:
        yield
    except StateStoreError as error:
        error.add_note(where)
        raise
    except MemoryError as error:
        raise StorageError(
            f"not enough memory for the bytes {where}: use a machine with more memory"
        ) from error
    except pa.ArrowException as error:
        raise DamagedFileError(f"the bytes {where} do not fit their types: {error}") from error


def _check_entries(entries: StateEntries, prefix: int) -> None:
    """Refuse entries that do not match the types of their state.

    Without this check, an entry with a corrupted length could silently swallow other entries.
    Values without a column type are not decoded. Raises the errors of
    :meth:`StateEntries.rows`.
    """
    for as_bytes in (False, True):
        with suppress(UnsupportedTypeError):
            entries.rows(prefix, as_bytes=as_bytes)
            return


def _title(metadata: OperatorHandles) -> str:
    return metadata.uid or metadata.name or metadata.id


def _size(handle: KeyGroupsHandle | IncrementalHandle) -> int:
    if isinstance(handle, KeyGroupsHandle):
        return _stream_size(handle.stream)
    return sum(_stream_size(stream) for _, stream in (*handle.shared, *handle.private))


def _stream_size(stream: StreamHandle) -> int:
    if isinstance(stream, InlineHandle):
        return len(stream.data)
    if isinstance(stream, FileHandle | RelativeHandle | SegmentHandle):
        return stream.size
    return 0


@dataclass(frozen=True)
class FlinkSavepoint:
    """A savepoint or checkpoint: its URL, its parsed ``_metadata``, and its operators."""

    url: str
    metadata: SavepointMetadata
    operators: tuple[FlinkOperator, ...]

    def operator(self, name: str) -> FlinkOperator:
        """Return the operator with this uid, name or id.

        Savepoints before version 5 contain no uids. There the operator is found by the id that
        Flink derives from the uid. Raises StateNotFoundError if no operator matches, and
        InvalidArgumentError if several operators have the name.
        """
        for key, value in (("uid", name), ("id", name), ("id", operator_id(name)), ("name", name)):
            matching = [
                operator for operator in self.operators if getattr(operator.metadata, key) == value
            ]
            if len(matching) > 1:
                raise InvalidArgumentError(
                    f"{len(matching)} operators are named {name!r}: use an operator id, "
                    f"{', '.join(operator.metadata.id for operator in matching)}"
                )
            if matching:
                return matching[0]
        raise StateNotFoundError(
            f"{self.url} has no operator {name!r}; it has "
            f"{', '.join(operator.title for operator in self.operators) or 'none'}"
        )


def open_savepoint(
    place: str,
    *,
    access: SavepointAccess = ACCESS,
    drop: Collection[Refused] = (),
) -> FlinkSavepoint:
    """Open a savepoint or checkpoint.

    Args:
        place: its folder or its ``_metadata`` file, as a path or URL.
        access: how the savepoint's files are found and read.
        drop: the kinds of state to ignore, as if the savepoint did not contain them.

    Returns:
        Its operators. An operator that cannot be read has a ``problem``; the others stay readable.

    Raises:
        InvalidArgumentError: if the ``_metadata`` file does not exist.
        DamagedFileError: if ``_metadata`` does not follow Flink's format.
        FormatVersionError: if its version is not supported.
        StorageError: if it cannot be read, or needs more memory than there is.
    """
    return parse_savepoint(*read_location(place, access), drop)


def read_location(place: str, access: SavepointAccess) -> tuple[bytes, SavepointFiles]:
    """Return the content of a savepoint's ``_metadata``, and the locations of its files.

    Raises the errors of :func:`open_savepoint`.
    """
    folder = place.rstrip("/").removesuffix(f"/{METADATA}")
    storage = open_location("." if folder == METADATA else folder, access.storage_options)
    try:
        data = read_metadata_file(storage)
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"{storage.url} is not a Flink savepoint or checkpoint: it has no file '{METADATA}'"
        ) from None
    return data, SavepointFiles(storage, access.storage_options, access.moved, tuple(access.allow))


def parse_savepoint(
    data: bytes, places: SavepointFiles, drop: Collection[Refused] = ()
) -> FlinkSavepoint:
    """Return the savepoint with this ``_metadata`` content and its files in ``places``.

    Raises the errors of :func:`open_savepoint`.
    """
    savepoint = parse_unopened(data, places)
    ids = [operator.metadata.id for operator in savepoint.operators]
    return open_operators(savepoint, ids, drop)


def parse_unopened(data: bytes, places: SavepointFiles) -> FlinkSavepoint:
    """Return a savepoint of which only ``_metadata`` was read; its operators have no states.

    Raises the errors of :func:`open_savepoint`.
    """
    url = places.storage.url
    with _note_location(f"in the savepoint {url}"):
        metadata = read_metadata(data, f"{url}/{METADATA}")
    operators = (FlinkOperator(operator, (), None, places, ()) for operator in metadata.operators)
    return FlinkSavepoint(url, metadata, tuple(operators))


def open_operators(
    savepoint: FlinkSavepoint, ids: Collection[str], drop: Collection[Refused] = ()
) -> FlinkSavepoint:
    """Return an unopened savepoint with the states of some operators, by id.

    No file of another operator is read. ``drop`` are the kinds of state to ignore.
    """
    opened = [
        _open_operator(operator.metadata, operator.places, drop)
        if operator.metadata.id in ids
        else (operator.metadata, operator)
        for operator in savepoint.operators
    ]
    metadata = replace(savepoint.metadata, operators=tuple(whole for whole, _ in opened))
    return FlinkSavepoint(savepoint.url, metadata, tuple(operator for _, operator in opened))


def _open_operator(
    whole: OperatorHandles, places: SavepointFiles, drop: Collection[Refused]
) -> tuple[OperatorHandles, FlinkOperator]:
    """Return an operator with all its handles, and without the kinds of state in ``drop``.

    An error of one operator does not concern the others, so it becomes the operator's problem.
    """
    selected, parts = whole, list[KeyedPart | TimersPart]()
    problem: str | None = None
    error_type: type[StateStoreError] = IncompatibleStateError
    with _note_location(f"in operator {_title(whole)}"):
        try:
            places.refuse_outside_files(whole)
            selected = whole = recognize_timers(whole, places)
            subtasks = tuple(drop_refused(subtask, drop) for subtask in whole.subtasks)
            selected = replace(whole, subtasks=subtasks)
            parts = list(open_parts(selected, places, drop))
        except (
            FormatVersionError,  # an old Flink
            IncompatibleStateError,  # a kind of state that is not supported
            InvalidArgumentError,  # a type or file system that is not supported
        ) as error:
            problem = str(error)
        except (DamagedFileError, MissingFileError) as error:
            problem, error_type = str(error), type(error)
    states: dict[str, FlinkState] = {}
    for state in (state for part in parts for state in part.states):
        if state is not None:
            states.setdefault(state.name, state)
    operator = FlinkOperator(
        selected, tuple(states.values()), problem, places, tuple(parts), error_type
    )
    return whole, operator
