"""The data files of a state in a manifest, stored column by column."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, Struct

from statestore.format.digest import digest_text
from statestore.format.documents import (
    Count,
    member_error,
)
from statestore.format.handles import (
    Footer,
    GroupIndex,
    Handle,
    KeyedStateHandle,
    OperatorStateHandle,
    file_ranges,
)
from statestore.format.names import (
    is_operator_file,
    is_ranged_file,
    key_group_of_file,
)
from statestore.format.state import KeyedState, Layout
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupRange

__all__ = ["Digest", "Files", "KeyedFiles", "files_json", "keyed_files_json"]

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
