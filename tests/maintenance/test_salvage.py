"""The readable part of a damaged checkpoint becomes a new checkpoint, and the lost part is
reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore import OperatorKey
from statestore.catalog.holds import Savepoint
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.format.names import manifest_path
from statestore.format.state import Layout
from statestore.layers.intact_key_groups import group_digests
from statestore.maintenance.salvage import LostPart, merge_lost_parts
from statestore.parquet.writer import ParquetOptions
from statestore.store import StateStore
from tests.faults.cases import data_files
from tests.support.damage import FLIPS, change_unread_byte, copy_of

pytestmark = pytest.mark.slow

GROUPS = 16
KEYS = 400


def opened(folder: Path, layout: Layout) -> StateStore:
    options = ParquetOptions(row_group_rows=64)
    return StateStore.open(str(folder), table_format="parquet", layout=layout, parquet=options)


def take(store: StateStore, first: int, stop: int, value: str) -> None:
    """Take a checkpoint with these users, each with this value, and with offsets that equal its
    number.
    """
    users = [f"u{i:04}" for i in range(first, stop)]
    number = len(store.checkpoints()) + 1 if Path(store.url, "statestore.json").exists() else 1
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"user": users, "n": range(first, stop), "s": [value] * len(users)})
        checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=GROUPS)
        checkpoint.write_keyed("users", "other", rows, key="user", max_parallelism=GROUPS)
        offsets = [[{"partition": p, "offset": number * 10 + p}] for p in range(2)]
        checkpoint.write_union("source", "offsets", offsets)


@pytest.fixture(params=[Layout.RANGED, pytest.param(Layout.PARTITIONED, marks=pytest.mark.long)])
def layout(request: pytest.FixtureRequest) -> Layout:
    found: Layout = request.param
    return found


@pytest.fixture
def store(tmp_path: Path, layout: Layout) -> StateStore:
    """A store with two checkpoints. The second has other values, and additional users."""
    store = opened(tmp_path / "store", layout)
    take(store, 0, KEYS, "old")
    take(store, 100, KEYS + 100, "new")
    return store


def files(store: StateStore, name: str, checkpoint: int | str = 2) -> list[Path]:
    (entry,) = (e for e in store.checkpoint(checkpoint).manifest.entries if e.state.name == name)
    return [Path(store.url, entry.table.path, handle.path) for handle in entry.handles]


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 0xFF
    file.write_bytes(bytes(raw))


def flip_page(file: Path) -> None:
    """Change a byte in the first page of the last column."""
    row_group = pq.read_metadata(file).row_group(0)
    column = row_group.column(row_group.num_columns - 1)
    flip(file, column.data_page_offset + column.total_compressed_size // 2)


def rows(store: StateStore, checkpoint: int, name: str = "totals") -> dict[str, tuple[int, str]]:
    """Return (key group, value) by user."""
    keyed = store.restore(checkpoint=checkpoint, parallelism=1).keyed("users", name)
    table = keyed.to_arrow(0)
    return {row["user"]: (row["key_group"], row["s"]) for row in table.to_pylist()}


def groups_of(parts: tuple[LostPart, ...]) -> set[int]:
    return {g for part in parts for g in range(part.first or 0, (part.last or 0) + 1)}


# --- intact checkpoints ---------------------------------------------------------------------------


def test_an_intact_checkpoint_makes_no_new_one(store: StateStore) -> None:
    before = data_files(Path(store.url))
    heard: list[tuple[int, int]] = []
    report = store.maintenance.salvage(
        2, on_progress=lambda done, total: heard.append((done, total))
    )
    assert (report.is_intact, report.new_checkpoint_id, report.states) == (True, None, ())
    assert data_files(Path(store.url)) == before
    assert heard == [(done, report.files) for done in range(report.files + 1)]


def test_intact_files_are_reused_and_not_copied(store: StateStore) -> None:
    files(store, "totals")[0].unlink()
    before = {*data_files(Path(store.url))}
    store.maintenance.salvage(2)
    other = store.checkpoint(2).manifest.keyed_entry("users", "other")
    assert store.checkpoint(3).manifest.keyed_entry("users", "other") == other
    assert {*data_files(Path(store.url))} - before == {manifest_path(3)}


# --- damaged files --------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zeros(file: Path) -> None:
    file.write_bytes(bytes(len(file.read_bytes())))


@pytest.mark.long_cases("ranged-lengthen", "ranged-empty", "ranged-zeros")
@pytest.mark.parametrize("damage", [Path.unlink, cut, lengthen, empty, zeros])
def test_a_file_that_is_no_longer_readable_loses_all_its_rows(
    store: StateStore, layout: Layout, damage: Callable[[Path], Any]
) -> None:
    """The report has exactly the rows, key groups and keys of the damaged files."""
    before = rows(store, 2)
    file = files(store, "totals")[0]
    (handle,) = (
        h
        for h in store.checkpoint(2).manifest.keyed_entry("users", "totals").handles
        if file.name == Path(h.path).name
    )
    damage(file)
    report = store.maintenance.salvage(2, keys=10_000)
    (state,) = report.states
    lost = groups_of(state.lost)
    assert lost == {group for group, _, _ in group_digests(handle)}
    assert len(lost) == (1 if layout is Layout.PARTITIONED else GROUPS)
    expected = {user: row for user, row in before.items() if row[0] not in lost}
    assert rows(store, 3) == expected
    assert (state.rows_before, state.rows_after) == (len(before), len(expected))
    assert state.lost_rows == len(before) - len(expected)
    known = {user for user, (group, _) in rows(store, 1).items() if group in lost}
    assert {key["user"] for key in state.keys} == known
    assert state.lost_keys == len(known)
    assert {part.known_in for part in state.lost} == {1}
    assert store.maintenance.verify(3, deep=True).is_intact


@pytest.mark.slow
def test_a_flipped_byte_loses_at_most_the_unreadable_rows(
    store: StateStore, tmp_path: Path
) -> None:
    """The new checkpoint is intact, and has the rows of all key groups that were not lost."""
    before, dice = rows(store, 2), random.Random(7)
    file = files(store, "totals")[0]
    raw = file.read_bytes()
    fates: set[bool] = set()
    for number in range(FLIPS // 12):
        flip(file, dice.randrange(len(raw)))
        report = store.maintenance.salvage(2, dry_run=True)
        (state,) = report.states
        lost = groups_of(state.lost)
        fates.add(bool(lost))
        copy = copy_of(store, tmp_path / f"copy-{number}")
        new = copy.maintenance.salvage(2).new_checkpoint_id
        assert new is not None
        assert rows(copy, new) == {u: row for u, row in before.items() if row[0] not in lost}
        assert copy.maintenance.verify(new, deep=True).broken == ()
        file.write_bytes(raw)
    assert True in fates


def test_a_damaged_page_loses_the_key_groups_of_its_row_group(tmp_path: Path) -> None:
    """The other key groups of a ranged file are written to a new file."""
    store = opened(tmp_path / "store", Layout.RANGED)
    take(store, 0, KEYS, "only")
    (file,) = files(store, "totals", 1)
    before = rows(store, 1)
    flip_page(file)
    (state,) = store.maintenance.salvage(1).states
    lost = groups_of(state.lost)
    assert 0 < len(lost) < GROUPS / 2
    assert rows(store, 2) == {u: row for u, row in before.items() if row[0] not in lost}
    assert [part.known_in for part in state.lost] == [None] * len(state.lost)
    assert (state.keys, state.lost_keys) == ((), 0)
    (new,) = store.checkpoint(2).manifest.keyed_entry("users", "totals").handles
    assert new.path.startswith("0000000002-")


def test_damage_outside_of_rows_loses_nothing(store: StateStore) -> None:
    """The SHA-256 is wrong and the rows are right, so they are rewritten."""
    before = rows(store, 2)
    for name in ("totals", "offsets"):
        change_unread_byte(files(store, name)[0])
    report = store.maintenance.salvage(2)
    assert [(state.state, state.lost) for state in report.states] == [
        ("totals", ()),
        ("offsets", ()),
    ]
    assert rows(store, 3) == before
    assert store.maintenance.verify(3, deep=True).is_intact
    assert not store.maintenance.verify(2, deep=True).is_intact


def test_a_state_that_lost_everything_has_no_rows(store: StateStore) -> None:
    for file in (*files(store, "totals"), *files(store, "offsets")):
        file.unlink()
    report = store.maintenance.salvage(2)
    assert [(state.state, state.rows_after) for state in report.states] == [
        ("totals", 0),
        ("offsets", 0),
    ]
    assert rows(store, 3) == {}
    assert store.restore(checkpoint=3).operator_state("source", "offsets").per_old_subtask() == [
        [],
        [],
    ]
    assert store.maintenance.verify(3, deep=True).is_intact
    take(store, 0, 5, "next")  # the state continues
    assert len(rows(store, 4)) == 5


# --- from older checkpoints -----------------------------------------------------------------------


def test_a_loss_is_recorded_until_the_state_is_written_in_full(store: StateStore) -> None:
    """I16: changes and other states do not restore the lost rows."""
    flip_page(files(store, "totals")[0])
    report = store.maintenance.salvage(2)
    (state,) = report.states
    records = store.checkpoint().manifest.left_out
    assert [(record.operator, record.state, record.first, record.last) for record in records] == [
        ("users", "totals", part.first, part.last) for part in state.lost
    ]
    assert {record.command for record in records} == {"salvage"}
    new = [{"user": "u0100", "n": 1, "s": "x"}]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("users", "totals", new)
        checkpoint.carry_rest()
    assert store.checkpoint().manifest.left_out == records
    store.maintenance.compact()
    assert store.checkpoint().manifest.left_out == records
    store.maintenance.edit("users", "totals", put=[new[0] | {"n": 2}])
    assert store.checkpoint().manifest.left_out == records
    store.maintenance.forget(OperatorKey("users", "u0100"), search=False, checkpoint="latest")
    assert store.checkpoint().manifest.left_out == records
    assert store.maintenance.verify().is_intact
    assert not store.maintenance.verify().is_complete
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "totals", new, key="user")
        checkpoint.carry_rest()
    assert store.checkpoint().manifest.left_out == ()
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest(base=3)
    assert store.checkpoint().manifest.left_out == records


def test_lost_key_groups_are_filled_from_an_older_checkpoint(
    store: StateStore, layout: Layout
) -> None:
    """The new manifest names the older checkpoint. An older file is reused if it has a single key
    group.
    """
    old, new = rows(store, 1), rows(store, 2)
    damaged = files(store, "totals")[:3]
    for file in damaged:
        flip_page(file)
    before = {*data_files(Path(store.url))}
    report = store.maintenance.salvage(2, from_older=True)
    (state,) = report.states
    lost = groups_of(state.lost)
    assert lost
    assert {part.filled_from for part in state.lost} == {1}
    expected = {u: row for u, row in new.items() if row[0] not in lost}
    expected |= {u: row for u, row in old.items() if row[0] in lost}
    assert rows(store, 3) == expected
    assert state.rows_after == len(expected)
    assert store.maintenance.verify(3, deep=True).is_intact
    origin = store.checkpoint(3).manifest.origin
    assert origin is not None
    assert (origin["command"], origin["checkpoint"], origin["lost"]) == ("salvage", 2, [])
    assert [(f["first"], f["last"], f["checkpoint"]) for f in origin["filled"]] == [
        (part.first, part.last, 1) for part in state.lost
    ]
    written = {*data_files(Path(store.url))} - before
    assert len(written) == (1 if layout is Layout.PARTITIONED else 2)


def test_a_checkpoint_that_lacks_the_rows_itself_fills_nothing(store: StateStore) -> None:
    """Its lost key groups have no rows and no damage, so they look intact."""
    for file in files(store, "totals", 1):
        file.unlink()
    flip_page(files(store, "totals")[0])
    store.maintenance.salvage(2)
    (record, *_) = store.checkpoint(3).manifest.left_out
    take(store, 100, KEYS + 100, "newer")
    assert store.checkpoint(4).manifest.left_out == ()
    for file in files(store, "totals", 4):
        file.unlink()
    report = store.maintenance.salvage(4, from_older=True)
    (state,) = report.states
    parts = {group: part for part in state.lost for group in groups_of((part,))}
    assert record.first is not None
    assert (parts[record.first].known_in, parts[record.first].filled_from) == (None, None)
    assert 3 in {part.filled_from for part in state.lost}
    assert "checkpoint 3 also lacks some of these key groups" in state.why_not_filled
    assert report.left_out == store.checkpoint(5).manifest.left_out
    assert any(one.lacks("users", "totals", record.first) for one in report.left_out)


def test_an_operator_state_that_was_lost_before_fills_nothing(store: StateStore) -> None:
    for number in (1, 2):
        files(store, "offsets", number)[0].unlink()
    store.maintenance.salvage(2)
    take(store, 100, KEYS + 100, "newer")
    files(store, "offsets", 4)[0].unlink()
    report = store.maintenance.salvage(4, from_older=True)
    (state,) = report.states
    assert [(part.known_in, part.filled_from) for part in state.lost] == [(None, None)]
    assert "checkpoint 3 also lacks the state" in state.why_not_filled
    assert [one.label for one in store.checkpoint(5).manifest.left_out] == ["source/offsets"]


def test_the_newest_checkpoint_with_an_intact_copy_is_used(store: StateStore) -> None:
    """The checkpoint between them is damaged in the same place."""
    take(store, 100, KEYS + 100, "newest")
    for checkpoint in (2, 3):
        for file in files(store, "totals", checkpoint):
            flip_page(file)
    (state,) = store.maintenance.salvage(3, from_older=True).states
    filled = {part.filled_from for part in state.lost}
    assert 1 in filled
    both = set(state.lost[0:1])
    assert both
    for user, (group, value) in rows(store, 4).items():
        if group in groups_of(tuple(p for p in state.lost if p.filled_from == 1)):
            assert value == "old", user


def test_offsets_are_lost_and_filled_completely(store: StateStore) -> None:
    files(store, "offsets")[0].unlink()
    (state,) = store.maintenance.salvage(2).states
    (part,) = state.lost
    assert (state.sort, part.rows, part.known_in, part.filled_from) == ("operator", 2, 1, None)
    (state,) = store.maintenance.salvage(2, from_older=True).states
    assert state.lost[0].filled_from == 1
    old = store.restore(checkpoint=1).operator_state("source", "offsets").per_old_subtask()
    assert store.restore(checkpoint=4).operator_state("source", "offsets").per_old_subtask() == old
    origin = store.checkpoint(4).manifest.origin
    assert origin is not None
    assert origin["filled"] == [{"operator": "source", "state": "offsets", "checkpoint": 1}]


def test_other_columns_do_not_fill_and_it_is_reported(tmp_path: Path) -> None:
    """The report still lists their keys."""
    store = opened(tmp_path / "store", Layout.PARTITIONED)
    for column in ("n", "m"):
        with store.snapshot(parallelism=1) as checkpoint:
            table = pa.table({"user": ["a", "b"], column: [1, 2]})
            options: dict[str, Any] = {"key": "user", "max_parallelism": 1}
            if column == "m":
                options["renamed"] = {"n": "m"}
            checkpoint.write_keyed("users", "totals", table, **options)
    files(store, "totals")[0].unlink()
    (state,) = store.maintenance.salvage(2, from_older=True).states
    assert state.why_not_filled == (
        "checkpoint 1 stores the state with the columns (user string, n long)",
    )
    assert [(p.known_in, p.keys, p.filled_from) for p in state.lost] == [(1, 2, None)]
    assert rows_left(store, 3) == 0


def rows_left(store: StateStore, checkpoint: int) -> int:
    return store.checkpoint(checkpoint).manifest.rows


# --- arguments and errors -------------------------------------------------------------------------


def test_a_dry_run_reports_the_same_and_writes_nothing(store: StateStore) -> None:
    flip_page(files(store, "totals")[0])
    files(store, "offsets")[0].unlink()
    before = data_files(Path(store.url))
    dry = store.maintenance.salvage(2, from_older=True, dry_run=True)
    assert (dry.new_checkpoint_id, dry.dry_run) == (None, True)
    assert data_files(Path(store.url)) == before
    done = store.maintenance.salvage(2, from_older=True)
    assert (done.new_checkpoint_id, done.states) == (3, dry.states)


def test_a_damaged_manifest_lists_the_existing_checkpoints(store: StateStore) -> None:
    flip(Path(store.url, manifest_path(2)), 50)
    with pytest.raises(MalformedManifestError, match=r"can be salvaged.*: 1$"):
        store.maintenance.salvage(2)


def test_missing_names_are_not_found(store: StateStore) -> None:
    with pytest.raises(CheckpointNotFoundError, match="the store has the checkpoints 1, 2"):
        store.maintenance.salvage(9)
    with pytest.raises(InvalidArgumentError, match="keys"):
        store.maintenance.salvage(2, keys=-1)


def test_the_caller_chooses_how_many_keys_are_shown(store: StateStore) -> None:
    files(store, "totals")[0].unlink()
    (state,) = store.maintenance.salvage(2, dry_run=True, keys=3).states
    assert (len(state.keys), state.lost_keys > 3) == (3, True)


def test_an_expired_savepoint_is_salvaged_and_fills(store: StateStore) -> None:
    catalog = store.parts.catalog()
    savepoint = Savepoint(name="kept", checkpoint_id=1, created_at_ms=0)
    catalog.holds.put_savepoint(savepoint, visible=lambda: None)
    catalog.expire(1, b"")
    assert store.checkpoints() == (2,)
    files(store, "totals")[0].unlink()
    (state,) = store.maintenance.salvage(2, from_older=True).states
    assert {part.filled_from for part in state.lost} == {1}
    files(store, "other", "kept")[0].unlink()
    report = store.maintenance.salvage("kept", from_older=True)
    assert (report.checkpoint_id, report.new_checkpoint_id) == (1, 4)


def test_adjacent_parts_with_the_same_outcome_are_merged() -> None:
    parts = [
        LostPart(first=g, last=g, rows=2, known_in=k, keys=1 if k else None)
        for g, k in ((0, 1), (1, 1), (2, None), (3, None), (5, None), (6, 1))
    ]
    assert [(p.first, p.last, p.rows, p.known_in, p.keys) for p in merge_lost_parts(parts)] == [
        (0, 1, 4, 1, 2),
        (2, 3, 4, None, None),
        (5, 5, 2, None, None),
        (6, 6, 2, 1, 1),
    ]
