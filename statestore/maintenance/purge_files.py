"""The files that hold a key, and the same files without it: each is read once and written once.

Base and layers of changes are looked at as what lies in files: a layer may hold rows of the key, or
deletes of it, whether or not they count. Checkpoints that are layers over one base share most of
their files, so what is known of one, and what has taken its place, is kept for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    FormatVersionError,
    MalformedManifestError,
    MissingFileError,
    StateNotFoundError,
    StateStoreError,
)
from statestore.files.equality import found
from statestore.files.keyed import KeyedTarget
from statestore.files.lookup import key_batch, key_group_of, table_of_key
from statestore.files.reader import open_data
from statestore.files.statistics import bound_forms
from statestore.files.types import arrow_schema
from statestore.files.writer import ParquetOptions
from statestore.files.written import WrittenFiles
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.names import (
    CHECKPOINTS,
    changes_table,
    checkpoint_id_of,
    is_data_file,
    keyed_table,
    operator_folder,
    unescape,
)
from statestore.format.state import KeyedState
from statestore.maintenance.rewrite import changes_of, rewrite
from statestore.storage import Storage
from statestore.storage.base import named

__all__ = [
    "SHORTEST_TEXT",
    "Hit",
    "KeyFinder",
    "KeyNeedles",
    "KeyRewriter",
    "KeySearch",
    "WhereKeyIs",
    "check_purged",
    "in_bytes",
    "in_delta_log",
    "in_rows",
    "needles_of",
]

File = tuple[str, KeyedStateHandle]


@dataclass(frozen=True)
class Hit:
    """A state of a checkpoint that holds a key: where, in how many rows, and in which files."""

    entry: KeyedEntry
    key: Any
    key_group: int
    rows: int
    files: frozenset[File]


class KeyFinder:
    """Looks a key up in the files of many checkpoints."""

    def __init__(self, storage: Storage) -> None:
        """Begin with nothing known."""
        self._storage = storage
        self._known: dict[File, int] = {}

    def hits(
        self, entries: Iterable[KeyedEntry], key_of: Callable[[KeyedState], Any]
    ) -> tuple[Hit, ...]:
        """Return those of the states of a checkpoint that hold the key.

        Raises InvalidArgumentError for a key that does not fit, or CorruptionError.
        """
        return tuple(hit for hit in (self._hit(one, key_of(one.state)) for one in entries) if hit)

    def _hit(self, entry: KeyedEntry, key: Any) -> Hit | None:
        group = key_group_of(entry.state, key_batch(entry.state, key))
        found = {
            (part.table.path, handle): rows
            for part in entry.parts
            for handle in part.handles
            if group in handle.key_groups and (rows := self._rows(part, handle, key))
        }
        return Hit(entry, key, group, sum(found.values()), frozenset(found)) if found else None

    def _rows(self, part: KeyedEntry, handle: KeyedStateHandle, key: Any) -> int:
        file = part.table.path, handle
        if file not in self._known:
            alone = replace(part, handles=(handle,))
            self._known[file] = table_of_key(self._storage, alone, key).num_rows
        return self._known[file]


class KeyRewriter:
    """Writes files anew without a key, and knows what has taken the place of which."""

    def __init__(self, storage: Storage, options: ParquetOptions) -> None:
        """Begin with nothing written."""
        self._storage, self._options = storage, options
        self._done: dict[File, tuple[KeyedStateHandle, ...]] = {}

    def without_key(self, hit: Hit, checkpoint_id: int) -> tuple[KeyedEntry, list[str]]:
        """Return the state without the key, and the names of the files that were written for it;
        a layer of which nothing is left is gone.

        Raises MissingFileError, DamagedFileError or StorageError; then nothing that this call has
        written stays.
        """
        new = WrittenFiles(self._storage)
        try:
            base, *changes = [
                self._without(part, hit, checkpoint_id, new) for part in hit.entry.parts
            ]
        except BaseException as error:
            new.delete(error)
            raise
        layers = zip(hit.entry.layers, changes, strict=True)
        left = tuple(replace(layer, entry=part) for layer, part in layers if part.handles)
        return replace(hit.entry, handles=base.handles, layers=left), new.names

    def _without(
        self, part: KeyedEntry, hit: Hit, checkpoint_id: int, new: WrittenFiles
    ) -> KeyedEntry:
        handles: list[KeyedStateHandle] = []
        folder = part.table.path
        for handle in part.handles:
            file = folder, handle
            if file not in hit.files:
                handles.append(handle)
                continue
            if file not in self._done:
                alone = replace(part, handles=(handle,))
                target = KeyedTarget.of(self._storage, part, checkpoint_id, self._options)
                gone = changes_of(part.state, [hit.key], ())
                done = rewrite(self._storage, alone, gone, target)
                self._done[file] = done.new
                new.add(folder, done.new)
            handles += self._done[file]
        return replace(part, handles=tuple(handles))


# Where in a store a key is still to be found: rows of data files, and bytes of all others.
#
# Of the operator's keyed states every data file is read, whether or not a manifest names it: its
# key columns, batch by batch. Of every other file the bytes are searched for the key's text, as it
# is and as JSON escapes it; what is short is found by chance, and so is not searched for. Delta
# logs are read besides: their statistics hold least and greatest keys, numbers and dates too, and a
# long text cut off.


SHORTEST_TEXT = 4
"""Text of fewer bytes is in many files by chance."""

_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class KeyNeedles:
    """A key as it may lie in files that are not data: bytes, per key column the forms of its text,
    and the values that a Delta log may have for it. No bytes when some column's cannot be searched.
    """

    texts: tuple[tuple[bytes, ...], ...]
    values: tuple[tuple[Any, ...], ...]


def needles_of(wanted: pa.RecordBatch) -> KeyNeedles:
    """Return what to look for of a key, one row as ``key_batch`` returns it."""
    columns = list(wanted.to_pylist()[0].values())
    texts = tuple(_texts(value) for value in columns if isinstance(value, str))
    values = tuple(bound_forms(value) for value in columns)
    return KeyNeedles(texts if texts and all(texts) else (), values)


def in_rows(
    storage: Storage,
    name: str,
    state: KeyedState,
    wanted: pa.RecordBatch,
    handle: Handle | None,
) -> int | None:
    """Return how many rows of a data file have the key; None when it is no whole Parquet file.

    ``handle`` is that of a manifest that names the file, None when none does.
    """
    key = pa.Table.from_batches([wanted])
    keys = _keys if handle is None else partial(_keys_of, handle)
    try:
        batches = keys(storage, name, arrow_schema(state.schema.select(state.key)))
        return sum(len(found(pa.Table.from_batches([one]), key)[0]) for one in batches)
    except (FileNotFoundError, MissingFileError):
        return 0  # collected since it was listed
    except (DamagedFileError, pa.ArrowException, LookupError, ValueError):
        return None


def _keys_of(
    handle: Handle, storage: Storage, name: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of a file that is held against its handle."""
    with open_data(storage, name.removesuffix(f"/{handle.path}"), handle) as file:
        yield from file.batches(range(handle.row_groups), schema)


def _keys(storage: Storage, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of a file of which nothing is known."""
    with (
        named("read", f"{storage.url}/{name}"),
        closing(storage.open_read(name)) as opened,
        pq.ParquetFile(pa.PythonFile(opened, mode="r")) as file,
    ):
        for batch in file.iter_batches(columns=list(schema.names), use_threads=False):
            yield batch.select(schema.names).cast(schema)


def in_bytes(storage: Storage, name: str, needles: KeyNeedles) -> bool:
    """Return whether a file has the text of the key, of several columns that of each."""
    if not needles.texts:
        return False
    missing = list(needles.texts)
    longest = max(len(text) for texts in missing for text in texts)
    tail = b""
    for chunk in _chunks(storage, name):
        window = tail + chunk
        missing = [texts for texts in missing if not any(text in window for text in texts)]
        if not missing:
            return True
        tail = window[-longest:]
    return False


def in_delta_log(storage: Storage, name: str, needles: KeyNeedles) -> bool:
    """Return whether an entry of a Delta log, JSON or Parquet, has the key among its values."""
    missing = list(needles.values)
    for value in _bounds(_documents(storage, name)):
        missing = [values for values in missing if not any(_same(value, one) for one in values)]
        if not missing:
            return True
    return False


def _texts(value: str) -> tuple[bytes, ...]:
    if len(value.encode()) < SHORTEST_TEXT:
        return ()
    escaped = json.dumps(value)[1:-1]
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    forms = {value, escaped, plain, json.dumps(escaped)[1:-1], json.dumps(plain)[1:-1]}
    return tuple(form.encode() for form in sorted(forms))


def _same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal; a decimal may be written as an integer."""
    kinds = {type(left), type(right)}
    return (len(kinds) == 1 or kinds == {int, Decimal}) and bool(left == right)


def _chunks(storage: Storage, name: str) -> Iterator[bytes]:
    try:
        with (
            named("read", f"{storage.url}/{name}"),
            closing(storage.open_read(name)) as file,
        ):
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except FileNotFoundError:
        return  # collected since it was listed


def _documents(storage: Storage, name: str) -> Iterator[Any]:
    """Yield what an entry of a log says: each line of JSON, or each row of Parquet."""
    raw = b"".join(_chunks(storage, name))
    if not name.endswith(".parquet"):
        yield from _lines(raw)
        return
    try:
        with pq.ParquetFile(pa.BufferReader(raw)) as file:
            for batch in file.iter_batches(use_threads=False):
                yield from batch.to_pylist()
    except (pa.ArrowException, LookupError, ValueError):
        return  # no whole file: its bytes are searched as well


def _lines(raw: bytes) -> Iterator[Any]:
    for line in raw.splitlines():
        try:
            yield json.loads(line, parse_float=Decimal)
        except ValueError:
            continue  # no JSON: its bytes are searched as well


def _bounds(values: Iterator[Any] | Sequence[Any]) -> Iterator[Any]:
    """Yield the least and greatest values that documents have, also as JSON within JSON."""
    for value in values:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name in ("minValues", "maxValues") and isinstance(inner, dict):
                    yield from inner.values()
                else:
                    yield from _bounds([inner])
        elif isinstance(value, list | tuple):
            yield from _bounds(value)
        elif isinstance(value, str) and value.startswith(("{", "[")):
            yield from _bounds([*_lines(value.encode())])


# Is a key gone from a store? Every file that is left is looked at, whoever left it.
#
# Data files of the operator's keyed states and of their changes are read, live or not; of all other
# files, documents and Delta logs and the data of other operators and of operator state among them,
# the bytes are searched. Data files are compressed: that the bytes of one of another operator do
# not show a key does not say that its rows do not have it. A purge of that operator does.


@dataclass(frozen=True)
class WhereKeyIs:
    """A file that has the key, and how: ``rows`` of a data file, or None for its bytes."""

    file: str
    what: str
    rows: int | None


@dataclass(frozen=True, kw_only=True)
class KeySearch:
    """What was looked at, and what still has the key; names are relative to the store.

    ``unreadable`` are data files that are no whole Parquet files, as a crashed writer leaves them:
    of these only bytes were searched. ``searched_bytes`` says whether files were searched for the
    key's bytes: not for keys that are no text, or too short.
    """

    store: str
    uid: str
    files: int
    size_bytes: int
    searched_bytes: bool
    found: tuple[WhereKeyIs, ...]
    unreadable: tuple[str, ...]

    @property
    def problem(self) -> StateStoreError | None:
        """The error that says that the key is there, None when it is gone."""
        if not self.found:
            return None
        number = "1 file" if len(self.found) == 1 else f"{len(self.found)} files"
        return StateStoreError(
            f"the key is still in {number} of {self.store}, the first is {self.found[0].file}; "
            "after a purge, collect garbage: 'statestore gc' deletes files once they are old enough"
        )


def check_purged(
    catalog: Catalog,
    uid: str,
    key_of: Callable[[KeyedState], Any],
    *,
    name: str | None,
    progress: Callable[[int, int], None],
) -> KeySearch:
    """Look through the whole store for a key of an operator, or of its state ``name`` alone.

    ``progress`` hears of bytes, and of how many. Raises StateNotFoundError,
    InvalidArgumentError for a key that does not fit, or StorageError.
    """
    storage = catalog.storage
    states, handles = _states(catalog, uid, name)
    tables = {
        folder: (state, key_batch(state, key_of(state)))
        for state in states.values()
        for folder in (keyed_table(uid, state.name), changes_table(uid, state.name))
    }
    needles = {needles_of(wanted) for _, wanted in tables.values()}
    listing = [item for item in storage.listed("") if not item.name.endswith("/")]
    total, done = sum(item.size_bytes for item in listing), 0
    found: list[WhereKeyIs] = []
    unreadable = []
    for item in listing:
        progress(done, total)
        table = next((t for t in tables if item.name.startswith(f"{t}/")), None)
        rows: int | None = None
        if table is not None and is_data_file(item.name):
            rows = in_rows(storage, item.name, *tables[table], handles.get(item.name))
            if rows is None:
                unreadable.append(item.name)
            elif rows:
                found.append(WhereKeyIs(item.name, "rows of the key", rows))
        if rows is None and (what := _elsewhere(storage, item.name, needles)) is not None:
            found.append(WhereKeyIs(item.name, what, None))
        done += item.size_bytes
    progress(total, total)
    return KeySearch(
        store=storage.url,
        uid=uid,
        files=len(listing),
        size_bytes=total,
        searched_bytes=any(each.texts for each in needles),
        found=tuple(found),
        unreadable=tuple(unreadable),
    )


def _elsewhere(storage: Storage, name: str, needles: set[KeyNeedles]) -> str | None:
    """Return how a file that is none of the state's data has the key, None when it has not."""
    if "/_delta_log/" in name and any(in_delta_log(storage, name, each) for each in needles):
        return "statistics of a Delta log"
    if any(in_bytes(storage, name, each) for each in needles):
        return "the bytes of the key"
    return None


def _states(
    catalog: Catalog, uid: str, name: str | None
) -> tuple[dict[str, KeyedState], dict[str, Handle]]:
    """Return the keyed states of an operator in any checkpoint whose manifest is there, and their
    files by name.
    """
    found: dict[str, KeyedState] = {}
    handles: dict[str, Handle] = {}
    identities = filter(None, map(checkpoint_id_of, catalog.storage.list(CHECKPOINTS)))
    numbers = sorted((number for number, is_tombstone in identities if not is_tombstone))
    for number in numbers:
        try:
            manifest = catalog.manifest(number)
        except (CheckpointNotFoundError, MalformedManifestError, FormatVersionError):
            continue  # what it names lies in the tables of the others
        for entry in manifest.keyed:
            if entry.state.uid == uid and name in (None, entry.state.name):
                found[entry.state.name] = entry.state
                for part in entry.parts:
                    handles |= {part.table.name_of(one): one for one in part.handles}
    if not found:
        wanted = f"state {name!r} of operator {uid!r}" if name else f"keyed state of {uid!r}"
        raise StateNotFoundError(
            f"no {wanted} in any checkpoint of {catalog.storage.url}; its folders are "
            f"{', '.join(_folders(catalog.storage)) or 'none'}"
        )
    return found, handles


def _folders(storage: Storage) -> list[str]:
    """Return the operators that have files."""
    root = operator_folder("x").removesuffix("/x")
    parts = {name.split("/")[1] for name in storage.list(root)}
    return sorted(repr(unescape(part)) for part in parts)
