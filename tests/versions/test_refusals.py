"""What a release does not understand it refuses by type, and changes nothing.

One document of a store gets a format version that no release has. Every command that needs this
document must name it in a FormatVersionError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from statestore import StateStore
from statestore.format.documents import document_bytes
from tests.support.stores import file_bytes
from tests.versions.content import NOW_MS
from tests.versions.history import COMMANDS, SNAPSHOT, History
from tests.versions.peer import Peer, RefusedError

pytestmark = [pytest.mark.versions, pytest.mark.slow]

UNKNOWN = 99
WRITES = ("write", "compact", "edit", "purge", "rekey")
REMOVES = ("gc", "expire", "purge")
READS = ("read", "copy", "savepoint", "verify")
NEEDED_BY = {
    "statestore.json": {*WRITES, *REMOVES, *READS, "repair", "checkpoints", "savepoints"},
    # The newest manifest.
    "checkpoints/0000000003.json": {*WRITES, *REMOVES, *READS, "repair"},
    "checkpoints/0000000002.json": {*REMOVES, "verify", "repair"},
    "savepoints/*.json": {*REMOVES, "savepoints"},
    "pins/*.json": {*REMOVES},
    # The newest claim.
    "writers/0000000003.json": {*WRITES, "verify", "repair"},
}

FOURTH_CLAIM = "writers/0000000004.json"
CLAIMING = {("write", "checkpoints/0000000003.json")}


def actions(history: History) -> dict[str, dict[str, Any]]:
    """Return the arguments of each action on a store with three checkpoints."""
    user = min(history.contents[history.latest].rows["totals/by-user"])[0]
    row = {"operator": "totals", "state": "by-user", "put": [], "delete": [user]}
    target = str(history.folder / "copy")
    return {
        "write": {"requests": history.draw("changes")[1], "store": history.store, **SNAPSHOT},
        "read": {"checkpoint": "latest", "parallelism": 1, "now_ms": NOW_MS},
        "copy": {"checkpoint": 3, "to": target, "store": history.store},
        "edit": row,
        "compact": {"now_ms": NOW_MS},
        "expire": {"retain": 1},
        "purge": {"operator": "totals", "key": user},
        "rekey": {"operator": "totals", "max_parallelism": 9},
        "savepoint": {"name": "other", "checkpoint": 3},
        **{name: {} for name in ("checkpoints", "gc", "repair", "savepoints", "verify")},
    }


@pytest.fixture
def make_history(tmp_path: Path, tree: Peer) -> Callable[[], History]:
    """Create a store with three checkpoints, a savepoint and a pin."""

    def make() -> History:
        history = History(tmp_path, Random("refusals"), {"table_format": "parquet"})
        for how in ("full", "changes", "mixed"):
            history.write(tree, how)
        COMMANDS["hold"](history, tree)
        return history

    return make


@pytest.mark.parametrize("document", NEEDED_BY)
def test_a_format_of_the_future_is_refused_by_name(
    document: str, make_history: Callable[[], History], pair: tuple[Peer, Peer]
) -> None:
    """No command of either version changes a file, and only a snapshot of an old one adds one.

    Such a snapshot leaves a claim.
    """
    peer, history = pair[0], make_history()
    [path] = Path(history.url).glob(document)
    content = json.loads(path.read_bytes())
    del content["sha256"]
    path.write_bytes(document_bytes(content | {"format_version": UNKNOWN}))
    before = file_bytes(history.url)
    for action, arguments in actions(history).items():
        if action not in NEEDED_BY[document]:
            continue
        with pytest.raises(RefusedError, match=f"format version {UNKNOWN}") as refused:
            peer(action, url=history.url, **arguments)
        assert "FormatVersionError" in refused.value.names, action
        assert path.name in refused.value.message, action
        after = file_bytes(history.url)
        claims = {FOURTH_CLAIM} if claims_first(peer) and (action, document) in CLAIMING else set()
        assert set(after) - set(before) == claims, action
        assert before.items() <= after.items(), action
        before = after


@pytest.mark.parametrize("is_upgraded", [False, True], ids=["before upgrade", "after upgrade"])
def test_a_snapshot_fences_a_job_with_a_newer_format_only_if_it_claims_first(
    is_upgraded: bool, make_history: Callable[[], History], pair: tuple[Peer, Peer], tree: Peer
) -> None:
    """After an upgrade, an old release refuses the newest claim instead."""
    history = make_history()
    if is_upgraded:
        StateStore.open(history.url).maintenance.upgrade()
    _, requests = history.draw("full")
    tree("begin", url=history.url, name="job", store=history.store, **SNAPSHOT)
    newest = Path(history.url, "checkpoints/0000000003.json")
    known, document = newest.read_bytes(), json.loads(newest.read_bytes())
    del document["sha256"]
    newest.write_bytes(document_bytes(document | {"format_version": UNKNOWN}))
    with pytest.raises(RefusedError, match="format version") as refused:
        pair[0]("write", url=history.url, requests=requests, store=history.store, **SNAPSHOT)
    assert "FormatVersionError" in refused.value.names
    newest.write_bytes(known)  # the job itself knows the format
    if is_upgraded or not claims_first(pair[0]):
        assert tree("finish", name="job", requests=requests)["id"] == 4
        return
    with pytest.raises(RefusedError) as fenced:
        tree("finish", name="job", requests=requests)
    assert "CommitConflictError" in fenced.value.names


def claims_first(peer: Peer) -> bool:
    """Return whether a version claims the store before it reads the newest manifest."""
    return peer.name == "0.1.0"
