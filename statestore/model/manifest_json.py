"""A manifest as bytes and back: ``manifest_from_json(manifest_to_json(m)) == m``.

Data files are written column by column (one array of paths, one of row counts, …): a tenth of the
bytes and of the parsing time of one object a file, and still readable. docs/FORMAT.md lists every
member.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from statestore.errors import CorruptionError, StateStoreError
from statestore.model.digest import digest_text
from statestore.model.document import Node, document_bytes, parse_document
from statestore.model.graph_json import graph_from_json, graph_to_json
from statestore.model.handles import GroupIndex, KeyedStateHandle, OperatorStateHandle
from statestore.model.keygroups import MAX_PARALLELISM, KeyGroupRange
from statestore.model.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.model.redistribution import RedistributionMode
from statestore.model.schema import Schema, schema_from_json
from statestore.model.state import KeyedState, Layout, OperatorState, StateKind, TimeDomain

__all__ = ["FORMAT", "FORMAT_VERSION", "manifest_from_json", "manifest_to_json"]

FORMAT = "statestore-checkpoint"
FORMAT_VERSION = 1
V = TypeVar("V")


def manifest_to_json(manifest: Manifest) -> bytes:
    """Return the document of a manifest, UTF-8, one operator after another in order of uid."""
    operators = [
        {
            "uid": uid,
            "id": manifest.operators.id_of(uid),
            "keyed": [_keyed_json(e) for e in manifest.keyed if e.state.uid == uid],
            "operator": [_operator_json(e) for e in manifest.operator if e.state.uid == uid],
        }
        for uid in manifest.uids
    ]
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "store_id": manifest.store_id,
        "checkpoint_id": manifest.checkpoint_id,
        "parallelism": manifest.parallelism,
        "started_at_ms": manifest.started_at_ms,
        "created_at_ms": manifest.created_at_ms,
        "writer": vars(manifest.writer),
        "operators": operators,
    }
    if manifest.graph is not None:
        document["graph"] = graph_to_json(manifest.graph)
    return document_bytes(document)


def manifest_from_json(raw: bytes, *, name: str) -> Manifest:
    """Return the manifest of a document; ``name`` is what errors call it.

    Raises MalformedManifestError with the place, or FormatVersionError.
    """
    root = parse_document(raw, name=name, form=FORMAT, newest=FORMAT_VERSION)
    operators = list(root.at("operators").items())
    if not 0 < root.at("parallelism").number() <= MAX_PARALLELISM:
        raise root.at("parallelism").fail(f"it is not in 1..{MAX_PARALLELISM}")
    graph = root.maybe("graph")
    manifest = Manifest(
        store_id=root.at("store_id").text(),
        checkpoint_id=root.at("checkpoint_id").number(),
        parallelism=root.at("parallelism").number(),
        started_at_ms=root.at("started_at_ms").number(),
        created_at_ms=root.at("created_at_ms").number(),
        writer=_writer(root.at("writer")),
        keyed=tuple(_each(operators, "keyed", _keyed_entry)),
        operator=tuple(_each(operators, "operator", _operator_entry)),
        graph=graph_from_json(graph) if graph else None,
    )
    for entry in manifest.operator:
        subtasks = manifest.operators.parallelism_of(entry.state.uid)
        _check_counts(root.at("operators"), entry, subtasks)
    return manifest


def _writer(node: Node) -> Writer:
    generation = node.maybe("generation")
    return Writer(
        release=node.at("release").text(),
        name=node.at("name").text(),
        token=node.at("token").text(),
        generation=generation.number() if generation else 0,
    )


def _keyed_json(entry: KeyedEntry) -> dict[str, Any]:
    state = entry.state
    return {
        "name": state.name,
        "kind": state.kind.value,
        "schema": state.schema.to_json(),
        "key": state.key,
        "key_types": state.key_types,
        "namespace": state.namespace,
        "entry": state.entry,
        "time_domain": state.time_domain.value if state.time_domain else None,
        "max_parallelism": state.max_parallelism,
        "hash_scheme": state.hash_scheme,
        "layout": state.layout.value,
        **_stored_json(entry),
        "files": _files_json(entry.handles)
        | {
            "first": [handle.key_groups.first for handle in entry.handles],
            "last": [handle.key_groups.last for handle in entry.handles],
        }
        | _hosts_json(entry.handles)
        | _index_json(entry.handles),
    }


def _hosts_json(handles: Sequence[KeyedStateHandle]) -> dict[str, Any]:
    """Return each host once, and per file which it is; nothing when no file has one."""
    hosts = sorted({handle.host for handle in handles})
    if not any(hosts):
        return {}
    number = {host: at for at, host in enumerate(hosts)}
    return {"hosts": hosts, "host": [number[handle.host] for handle in handles]}


def _index_json(handles: Sequence[KeyedStateHandle]) -> dict[str, Any]:
    """Return, per file of several key groups, the rows and digests of each; else nothing."""
    found = [handle.index for handle in handles if handle.index is not None]
    if not found:
        return {}
    return {
        "group_rows": [b64encode(index.rows).decode() for index in found],
        "group_digests": [b64encode(index.digests).decode() for index in found],
    }


def _operator_json(entry: OperatorEntry) -> dict[str, Any]:
    return {
        "name": entry.state.name,
        "mode": entry.state.mode.value,
        "schema": entry.state.schema.to_json(),
        "counts": entry.counts,
        **_stored_json(entry),
        "files": _files_json(entry.handles),
    }


def _stored_json(entry: Entry) -> dict[str, Any]:
    return {
        "table": vars(entry.table),
        "rows": entry.rows,
        "size_bytes": entry.size_bytes,
        "digest": digest_text(entry.digest),
    }


def _files_json(handles: Sequence[KeyedStateHandle | OperatorStateHandle]) -> dict[str, Any]:
    return {
        "path": [handle.path for handle in handles],
        "rows": [handle.rows for handle in handles],
        "size_bytes": [handle.size_bytes for handle in handles],
        "row_groups": [handle.row_groups for handle in handles],
        "digest": [digest_text(handle.digest) for handle in handles],
        "sha256": [handle.sha256 for handle in handles],
    }


def _keyed_entry(node: Node, uid: str) -> KeyedEntry:
    domain = node.maybe("time_domain")
    state = KeyedState(
        uid=uid,
        name=node.at("name").text(),
        kind=StateKind(node.at("kind").text()),
        schema=_schema(node),
        key=node.at("key").texts(),
        key_types=node.at("key_types").texts(),
        namespace=node.at("namespace").texts(),
        entry=node.at("entry").texts(),
        time_domain=TimeDomain(domain.text()) if domain else None,
        max_parallelism=node.at("max_parallelism").number(),
        hash_scheme=node.at("hash_scheme").text(),
        layout=Layout(node.at("layout").text()),
    )
    files = node.at("files")
    ranges = map(KeyGroupRange, files.at("first").numbers(), files.at("last").numbers())
    columns = zip(_zip(files, ranges, files.at("first")), _hosts(files), strict=True)
    handles = tuple(
        KeyedStateHandle(*(path, key_groups, *rest, host))
        for (key_groups, (path, *rest)), host in columns
    )
    if state.layout is Layout.RANGED and handles:
        handles = _indexed(files, handles)
    _check_order(node, handles)
    return _agreeing(node, KeyedEntry(state, _table(node), handles))


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


def _indexed(files: Node, handles: Sequence[KeyedStateHandle]) -> tuple[KeyedStateHandle, ...]:
    """Return the handles with their indexes, which must add up to them."""
    rows, digests = files.at("group_rows"), files.at("group_digests")
    if not len(handles) == len(rows.texts()) == len(digests.texts()):
        raise rows.fail("the arrays differ in length")
    indexed = []
    for handle, *texts in zip(handles, rows.texts(), digests.texts(), strict=True):
        index = GroupIndex(*(b64decode(text, validate=True) for text in texts))
        length = 8 * len(handle.key_groups)
        if not length == len(index.rows) == len(index.digests):
            raise rows.fail(f"{handle.path} has {len(handle.key_groups)} key groups, not as many")
        if index.rows_in(0, length) != handle.rows:
            raise rows.fail(f"the key groups of {handle.path} do not add up to its rows")
        if index.digest_in(0, length) != handle.digest:
            raise digests.fail(f"the key groups of {handle.path} do not add up to its digest")
        indexed.append(replace(handle, index=index))
    return tuple(indexed)


def _check_order(node: Node, handles: Sequence[KeyedStateHandle]) -> None:
    """Refuse files out of order: a plan looks for them by bisection."""
    number = node.at("max_parallelism")
    if not 0 < number.number() <= MAX_PARALLELISM:
        raise number.fail(f"max parallelism {number.number()} is not in 1..{MAX_PARALLELISM}")
    next_free = 0
    partitioned = node.at("layout").text() == Layout.PARTITIONED
    for handle in handles:
        if partitioned and len(handle.key_groups) != 1:
            raise node.at("files").fail(f"{handle.path} has several key groups, but no index")
        if not next_free <= handle.key_groups.first <= handle.key_groups.last < number.number():
            raise node.at("files").fail(
                f"the key groups {handle.key_groups} of {handle.path} come twice, out of order, or "
                f"are not below max parallelism {number.number()}"
            )
        next_free = handle.key_groups.last + 1


def _operator_entry(node: Node, uid: str) -> OperatorEntry:
    state = OperatorState(
        uid=uid,
        name=node.at("name").text(),
        mode=RedistributionMode(node.at("mode").text()),
        schema=_schema(node),
    )
    files = node.at("files")
    handles = tuple(OperatorStateHandle(*columns) for columns in _columns(files))
    return _agreeing(node, OperatorEntry(state, _table(node), node.at("counts").numbers(), handles))


def _check_counts(node: Node, entry: OperatorEntry, parallelism: int) -> None:
    """Refuse counts that would leave elements out: one per old subtask, adding up to the rows."""
    lists = 1 if entry.state.mode is RedistributionMode.BROADCAST else parallelism
    stored = sum(handle.rows for handle in entry.handles)
    if len(entry.counts) != lists or entry.rows != stored:
        raise node.fail(
            f"{entry.state} has {len(entry.counts)} counts of together {entry.rows} elements; "
            f"there are {lists} lists, and its files hold {stored}"
        )


def _zip(files: Node, ranges: Iterable[V], count: Node) -> Iterable[tuple[V, tuple[Any, ...]]]:
    rows = _columns(files)
    if len(count.numbers()) != len(rows):
        raise count.fail("the arrays differ in length")
    return zip(ranges, rows, strict=True)


def _columns(files: Node) -> list[tuple[Any, ...]]:
    columns = [
        files.at("path").texts(),
        files.at("rows").numbers(),
        files.at("size_bytes").numbers(),
        files.at("row_groups").numbers(),
        tuple(int(text, 16) for text in files.at("digest").texts()),
        files.at("sha256").texts(),
    ]
    if len({len(column) for column in columns}) != 1:
        raise files.fail("the arrays differ in length")
    return list(zip(*columns, strict=True))


def _agreeing(node: Node, entry: V) -> V:
    """Return the entry if its files add up to the totals that stand beside them."""
    assert isinstance(entry, KeyedEntry | OperatorEntry)
    for key, found in (("rows", entry.rows), ("size_bytes", entry.size_bytes)):
        if node.at(key).number() != found:
            raise node.at(key).fail(f"says {node.at(key).number()}, its files add up to {found}")
    if node.at("digest").text() != digest_text(entry.digest):
        raise node.at("digest").fail(f"its files' digests add up to {digest_text(entry.digest)}")
    return entry


def _schema(node: Node) -> Schema:
    return schema_from_json(node.at("schema").object())


def _table(node: Node) -> TableRef:
    table = node.at("table")
    version = table.maybe("version")
    return TableRef(
        table.at("format").text(), table.at("path").text(), version.number() if version else None
    )


def _each(operators: list[Node], sort: str, build: Callable[[Node, str], V]) -> Iterator[V]:
    """Build every state of a sort; whatever is wrong with one becomes an error with its place."""
    for operator in operators:
        uid = operator.at("uid").text()
        if not uid:
            raise operator.at("uid").fail("it is empty")
        for node in operator.at(sort).items():
            try:
                yield build(node, uid)
            except CorruptionError:
                raise
            except (StateStoreError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise node.fail(f"{type(error).__name__}: {error}") from error
