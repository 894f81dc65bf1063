"""A manifest as bytes and back: ``manifest_from_json(manifest_to_json(m)) == m``.

Data files are written column by column (one array of paths, one of row counts, …): a tenth of the
bytes and of the parsing time of one object a file, and still readable. docs/FORMAT.md lists every
member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    ParallelismError,
    StateStoreError,
)
from statestore.flink.redistribution import RedistributionMode
from statestore.format.digest import digest_text
from statestore.format.documents import Node, document_bytes, is_savepoint_name, parse_document
from statestore.format.files_json import (
    files_json,
    keyed_files_json,
    keyed_handles,
    layers_json,
    layers_of,
    operator_handles,
    refuse_foreign_folder,
    refuse_misplaced_files,
    refuse_other_files,
    what_is_twice,
)
from statestore.format.graph_json import graph_from_json, graph_to_json
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import (
    TABLE_FORMATS,
    Entry,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    TableRef,
    Writer,
)
from statestore.format.metrics import metrics_from_json, metrics_to_json
from statestore.format.names import GREATEST_ID
from statestore.format.schema import Schema, schema_from_json
from statestore.format.state import (
    KeyedState,
    Layout,
    OperatorState,
    StateKind,
    TimeDomain,
    TimeToLive,
    TtlUpdate,
    TtlVisibility,
)
from statestore.keys.groups import MAX_PARALLELISM
from statestore.keys.ranges import RangeAssignment

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "keyed_from_json",
    "keyed_to_json",
    "manifest_from_json",
    "manifest_to_json",
    "origin_from_json",
]


# What a manifest says of the command that made its checkpoint, held to what commands say.
#
# ``purge`` finishes by it what an earlier run left: it moves savepoints, and gives a checkpoint up.


_FROM_ELSEWHERE = ("copy", "fork")


def origin_from_json(node: Node, checkpoint_id: int) -> dict[str, Any]:
    """Return the origin of checkpoint ``checkpoint_id``; MalformedManifestError with the place for
    one that no command says. Members that nobody acts upon are not looked at.
    """
    command, old = node.at("command").text(), node.at("checkpoint")
    if command not in _FROM_ELSEWHERE and not 0 < old.number() < checkpoint_id:
        raise old.fail(f"checkpoint {checkpoint_id} cannot have been made of {old.number()}")
    savepoints = node.maybe("savepoints")
    for one in savepoints.items() if savepoints else ():
        one.at("created_at_ms").time()
        if not is_savepoint_name(one.at("name").text()):
            raise one.at("name").fail(f"no savepoint is called {one.at('name').text()!r}")
    expired = node.maybe("expired")
    if expired is not None and not isinstance(expired.value, bool):
        raise expired.fail(f"it is true or false, not {expired.value!r}")
    return node.object()


FORMAT = "statestore-checkpoint"
FORMAT_VERSION = 2
"""The newest version that is read. A manifest says 1 unless it has what version 1 does not know:
changes of a state, which a reader must not leave out, or a time to live, which it must heed."""

# Of all operators together: a plan has what each of them reads.
_MOST_SUBTASKS = 2**20

V = TypeVar("V")


def manifest_to_json(manifest: Manifest) -> bytes:
    """Return the document of a manifest, UTF-8, one operator after another in order of uid.

    Raises InvalidArgumentError for states that no reader could tell apart.
    """
    if wrong := _what_no_reader_takes(manifest):
        raise InvalidArgumentError(f"checkpoint {manifest.checkpoint_id}: {wrong}")
    operators = [
        {
            "uid": uid,
            "id": manifest.operators.id_of(uid),
            "keyed": [keyed_to_json(e) for e in manifest.keyed if e.state.uid == uid],
            "operator": [_operator_json(e) for e in manifest.operator if e.state.uid == uid],
        }
        for uid in manifest.uids
    ]
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION if _is_new(manifest) else 1,
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
    if manifest.ranges:
        document["ranges"] = {uid: own.stops for uid, own in sorted(manifest.ranges.items())}
    if manifest.origin is not None:
        document["origin"] = manifest.origin
    if manifest.metrics is not None:
        document["metrics"] = metrics_to_json(manifest.metrics)
    return document_bytes(document)


def _is_new(manifest: Manifest) -> bool:
    return any(entry.layers or entry.state.ttl for entry in manifest.keyed)


def manifest_from_json(raw: bytes, *, name: str) -> Manifest:
    """Return the manifest of a document; ``name`` is what errors call it.

    Raises MalformedManifestError with the place, or FormatVersionError.
    """
    root = parse_document(raw, name=name, form=FORMAT, newest=FORMAT_VERSION)
    operators = list(root.at("operators").items())
    if not 0 < root.at("parallelism").number() <= MAX_PARALLELISM:
        raise root.at("parallelism").fail(f"it is not in 1..{MAX_PARALLELISM}")
    names = ("graph", "origin", "metrics", "ranges")
    graph, origin, metrics, ranges = (root.maybe(name) for name in names)
    # Without a graph every label is a uid, and an operator keeps it.
    keyed = partial(keyed_from_json, relabelled=graph is not None)
    operator = partial(_operator_entry, relabelled=graph is not None)
    manifest = Manifest(
        store_id=root.at("store_id").text(),
        checkpoint_id=root.at("checkpoint_id").number(GREATEST_ID),
        parallelism=root.at("parallelism").number(),
        started_at_ms=root.at("started_at_ms").time(),
        created_at_ms=root.at("created_at_ms").time(),
        writer=_writer(root.at("writer")),
        keyed=tuple(_each(operators, "keyed", keyed)),
        operator=tuple(_each(operators, "operator", partial(_built, operator))),
        graph=graph_from_json(graph) if graph else None,
        origin=origin_from_json(origin, root.at("checkpoint_id").number()) if origin else None,
        ranges=_ranges(ranges) if ranges else {},
        metrics=metrics_from_json(metrics) if metrics else None,
    )
    if wrong := _what_no_reader_takes(manifest):
        raise root.at("operators").fail(wrong)
    for entry in manifest.operator:
        subtasks = manifest.operators.parallelism_of(entry.state.uid)
        _check_counts(root.at("operators"), entry, subtasks)
    return manifest


def _what_no_reader_takes(manifest: Manifest) -> str | None:
    """Return in words what is wrong with the operators together, None when nothing is."""
    subtasks = sum(map(manifest.operators.parallelism_of, manifest.uids))
    if subtasks > _MOST_SUBTASKS:
        return f"its operators have {subtasks:,} subtasks, and {_MOST_SUBTASKS:,} at most"
    folders = ((one.state.uid, one.state.name, one.table.path) for one in manifest.entries)
    return what_is_twice(folders)


def _ranges(node: Node) -> dict[str, RangeAssignment]:
    """Return who owned which key groups, by operator."""
    try:
        return {uid: RangeAssignment(node.at(uid).numbers()) for uid in node.object()}
    except ParallelismError as error:
        raise node.fail(str(error)) from error


def _writer(node: Node) -> Writer:
    generation = node.maybe("generation")
    return Writer(
        release=node.at("release").text(),
        name=node.at("name").text(),
        token=node.at("token").text(),
        generation=generation.number() if generation else 0,
    )


def keyed_to_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return a keyed state and its files as a manifest has them, the operator's uid left out."""
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
        **_ttl_json(state),
        **_stored_json(entry.parts[0]),
        "files": keyed_files_json(entry.handles),
        **layers_json(entry),
    }


def _ttl_json(state: KeyedState) -> dict[str, Any]:
    return {} if state.ttl is None else {"ttl": vars(state.ttl)}


def _ttl(node: Node) -> TimeToLive:
    return TimeToLive(
        node.at("duration_ms").number(),
        node.at("column").text(),
        TtlUpdate(node.at("update").text()),
        TtlVisibility(node.at("visibility").text()),
    )


def _operator_json(entry: OperatorEntry) -> dict[str, Any]:
    return {
        "name": entry.state.name,
        "mode": entry.state.mode.value,
        "schema": entry.state.schema.to_json(),
        "counts": entry.counts,
        **_stored_json(entry),
        "files": files_json(entry.handles),
    }


def _stored_json(entry: Entry) -> dict[str, Any]:
    return {
        "table": vars(entry.table),
        "rows": entry.rows,
        "size_bytes": entry.size_bytes,
        "digest": digest_text(entry.digest),
    }


def keyed_from_json(node: Node, uid: str, *, relabelled: bool = False) -> KeyedEntry:
    """Return what :func:`keyed_to_json` wrote; MalformedManifestError with the place.

    ``relabelled`` as of :func:`statestore.format.files_json.refuse_foreign_folder`.
    """
    return _built(partial(_keyed_entry, relabelled=relabelled), node, uid)


def _keyed_entry(node: Node, uid: str, *, relabelled: bool) -> KeyedEntry:
    domain, ttl = node.maybe("time_domain"), node.maybe("ttl")
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
        ttl=_ttl(ttl) if ttl else None,
    )
    handles = keyed_handles(node.at("files"), indexed=state.layout is Layout.RANGED)
    _check_order(node, handles)
    if state.layout is Layout.RANGED:
        refuse_other_files(node.at("files"), "ranged")
    else:
        refuse_misplaced_files(node.at("files"))
    path = node.at("table").at("path")
    refuse_foreign_folder(path, "keyed", uid, state.name, relabelled=relabelled)
    base = _agreeing(node, KeyedEntry(state, _table(node), handles))
    return replace(base, layers=layers_of(node, state, relabelled=relabelled))


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


def _operator_entry(node: Node, uid: str, *, relabelled: bool) -> OperatorEntry:
    state = OperatorState(
        uid=uid,
        name=node.at("name").text(),
        mode=RedistributionMode(node.at("mode").text()),
        schema=_schema(node),
    )
    handles = operator_handles(node.at("files"))
    refuse_other_files(node.at("files"), "operator")
    path = node.at("table").at("path")
    refuse_foreign_folder(path, "operator", uid, state.name, relabelled=relabelled)
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
    if table.at("format").text() not in TABLE_FORMATS:
        raise table.at("format").fail(f"there is no table format {table.at('format').text()!r}")
    return TableRef(
        table.at("format").text(), table.at("path").text(), version.number() if version else None
    )


def _each(operators: list[Node], sort: str, build: Callable[[Node, str], V]) -> Iterator[V]:
    """Build every state of a sort."""
    for operator in operators:
        uid = operator.at("uid").text()
        if not uid:
            raise operator.at("uid").fail("it is empty")
        for node in operator.at(sort).items():
            yield build(node, uid)


def _built(build: Callable[[Node, str], V], node: Node, uid: str) -> V:
    """Build a state; whatever is wrong with it becomes an error with its place."""
    try:
        return build(node, uid)
    except CorruptionError:
        raise
    except (
        StateStoreError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise node.fail(f"{type(error).__name__}: {error}") from error
