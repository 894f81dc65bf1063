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

from statestore.format.documents import document_bytes
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
    """No command of either version removes, replaces or adds a file that others rely on."""
    peer, history = pair[0], make_history()
    [path] = Path(history.url).glob(document)
    content = json.loads(path.read_bytes())
    del content["sha256"]
    path.write_bytes(document_bytes(content | {"format_version": UNKNOWN}))
    before = files_of(history)
    for action, arguments in actions(history).items():
        if action not in NEEDED_BY[document]:
            continue
        with pytest.raises(RefusedError, match=f"format version {UNKNOWN}") as refused:
            peer(action, url=history.url, **arguments)
        assert "FormatVersionError" in refused.value.names, action
        assert path.name in refused.value.message, action
        after = files_of(history)
        # A writer claims the store before it reads the newest manifest.
        added = {name for name in set(after) - set(before) if not name.startswith("writers/")}
        assert added == set(), action
        assert before.items() <= after.items(), action


def files_of(history: History) -> dict[str, bytes]:
    """Return the content of each file of the store."""
    root = Path(history.url)
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
