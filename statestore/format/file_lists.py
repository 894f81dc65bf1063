"""Long lists of files, each in a separate document; see listed.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from statestore.errors import MalformedManifestError
from statestore.format.digest import digest_text
from statestore.format.documents import (
    Count,
    Header,
    document_bytes,
    member_error,
    parse_document,
    prefix_place,
    report_place,
)
from statestore.format.files_json import Digest, KeyedFiles, Sha256, keyed_files_json
from statestore.format.handles import (
    KeyedStateHandle,
)
from statestore.format.listed import FileList, ListedFiles, Totals, totals_of
from statestore.format.manifest import KeyedEntry
from statestore.format.names import (
    is_file_list,
)
from statestore.format.state import KeyedState

__all__ = ["FileListDocument", "Lists", "file_list_to_json", "files_member", "listed_files"]


LIST_FORMAT = "statestore-files"
LIST_VERSION = 1
_MEND_LIST = (
    "recover it from a backup, or take a full checkpoint of this state (other states can be "
    "carried) and expire the older checkpoints"
)


@dataclass(frozen=True)
class Lists:
    """Access to the separate lists that a document names.

    ``read`` returns the bytes of a list or raises FileNotFoundError. ``name`` is the document's
    name in errors. ``known`` has the files of each part of a document that was just written, in its
    order: to make them again takes most of the time of reading.
    """

    name: str
    read: Callable[[str], bytes]
    known: Iterator[Sequence[Any]] | None = None


class FileListDocument(Struct, frozen=True):
    """A manifest's reference to a list of files."""

    path: str
    size_bytes: Count
    sha256: Sha256
    files: Count
    rows: Count
    data_bytes: Count
    digest: Digest

    def listed(self, state: KeyedState, table: str, lists: Lists, *, packed: bool) -> ListedFiles:
        """Return the files of a state; the list is read on the first access to one of them."""
        if not is_file_list(self.path):
            raise member_error(".path", f"{self.path!r} is not a valid name for a file list")
        totals = Totals(self.files, self.rows, self.data_bytes, int(self.digest, 16))
        file_list = FileList(self.path, self.size_bytes, self.sha256, totals)
        return ListedFiles(file_list, lambda: _read(file_list, state, table, lists, packed=packed))


class _ListDocument(Header, frozen=True):
    table: str
    files: KeyedFiles


def _read(
    file_list: FileList, state: KeyedState, table: str, lists: Lists, *, packed: bool
) -> tuple[KeyedStateHandle, ...]:
    name = f"{lists.name}: the file list {file_list.path} of {state}"
    try:
        raw = lists.read(file_list.path)
    except FileNotFoundError as error:
        raise MalformedManifestError(f"{name} is missing; {_MEND_LIST}") from error
    document = _parse(raw, name, (file_list.size_bytes, file_list.sha256))
    with report_place(name, ".table"):
        if document.table != table:
            raise ValueError(f"it belongs to {document.table!r} instead of {table!r}")
    with report_place(name, ".files"):
        handles = document.files.keyed(state, packed=packed)
        if totals_of(handles) != file_list.totals:
            raise ValueError(
                f"the files add up to {totals_of(handles)} instead of {file_list.totals}"
            )
    return handles


def _parse(raw: bytes, name: str, known: tuple[int, str] | None = None) -> _ListDocument:
    return parse_document(
        raw,
        _ListDocument,
        name=name,
        form=LIST_FORMAT,
        newest=LIST_VERSION,
        mend=_MEND_LIST,
        known=known,
    )


def file_list_to_json(entry: KeyedEntry, *, packed: bool) -> bytes:
    """Return the document with the list of a state's base files."""
    return document_bytes(
        {
            "format": LIST_FORMAT,
            "format_version": LIST_VERSION,
            "table": entry.table.path,
            "files": keyed_files_json(entry.handles, packed=packed),
        },
        lambda raw: _parse(raw, "the file list"),
    )


def files_member(entry: KeyedEntry, *, packed: bool = False) -> dict[str, Any]:
    """Return the member ``files`` of a state or a layer, or ``file_list`` for a separate list."""
    if not isinstance(entry.handles, ListedFiles):
        return {"files": keyed_files_json(entry.handles, packed=packed)}
    known = entry.handles.file_list
    return {
        "file_list": {
            "path": known.path,
            "size_bytes": known.size_bytes,
            "sha256": known.sha256,
            "files": known.totals.files,
            "rows": known.totals.rows,
            "data_bytes": known.totals.size_bytes,
            "digest": digest_text(known.totals.digest),
        }
    }


def listed_files(
    files: KeyedFiles | None,
    file_list: FileListDocument | None,
    state: KeyedState,
    table: str,
    lists: Lists,
    *,
    packed: bool = False,
) -> Sequence[KeyedStateHandle]:
    """Return the files of a state from a document, which must have exactly one of both members."""
    if (files is None) == (file_list is None):
        raise ValueError("exactly one of 'files' and 'file_list' must be present")
    if lists.known is not None:
        handles: Sequence[KeyedStateHandle] = next(lists.known)
        return handles
    if files is not None:
        with prefix_place(".files"):
            return files.keyed(state, packed=packed)
    assert file_list is not None  # checked above
    with prefix_place(".file_list"):
        return file_list.listed(state, table, lists, packed=packed)
