"""SQL queries over a checkpoint return the rows of a restore, and read only the needed parts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    DamagedFileError,
    InvalidArgumentError,
    MissingDependencyError,
    MissingFileError,
    QueryStoppedError,
)
from statestore.format.names import manifest_path
from statestore.format.state import Layout
from statestore.parquet.writer import ParquetOptions
from statestore.rows.digests import rows_digest
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage
from tests.support.damage import change_unread_byte
from tests.support.forms import (
    RANGED_IN_EACH_RUN,
    Checkpoints,
    entries_of,
    in_both_layouts,
    newest_file,
)

pytestmark = pytest.mark.slow

COUNT = 4000
ROWS = pa.table(
    {
        "k": [f"k{i}" for i in range(COUNT)],
        "n": range(COUNT),
        "text": [f"{i * 7919 % 104729:x}" * 4 for i in range(COUNT)],
        "amount": pa.array([Decimal(i) / 4 for i in range(COUNT)], pa.decimal128(12, 2)),
        "day": pa.array([date(2026, 1, 1 + i % 28) for i in range(COUNT)]),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * COUNT, pa.timestamp("us", "UTC")),
        "tags": pa.array([[("a", i)] for i in range(COUNT)], pa.map_(pa.string(), pa.int64())),
        "x": pa.array([None if i % 3 else i / 2 for i in range(COUNT)], pa.float64()),
    }
)


@pytest.fixture(scope="module", params=RANGED_IN_EACH_RUN)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query") / "store"
    store = StateStore.open(str(path), table_format="parquet")
    options: dict[str, Any] = {"key": "k", "max_parallelism": 16, "layout": request.param}
    for rows in (ROWS.slice(0, 3), ROWS):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("by user", "totals", rows, **options)
            checkpoint.write_keyed(
                "by user", "pairs", rows.select(["k", "n"]), kind="map", entry="n", **options
            )
            checkpoint.write_keyed(
                "by shop", "pairs", rows.slice(0, 0).select(["k", "n"]), **options
            )
            checkpoint.write_split(
                "source", "files", [[{"file": "a"}, {"file": "b"}], [{"file": "c"}]]
            )
            checkpoint.write_union("source", "none", [[], []])
    return path


@pytest.fixture
def store(folder: Path) -> StateStore:
    return StateStore.open(str(folder))


def ask(store: StateStore, sql: str, **options: Any) -> list[dict[str, Any]]:
    return list(store.query(sql, **options).read_all().to_pylist())


def test_a_view_has_the_rows_of_a_restore(store: StateStore) -> None:
    """For every type, encoding and null, and with ``key_group``."""
    found = store.query('SELECT * FROM "by user".totals').read_all()
    state = store.restore(parallelism=1).keyed("by user", "totals")
    restored = state.to_arrow(0)
    assert found.schema.names == restored.schema.names
    assert rows_digest(found.cast(restored.schema)) == rows_digest(restored)


def test_a_state_can_be_named_with_or_without_its_operator(store: StateStore) -> None:
    assert ask(store, "SELECT count(*) AS c FROM totals") == [{"c": COUNT}]
    assert ask(store, "SELECT count(*) AS c FROM TOTALS", checkpoint=1) == [{"c": 3}]
    assert ask(store, 'SELECT count(*) AS c FROM "by shop".pairs') == [{"c": 0}]
    assert [view.sql for view in store.views()] == [
        '"by shop"."pairs"',
        '"totals"',
        '"by user"."pairs"',
        '"files"',
        '"none"',
    ]
    with pytest.raises(
        InvalidArgumentError, match=r'pairs.* the views are "by shop"\."pairs", "totals"'
    ):
        ask(store, "SELECT * FROM pairs")
    with pytest.raises(CheckpointNotFoundError, match="1, 2"):
        ask(store, "SELECT 1", checkpoint=3)


def test_operator_states_have_subtask_and_position(store: StateStore) -> None:
    assert ask(store, "SELECT subtask, position, file FROM files ORDER BY ALL") == [
        {"subtask": 0, "position": 0, "file": "a"},
        {"subtask": 0, "position": 1, "file": "b"},
        {"subtask": 1, "position": 0, "file": "c"},
    ]
    assert ask(store, "SELECT * FROM none") == []


def test_states_join(store: StateStore) -> None:
    sql = 'SELECT t.n FROM totals t JOIN "by user".pairs p USING (k) WHERE p.n = 7'
    assert ask(store, sql) == [{"n": 7}]


@pytest.mark.parametrize("streams", [1, 4])
def test_only_the_requested_columns_and_key_groups_are_read(folder: Path, streams: int) -> None:
    """One column of one key group is read, and each byte of a file at most once."""

    def read(sql: str) -> tuple[int, set[str]]:
        storage = CountingStorage(str(folder), streams)
        store = StateStore.open(storage)
        answer = store.query(sql)
        answer.read_all()
        data = [part for part in storage.ranges if part[0].endswith(".parquet")]
        for name in {part[0] for part in data}:
            spans = sorted(part[1:] for part in data if part[0] == name)
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
        return sum(stop - start for _, start, stop in data), {name for name, _, _ in data}

    [entry] = [
        e
        for e in StateStore.open(str(folder)).checkpoint().manifest.keyed
        if e.state.name == "totals"
    ]
    whole, files = read("SELECT * FROM totals")
    assert files == {f"{entry.table.path}/{handle.path}" for handle in entry.handles}
    assert whole <= entry.size_bytes
    part, touched = read("SELECT n FROM totals WHERE key_group = 3")
    if entry.state.layout is Layout.PARTITIONED:
        assert touched == {
            f"{entry.table.path}/{h.path}" for h in entry.handles if 3 in h.key_groups
        }
        assert part < whole / 8
    nothing, _ = read("SELECT 1")
    assert nothing == 0


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "syntax error"),
        ("", "has 0"),
        ("SELECT 1; SELECT 2", "has 2"),
        ("SELECT nobody FROM totals", 'column "nobody" not found.*Candidate'),
        ("SELECT CAST(k AS INT) FROM totals", "Could not convert"),
        ("DROP VIEW totals", "must be a SELECT.*DROP"),
        ("CREATE TABLE t AS SELECT 1", "must be a SELECT.*CREATE"),
        ("INSERT INTO totals SELECT * FROM totals", "must be a SELECT.*INSERT"),
        ("SET enable_external_access = true", "must be a SELECT.*SET"),
        ("ATTACH 'x.db'", "must be a SELECT.*ATTACH"),
        ("COPY totals TO 'out.csv'", "must be a SELECT.*COPY"),
        ("INSTALL httpfs", "must be a SELECT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM read_text('https://localhost/x')", "disabled|httpfs"),
        ("SELECT * FROM glob('/*')", "disabled by configuration"),
        ("SELECT * FROM ROWS", "does not exist"),
    ],
)
def test_a_statement_reads_only_the_views(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, message: str
) -> None:
    """A statement can read the views, but no files, and no variables of this module."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=message):
        ask(store, sql)
    assert list(tmp_path.iterdir()) == []


def test_a_result_is_a_stream(store: StateStore) -> None:
    """A cross product larger than memory is read only as far as requested."""
    answer = store.query("SELECT a.n FROM totals a, totals b, totals c")
    assert answer.read_next_batch().num_rows > 0
    answer.close()


ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def test_a_time_limit_stops_a_query(store: StateStore) -> None:
    with pytest.raises(QueryStoppedError, match=r"exceeded its time limit of 300 ms"):
        store.query(ENDLESS, time_limit="300ms")
    for wrong in ("0", timedelta(-1)):
        with pytest.raises(InvalidArgumentError, match=r"more than 0 seconds|is negative"):
            store.query("SELECT 1", time_limit=wrong)


def test_a_time_limit_includes_the_time_between_batches(store: StateStore) -> None:
    with store.query("SELECT range FROM range(10000000)", time_limit="2s") as answer:
        assert answer.read_next_batch().num_rows > 0
        time.sleep(2.5)
        with pytest.raises(QueryStoppedError, match="time limit"):
            answer.read_all()


def test_a_memory_limit_stops_a_query(store: StateStore) -> None:
    sql = "SELECT count(DISTINCT (a.range, b.range)) FROM range(100000) a, range(100000) b"
    with pytest.raises(QueryStoppedError, match="the query exceeds its memory limit"):
        store.query(sql, memory_limit="100MB")
    with pytest.raises(InvalidArgumentError, match="not a number of bytes"):
        store.query("SELECT 1", memory_limit="much")


def test_another_thread_cancels_a_query(store: StateStore) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.5, cancelled.set)
    timer.start()
    with pytest.raises(QueryStoppedError, match="cancelled"):
        store.query(ENDLESS, cancelled=cancelled)
    timer.join()


def test_a_scan_of_a_state_stops_at_its_next_batch(tmp_path: Path) -> None:
    cancelled = threading.Event()
    files: set[str] = set()

    class Cancelling(CountingStorage):
        def count(self, name: str, start: int, data: bytes) -> None:
            if name.endswith(".parquet"):
                files.add(name)
                cancelled.set()
                time.sleep(0.05)  # a slow store: the scan takes seconds

    store = StateStore.open(
        Cancelling(str(tmp_path / "store")), table_format="parquet", layout="partitioned"
    )
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=64)
    files.clear()
    cancelled.clear()
    with pytest.raises(QueryStoppedError, match="cancelled"):
        store.query("SELECT sum(n) FROM n", cancelled=cancelled).read_all()
    assert 0 < len(files) < len(entry.handles) / 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "error"),
    [(Path.unlink, MissingFileError), (cut, DamagedFileError), (flip, CorruptionError)],
)
@pytest.mark.parametrize(
    ("layout", "streams"),
    [
        *((Layout.PARTITIONED.value, 4), (Layout.RANGED.value, 0)),
        pytest.param(Layout.PARTITIONED.value, 0, marks=pytest.mark.long),
        pytest.param(Layout.RANGED.value, 4, marks=pytest.mark.long),
    ],
)
def test_a_damaged_file_is_named_and_the_next_query_succeeds(
    tmp_path: Path,
    damage: Callable[[Path], Any],
    error: type[Exception],
    streams: int,
    layout: str,
) -> None:
    path = str(tmp_path / "store")
    store = StateStore.open(path, table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        options: dict[str, Any] = {"key": "k", "max_parallelism": 2, "layout": layout}
        entry = checkpoint.write_keyed("u", "n", ROWS, **options)
        checkpoint.write_keyed("u", "intact", ROWS, **options)
    name = entry.handles[0].path
    damage(Path(path, entry.table.path, name))
    if streams:
        store = StateStore.open(CountingStorage(path, streams))
    for _ in range(2):
        with pytest.raises(error, match=name):
            ask(store, "SELECT min(k), max(text), sum(n), max(amount), max(x) FROM u.n")
        assert ask(store, "SELECT count(*) AS c FROM intact") == [{"c": COUNT}]


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("layout", [layout.value for layout in Layout])
def test_a_query_can_verify(tmp_path: Path, layout: str, changed: bool) -> None:
    """As in a restore: every byte that it reads is verified, also in changes."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    options: dict[str, Any] = {"key": "k", "max_parallelism": 2, "layout": layout}
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "n", ROWS, **options)
    if changed:
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_changes("u", "n", ROWS.slice(0, 9), **options)
    sql = "SELECT count(*) AS c, sum(n) AS s FROM n"
    expected = [{"c": COUNT, "s": sum(range(COUNT))}]
    assert ask(store, sql, verify=True) == expected
    change_unread_byte(Path(store.url, entry.table.path, entry.handles[0].path))
    assert ask(store, sql) == expected
    with pytest.raises(DamagedFileError, match="has changed since it was written"):
        ask(store, sql, verify=True)


def test_names_that_duckdb_cannot_distinguish_get_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots now refuse names that differ only in case, but older stores have them."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    monkeypatch.setattr(
        "statestore.snapshot.pending_checkpoint.TakenNames._refuse_folded", lambda *names: None
    )
    with store.snapshot(parallelism=1) as checkpoint:
        for number, uid in enumerate(["a", "A", "main", "temp", 'q"uote']):
            for name in ("s", "S"):
                checkpoint.write_union(uid, name, [[{"n": f"{number}{name}"}]])
    views = store.views()
    assert len({(view.schema.lower(), view.name.lower()) for view in views}) == len(views) == 10
    for view in views:
        [row] = ask(store, f"SELECT n FROM {view.sql}")
        elements = store.restore().operator_state(view.entry.state.uid, view.entry.state.name)
        assert elements.per_old_subtask() == [[row]]


def test_without_duckdb_the_error_names_the_install_command(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The views are listed without DuckDB."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match="install the extra 'query': "):
        store.query("SELECT 1")
    assert len(store.views()) == 5


NUL_TABLES = [
    pa.table({"k": [1], "a\0b": [10], "a": [20]}),
    pa.table({"k": [1], "a": pa.array([{"x\0y": 1}])}),
    pa.table({"k": [1], "a": pa.array([[{"x\0y": 1}]])}),
]


@pytest.mark.parametrize("rows", NUL_TABLES)
def test_names_with_a_nul_are_neither_stored_nor_queried(
    rows: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older stores may have them. A query never reads another column instead."""
    store = StateStore.open(str(tmp_path), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        with pytest.raises(InvalidArgumentError, match="NUL"):
            checkpoint.write_keyed("u", "s", rows, key="k")
        with pytest.raises(InvalidArgumentError, match="NUL"):
            checkpoint.write_broadcast("u", "s", rows.to_pylist())
        with pytest.raises(InvalidArgumentError, match="NUL"):
            checkpoint.write_union("u", "s", rows)
    monkeypatch.setattr("statestore.snapshot.state_spec.names_with_nul", lambda schema: ())
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k")
        checkpoint.write_keyed("u", "t", rows.select(["k"]), key="k")
    assert store.restore().keyed("u", "s").get(1) == rows.to_pylist()
    assert store.query("SELECT k FROM t").read_all().to_pylist() == [{"k": 1}]
    with pytest.raises(InvalidArgumentError, match="NUL"):
        store.query("SELECT a FROM s")
    with pytest.raises(InvalidArgumentError, match="NUL"):
        store.maintenance.edit("u", "s", sql="SELECT * FROM state")


# --- every layout and encoding --------------------------------------------------------------------


@pytest.mark.long_cases("layered-partitioned")
@in_both_layouts
def test_a_view_has_the_rows_of_its_checkpoint_with_every_layout(taken: Checkpoints) -> None:
    for checkpoint_id, rows in taken.taken.items():
        assert entries_of(ask(taken.store, "SELECT * FROM s", checkpoint=checkpoint_id)) == rows


@in_both_layouts
def test_a_view_can_be_used_twice_in_a_statement(taken: Checkpoints) -> None:
    joined = "SELECT count(*) AS n FROM s AS a JOIN s AS b ON a.k = b.k AND a.m = b.m"
    assert ask(taken.store, joined) == [{"n": len(taken.rows)}]
    twice = "SELECT (SELECT sum(v) FROM s) + (SELECT sum(v) FROM s WHERE k > 'u03') AS n"
    some = sum(v for (k, _), v in taken.rows.items() if k > "u03")
    assert ask(taken.store, twice) == [{"n": sum(taken.rows.values()) + some}]


@in_both_layouts
@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("v > 50 AND k <> 'u055'", lambda k, m, v: v > 50 and k != "u055"),
        ("m IN (2, 7)", lambda k, m, v: m in (2, 7)),
        ("k IS NULL", lambda k, m, v: False),
        ("k BETWEEN 'u001' AND 'u004'", lambda k, m, v: "u001" <= k <= "u004"),
    ],
)
def test_conditions_apply_to_the_merged_rows(taken: Checkpoints, where: str, holds: object) -> None:
    assert callable(holds)
    expected = {(k, m): v for (k, m), v in taken.rows.items() if holds(k, m, v)}
    assert bool(expected) == (where != "k IS NULL")
    assert entries_of(ask(taken.store, f"SELECT v, k, m FROM s WHERE {where}")) == expected
    assert ask(taken.store, f"SELECT count(*) AS n FROM s WHERE {where}") == [{"n": len(expected)}]


@pytest.mark.long_cases("compacted-ranged")
@in_both_layouts
def test_key_groups_outside_the_condition_are_not_read(taken: Checkpoints) -> None:
    every = ask(taken.store, "SELECT * FROM s")
    for where, wanted in (("= 3", {3}), ("IN (2, 3, 9)", {2, 3, 9}), (">= 14", {14, 15})):
        some = ask(taken.store, f"SELECT * FROM s WHERE key_group {where}")
        assert some == [row for row in every if row["key_group"] in wanted]
    before = taken.storage.bytes_read
    assert ask(taken.store, "SELECT * FROM s WHERE key_group > 15") == []
    assert ask(taken.store, "SELECT * FROM s WHERE key_group < 0") == []
    manifest = taken.storage.size(manifest_path(5))
    assert taken.storage.bytes_read - before <= 2 * manifest


@in_both_layouts
def test_the_first_rows_are_returned_before_all_are_read(taken: Checkpoints) -> None:
    assert len(ask(taken.store, "SELECT * FROM s LIMIT 1")) == 1


@in_both_layouts
def test_a_missing_or_damaged_file_is_named(taken: Checkpoints) -> None:
    file = Path(taken.store.url, newest_file(taken.store))
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(DamagedFileError, match=file.name):
        ask(taken.store, "SELECT sum(v) FROM s")
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        ask(taken.store, "SELECT sum(v) FROM s")


def typed(first: int, stop: int, value: int = 0) -> pa.Table:
    """Return rows with one column of each type."""
    numbers = range(first, stop)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return pa.table(
        {
            "k": pa.array([Decimal(i) / 4 for i in numbers], pa.decimal128(12, 2)),
            "day": pa.array([date(2026, 1, 1 + i % 28) for i in numbers]),
            "moment": pa.array([noon + timedelta(hours=i) for i in numbers]),
            "raw": pa.array([bytes([i % 256]) for i in numbers]),
            "x": pa.array([None if i % 3 else i / 2 for i in numbers], pa.float64()),
            "small": pa.array([i % 100 for i in numbers], pa.int16()),
            "tags": pa.array([[("a", i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
            "nested": pa.array([{"a": i, "b": {"c": str(i)}} for i in numbers]),
            "v": pa.array([i + value for i in numbers]),
        }
    )


@pytest.mark.long
def test_a_query_over_changes_equals_a_query_of_a_full_state(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", typed(0, 130), key="k", max_parallelism=16)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "s", Changes(typed(100, 120, 1000), typed(0, 20).select(["k"])), key="k"
        )
    pieces = [typed(20, 100), typed(100, 120, 1000), typed(120, 130)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", pa.concat_tables(pieces), key="k", max_parallelism=16)
    for where in (
        "k > 10.5",
        "day = DATE '2026-01-05' OR small = 3",
        "moment > TIMESTAMPTZ '2026-01-05 00:00:00+00'",
        "raw = '\\x20'::BLOB",
        "x IS NULL",
        "x > 20 AND small IN (1, 60)",
        "tags['a'] = 110 OR nested.a = 60 OR nested.b.c = '61'",
        "key_group = 4 OR v = 1101",
        "k IN (SELECT k FROM s WHERE v > 1115)",
    ):
        sql = f"SELECT * FROM s WHERE {where} ORDER BY k"
        some = f"SELECT small, tags, v FROM s WHERE {where} ORDER BY v"
        for asked in (sql, some, f"SELECT count(*) AS n FROM s WHERE {where}"):
            merged, full = (store.query(asked, checkpoint=one).read_all() for one in (2, 3))
            assert merged.num_rows
            assert merged.equals(full)


@pytest.mark.parametrize(
    ("layout", "streams"),
    [
        (Layout.RANGED.value, 4),
        pytest.param(Layout.PARTITIONED.value, 1, marks=pytest.mark.long),
        pytest.param(Layout.PARTITIONED.value, 4, marks=pytest.mark.long),
        pytest.param(Layout.RANGED.value, 1, marks=pytest.mark.long),
    ],
)
def test_a_state_with_changes_reads_as_little_as_a_full_state(
    tmp_path: Path, layout: str, streams: int
) -> None:
    """As with a full state, other columns and row groups are not fetched."""
    storage = CountingStorage(str(tmp_path / "store"), streams)
    parquet = ParquetOptions(row_group_rows=64)
    store = StateStore.open(
        storage, table_format="parquet", layout=layout, parquet=parquet, compaction=None
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", ROWS, key="k", max_parallelism=4)
    coming = ROWS.slice(10, 20).set_column(1, "n", pa.array(range(-20, 0)))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "s", Changes(coming, ROWS.slice(0, 10).select(["k"])), key="k"
        )

    def read(sql: str, checkpoint: int) -> tuple[int, list[dict[str, Any]]]:
        before = storage.bytes_read
        rows = ask(store, sql, checkpoint=checkpoint)
        return storage.bytes_read - before, rows

    every, _ = read("SELECT * FROM s", 2)
    changes = store.checkpoint().manifest.keyed[0].layers[0].entry.size_bytes
    for sql in (
        "SELECT sum(n) AS n FROM s",
        "SELECT x FROM s WHERE k = 'k777'",
        "SELECT * FROM s WHERE k BETWEEN 'k30' AND 'k31'",
        "SELECT n, text FROM s WHERE n < 0 ORDER BY n",
    ):
        (full, _), (layered, rows) = read(sql, 1), read(sql, 2)
        assert layered < every / 2
        # A merge needs the keys of the changed rows, so the key is read as well.
        keys, _ = read("SELECT k FROM s", 1)
        assert layered <= full + keys + 2 * changes + 2**16
    assert [(row["n"], row["text"]) for row in rows] == [
        (n, coming["text"][at].as_py()) for at, n in enumerate(range(-20, 0))
    ]
    assert ask(store, "SELECT count(*) AS n FROM s") == [{"n": COUNT - 10}]


@pytest.mark.parametrize("levels", [61, 900])
@pytest.mark.parametrize("inner", ["INTEGER", "INTERVAL"])
def test_an_answer_with_too_many_levels_is_refused(tmp_path: Path, levels: int, inner: str) -> None:
    """Neither Arrow nor a recursive walk can read it."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=2)
    deepest = ask(store, f"SELECT NULL::{inner}{'[]' * 59} AS x")
    assert deepest == [{"x": None}]
    with pytest.raises(InvalidArgumentError, match="column 'x' of the answer has more than 60"):
        ask(store, f"SELECT NULL::{inner}{'[]' * levels} AS x")
