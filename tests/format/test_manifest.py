"""Read a manifest back from its bytes, or report the position of the damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from statestore.errors import FormatVersionError, MalformedManifestError, StateNotFoundError
from statestore.format.digest import combine
from statestore.format.documents import document_bytes
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.format.manifest_json import manifest_from_json, manifest_to_json
from statestore.format.manifest_summary import summary_from_json
from statestore.format.metrics import Amount, CheckpointMetrics, PhaseTimes, StateMetrics
from statestore.format.names import operator_file, partition_file
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, OperatorState, StateKind
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import KeyGroupRange
from tests.support.key_values import manifests

# Members that a reader does not need: they follow from the uid, or default to null.
OPTIONAL = {"id", "time_domain", "version", "generation", "metrics", "base_rows"}

TOKEN = "0123456789abcdef"
FIRST, SECOND = partition_file(42, 1, TOKEN), partition_file(7, 4, TOKEN)
ELEMENTS = operator_file(42, TOKEN)
KEYED = KeyedEntry(
    KeyedState(
        uid="totals",
        name="sum",
        kind=StateKind.MAP,
        schema=Schema((Field("user", "string"), Field("country", "string"), Field("n", "long"))),
        key=("user",),
        entry=("country",),
        key_types=("String",),
        max_parallelism=8,
        hash_scheme="java",
    ),
    TableRef("delta", "operators/totals/keyed/sum", 3),
    (
        KeyedStateHandle(FIRST, KeyGroupRange(1, 1), 2, 100, 1, 5, "aa" * 32),
        KeyedStateHandle(SECOND, KeyGroupRange(4, 4), 3, 200, 1, 2**64 - 1, "bb" * 32),
    ),
)
OPERATOR = OperatorEntry(
    OperatorState(
        uid="source",
        name="offsets",
        mode=RedistributionMode.UNION,
        schema=Schema((Field("partition", "integer"),)),
    ),
    TableRef("delta", "operators/source/operator/offsets", 3),
    (3, 0),
    (OperatorStateHandle(ELEMENTS, 3, 50, 1, 9, "cc" * 32),),
)
SMALL = Manifest(
    store_id="s",
    checkpoint_id=42,
    parallelism=2,
    started_at_ms=1,
    created_at_ms=2,
    writer=Writer("0.1", "host:1", "t"),
    keyed=(KEYED,),
    operator=(OPERATOR,),
    metrics=CheckpointMetrics(
        duration_ms=9,
        phases=PhaseTimes(begin_ms=1, write_ms=4, put_ms=2),
        states=(
            StateMetrics(operator="totals", state="sum", written=Amount(2, 100, 1), base_rows=5),
            StateMetrics(operator="source", state="offsets", write_ms=1, written=Amount(3, 50, 1)),
        ),
        compaction=Amount(3, 200, 1),
    ),
)


def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(manifest_to_json(SMALL))
    del parsed["sha256"]
    return parsed


def read(changed: Any) -> Manifest:
    return manifest_from_json(document_bytes(changed), name="m.json")


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a document."""
    if above:
        yield above
    if isinstance(value, dict):
        inner: Any = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*above, key))


def change(path: tuple[Any, ...], *, to: Any = None, delete: bool = False) -> dict[str, Any]:
    changed = document()
    *above, last = path
    inner: Any = changed
    for key in above:
        inner = inner[key]
    if delete:
        del inner[last]
    else:
        inner[last] = to
    return changed


def value_at(path: tuple[Any, ...]) -> Any:
    inner: Any = document()
    for key in path:
        inner = inner[key]
    return inner


def in_place(text: str) -> tuple[Any, ...]:
    """Return the path that a text such as ``keyed.files.rows`` names, in the first state of its
    kind.
    """
    sort, *rest = text.split(".")
    operator = 0 if sort == "operator" else 1  # in order of uid
    return ("operators", operator, sort, 0, *(int(p) if p.isdigit() else p for p in rest))


@given(manifests())
def test_a_manifest_survives_a_round_trip(manifest: Manifest) -> None:
    """This includes every member, and the order of an operator's states."""
    raw = manifest_to_json(manifest)
    assert manifest_from_json(raw, name="m") == manifest
    assert manifest_to_json(manifest_from_json(raw, name="m")) == raw


def backwards(value: Any) -> Any:
    """Return a value with the members of every object in reverse order."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(part) for part in value] if isinstance(value, list) else value


def test_members_may_come_in_any_order_and_are_written_in_one() -> None:
    """This also holds for members that were omitted because they are null."""
    turned = backwards(document())
    assert read(turned) == read(document())
    del turned["operators"][1]["keyed"][0]["time_domain"]
    turned["operators"][1]["keyed"][0]["table"]["version"] = None
    again = change(in_place("keyed.table.version"), delete=True)
    assert manifest_to_json(read(turned)) == manifest_to_json(read(again))


def test_unknown_members_are_ignored() -> None:
    """A later release can add members anywhere without a new format version."""
    changed = document()
    for path in [(), *(p for p in places(document()) if isinstance(value_at(p), dict))]:
        inner: Any = changed
        for key in path:
            inner = inner[key]
        inner["added later"] = [1]
    loaded = read(changed)
    assert (loaded.writer, loaded.checkpoint_id) == (SMALL.writer, 42)
    assert [entry.handles for entry in loaded.entries] == [KEYED.handles, OPERATOR.handles]


def test_a_manifest_cut_at_any_byte_is_malformed() -> None:
    """I4: a part of a manifest is never used."""
    raw = manifest_to_json(SMALL)
    for length in range(len(raw)):
        with pytest.raises(MalformedManifestError, match=r"^m\.json "):
            manifest_from_json(raw[:length], name="m.json")


MEMBERS = [
    path
    for path in places(document())
    if isinstance(path[-1], str) and path[-2:] != ("schema", "type")
]


def test_a_missing_member_is_named_with_its_place() -> None:
    """This covers every member of every object."""
    for path in MEMBERS:
        changed = change(path, delete=True)
        of_phase = path[-2:-1] == ("phases",)
        if path[-1] in OPTIONAL or of_phase or "metadata" in path or path[-1] == "nullable":
            assert read(changed).checkpoint_id == 42
            continue
        with pytest.raises(MalformedManifestError, match=r"^m\.json at \$"):
            read(changed)


@pytest.mark.parametrize("path", list(places(document())), ids=str)
def test_another_value_is_refused_or_read_without_a_crash(path: tuple[Any, ...]) -> None:
    """Any replacement of a member is malformed, with its position, or gives a complete manifest."""
    wrongs: list[Any] = [None, True, -1, 1.5, "", "x", [], [[]], {}, [None], 2**40, 2**70]
    for wrong in wrongs:
        with suppress(MalformedManifestError, FormatVersionError):
            summary_from_json(document_bytes(change(path, to=wrong)), name="m.json")
        try:
            loaded = read(change(path, to=wrong))
        except MalformedManifestError as error:
            assert str(error).startswith("m.json at $")  # noqa: PT017
        except FormatVersionError:
            assert path == ("format_version",)
        else:
            assert manifest_from_json(manifest_to_json(loaded), name="m") == loaded


INCONSISTENT: list[tuple[str, Any]] = [
    ("keyed.rows", 4),
    ("keyed.size_bytes", 4),
    ("keyed.digest", "0000000000000000"),
    ("keyed.files.rows.0", 7),
    ("keyed.files.size_bytes.0", 7),
    ("keyed.files.digest.0", "0000000000000007"),
    ("keyed.files.digest.0", "not hexadecimal"),
    ("keyed.files.path", ["one"]),
    ("keyed.files.first", [1]),
    ("keyed.files.last", [1]),
    ("keyed.files.first.1", 0),
    ("keyed.files.first.1", 1),
    ("keyed.files.first.0", 4),
    ("keyed.files.last.0", 0),
    ("keyed.files.last.0", 4),
    ("keyed.files.last.1", 8),
    ("keyed.max_parallelism", 4),
    ("keyed.max_parallelism", 0),
    ("keyed.max_parallelism", 32_769),
    ("keyed.key", []),
    ("keyed.key", ["nobody"]),
    ("keyed.key_types", []),
    ("keyed.entry", []),
    ("keyed.kind", "nonsense"),
    ("keyed.layout", "nonsense"),
    ("keyed.time_domain", "nonsense"),
    ("keyed.schema.fields.0.type", "nonsense"),
    ("keyed.schema.fields.0.name", "country"),
    ("operator.mode", "nonsense"),
    ("operator.counts", [3]),
    ("operator.counts", [3, 0, 0]),
    ("operator.counts", [2, 0]),
    ("operator.files.rows.0", 2),
    ("operator.schema.fields.0.name", "subtask"),
]


def test_inconsistent_parts_are_malformed() -> None:
    """I5, I7: a manifest that would restore other rows is refused before a file is opened."""
    for place, wrong in INCONSISTENT:
        with pytest.raises(MalformedManifestError, match=r"^m\.json at \$\.operators"):
            read(change(in_place(place), to=wrong))


@pytest.mark.parametrize("parallelism", [0, 32_769])
def test_a_parallelism_out_of_bounds_is_malformed(parallelism: int) -> None:
    """No writer writes such a value."""
    with pytest.raises(MalformedManifestError, match=r"m\.json at \$\.parallelism"):
        read(change(("parallelism",), to=parallelism))


def test_a_newer_manifest_asks_for_an_upgrade() -> None:
    """This holds even if no other part can be read."""
    with pytest.raises(FormatVersionError, match=r"m\.json has format version 4"):
        read({"format": "statestore-checkpoint", "format_version": 4})


@pytest.mark.slow
@settings(max_examples=30)
@given(manifests())
def test_totals_are_sums_over_the_files(manifest: Manifest) -> None:
    """I7: rows, bytes, files and digest of a state are sums."""
    handles = [handle for entry in manifest.entries for handle in entry.handles]
    assert manifest.rows == sum(handle.rows for handle in handles)
    assert manifest.size_bytes == sum(handle.size_bytes for handle in handles)
    assert manifest.files == len(handles)
    for entry in manifest.entries:
        assert entry.digest == combine(handle.digest for handle in entry.handles)


@pytest.mark.slow
@settings(max_examples=30)
@given(manifests())
def test_the_summary_has_the_totals_of_the_manifest(manifest: Manifest) -> None:
    summary = summary_from_json(manifest_to_json(manifest), name="m")
    assert summary.amount == Amount(manifest.rows, manifest.size_bytes, manifest.files)
    assert summary.changed_rows == sum(entry.changed_rows for entry in manifest.keyed)
    assert summary.layers == sum(len(entry.layers) for entry in manifest.keyed)
    assert (summary.operators, summary.states) == (len(manifest.uids), len(manifest.entries))
    for name in ("checkpoint_id", "parallelism", "created_at_ms", "took_ms"):
        assert getattr(summary, name) == getattr(manifest, name)
    for name in ("origin", "metrics", "left_out"):
        assert getattr(summary, name) == getattr(manifest, name)
    assert summary.command == manifest.writer.command


@pytest.mark.parametrize("member", ["files", "file_list"])
def test_a_summary_without_files_or_a_list_of_them_is_malformed(member: str) -> None:
    """A state with both, or with neither, has no totals."""
    changed = document()
    (state,) = changed["operators"][1]["keyed"]
    if member == "file_list":
        state[member] = {"files": 1, "rows": 1, "data_bytes": 1}
    else:
        del state[member]
    with pytest.raises(MalformedManifestError, match=r"^m\.json at \$\.operators\[1\]\.keyed\[0\]"):
        summary_from_json(document_bytes(changed), name="m.json")


def test_a_state_is_found_by_operator_and_name() -> None:
    """It is found among states of its kind, and of any kind."""
    assert SMALL.uids == ("source", "totals")
    assert SMALL.keyed_entry("totals", "sum") is SMALL.find("totals", "sum") is KEYED
    assert SMALL.operator_entry("source", "offsets") is SMALL.find("source", "offsets") is OPERATOR


@pytest.mark.parametrize(
    ("uid", "name", "message"),
    [
        ("nobody", "sum", "no operator 'nobody' in checkpoint 42; it has 'source', 'totals'"),
        ("totals", "max", "no state 'max' in operator 'totals' of checkpoint 42; it has 'sum'"),
        ("source", "offsets", r"'offsets' .* is operator state; .* with \.operator_state"),
    ],
)
def test_a_missing_state_lists_the_available_ones(uid: str, name: str, message: str) -> None:
    """The operator or the state is unknown, or the state has another kind."""
    with pytest.raises(StateNotFoundError, match=message):
        SMALL.keyed_entry(uid, name)


def test_a_state_requested_as_the_wrong_kind_is_named() -> None:
    """This works in both directions. An empty checkpoint has no states."""
    with pytest.raises(StateNotFoundError, match=r"is keyed state; .* read it with \.keyed"):
        SMALL.operator_entry("totals", "sum")
    empty = replace(SMALL, keyed=(), operator=())
    with pytest.raises(StateNotFoundError, match="it has none"):
        empty.find("totals", "sum")
