"""Stores that older releases wrote are read as they were: the format is a promise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.catalog.fence import Upgrade
from statestore.errors import FormatVersionError
from statestore.format.documents import document_bytes
from statestore.format.handles import list_of
from statestore.format.names import manifest_path, pin_path, savepoint_path
from statestore.format.state import Layout
from statestore.rows.digests import rows_digest
from statestore.snapshot.state_spec import Changes
from tests.golden.make_changes import STATES
from tests.golden.make_kept import evolved
from tests.golden.make_store import USERS, totals, write
from tests.support.writers import claims

GOLDEN = Path(__file__).parent / "golden"
STORES = [*sorted(GOLDEN.glob("store_v*")), *sorted(GOLDEN.glob("upgraded_v*"))]


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def store(request: pytest.FixtureRequest) -> StateStore:
    return StateStore.open(str(request.param))


@pytest.mark.parametrize("checkpoint", [1, 2])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_old_store_restores(store: StateStore, checkpoint: int, parallelism: int) -> None:
    """I7: both table formats give the rows that were written, digests included."""
    restored = store.restore(checkpoint=checkpoint, parallelism=parallelism)
    state = restored.keyed("golden", "totals")
    found = pa.concat_tables([state.to_arrow(i) for i in range(parallelism)])
    assert rows_digest(found.drop_columns(["key_group"])) == rows_digest(totals()) == state.digest
    assert [row["n"] for row in restored.keyed("golden", "list").get("zoë")] == [0, 1]
    for user in USERS:
        assert restored.keyed("golden", "by number").get(user) == [
            {"user": user, "n": n} for n in range(2)
        ]
    offsets = restored.operator_state("source", "offsets")
    assert offsets.subtask(parallelism - 1) == [{"partition": 0, "offset": 7}]
    splits = restored.operator_state("source", "splits")
    dealt = [element["split"] for i in range(parallelism) for element in splits.subtask(i)]
    assert dealt == ["a", "b", "c"]
    assert restored.operator_state("source", "rules").subtask(0) == [{"rule": "x > 1"}]


def test_an_old_store_takes_the_next_checkpoint(store: StateStore, tmp_path: Path) -> None:
    """I3: the types of a new checkpoint must agree with the stored types."""
    copy = tmp_path / "copy"
    shutil.copytree(store.url, copy)
    again = StateStore.open(str(copy), table_format="parquet")
    write(again)
    before, after = again.checkpoint(1).manifest, again.checkpoint().manifest
    assert [e.digest for e in before.entries] == [e.digest for e in after.entries]


def test_there_is_a_golden_store() -> None:
    """The parametrised tests above do run."""
    assert [path.name for path in STORES] == ["store_v1", "upgraded_v2"]


def test_an_upgraded_store_keeps_its_writer_version(tmp_path: Path) -> None:
    """The golden store has a claim before the upgrade, and the claims of the upgrade."""
    url = str(shutil.copytree(GOLDEN / "upgraded_v2", tmp_path / "copy"))
    versions = [claim.writer_version for claim in claims(url)]
    assert versions == [1, 2]
    write(StateStore.open(url, table_format="parquet"))
    newest = claims(url)[-1]
    assert (newest.generation, newest.writer_version) == (3, 2)
    assert newest.upgrade == Upgrade(generation=2, previous_version=1)
    assert StateStore.open(url).maintenance.verify("all", deep=True).is_intact


def test_an_old_store_with_ranged_files_and_a_savepoint_restores() -> None:
    """Written by subtasks; the savepoint's columns are those of then, and it goes on."""
    store = StateStore.open(str(Path(__file__).parent / "golden" / "kept_v1"))
    assert [
        (savepoint.name, savepoint.checkpoint_id) for savepoint in store.maintenance.savepoints()
    ] == [("before upgrade", 1)]
    for checkpoint, rows in (("before upgrade", totals()), (2, evolved())):
        state = store.restore(checkpoint=checkpoint, parallelism=3).keyed("golden", "totals")
        assert state.entry.state.layout is Layout.RANGED
        found = pa.concat_tables([state.to_arrow(i) for i in range(3)])
        assert rows_digest(found.drop_columns(["key_group"])) == rows_digest(rows) == state.digest
        assert state.entry.state.schema.names == tuple(rows.column_names)
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.parametrize("name", ["changes_v2", "lists_v3"])
def test_an_old_store_with_changes_restores_and_goes_on(name: str, tmp_path: Path) -> None:
    """Layers over a base, in the last checkpoint partly folded: rows, digests, and one more."""
    store = StateStore.open(
        str(shutil.copytree(Path(__file__).parent / "golden" / name, tmp_path / "copy")),
        table_format="parquet",
        compaction=None,
    )
    layers = [len(store.checkpoint(number).manifest.keyed[0].layers) for number in STATES]
    assert layers == [0, 1, 2, 2]
    listed = [
        list_of(part.handles) for one in STATES for part in store.checkpoint(one).manifest.parts
    ]
    assert all(listed) is (name == "lists_v3")
    assert store.maintenance.verify("all", deep=True).is_intact
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_changes(
            "golden",
            "n",
            Changes(deletes=[{"user": "u2"}]),
            key="user",
            kind="map",
            entry="m",
        )
    last = {k: v for k, v in STATES[4].items() if k[0] != "u2"}
    for number, wanted in {**STATES, 5: last}.items():
        state = store.restore(checkpoint=number, parallelism=3).keyed("golden", "n")
        found = pa.concat_tables([state.to_arrow(i) for i in range(3)])
        assert {(r["user"], r["m"]): r["n"] for r in found.to_pylist()} == wanted
        assert rows_digest(found.drop_columns(["key_group"])) == state.digest


@pytest.mark.parametrize("what", ["statestore.json", "manifest", "savepoint", "pin"])
def test_what_a_newer_release_wrote_is_refused_by_name(what: str, tmp_path: Path) -> None:
    """The message names the document, its format version, and what this release knows."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    write(store)
    store.maintenance.savepoint("kept")
    token = store.maintenance.pin(lease="1m").token
    names = {
        "manifest": manifest_path(1),
        "savepoint": savepoint_path("kept"),
        "pin": pin_path(token),
    }
    name = names.get(what, what)
    file = tmp_path / "store" / name
    document = json.loads(file.read_bytes())
    del document["sha256"]
    file.write_bytes(document_bytes(document | {"format_version": 99}))
    with pytest.raises(FormatVersionError, match="99") as caught:
        _ = store.restore(checkpoint="kept"), store.maintenance.gc(dry_run=True)
    assert name in str(caught.value)
