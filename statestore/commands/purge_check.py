"""Is a key gone from a store? Every file that is left is looked at, whoever left it.

Data files of the operator's keyed states and of their changes are read, live or not; of all other
files, documents and Delta logs and the data of other operators and of operator state among them,
the bytes are searched. Data files are compressed: that the bytes of one of another operator do not
show a key does not say that its rows do not have it. A purge of that operator does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    MalformedManifestError,
    StateNotFoundError,
    StateStoreError,
)
from statestore.files.lookup import key_batch
from statestore.format.handles import Handle
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
from statestore.storage import Storage
from statestore.table.key_search import KeyNeedles, in_bytes, in_delta_log, in_rows, needles_of

__all__ = ["KeySearch", "WhereKeyIs", "check_purged"]


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
                    handles |= {f"{part.table.path}/{one.path}": one for one in part.handles}
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
