"""Hostile names in a document are refused: they lead neither out of a store nor to another place in
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statestore import OperatorKey, StateStore
from statestore.errors import CorruptionError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.format.manifest_json import graph_to_json, manifest_from_json
from statestore.jobgraph.graph import JobGraph
from statestore.storage.local_cache import CacheOptions
from statestore.testing.suites import ASTRAY
from tests.support.stores import file_bytes

TOKEN = "0123456789abcdef"
FOLDERS = (
    *ASTRAY,
    *("operators", "operators/u", "operators/u/keyed", "operators/u/keyed/", "writers"),
    *("operators/v/keyed/part", "operators/u/keyed/other", "operators/u/operator/part"),
    *("operators/u/keyed/part/_delta_log", "operators/u/keyed/%2e%2e", "operators/u/keyed/~2E~2E"),
    *("operators/u/keyed/PART", "operators/U/keyed/part", "Operators/u/keyed/part", "~"),
    *("operators/u/keyed/par~74", "operators/~75/keyed/part", "checkpoints", ""),
)
FILES = (
    *ASTRAY,
    *("", "_delta_log/00000000000000000000.json", f"0000000001-00000-{TOKEN}-0.parquet.crc"),
    *(f"key_group=1/../0000000001-00001-{TOKEN}.parquet", f"0000000001-../{TOKEN}.parquet"),
    *(f"../part/0000000001-00000-{TOKEN}-0.parquet", f"%2e%2e/0000000001-{TOKEN}.parquet"),
    *(f"key_group=~31/0000000001-00001-{TOKEN}.parquet", f"0000000001-{TOKEN}.json"),
    *(f"0000000001-00000-{TOKEN}-0.parquet\n", f"key_group=01/0000000001-00001-{TOKEN}.parquet"),
)
Change = Callable[[dict[str, Any]], str]


def made(path: Path) -> StateStore:
    """Create a store with every kind of file: by key group, ranged, with changes and with
    elements.
    """
    store = StateStore.open(str(path), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=1) as checkpoint:
        for name, layout in (("part", "partitioned"), ("long", "ranged")):
            rows = [{"k": str(i), "v": i} for i in range(8)]
            checkpoint.write_keyed("u", name, rows, key="k", max_parallelism=2, layout=layout)
        checkpoint.write_union("u", "list", [[{"p": 1}]])
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "part", [{"k": "1", "v": 7}], key="k")
        checkpoint.carry_rest()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    return made(tmp_path_factory.mktemp("names") / "store")


def document(store: StateStore, checkpoint: int = 2) -> dict[str, Any]:
    name = Path(store.url, "checkpoints", f"{checkpoint:010}.json")
    found: dict[str, Any] = json.loads(name.read_bytes())
    del found["sha256"]
    return found


def states_of(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (operator,) = manifest["operators"]
    yield from (*operator["keyed"], *operator["operator"])


def places(manifest: dict[str, Any]) -> list[tuple[Any, Any, str]]:
    """Return every (object, member, kind) in a manifest that names a folder or a file."""
    found: list[tuple[Any, Any, str]] = []
    for state in states_of(manifest):
        found.append((state["table"], "path", "folder"))
        found += [(state["files"]["path"], at, "file") for at in range(len(state["files"]["path"]))]
        for layer in state.get("changes", ()):
            found.append((layer, "path", "folder"))
            found.append((layer["files"]["path"], 0, "file"))
    return found


NUMBER_OF_PLACES = 9


def test_this_module_knows_every_name_of_a_manifest(store: StateStore) -> None:
    assert len(places(document(store))) == NUMBER_OF_PLACES
    sorts = {(sort, member == "path") for _, member, sort in places(document(store))}
    assert sorts == {("folder", True), ("file", False)}


@pytest.mark.parametrize("at", range(NUMBER_OF_PLACES))
def test_a_hostile_name_is_refused_with_its_position(store: StateStore, at: int) -> None:
    """Any name at any position is refused. The message has the document, the member and
    the value.
    """
    for hostile in {*FOLDERS, *FILES}:
        manifest = document(store)
        inner, member, _ = places(manifest)[at]
        if inner[member] == hostile:
            continue
        inner[member] = hostile
        with pytest.raises(MalformedManifestError) as refused:
            manifest_from_json(document_bytes(manifest), name="m.json")
        assert "m.json at $.operators" in str(refused.value)
        assert repr(hostile) in str(refused.value)


def test_an_error_in_a_layer_or_a_type_has_its_own_position(store: StateStore) -> None:
    manifest = document(store)
    at, state = next((at, one) for at, one in enumerate(states_of(manifest)) if "changes" in one)
    place = rf"^m\.json at \$\.operators\[0\]\.keyed\[{at}\]"
    state["changes"][0]["files"]["path"][0] = "x"
    with pytest.raises(MalformedManifestError, match=rf"{place}\.changes\[0\]\.files\.path: 'x'"):
        manifest_from_json(document_bytes(manifest), name="m.json")
    state["schema"]["fields"][0]["type"] = {"type": "array"}
    with pytest.raises(MalformedManifestError, match=rf"{place}\.schema: .*'elementType'"):
        manifest_from_json(document_bytes(manifest), name="m.json")


@given(
    at=st.integers(0, NUMBER_OF_PLACES - 1),
    parts=st.lists(
        st.sampled_from(("..", ".", "", "a", "operators", "u", "keyed", "part", "%2e", "C:"))
        | st.text("./\\~%aA:\x00 é", max_size=4),
        max_size=6,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_random_name_is_accepted(store: StateStore, at: int, parts: list[str]) -> None:
    manifest = document(store)
    inner, member, _ = places(manifest)[at]
    if inner[member] != "/".join(parts):
        inner[member] = "/".join(parts)
        with pytest.raises(MalformedManifestError):
            manifest_from_json(document_bytes(manifest), name="m.json")


def test_names_from_writers_are_accepted(store: StateStore) -> None:
    """The refusals above concern only the names."""
    for number in (1, 2):
        manifest = manifest_from_json(document_bytes(document(store, number)), name="m.json")
        assert manifest == store.checkpoint(number).manifest


def test_two_states_do_not_share_a_table(store: StateStore) -> None:
    """This also holds for an operator that a graph may have renamed."""
    manifest = document(store)
    manifest["graph"] = graph_to_json(JobGraph(()))
    first, second = (dict(state) for state in list(states_of(manifest))[:2])
    second["name"], second["table"] = first["name"], first["table"]
    manifest["operators"] = [
        {"uid": "u", "id": "", "keyed": [first], "operator": []},
        {"uid": "v", "id": "", "keyed": [second], "operator": []},
    ]
    with pytest.raises(MalformedManifestError, match="the same table"):
        manifest_from_json(document_bytes(manifest), name="m.json")


@pytest.mark.parametrize(
    "origin",
    [
        {"command": "purge", "checkpoint": 2, "savepoints": [], "expired": False},
        {"command": "purge", "checkpoint": 0, "savepoints": [], "expired": False},
        {"command": "purge", "checkpoint": 1, "savepoints": []},
        {"command": "forget", "checkpoint": 1, "expired": False},
        {"command": "edit", "checkpoint": 3},
        {"command": "purge", "checkpoint": "1"},
        {"command": "purge", "checkpoint": 1, "savepoints": [{"name": "all", "created_at_ms": 1}]},
        {"command": "purge", "checkpoint": 1, "savepoints": [{"name": "x", "created_at_ms": -1}]},
        {"command": "purge", "checkpoint": 1, "savepoints": "x"},
        {"command": "purge", "checkpoint": 1, "savepoints": [], "expired": "no"},
        {"command": 7, "checkpoint": 1},
        {"checkpoint": 1},
    ],
)
def test_an_origin_that_no_command_writes_is_refused(
    store: StateStore, origin: dict[str, Any]
) -> None:
    """The origin decides which checkpoints expire and which savepoints are moved."""
    manifest = document(store) | {"origin": origin}
    with pytest.raises(MalformedManifestError, match=r"m.json at \$.origin"):
        manifest_from_json(document_bytes(manifest), name="m.json")


def test_no_command_uses_the_target_of_a_hostile_name(tmp_path: Path) -> None:
    """Every command reports that the manifest is invalid, and all files are unchanged."""
    store = made(tmp_path / "store")
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"not yours")
    name = Path(store.url, "checkpoints", "0000000002.json")
    cached = StateStore.open(store.url, cache=CacheOptions(str(tmp_path / "cache")))
    for hostile in (str(victim), "../../../../victim.parquet", "../long/x.parquet"):
        manifest = document(made(tmp_path / f"other-{len(hostile)}"))
        next(states_of(manifest))["files"]["path"][0] = hostile
        name.unlink()
        name.write_bytes(document_bytes(manifest))
        before = file_bytes(tmp_path)
        commands: tuple[Callable[[], object], ...] = (
            lambda: cached.restore(parallelism=1).keyed("u", "part").to_arrow(0),
            lambda: store.maintenance.copy("latest", str(tmp_path / "copy")),
            lambda: store.maintenance.copy("latest", str(tmp_path / "fork"), linked=True),
            lambda: store.maintenance.forget(OperatorKey("u", "1"), search=False),
            lambda: store.maintenance.salvage("latest"),
            lambda: store.maintenance.rekey("u", "part", max_parallelism=4),
            lambda: store.maintenance.edit("u", "part", delete=["1"]),
            lambda: store.maintenance.compact(),
            lambda: store.maintenance.gc(minimum_age="0"),
        )
        for command in commands:
            with pytest.raises(CorruptionError):
                command()
        after = file_bytes(tmp_path)
        assert {path: after.get(path) for path in before} == before
