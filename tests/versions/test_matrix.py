"""A release and this tree work on the same stores, in both directions.

`make test-versions` runs these tests with every release in ``releases.toml``. Rows, types, digests
and operator state are compared with what the tests drew.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from statestore.rows.digests import rows_digest
from tests.versions.content import NOW_MS
from tests.versions.history import COMMANDS, SNAPSHOT, History
from tests.versions.peer import Peer, RefusedError, or_refused

pytestmark = [pytest.mark.versions, pytest.mark.slow]

PLAIN = {"table_format": "parquet"}
STORES = {
    "ranged": PLAIN,
    "partitioned": PLAIN | {"layout": "partitioned"},
    "delta": {"table_format": "delta"},
}
TURNS = 4  # checkpoints before the commands


@pytest.mark.parametrize(
    ("form", "seed"),
    [
        ("ranged", 1),
        *(pytest.param(form, seed, marks=pytest.mark.long) for form in STORES for seed in (2, 3)),
    ],
)
@or_refused
def test_peers_take_turns(form: str, seed: int, tmp_path: Path, pair: tuple[Peer, Peer]) -> None:
    """Every command runs once, in a drawn order; after each, the other peer reads the result."""
    random = Random(seed)
    history = History(tmp_path, random, STORES[form])
    for turn in range(TURNS):
        history.write(pair[turn % 2], ("full", "changes", "against", "mixed")[turn])
    commands = [*COMMANDS]
    random.shuffle(commands)
    for turn, command in enumerate(commands):
        COMMANDS[command](history, pair[turn % 2])
        history.check_newest(pair[(turn + 1) % 2], parallelism=random.randint(1, 3))
    for peer in pair:
        history.check(peer)


@pytest.mark.long
@pytest.mark.parametrize("form", STORES)
@pytest.mark.parametrize("command", COMMANDS)
@or_refused
def test_one_continues_after_a_command_of_the_other(
    command: str, form: str, tmp_path: Path, pair: tuple[Peer, Peer]
) -> None:
    """The first creates the store, the second runs the command, and the first continues."""
    first, second = pair
    history = History(tmp_path, Random(f"{command} {form}"), STORES[form])
    for how in ("full", "changes", "against", "mixed", "changes"):
        history.write(first, how)
    COMMANDS["hold"](history, first)
    COMMANDS[command](history, second)
    history.check(first)
    history.check(second, parallelism=1)
    history.write(first, "mixed")
    history.write(second, "changes")
    history.check(first, parallelism=3)
    history.check(second)


@pytest.mark.parametrize("command", ["compact", "edit", "rekey", "write_changes"])
@or_refused
def test_a_writer_is_replaced_by_another_version(
    command: str, tmp_path: Path, pair: tuple[Peer, Peer]
) -> None:
    """I6: the first writer lost its claim, commits nothing, and can begin again."""
    first, second = pair
    history = History(tmp_path, Random(command), PLAIN)
    history.write(first, "full")
    history.write(second, "changes")
    _, requests = history.draw("mixed")
    first("begin", url=history.url, name="open", store=PLAIN, **SNAPSHOT)
    COMMANDS[command](history, second)
    with pytest.raises(RefusedError) as refused:
        first("finish", name="open", requests=requests)
    assert "CommitConflictError" in refused.value.names
    history.check(first)
    history.write(first, "changes")
    history.check(second)


@or_refused
def test_a_batch_of_another_version_is_not_written_again(
    tmp_path: Path, pair: tuple[Peer, Peer]
) -> None:
    """I6: the retry of a batch after an upgrade in its middle, also after a compaction."""
    first, second = pair
    history = History(tmp_path, Random("batches"), PLAIN)
    batches: list[Any] = []
    for number in range(3):
        content, requests = history.draw("changes")
        arguments = {"requests": requests, "store": PLAIN, **SNAPSHOT}
        batch = {"url": history.url, "batch": ("job", number), **arguments}
        done = first("write", **batch)
        assert not done["already"]
        history.add(done["id"], content)
        batches.append(batch)
        again = second("write", **batch)
        assert again["already"]
        assert again["id"] == done["id"]
    COMMANDS["compact"](history, second)
    assert first("write", **batches[-1])["already"]
    with pytest.raises(RefusedError) as refused:
        second("write", **batches[0])
    assert "CommitConflictError" in refused.value.names
    history.check(first)
    history.check(second)


@pytest.mark.parametrize("file", ["statestore.json", "writers/0000000002.json"])
@or_refused
def test_a_document_of_another_version_is_repaired(
    file: str, tmp_path: Path, pair: tuple[Peer, Peer]
) -> None:
    first, second = pair
    history = History(tmp_path, Random(file), PLAIN)
    history.write(first, "full")
    history.write(first, "changes")
    path = Path(history.url) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RefusedError):
        history.write(second, "changes")
    second("repair", url=history.url)
    history.write(first, "changes")
    history.write(second, "mixed")
    history.check(first)


COLUMNS = pa.schema([("id", pa.int64()), ("count", pa.int32()), ("old", pa.string())])
LATER = pa.schema([("id", pa.int64()), ("count", pa.int64()), ("new", pa.float64())])


@or_refused
def test_columns_change_between_versions(tmp_path: Path, pair: tuple[Peer, Peer]) -> None:
    """One adds, drops and widens columns; the other reads both schemas, and continues."""
    first, second = pair
    url, snapshot = str(tmp_path / "store"), {"store": PLAIN, **SNAPSHOT}

    def write(peer: Peer, method: str, rows: Any, **arguments: Any) -> None:
        request = {"operator": "o", "state": "s", "method": method, "rows": rows}
        requests = [request | {"arguments": {"key": "id", **arguments}}]
        peer("write", url=url, requests=requests, **snapshot)

    before: list[dict[str, Any]] = [
        {"id": number, "count": number, "old": "é"} for number in range(9)
    ]
    after: list[dict[str, Any]] = [
        {"id": number, "count": 2**40 + number, "new": 0.5} for number in range(9)
    ]
    put = {"id": 4, "count": -1, "new": None}
    write(first, "write_keyed", pa.Table.from_pylist(before, COLUMNS), max_parallelism=3)
    first("savepoint", url=url, name="before", checkpoint=1)
    later = pa.Table.from_pylist(after, LATER)
    write(second, "write_keyed", later, dropped=["old"])
    write(first, "write_changes", {"upserts": pa.Table.from_pylist([put], LATER)})
    after[4] = put
    for peer in pair:
        for name, schema, rows in (("before", COLUMNS, before), ("latest", LATER, after)):
            found = peer("read", url=url, checkpoint=name, parallelism=2, now_ms=NOW_MS)
            table = found["keyed"]["o/s"].drop_columns(["key_group"])
            assert table.schema.remove_metadata().equals(schema)
            assert sorted(table.to_pylist(), key=lambda row: row["id"]) == rows
            digest = rows_digest(pa.Table.from_pylist(rows, schema))
            assert found["digests"]["o/s"] == digest


@or_refused
def test_keys_are_looked_up_in_the_other_ones_rows(tmp_path: Path, pair: tuple[Peer, Peer]) -> None:
    """I1: both hash each key to the same key group."""
    first, second = pair
    history = History(tmp_path, Random("look up"), PLAIN)
    history.write(first, "full")
    history.write(second, "changes")
    content = history.contents[history.latest]
    for operator, state, key in (
        ("totals", "by-user", lambda row: row["user"]),
        ("orders", "lines", lambda row: (row["shop"], row["region"])),
        ("windows", "sums", lambda row: row["id"]),
    ):
        rows = [*content.rows[f"{operator}/{state}"].values()]
        for wanted in {key(row) for row in rows}:
            expected = [row for row in rows if key(row) == wanted]
            for peer in pair:
                found = peer(
                    "look_up",
                    url=history.url,
                    operator=operator,
                    state=state,
                    key=wanted,
                    now_ms=NOW_MS,
                )
                assert _same(found, expected), (peer, wanted)


def _same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return len(found) == len(expected) and all(row in expected for row in found)
