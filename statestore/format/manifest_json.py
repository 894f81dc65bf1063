"""Convert a manifest to bytes and back: ``manifest_from_json(manifest_to_json(m)) == m``.

Data files are stored column by column (one array of paths, one of row counts, …). That takes a
tenth of the bytes and of the parsing time of one object per file, and is still readable.
docs/FORMAT.md lists every member.

The job graph is stored in the manifest, so that a later job can match its operators to the stored
ones: ``graph_from_json(graph_to_json(g), …) == g``.

The writer and the reader of a manifest both check its origin, the record of the command that made
the checkpoint. The checks matter because ``forget`` acts on the record to finish an interrupted
run: it moves savepoints and expires a checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, structs, to_builtins

from statestore.errors import InvalidArgumentError
from statestore.format.digest import RowSet, digest_text
from statestore.format.documents import (
    CheckpointId,
    Count,
    Header,
    Moment,
    convert_json,
    convert_value,
    document_bytes,
    parse_document,
    prefix_place,
    report_place,
)
from statestore.format.files_json import (
    Digest,
    FileListDocument,
    Files,
    KeyedFiles,
    LayerDocument,
    Lists,
    Sort,
    duplicate_problem,
    files_json,
    files_member,
    layers_json,
    layers_of,
    listed_files,
    refuse_foreign_folder,
    refuse_other_totals,
)
from statestore.format.handles import list_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import (
    BatchRecord,
    Entry,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    TableRef,
    Writer,
)
from statestore.format.metrics import MetricsDocument, metrics_from_json, metrics_to_json
from statestore.format.names import is_savepoint_name
from statestore.format.schema import Schema
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
from statestore.jobgraph.graph import ChainingStrategy, EdgePartitioner, Exchange, JobGraph
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import MAX_PARALLELISM, RangeAssignment


class _Node(Struct, frozen=True, kw_only=True):
    name: str
    uid: str | None = None
    uid_hash: str | None = None
    parallelism: Count
    max_parallelism: Count | None = None
    strategy: ChainingStrategy
    slot_group: str
    source: bool
    legacy_source: bool
    yielding: bool


class _Edge(Struct, frozen=True, kw_only=True):
    source: str
    target: str
    partitioner: EdgePartitioner | None = None
    exchange: Exchange
    number: Count


class GraphDocument(Struct, frozen=True):
    """The members of a stored graph, in this order; only null members may be missing."""

    chaining: bool
    chain_different_max: bool
    auto_generate_uids: bool
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]


def graph_to_json(graph: JobGraph) -> dict[str, Any]:
    """Return a graph as a complete JSON object: its options, ``nodes`` and ``edges``.

    Raises InvalidArgumentError for a number that does not fit 64 bits, and for text with an
    unpaired surrogate, which UTF-8 cannot encode.
    """
    try:
        members = convert_value(graph, GraphDocument)
    except ValidationError as error:
        raise InvalidArgumentError(f"the job graph cannot be stored: {error}") from error
    document: dict[str, Any] = to_builtins(members)
    for member in (*document["nodes"], *document["edges"]):
        for key, value in member.items():
            if isinstance(value, str):
                _check_encodable(key, value)
    return document


def graph_from_json(value: Any, name: str, place: str) -> JobGraph:
    """Parse the graph at ``place`` of the document ``name``; unknown members are ignored.

    Raises MalformedManifestError with the place of a missing or invalid member.
    """
    return convert_json(convert_json(value, GraphDocument, name, place), JobGraph, name, place)


def _check_encodable(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the {key} {text!r} has an unpaired surrogate and cannot be stored: change it"
        ) from error


_FROM_ELSEWHERE = ("copy", "fork")
REPLACING = ("purge", "forget")
"""The commands whose checkpoints replace others, which a later run finishes by the origin."""
_MOST_LEVELS = 32


class _Moved(Struct, frozen=True):
    name: str
    created_at_ms: Moment

    def __post_init__(self) -> None:
        if not is_savepoint_name(self.name):
            raise ValueError(f"no savepoint is called {self.name!r}")


class _Origin(Struct, frozen=True):
    command: str
    checkpoint: Any
    savepoints: tuple[_Moved, ...] | None = None
    expired: bool | None = None


def origin_from_json(value: dict[str, Any], checkpoint_id: int, name: str) -> dict[str, Any]:
    """Return the origin of checkpoint ``checkpoint_id``; the writer and the reader both call this.

    Raises MalformedManifestError with the place for an origin that no command writes. Members that
    no command uses are not checked.
    """
    origin = convert_json(value, _Origin, name, ".origin")
    old = origin.checkpoint
    is_derived = origin.command in _FROM_ELSEWHERE or (type(old) is int and 0 < old < checkpoint_id)
    if origin.command in REPLACING and None in (origin.savepoints, origin.expired):
        with report_place(name, ".origin"):
            raise ValueError(
                f"the origin of a {origin.command} must have 'savepoints' and 'expired'"
            )
    with report_place(name, ".origin.checkpoint"):
        if not is_derived:
            raise ValueError(
                f"the source of checkpoint {checkpoint_id} cannot be checkpoint {old!r}"
            )
    return value


def refuse_changed(origin: Mapping[str, Any] | None, read: Mapping[str, Any] | None) -> None:
    """Raise ValueError if an origin differs from the one that was ``read`` from its document.

    Also raises it for values that some readers of JSON cannot hold. Only the writer calls this: it
    has Python values, which JSON can change.
    """
    if read != origin:
        raise ValueError(f"the origin would be read as {read!r:.200}, not {origin!r:.200}")
    _refuse_unusual(read, _MOST_LEVELS)


def _refuse_unusual(value: Any, levels: int) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"the number {value} of the origin does not fit 64 bits")
    if not isinstance(value, (dict, list)):
        return
    if levels == 0:
        raise ValueError(f"the origin has more than {_MOST_LEVELS} nested levels")
    for part in value.values() if isinstance(value, dict) else value:
        _refuse_unusual(part, levels - 1)


FORMAT = "statestore-checkpoint"


FORMAT_VERSION = 3
"""The newest version that this release reads.

A manifest has the lowest version that supports its contents. Version 2 added changes of a state,
which a reader must apply, and TTLs, which it must respect. Version 3 added separate file lists."""


# The limit for all operators together, because a plan has an entry for each subtask.
_MOST_SUBTASKS = 2**20


E = TypeVar("E", KeyedEntry, OperatorEntry)


_Groups = Annotated[int, Meta(ge=1, le=MAX_PARALLELISM)]


class _Writer(Struct, frozen=True):
    release: str
    name: str
    token: str
    generation: Count = 0
    command: str | None = None
    actor: str | None = None


class _Ttl(Struct, frozen=True):
    duration_ms: Count
    column: str
    update: TtlUpdate
    visibility: TtlVisibility

    def time_to_live(self) -> TimeToLive:
        """Return the TTL as a value."""
        return TimeToLive(f"{self.duration_ms}ms", self.column, self.update, self.visibility)


class _Merged(Struct, frozen=True):
    rows: Count
    digest: Digest


class _Stored(Struct, frozen=True, kw_only=True):
    name: str
    schema: Schema
    table: TableRef
    rows: Count
    size_bytes: Count
    digest: Digest

    def agreeing(self, entry: E, sort: Sort, *, relabelled: bool) -> E:
        """Return the entry if it is in its own table and its files add up to the stored totals."""
        refuse_foreign_folder(self.table.path, sort, entry.state, ".table.path", relabelled)
        refuse_other_totals(entry, self, ("rows", "size_bytes", "digest"))
        return entry


class _Operator(_Stored, frozen=True, kw_only=True):
    mode: RedistributionMode
    counts: tuple[Count, ...]
    files: Files

    def entry_of(self, uid: str, lists: Lists, *, relabelled: bool) -> OperatorEntry:
        """Return the state of operator ``uid``; its files are never in a separate list."""
        state = OperatorState(uid=uid, name=self.name, mode=self.mode, schema=self.schema)
        with prefix_place(".files"):
            handles = self.files.handles() if lists.known is None else tuple(next(lists.known))
        entry = OperatorEntry(state, self.table, self.counts, handles)
        return self.agreeing(entry, "operator", relabelled=relabelled)


_STATE_MEMBERS = [field.name for field in fields(KeyedState) if field.name not in ("uid", "ttl")]


class _Keyed(_Stored, frozen=True, kw_only=True):
    kind: StateKind
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    namespace: tuple[str, ...]
    entry: tuple[str, ...]
    max_parallelism: _Groups
    hash_scheme: str
    layout: Layout
    files: KeyedFiles | None = None
    file_list: FileListDocument | None = None
    time_domain: TimeDomain | None = None
    ttl: _Ttl | None = None
    changes: tuple[LayerDocument, ...] | None = None
    merged: _Merged | None = None

    def entry_of(self, uid: str, lists: Lists, *, relabelled: bool = False) -> KeyedEntry:
        """Return the state of operator ``uid``.

        ``relabelled`` is as in :func:`statestore.format.files_json.refuse_foreign_folder`.
        """
        ttl = None if self.ttl is None else self.ttl.time_to_live()
        members = {name: getattr(self, name) for name in _STATE_MEMBERS}
        state = KeyedState(uid=uid, ttl=ttl, **members)
        handles = listed_files(self.files, self.file_list, state, self.table.path, lists)
        base = KeyedEntry(state, self.table, handles)
        layers = layers_of(self.changes or (), state, lists, relabelled=relabelled)
        entry = replace(self.agreeing(base, "keyed", relabelled=relabelled), layers=layers)
        known = self.merged
        return entry.recording(None if known is None else RowSet(known.rows, int(known.digest, 16)))


class LeftOutDocument(Struct, frozen=True, kw_only=True):
    """The stored record of a left-out state."""

    operator: Annotated[str, Meta(min_length=1)]
    reason: str
    command: str
    state: str | None = None
    id: str | None = None
    name: str | None = None
    first: Count | None = None
    last: Count | None = None


class _BatchRecord(Struct, frozen=True):
    number: Count
    checkpoint_id: CheckpointId


class _States(Struct, frozen=True):
    uid: Annotated[str, Meta(min_length=1)]
    keyed: tuple[_Keyed, ...]
    operator: tuple[_Operator, ...]


class _Manifest(Header, frozen=True):
    store_id: str
    checkpoint_id: CheckpointId
    parallelism: _Groups
    started_at_ms: Moment
    created_at_ms: Moment
    writer: _Writer
    operators: tuple[_States, ...]
    graph: GraphDocument | None = None
    origin: dict[str, Any] | None = None
    ranges: dict[str, tuple[Count, ...]] | None = None
    metrics: MetricsDocument | None = None
    left_out: tuple[LeftOutDocument, ...] = ()
    batches: dict[str, _BatchRecord] | None = None
    follows: CheckpointId | None = None


def manifest_to_json(manifest: Manifest) -> bytes:
    """Return the document of a manifest in UTF-8, with operators sorted by uid.

    Raises InvalidArgumentError for a manifest that :func:`manifest_from_json` refuses (I19), or
    whose origin it would return changed.
    """
    keyed: defaultdict[str, list[KeyedEntry]] = defaultdict(list)
    operator: defaultdict[str, list[OperatorEntry]] = defaultdict(list)
    for entry in manifest.keyed:
        keyed[entry.state.uid].append(entry)
    for element in manifest.operator:
        operator[element.state.uid].append(element)
    operators = [
        {
            "uid": uid,
            "id": manifest.operators.id_of(uid),
            "keyed": [keyed_to_json(entry) for entry in keyed[uid]],
            "operator": [_operator_json(entry) for entry in operator[uid]],
        }
        for uid in manifest.uids
    ]
    document = {
        "format": FORMAT,
        "format_version": _version_of(manifest),
        "store_id": manifest.store_id,
        "checkpoint_id": manifest.checkpoint_id,
        "parallelism": manifest.parallelism,
        "started_at_ms": manifest.started_at_ms,
        "created_at_ms": manifest.created_at_ms,
        "writer": {
            name: value for name, value in asdict(manifest.writer).items() if value is not None
        },
        "operators": operators,
    }
    if manifest.graph is not None:
        document["graph"] = graph_to_json(manifest.graph)
    if manifest.ranges:
        document["ranges"] = {uid: own.stops for uid, own in sorted(manifest.ranges.items())}
    members = {"origin": manifest.origin, "follows": manifest.follows}
    document |= {name: value for name, value in members.items() if value is not None}
    if manifest.metrics is not None:
        document["metrics"] = metrics_to_json(manifest.metrics)
    if manifest.left_out:
        document["left_out"] = left_out_to_json(manifest.left_out)
    if manifest.batches is not None:
        batches = sorted(manifest.batches.items())
        document["batches"] = {job: asdict(record) for job, record in batches}

    def check(raw: bytes) -> None:
        sorts = (keyed, operator)  # as ``_entries`` reads them
        entries = (entry for sort in sorts for uid in manifest.uids for entry in sort[uid])
        known = (part.handles for entry in entries for part in entry.parts)
        name = f"the manifest of checkpoint {manifest.checkpoint_id}"
        refuse_changed(manifest.origin, _parse(raw, Lists(name, _refuse_list, known)).origin)

    return document_bytes(document, check)


def left_out_to_json(records: Iterable[LeftOutState]) -> list[dict[str, Any]]:
    """Return the records of left-out state as JSON; unknown members are omitted."""
    return [
        {name: value for name, value in asdict(record).items() if value is not None}
        for record in records
    ]


def _version_of(manifest: Manifest) -> int:
    if any(list_of(part.handles) for part in manifest.parts):
        return 3
    return 2 if any(entry.layers or entry.state.ttl for entry in manifest.keyed) else 1


def _refuse_list(path: str) -> bytes:
    raise FileNotFoundError(path)


def check_manifest_version(raw: bytes, *, name: str) -> None:
    """Check the format of a manifest without reading its states.

    Raises FormatVersionError for a newer version than this release reads, or MalformedManifestError
    for a damaged document.
    """
    parse_document(raw, Header, name=name, form=FORMAT, newest=FORMAT_VERSION)


def manifest_from_json(
    raw: bytes, *, name: str, read: Callable[[str], bytes] = _refuse_list
) -> Manifest:
    """Parse a manifest; ``name`` is the document's name in errors.

    ``read`` returns the bytes of a file of the store. It is used to read separate lists of files
    when they are needed.

    Raises MalformedManifestError with the place, or FormatVersionError.
    """
    return _parse(raw, Lists(name, read))


def _parse(raw: bytes, lists: Lists) -> Manifest:
    name = lists.name
    document = parse_document(raw, _Manifest, name=name, form=FORMAT, newest=FORMAT_VERSION)
    graph, origin, metrics = document.graph, document.origin, document.metrics
    with report_place(name, ".ranges"):
        ranges = {uid: RangeAssignment(stops) for uid, stops in (document.ranges or {}).items()}
    manifest = Manifest(
        store_id=document.store_id,
        checkpoint_id=document.checkpoint_id,
        parallelism=document.parallelism,
        started_at_ms=document.started_at_ms,
        created_at_ms=document.created_at_ms,
        writer=Writer(**structs.asdict(document.writer)),
        keyed=tuple(_entries(document, "keyed", lists)),
        operator=tuple(_entries(document, "operator", lists)),
        graph=None if graph is None else graph_from_json(graph, name, ".graph"),
        origin=None if origin is None else origin_from_json(origin, document.checkpoint_id, name),
        ranges=ranges,
        metrics=None if metrics is None else metrics_from_json(metrics, name, ".metrics"),
        left_out=tuple(LeftOutState(**structs.asdict(part)) for part in document.left_out),
        batches=None
        if document.batches is None
        else {
            job: BatchRecord(**structs.asdict(record)) for job, record in document.batches.items()
        },
        follows=document.follows,
    )
    with report_place(name, ".operators"):
        if wrong := _cross_operator_problem(manifest):
            raise ValueError(wrong)
        for entry in manifest.operator:
            _check_counts(entry, manifest.operators.parallelism_of(entry.state.uid))
    return manifest


def _entries(document: _Manifest, sort: str, lists: Lists) -> Iterator[Any]:
    """Yield the keyed or the operator states, in the order of the document."""
    # Without a graph every label is a uid, and an operator's uid does not change.
    relabelled = document.graph is not None
    for index, states in enumerate(document.operators):
        for place, state in enumerate(getattr(states, sort)):
            with report_place(lists.name, f".operators[{index}].{sort}[{place}]"):
                yield state.entry_of(states.uid, lists, relabelled=relabelled)


def _cross_operator_problem(manifest: Manifest) -> str | None:
    """Return a message about a problem across operators; None if all is well."""
    subtasks = sum(map(manifest.operators.parallelism_of, manifest.uids))
    if subtasks > _MOST_SUBTASKS:
        return f"its operators have {subtasks:,} subtasks; at most {_MOST_SUBTASKS:,} are allowed"
    folders = [(entry.state.uid, entry.state.name, entry.table.path) for entry in manifest.entries]
    return duplicate_problem(folders)


def keyed_to_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return a keyed state and its files as in a manifest, without the operator's uid."""
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
        **files_member(entry),
        **layers_json(entry),
        **_merged_json(entry),
    }


def _merged_json(entry: KeyedEntry) -> dict[str, Any]:
    rows = entry.contents if entry.layers else None
    if rows is None:
        return {}
    return {"merged": {"rows": rows.rows, "digest": digest_text(rows.digest)}}


def _ttl_json(state: KeyedState) -> dict[str, Any]:
    ttl = state.ttl
    if ttl is None:
        return {}
    members = {"column": ttl.column, "update": ttl.update, "visibility": ttl.visibility}
    return {"ttl": {"duration_ms": ttl.duration_ms, **members}}


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
        "table": asdict(entry.table),
        "rows": entry.rows,
        "size_bytes": entry.size_bytes,
        "digest": digest_text(entry.digest),
    }


def keyed_from_json(value: Any, uid: str, name: str, place: str = "") -> KeyedEntry:
    """Parse the result of :func:`keyed_to_json` at ``place`` of the document ``name``.

    Raises MalformedManifestError with the place.
    """
    state = convert_json(value, _Keyed, name, place)
    with report_place(name, place):
        return state.entry_of(uid, Lists(name, _refuse_list))


def _check_counts(entry: OperatorEntry, parallelism: int) -> None:
    """Refuse counts that are not one per old subtask, or do not add up to the stored rows."""
    lists = 1 if entry.state.mode is RedistributionMode.BROADCAST else parallelism
    stored = sum(handle.rows for handle in entry.handles)
    if len(entry.counts) != lists or entry.rows != stored:
        raise ValueError(
            f"{entry.state} has {len(entry.counts)} counts that add up to {entry.rows} "
            f"elements, but there are {lists} lists and the files contain {stored} elements"
        )
