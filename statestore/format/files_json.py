"""The data files and layers of a state in a manifest, stored column by column, and lists of files.

A long list of files is a separate document; ``handles.py`` gives the reason.

A document may have been written by anybody, so its names are not trusted: only names that its
writer would create are accepted. A state's table must be in its operator's folder, and a data file
must have the name of such a file. Such names cannot lead out of the store or into another state's
table.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

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
from statestore.format.handles import (
    FileList,
    Footer,
    GroupIndex,
    Handle,
    KeyedStateHandle,
    ListedFiles,
    OperatorStateHandle,
    Totals,
    file_ranges,
    totals_of,
)
from statestore.format.layers import change_state
from statestore.format.manifest import Entry, KeyedEntry, Layer, TableRef
from statestore.format.names import (
    is_file_list,
    is_operator_file,
    is_ranged_file,
    key_group_of_file,
    table_of,
)
from statestore.format.state import KeyedState, Layout, OperatorState
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupRange

Sort = Literal["keyed", "changes", "operator"]


def refuse_foreign_folder(
    path: str, sort: Sort, state: KeyedState | OperatorState, member: str, relabelled: bool
) -> None:
    """Refuse a path, found in ``member``, that is not the folder of this state's table.

    If ``relabelled``, the operator may have had another label when the table was created. That can
    happen to an operator that has a place in a job graph but no uid.
    """
    folder = table_of(path)
    own = folder is not None and folder[1:] == (sort, state.name)
    if folder is None or not own or (folder[0] != state.uid and not relabelled):
        message = f"{path!r} is not a valid folder for the {sort} table of {state}"
        raise member_error(member, message)


def duplicate_problem(folders: Iterable[tuple[str, str, str]]) -> str | None:
    """Return a message about two states with the same name or table; None if all differ.

    ``folders`` has (operator uid, state, path) of each state.
    """
    states: set[tuple[str, str]] = set()
    owners: dict[str, tuple[str, str]] = {}
    for uid, state, path in folders:
        if (uid, state) in states:
            return f"state {state!r} of operator {uid!r} occurs twice"
        if path in owners:
            return f"states {owners[path]} and {(uid, state)} have the same table {path!r}"
        states.add((uid, state))
        owners[path] = uid, state
    return None


_UNKNOWN = Footer(0, "")

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
"""A digest as :func:`statestore.format.digest.digest_text` writes it."""

Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_KeyGroup = Annotated[int, Meta(ge=0, lt=MAX_PARALLELISM)]


class Files(Struct, frozen=True, kw_only=True):
    """The files of a state, stored column by column; each column has one item per file."""

    path: tuple[str, ...]
    rows: tuple[Count, ...]
    size_bytes: tuple[Count, ...]
    row_groups: tuple[Count, ...]
    digest: tuple[Digest, ...]
    sha256: tuple[Sha256, ...]
    footer_bytes: tuple[Count, ...] | None = None
    footer_sha256: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse columns of different lengths, except ``hosts``."""
        for name in self.__struct_fields__:
            column = getattr(self, name)
            if name != "hosts" and column is not None and len(column) != len(self.path):
                raise ValueError(
                    f"the arrays differ in length: {name!r} has {len(column)} values, but "
                    f"'path' has {len(self.path)}"
                )
        if self.footer_bytes is not None and self.footer_sha256 is None:
            raise ValueError("'footer_sha256' is missing")

    def _columns(self) -> tuple[Sequence[Any], ...]:
        """Return the columns that files of any state have, in the order of a handle's members."""
        digests = [int(text, 16) for text in self.digest]
        return self.path, self.rows, self.size_bytes, self.row_groups, digests, self.sha256

    def _footers(self) -> Sequence[Footer | None]:
        """Return the footer of each file, None if it is unknown."""
        if self.footer_bytes is None or self.footer_sha256 is None:
            return [None] * len(self.path)
        footers = zip(self.footer_bytes, self.footer_sha256, strict=True)
        return [Footer(size, sha256) if size else None for size, sha256 in footers]

    def handles(self) -> tuple[OperatorStateHandle, ...]:
        """Return the handles of an operator state's files."""
        self._refuse_names(map(is_operator_file, self.path), "operator")
        return tuple(map(OperatorStateHandle, *self._columns(), self._footers()))

    def _refuse_names(self, own: Iterable[bool], sort: str) -> None:
        """Refuse a file whose name, according to ``own``, is not a data file's."""
        for path, is_own in zip(self.path, own, strict=True):
            if not is_own:
                raise member_error(
                    ".path", f"{path!r} is not a valid name for a data file of {sort} state"
                )


class KeyedFiles(Files, frozen=True, kw_only=True):
    """The files of a keyed state; a ranged file also has figures for each of its key groups."""

    first: tuple[_KeyGroup, ...]
    last: tuple[_KeyGroup, ...]
    hosts: tuple[str, ...] | None = None
    host: tuple[Count, ...] | None = None
    group_rows: tuple[bytes, ...] | None = None
    group_digests: tuple[bytes, ...] | None = None

    def keyed(self, state: KeyedState, *, packed: bool = False) -> tuple[KeyedStateHandle, ...]:
        """Return the handles of a state's files, as written by :func:`keyed_files_json`."""
        key_groups = file_ranges(self.first, self.last).key_groups
        refuse_disorder(key_groups, state.max_parallelism)
        indexes: Sequence[GroupIndex | None] = [None] * len(self.path)
        path, *rest = self._columns()
        digests = rest[-2]
        own: Iterable[bool]
        if state.layout is Layout.PARTITIONED:
            places = map(key_group_of_file, self.path)
            own = (a == b == c for a, b, c in zip(places, self.first, self.last, strict=True))
        else:
            own = map(is_ranged_file, self.path)
            indexes = self._indexes(digests, packed) if self.path else ()
        self._refuse_names(own, state.layout)
        columns = (path, key_groups, *rest, self._hosts(), indexes, self._footers())
        return tuple(map(KeyedStateHandle, *columns))

    def _hosts(self) -> Sequence[str]:
        if self.hosts is None:
            return [""] * len(self.path)
        if self.host is None or max(self.host, default=-1) >= len(self.hosts):
            raise member_error(".host", "the number of hosts differs from the number of files")
        return [self.hosts[index] for index in self.host]

    def _indexes(self, digests: Sequence[int], packed: bool) -> list[GroupIndex]:
        """Return the index of each file, which must add up to the file's rows and digest."""
        if self.group_rows is None or self.group_digests is None:
            raise ValueError("'group_rows' or 'group_digests' is missing")
        columns = (self.path, self.first, self.last, self.rows, digests)
        indexes = []
        for path, first, last, rows, digest, of_rows, of_digests in zip(
            *columns, self.group_rows, self.group_digests, strict=True
        ):
            groups = last + 1 - first
            if packed:
                of_rows = _unpack(of_rows, 8 * groups)
                of_digests = _unpack(of_digests, 8 * groups)
            if not 8 * groups == len(of_rows) == len(of_digests):
                raise member_error(
                    ".group_rows",
                    f"{path} covers {groups} key groups, but has another number of values",
                )
            index = GroupIndex(of_rows, of_digests)
            if index.rows_in(0, groups) != rows:
                message = f"the rows per key group of {path} do not add up to its row count"
                raise member_error(".group_rows", message)
            if index.digest_in(0, groups) != digest:
                message = f"the digests per key group of {path} do not add up to its digest"
                raise member_error(".group_digests", message)
            indexes.append(index)
        return indexes


def keyed_files_json(
    handles: Sequence[KeyedStateHandle], *, packed: bool = False
) -> dict[str, Any]:
    """Return the JSON of a keyed state's files.

    With ``packed``, figures per key group are compressed: with few changes, most key groups are
    empty.
    """
    return (
        files_json(handles)
        | {
            "first": [handle.key_groups.first for handle in handles],
            "last": [handle.key_groups.last for handle in handles],
        }
        | _hosts_json(handles)
        | _index_json(handles, packed)
    )


def files_json(handles: Sequence[Handle]) -> dict[str, Any]:
    """Return the columns that files of any state have."""
    return {
        "path": [handle.path for handle in handles],
        "rows": [handle.rows for handle in handles],
        "size_bytes": [handle.size_bytes for handle in handles],
        "row_groups": [handle.row_groups for handle in handles],
        "digest": [digest_text(handle.digest) for handle in handles],
        "sha256": [handle.sha256 for handle in handles],
        **_footers_json(handles),
    }


def _footers_json(
    handles: Sequence[Handle],
) -> dict[str, Any]:
    """Return length and checksum of each file's footer, 0 and "" for an unknown one.

    The result is empty if all footers are unknown.
    """
    footers = [handle.footer or _UNKNOWN for handle in handles]
    if all(footer is _UNKNOWN for footer in footers):
        return {}
    return {
        "footer_bytes": [footer.size_bytes for footer in footers],
        "footer_sha256": [footer.sha256 for footer in footers],
    }


def _hosts_json(handles: Sequence[KeyedStateHandle]) -> dict[str, Any]:
    """Return the distinct hosts, and each file's index in them; empty if no file has a host."""
    hosts = sorted({handle.host for handle in handles})
    if not any(hosts):
        return {}
    number = {host: index for index, host in enumerate(hosts)}
    return {"hosts": hosts, "host": [number[handle.host] for handle in handles]}


def _index_json(handles: Sequence[KeyedStateHandle], packed: bool) -> dict[str, Any]:
    """Return rows and digests per key group, for files of several key groups; empty otherwise."""
    indexes = [handle.index for handle in handles if handle.index is not None]
    if not indexes:
        return {}
    text_of = _pack if packed else _text
    return {
        "group_rows": [text_of(index.rows) for index in indexes],
        "group_digests": [text_of(index.digests) for index in indexes],
    }


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


# Cached, because every checkpoint names the layers of earlier checkpoints again.
@lru_cache(maxsize=256)
def _pack(raw: bytes) -> str:
    return _text(zlib.compress(raw, level=1))


def _unpack(raw: bytes, size: int) -> bytes:
    """Decompress at most ``size`` + 1 bytes.

    More is not decompressed, because a megabyte can expand to a gigabyte.
    """
    try:
        return zlib.decompressobj().decompress(raw, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def refuse_disorder(ranges: Iterable[KeyGroupRange], max_parallelism: int) -> None:
    """Refuse key groups that are duplicated, out of order, or not in the state.

    A plan relies on the order, because it searches files by bisection.
    """
    next_free = 0
    for span in ranges:
        if not next_free <= span.first <= span.last < max_parallelism:
            raise ValueError(
                f"the key groups {span} are duplicate, out of order, or not below max "
                f"parallelism {max_parallelism}"
            )
        next_free = span.last + 1


LIST_FORMAT = "statestore-files"
LIST_VERSION = 1
_LIST_REMEDY = (
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
        raise MalformedManifestError(f"{name} is missing; {_LIST_REMEDY}") from error
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
        remedy=_LIST_REMEDY,
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


def layers_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return the member ``changes`` of a state; empty for a state without layers."""
    if not entry.layers:
        return {}
    return {
        "changes": [
            {
                "checkpoint": layer.checkpoint_id,
                "depth": layer.depth,
                "live": [[span.first, span.last] for span in layer.live],
                "path": layer.entry.table.path,
                "rows": layer.entry.rows,
                "digest": digest_text(layer.entry.digest),
                **files_member(layer.entry, packed=True),
            }
            for layer in entry.layers
        ]
    }


class LayerDocument(Struct, frozen=True):
    """A layer of changes."""

    checkpoint: Count
    depth: Count
    live: tuple[tuple[Count, Count], ...]
    path: str
    rows: Count
    digest: Digest
    files: KeyedFiles | None = None
    file_list: FileListDocument | None = None

    def layer(self, stored: KeyedState, lists: Lists) -> Layer:
        """Return the layer; ``stored`` describes how its changes are stored."""
        handles = listed_files(self.files, self.file_list, stored, self.path, lists, packed=True)
        entry = KeyedEntry(stored, TableRef("parquet", self.path), handles)
        refuse_other_totals(entry, self, ("rows", "digest"))
        with prefix_place(".live"):
            live = tuple(KeyGroupRange(first, last) for first, last in self.live)
            refuse_disorder(live, stored.max_parallelism)
        return Layer(entry, self.checkpoint, self.depth, live)


def layers_of(
    changes: Sequence[LayerDocument], state: KeyedState, lists: Lists, *, relabelled: bool
) -> tuple[Layer, ...]:
    """Return the layers of a state; ``relabelled`` is as in :func:`refuse_foreign_folder`."""
    stored = change_state(state) if changes else state
    layers = []
    for index, changed in enumerate(changes):
        with prefix_place(f".changes[{index}]"):
            refuse_foreign_folder(changed.path, "changes", state, ".path", relabelled)
            layers.append(changed.layer(stored, lists))
    return tuple(layers)


def refuse_other_totals(entry: Entry, document: object, members: Iterable[str]) -> None:
    """Refuse totals in a document that differ from the sums of its files."""
    for member in members:
        actual, recorded = getattr(entry, member), getattr(document, member)
        actual = digest_text(actual) if member == "digest" else actual
        if recorded != actual:
            raise member_error(
                f".{member}", f"the manifest says {recorded}, but the files add up to {actual}"
            )
