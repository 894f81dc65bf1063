"""The data files of a state as a manifest has them: column by column, and back."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from statestore.format.digest import digest_text
from statestore.format.documents import Node
from statestore.format.handles import (
    Footer,
    GroupIndex,
    Handle,
    KeyedStateHandle,
    OperatorStateHandle,
)
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry, Layer, TableRef
from statestore.format.names import is_operator_file, is_ranged_file, key_group_of_file, table_of
from statestore.format.state import KeyedState
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupRange

__all__ = [
    "files_json",
    "keyed_files_json",
    "keyed_handles",
    "layers_json",
    "layers_of",
    "operator_handles",
    "refuse_foreign_folder",
    "refuse_misplaced_files",
    "refuse_other_files",
    "what_is_twice",
]

_UNKNOWN = Footer(0, "")
_SHOWN = 80


def keyed_files_json(
    handles: Sequence[KeyedStateHandle], *, packed: bool = False
) -> dict[str, Any]:
    """Return the files of a keyed state; with ``packed`` what is said per key group is
    compressed: of few changes most key groups have none.
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


def keyed_handles(
    files: Node, *, indexed: bool, packed: bool = False
) -> tuple[KeyedStateHandle, ...]:
    """Return the files that :func:`keyed_files_json` wrote; ``indexed`` says that each states what
    its key groups have. MalformedManifestError, or another error for the caller to place.
    """
    paths, *rest = _columns(files)
    first, last = files.at("first"), files.at("last")
    if not len(paths) == len(first.numbers()) == len(last.numbers()):
        raise first.fail("the arrays differ in length")
    if max(last.numbers(), default=0) >= MAX_PARALLELISM:
        raise last.fail(f"key groups are below {MAX_PARALLELISM}, found {max(last.numbers())}")
    ranges = map(KeyGroupRange, first.numbers(), last.numbers())
    sizes = [8 * max(0, b + 1 - a) for a, b in zip(first.numbers(), last.numbers(), strict=True)]
    hosts, indexes = _hosts(files), _indexes(files, indexed, packed, sizes)
    handles = tuple(map(KeyedStateHandle, paths, ranges, *rest, hosts, indexes, _footers(files)))
    _check_indexes(files, handles)
    return handles


def operator_handles(files: Node) -> tuple[OperatorStateHandle, ...]:
    """Return the files of an operator state that :func:`files_json` wrote; errors as of
    :func:`keyed_handles`.
    """
    return tuple(map(OperatorStateHandle, *_columns(files), _footers(files)))


def files_json(handles: Sequence[Handle]) -> dict[str, Any]:
    """Return what there is of files of any state, column by column."""
    return {
        "path": [handle.path for handle in handles],
        "rows": [handle.rows for handle in handles],
        "size_bytes": [handle.size_bytes for handle in handles],
        "row_groups": [handle.row_groups for handle in handles],
        "digest": [digest_text(handle.digest) for handle in handles],
        "sha256": [handle.sha256 for handle in handles],
        **_footers_json(handles),
    }


def _columns(files: Node) -> list[tuple[Any, ...]]:
    """Return what there is of every file, column by column, of one length."""
    columns: list[tuple[Any, ...]] = [
        files.at("path").texts(),
        files.at("rows").numbers(),
        files.at("size_bytes").numbers(),
        files.at("row_groups").numbers(),
        tuple(int(text, 16) for text in _hexes(files.at("digest"), 16)),
        _hexes(files.at("sha256"), 64),
    ]
    if len({len(column) for column in columns}) != 1:
        raise files.fail("the arrays differ in length")
    return columns


def _hexes(node: Node, digits: int) -> tuple[str, ...]:
    """Return the value, an array of lower-case hex numbers of so many digits."""
    texts = node.texts()
    for text in texts:
        if len(text) != digits or text.strip("0123456789abcdef"):
            raise node.fail(f"expected {digits} hex digits, found {text[:_SHOWN]!r}")
    return texts


def _footers_json(
    handles: Sequence[Handle],
) -> dict[str, Any]:
    """Return length and checksum of each file's footer, 0 and nothing where it is not known;
    nothing at all when none is.
    """
    footers = [handle.footer or _UNKNOWN for handle in handles]
    if all(footer is _UNKNOWN for footer in footers):
        return {}
    return {
        "footer_bytes": [footer.size_bytes for footer in footers],
        "footer_sha256": [footer.sha256 for footer in footers],
    }


def _footers(files: Node) -> list[Footer | None]:
    """Return the footer of each file, None where it is not known."""
    count = len(files.at("path").texts())
    sizes = files.maybe("footer_bytes")
    if sizes is None:
        return [None] * count
    sums = files.at("footer_sha256").texts()
    if not count == len(sizes.numbers()) == len(sums):
        raise sizes.fail("the arrays differ in length")
    return [
        Footer(size, sha256) if size else None
        for size, sha256 in zip(sizes.numbers(), sums, strict=True)
    ]


def _hosts_json(handles: Sequence[KeyedStateHandle]) -> dict[str, Any]:
    """Return each host once, and per file which it is; nothing when no file has one."""
    hosts = sorted({handle.host for handle in handles})
    if not any(hosts):
        return {}
    number = {host: at for at, host in enumerate(hosts)}
    return {"hosts": hosts, "host": [number[handle.host] for handle in handles]}


def _index_json(handles: Sequence[KeyedStateHandle], packed: bool) -> dict[str, Any]:
    """Return, per file of several key groups, the rows and digests of each; else nothing."""
    found = [handle.index for handle in handles if handle.index is not None]
    if not found:
        return {}
    pack = zlib.compress if packed else bytes
    return {
        "group_rows": [b64encode(pack(index.rows)).decode() for index in found],
        "group_digests": [b64encode(pack(index.digests)).decode() for index in found],
    }


def _hosts(files: Node) -> list[str]:
    """Return the host of each file, empty where none is known."""
    count = len(files.at("first").numbers())
    hosts = files.maybe("hosts")
    if hosts is None:
        return [""] * count
    names, numbers = hosts.texts(), files.at("host").numbers()
    if len(numbers) != count or not all(number < len(names) for number in numbers):
        raise files.at("host").fail("it is not one place in hosts for each file")
    return [names[number] for number in numbers]


def _indexes(
    files: Node, indexed: bool, packed: bool, sizes: Sequence[int]
) -> Sequence[GroupIndex | None]:
    """Return the index of each file; only files of several key groups have one. ``sizes`` is how
    long it is.
    """
    count = len(files.at("first").numbers())
    if not indexed or not count:
        return [None] * count
    rows, digests = files.at("group_rows"), files.at("group_digests")
    if not count == len(rows.texts()) == len(digests.texts()):
        raise rows.fail("the arrays differ in length")
    return [
        GroupIndex(_unpacked(of_rows, size, packed), _unpacked(of_digests, size, packed))
        for of_rows, of_digests, size in zip(rows.texts(), digests.texts(), sizes, strict=True)
    ]


def _unpacked(text: str, size: int, packed: bool) -> bytes:
    """Return the bytes that a text holds, which are ``size`` or too many: the rest is not looked
    for, since a text of a megabyte can stand for a gigabyte.
    """
    raw = b64decode(text, validate=True)
    if not packed:
        return raw
    try:
        return zlib.decompressobj().decompress(raw, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _check_indexes(files: Node, handles: Sequence[KeyedStateHandle]) -> None:
    """Refuse indexes that do not add up to their files."""
    for handle in handles:
        index, path, groups = handle.index, handle.path, len(handle.key_groups)
        if index is None:
            continue
        if not 8 * groups == len(index.rows) == len(index.digests):
            raise files.at("group_rows").fail(f"{path} has {groups} key groups, not as many")
        if index.rows_in(0, groups) != handle.rows:
            raise files.at("group_rows").fail(f"the key groups of {path} do not add up to its rows")
        if index.digest_in(0, groups) != handle.digest:
            raise files.at("group_digests").fail(
                f"the key groups of {path} do not add up to its digest"
            )


# Names that a document may have: those that its writer would have given, and no others.
#
# A document is read by whoever can, and written by whoever could. So a name in it is not believed:
# a state's table lies in its operator's folder, and a file of it has the name of such a file. What
# is held to that cannot lead out of the store, or into another state's table.


Sort = Literal["keyed", "changes", "operator"]


def refuse_foreign_folder(
    path: Node, sort: Sort, uid: str, state: str, *, relabelled: bool
) -> None:
    """Raise MalformedManifestError unless the path is that of the table of this state.

    ``relabelled`` says that the operator may have had another label when the table was made, as
    one can that has no uid but a place in a job graph.
    """
    found = table_of(path.text())
    if found is None or found[1:] != (sort, state) or (found[0] != uid and not relabelled):
        raise path.fail(
            f"{path.text()!r} is not the folder of the {sort} table of state {state!r} of operator "
            f"{uid!r}"
        )


def what_is_twice(folders: Iterable[tuple[str, str, str]]) -> str | None:
    """Return in words which two states have one name, or one table; None when none have.

    ``folders`` are (operator uid, state, path) of each state.
    """
    states: set[tuple[str, str]] = set()
    owners: dict[str, tuple[str, str]] = {}
    for uid, state, path in folders:
        if (uid, state) in states:
            return f"state {state!r} of operator {uid!r} is there twice"
        if path in owners:
            return f"states {owners[path]} and {(uid, state)} have one table, {path!r}"
        states.add((uid, state))
        owners[path] = uid, state
    return None


def refuse_misplaced_files(files: Node) -> None:
    """Raise MalformedManifestError unless each file lies in the folder of its key group."""
    names, groups = files.at("path"), files.at("first").numbers()
    for name, group in zip(names.texts(), groups, strict=True):
        if key_group_of_file(name) != group:
            raise names.fail(f"{name!r} is not the name of a data file of key group {group}")


def refuse_other_files(files: Node, sort: Literal["ranged", "operator"]) -> None:
    """Raise MalformedManifestError unless each file has the name of such a data file."""
    is_own: Callable[[str], bool] = is_ranged_file if sort == "ranged" else is_operator_file
    names = files.at("path")
    for name in names.texts():
        if not is_own(name):
            raise names.fail(f"{name!r} is not the name of a data file of {sort} state")


# The layers of changes of a keyed state as a manifest has them, and back.


def layers_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return the member ``changes`` of a state, nothing of one without layers."""
    if not entry.layers:
        return {}
    return {
        "changes": [
            {
                "checkpoint": layer.checkpoint_id,
                "depth": layer.depth,
                "live": [[one.first, one.last] for one in layer.live],
                "path": layer.entry.table.path,
                "rows": layer.entry.rows,
                "digest": digest_text(layer.entry.digest),
                "files": keyed_files_json(layer.entry.handles, packed=True),
            }
            for layer in entry.layers
        ]
    }


def layers_of(node: Node, state: KeyedState, *, relabelled: bool) -> tuple[Layer, ...]:
    """Return the layers of a state; MalformedManifestError, or another error for the caller to
    place. ``relabelled`` as of :func:`statestore.format.files_json.refuse_foreign_folder`.
    """
    changes = node.maybe("changes")
    if changes is None:
        return ()
    stored = change_state(state)
    layers = []
    for item in changes.items():
        path = item.at("path")
        refuse_foreign_folder(path, "changes", state.uid, state.name, relabelled=relabelled)
        layers.append(_layer(item, stored))
    return tuple(layers)


def _layer(node: Node, stored: KeyedState) -> Layer:
    handles = keyed_handles(node.at("files"), indexed=True, packed=True)
    refuse_other_files(node.at("files"), "ranged")
    entry = KeyedEntry(stored, TableRef("parquet", node.at("path").text()), handles)
    if node.at("rows").number() != entry.rows:
        raise node.at("rows").fail(f"its files add up to {entry.rows}")
    if node.at("digest").text() != digest_text(entry.digest):
        raise node.at("digest").fail(f"its files add up to {digest_text(entry.digest)}")
    live = tuple(KeyGroupRange(*item.numbers()) for item in node.at("live").items())
    _refuse_disorder(node.at("live"), live, stored.max_parallelism)
    files = tuple(handle.key_groups for handle in handles)
    _refuse_disorder(node.at("files"), files, stored.max_parallelism)
    checkpoint_id, depth = node.at("checkpoint").number(), node.at("depth").number()
    return Layer(entry, checkpoint_id, depth, live)


def _refuse_disorder(node: Node, ranges: tuple[KeyGroupRange, ...], max_parallelism: int) -> None:
    """Refuse key groups that come twice, out of order, or are none of the state."""
    next_free = 0
    for one in ranges:
        if not next_free <= one.first <= one.last < max_parallelism:
            raise node.fail(
                f"the key groups {one} come twice, out of order, or are not below max parallelism "
                f"{max_parallelism}"
            )
        next_free = one.last + 1
