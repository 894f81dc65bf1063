"""Ranged files: each has a contiguous range of key groups, and restores as if every group had a
file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import KeyGroupAssignment, StateStore
from statestore.errors import DuplicateKeyError, InvalidArgumentError, MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.format.manifest import KeyedEntry
from statestore.parquet.writer import ParquetOptions, first_of_size
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage

ROWS = [{"user": f"user-{i:05}", "n": i, "text": f"{i:x}" * 5} for i in range(6000)]


def store_in(path: Path, layout: str = "ranged", **options: int) -> StateStore:
    parquet = ParquetOptions(**{"row_group_rows": 1024} | options)
    return StateStore.open(str(path), table_format="parquet", layout=layout, parquet=parquet)


def take(store: StateStore, max_parallelism: int = 64, **options: Any) -> KeyedEntry:
    with store.snapshot(parallelism=1) as checkpoint:
        entry: KeyedEntry = checkpoint.write_keyed(
            "users", "totals", ROWS, key="user", max_parallelism=max_parallelism, **options
        )
    return entry


def rows(store: StateStore, parallelism: int) -> list[Counter[str]]:
    keyed = store.restore(parallelism=parallelism).keyed("users", "totals")
    tables = [keyed.to_arrow(i) for i in range(parallelism)]
    return [Counter(map(repr, table.to_pylist())) for table in tables]


@pytest.mark.long_cases(
    "64-2",
    "64-3",
    "64-16",
    "1-1",
    "64-1",
    "64-64",
    "1000-1",
    "1000-2",
    "1000-3",
    "1000-7",
    "1000-16",
    "32768-7",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_parallelism", "parallelism"),
    [(1, 1), *product([64, 1000], [1, 2, 3, 7, 16, 64]), *product([32_768], [3, 7])],
)
def test_every_subtask_gets_the_same_rows_as_from_partitioned_files(
    tmp_path: Path, max_parallelism: int, parallelism: int
) -> None:
    """I1, I2, I7: for any file and row group that its key groups share."""
    one, other = store_in(tmp_path / "a"), store_in(tmp_path / "b", layout="partitioned")
    take(one, max_parallelism)
    ranged = rows(one, parallelism)
    assert sum(map(len, ranged)) == len(ROWS)
    if max_parallelism <= 64:
        take(other, max_parallelism)
        assert ranged == rows(other, parallelism)
    assignment = KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)
    keyed = one.restore(parallelism=parallelism).keyed("users", "totals")
    for subtask in range(parallelism):
        groups = keyed.to_arrow(subtask)["key_group"].to_pylist()
        assert groups == sorted(groups)
        assert set(groups) <= set(assignment.range_of(subtask))


def test_a_large_file_ends_at_the_next_key_group(tmp_path: Path) -> None:
    """Files and their indexes tile the key groups."""
    entry = take(store_in(tmp_path, file_bytes=30_000))
    assert 2 < len(entry.handles) < 20
    for handle, later in pairwise(entry.handles):
        assert handle.key_groups.last < later.key_groups.first
        assert handle.size_bytes >= 30_000
    for handle in entry.handles:
        assert handle.index is not None
        assert len(handle.index) == len(handle.key_groups)
        file = pq.ParquetFile(tmp_path / entry.table.path / handle.path)
        assert file.schema_arrow.names == ["key_group", "user", "n", "text"]
        found = Counter(file.read(columns=["key_group"])["key_group"].to_pylist())
        counts = [found[group] for group in handle.key_groups]
        assert counts == list(handle.index.row_counts())


def test_row_groups_are_cut_between_key_groups(tmp_path: Path) -> None:
    """Few readers then share a row group. A key group larger than a row group is cut inside."""
    entry = take(store_in(tmp_path))
    (handle,) = entry.handles
    file = pq.ParquetFile(tmp_path / entry.table.path / handle.path)
    assert file.num_row_groups == handle.row_groups > 30
    groups = [
        set(file.read_row_group(i, columns=["key_group"])["key_group"].to_pylist())
        for i in range(file.num_row_groups)
    ]
    for one, later in pairwise(groups):
        assert not one & later


def test_a_subtask_reads_only_its_row_groups(tmp_path: Path) -> None:
    """I8: it opens the file once, and reads approximately its share of the bytes."""
    rows = [row | {"text": hashlib.sha512(str(row).encode()).hexdigest()} for row in ROWS]
    with store_in(tmp_path).snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=64)
    storage = CountingStorage(str(tmp_path))
    keyed = StateStore.open(storage).restore(parallelism=16).keyed("users", "totals")
    assert keyed.to_arrow(5).num_rows > 0
    assert storage.opened.total() == 1
    assert storage.bytes_read < entry.size_bytes / 4


def test_a_key_is_found_in_its_row_group(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    take(store)
    keyed = store.restore().keyed("users", "totals")
    for row in (ROWS[0], ROWS[777], ROWS[-1]):
        (found,) = keyed.get(row["user"])
        assert found == row
    assert keyed.get("nobody") == []


def test_verify_finds_every_flipped_byte(tmp_path: Path) -> None:
    store = store_in(tmp_path, row_group_rows=4096)
    entry = take(store)
    (file,) = [tmp_path / entry.table.path / handle.path for handle in entry.handles]
    assert store.maintenance.verify(deep=True).is_intact
    raw = bytearray(file.read_bytes())
    for at in range(0, len(raw), len(raw) // 40):
        raw[at] ^= 0x40
        file.write_bytes(raw)
        assert not store.maintenance.verify(deep=True).is_intact
        raw[at] ^= 0x40
    file.write_bytes(raw)
    assert store.maintenance.verify(deep=True).is_intact


def test_duplicates_and_other_wrong_rows_are_refused(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with (
        pytest.raises(DuplicateKeyError),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("users", "totals", [*ROWS, ROWS[5]], key="user", max_parallelism=64)
    assert list(tmp_path.rglob("*.parquet")) == []
    with (
        pytest.raises(InvalidArgumentError, match="'striped'"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("users", "totals", ROWS, key="user", layout="striped")


def test_an_index_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    take(store)
    name, document = manifest_of(tmp_path)
    files = document["operators"][0]["keyed"][0]["files"]
    for member in ("group_rows", "group_digests"):
        good = files[member]
        for wrong in (["AAAA"], ["A" * len(good[0])], []):
            files[member] = wrong
            name.write_bytes(document_bytes(document))
            with pytest.raises(MalformedManifestError, match="group_"):
                store.checkpoint()
        files[member] = good


@pytest.mark.parametrize(
    ("count", "max_parallelism", "layout"),
    [(6000, 2, "partitioned"), (6000, 3, "ranged"), (6000, 128, "ranged"), (0, 1, "ranged")],
)
def test_auto_layout_depends_on_the_rows_of_a_key_group(
    tmp_path: Path, count: int, max_parallelism: int, layout: str
) -> None:
    """With 2,048 or more rows, the cost of a separate file is small in comparison."""
    store = store_in(tmp_path, layout="auto")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.Table.from_pylist(ROWS).slice(0, count)
        entry = checkpoint.write_keyed(
            "users", "totals", rows, key="user", max_parallelism=max_parallelism
        )
    assert entry.state.layout == layout


@pytest.mark.parametrize(
    "options", [{"row_group_rows": 1}, {"row_group_rows": 5, "row_group_bytes": 64}]
)
def test_row_groups_may_be_tiny(tmp_path: Path, options: dict[str, Any]) -> None:
    store = store_in(tmp_path, **options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", ROWS[:50], key="user", max_parallelism=8)
    assert sum(map(len, rows(store, 3))) == 50


@pytest.mark.parametrize(
    "wrong", [{"row_group_rows": 0}, {"row_group_bytes": -1}, {"zstd_level": 99}, {"file_bytes": 0}]
)
def test_options_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        ParquetOptions(**wrong)


@given(
    texts=st.lists(st.sampled_from(["", "x", "x" * 9, "x" * 999]), min_size=2, max_size=60),
    share=st.floats(0, 1, exclude_max=True),
    guess=st.integers(-5, 99),
)
def test_a_row_group_gets_the_fewest_rows_that_fill_it(
    texts: list[str], share: float, guess: int
) -> None:
    """The result does not depend on the guess from the average size of a row."""
    batch = pa.record_batch({"text": texts})
    least = int(batch.nbytes * share)
    part, size = first_of_size(batch, least, guess)
    counts = range(1, batch.num_rows + 1)
    expected = next(count for count in counts if batch.slice(0, count).nbytes >= least)
    assert (part.num_rows, size) == (expected, part.nbytes)


@pytest.mark.long_cases("partitioned")
@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
def test_states_of_many_columns_restore_their_rows(tmp_path: Path, layout: str) -> None:
    """I7: row groups end by bytes within their key groups, and writes and merges are large."""
    store = store_in(tmp_path, layout, row_group_bytes=20_000, run_bytes=1000, block_bytes=1000)
    wide: dict[str, Any] = {"user": [f"user-{number}" for number in range(300)]}
    wide |= {f"v{number}": list(range(number, number + 300)) for number in range(100)}
    table = pa.table(wide)
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("users", "totals", table, key="user", max_parallelism=8)
    newer = table.slice(7, 3).set_column(1, "v0", pa.array([-1, -2, -3]))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("users", "totals", Changes(upserts=newer), key="user")
    expected = pa.concat_tables([table.slice(0, 7), newer, table.slice(10)]).sort_by("user")
    for parallelism in (1, 3):
        keyed = store.restore(parallelism=parallelism).keyed("users", "totals")
        assert keyed.contents(verify=True).rows == 300
        parts = [keyed.to_arrow(number) for number in range(parallelism)]
        restored = pa.concat_tables(parts).drop_columns(["key_group"]).sort_by("user")
        assert restored.equals(expected.cast(restored.schema))
    assert sum(handle.row_groups for handle in entry.handles) >= 8
    assert keyed.get({"user": "user-8"})[0]["v0"] == -2


def test_a_subtask_without_rows_opens_nothing(tmp_path: Path) -> None:
    """I8."""
    store = store_in(tmp_path)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", ROWS[:2], key="user", max_parallelism=1000)
    plan = store.plan(parallelism=1000)
    assert plan.files == 2
    assert sum(map(len, rows(store, 1000))) == 2


@pytest.mark.parametrize("per_task", [5_000, 50_000])
def test_auto_parallelism_depends_on_the_rows_of_each_key_group(
    tmp_path: Path, per_task: int
) -> None:
    """The rows of a large key group are not attributed to the other groups in its file's range."""
    store = store_in(tmp_path)
    many = [{"user": "one", "position": i, "text": f"{i:030x}"} for i in range(20_000)]
    few = [{"user": f"u{i}", "position": 0, "text": "x"} for i in range(300)]
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed(
            "users",
            "texts",
            [*many, *few],
            kind="list",
            entry="position",
            key="user",
            max_parallelism=128,
        )
    plan = store.plan(parallelism="auto", bytes_per_task=per_task)
    (choice,) = plan.choices
    (subtasks,) = (of.subtasks for of in plan.operators)
    largest = max(subtask.size_bytes for subtask in subtasks)
    assert abs(choice.decision.largest_by_number - largest) <= 128
    assert largest > entry.size_bytes * 0.9


def test_verify_finds_digests_of_other_key_groups(tmp_path: Path) -> None:
    """I7: also if they still add up to the file's digest."""
    store = store_in(tmp_path)
    take(store)
    name, document = manifest_of(tmp_path)
    files = document["operators"][0]["keyed"][0]["files"]
    raw = base64.b64decode(files["group_digests"][0])
    files["group_digests"] = [base64.b64encode(raw[8:16] + raw[:8] + raw[16:]).decode()]
    name.write_bytes(document_bytes(document))
    report = store.maintenance.verify(deep=True)
    assert [file.what for file in report.broken] == [
        ("its key groups have other digests than the manifest says",)
    ]


def test_a_partitioned_file_has_one_key_group(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    take(store)
    name, document = manifest_of(tmp_path)
    document["operators"][0]["keyed"][0]["layout"] = "partitioned"
    name.write_bytes(document_bytes(document))
    with pytest.raises(
        MalformedManifestError, match="is not a valid name for a data file of partitioned state"
    ):
        store.checkpoint()


def manifest_of(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of the manifest, and its content without the checksum."""
    name = path / "checkpoints" / "0000000001.json"
    document = json.loads(name.read_text())
    document.pop("sha256")
    return name, document
