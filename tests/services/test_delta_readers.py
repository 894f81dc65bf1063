"""A state's Delta table is current after every change, for delta-rs, Polars and DuckDB.

The tests run on disk and on S3, and no JVM writes the table. Tests with Spark are in
``tests/files`` and ``tests/spark``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from statestore import OperatorKey, StateStore
from statestore.format.state import Layout
from statestore.keys.hashing import key_group_of
from tests.servers.s3 import S3Server
from tests.support.options import changes_in

pytestmark = [pytest.mark.services, pytest.mark.slow]

UID, NAME = "totals-by-user", "totals"
GROUPS = 8

Rows = list[dict[str, Any]]


@dataclass
class Place:
    """A store with one state, and the options of each reader."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def store(self) -> StateStore:
        return StateStore.open(self.url, storage_options=self.options, compaction=None)

    def beside(self, name: str) -> Place:
        return Place(f"{self.url}-{name}", self.options)

    def take(self, rows: pa.Table, **options: Any) -> None:
        with self.store().snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(UID, NAME, rows, key="user", **options)

    def change(self, **changes: Any) -> None:
        with self.store().snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes(UID, NAME, changes_in(changes), **changes)

    def restored(self, checkpoint: int | str = "latest") -> Rows:
        state = self.store().restore(checkpoint=checkpoint, parallelism=3).keyed(UID, NAME)
        return in_order(pa.concat_tables([state.to_arrow(at) for at in range(3)]))

    def shown(self, version: int | None = None) -> Rows:
        """Return the rows of a version of the table, which every Delta reader must return."""
        storage = self.store().parts.storage
        url, options = f"{storage.url}/operators/{UID}/keyed/{NAME}", storage.delta_options()
        table = DeltaTable(url, version=version, storage_options=options)
        polars = pl.read_delta(url, version=version, storage_options=options).to_arrow()
        files = table.to_pyarrow_dataset()
        found = duckdb.sql("SELECT * FROM files", connection=duckdb.connect())
        assert files is not None
        assert found is not None
        seen = [in_order(table.to_pyarrow_table()), in_order(polars)]
        seen.append(in_order(found.to_arrow_table()))
        assert seen[0] == seen[1] == seen[2]
        return seen[0]


def in_order(table: pa.Table) -> Rows:
    return sorted(table.to_pylist(), key=lambda row: row["user"])


def users(numbers: range, **columns: Callable[[int], Any]) -> pa.Table:
    found: dict[str, Any] = {"user": [f"user-{n:03}" for n in numbers]}
    return pa.table(found | {name: [of(n) for n in numbers] for name, of in columns.items()})


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "store"))
    s3: S3Server = request.getfixturevalue("s3")
    return Place(request.getfixturevalue("url"), s3.options)


@pytest.mark.long
def test_every_layout_and_every_change_of_columns(place: Place) -> None:
    """I7: the newest version, and each earlier version by its number."""
    steps: list[tuple[pa.Table, dict[str, Any]]] = [
        (users(range(60), n=int), {"max_parallelism": GROUPS}),
        (users(range(20, 90), n=int), {"layout": Layout.RANGED}),
        (users(range(10), n=int, note=str), {"layout": Layout.PARTITIONED}),
        (users(range(40), total=int, note=str), {"renamed": {"n": "total"}}),
        (users(range(40), note=str), {"dropped": ["total"], "layout": Layout.RANGED}),
    ]
    for rows, options in steps:
        place.take(rows, **options)
        assert [*place.shown()[0]] == ["key_group", *rows.column_names]
        assert place.shown() == place.restored()
        assert len(place.shown()) == rows.num_rows
    for number in range(1, len(steps) + 1):
        version = place.store().checkpoint(number).manifest.keyed[0].table.version
        assert place.shown(version) == place.restored(number)


@pytest.mark.parametrize(
    ("place", "layout"),
    [
        ("disk", Layout.RANGED),
        pytest.param("s3", Layout.RANGED, marks=pytest.mark.long),
        pytest.param("disk", Layout.PARTITIONED, marks=pytest.mark.long),
        pytest.param("s3", Layout.PARTITIONED, marks=pytest.mark.long),
    ],
    indirect=["place"],
)
def test_layers_and_changes_of_kept_checkpoints(place: Place, layout: Layout) -> None:
    """I7: while there are layers, the table has the base; after compaction it has the state."""
    place.take(users(range(60), n=int), max_parallelism=GROUPS, layout=layout)
    base = place.shown()
    assert base == place.restored()
    place.change(upserts=users(range(50, 70), n=lambda n: -n), deletes=users(range(5)))
    assert len(place.restored()) == 65
    assert place.shown() == base
    assert place.store().maintenance.compact(everything=True).states
    assert place.shown() == place.restored()
    assert len(place.shown()) == 65
    place.store().maintenance.edit(UID, NAME, delete=["user-010"], put=[{"user": "new", "n": 1}])
    assert place.shown() == place.restored()
    place.store().maintenance.forget(OperatorKey(UID, "user-011"), search=False)
    assert place.shown() == place.restored()
    assert not {"user-010", "user-011"} & {row["user"] for row in place.shown()}
    place.store().maintenance.rekey(UID, max_parallelism=2 * GROUPS)
    assert place.shown() == place.restored()
    assert {row["key_group"] for row in place.shown()} > {*range(GROUPS)}
    copy = place.beside("copy")
    place.store().maintenance.copy("latest", copy.store())
    assert copy.shown() == copy.restored() == place.restored()
    place.store().maintenance.gc(minimum_age="0")
    assert place.shown() == place.restored()


def test_subtasks_and_salvage(place: Place) -> None:
    """I7: a state that subtasks wrote, and a state salvaged from damage."""
    rows = users(range(60), n=int)
    keys = rows["user"].to_pylist()
    with place.store().snapshot(parallelism=2) as checkpoint:
        writer = checkpoint.declare_keyed(
            UID, NAME, rows.schema, key="user", max_parallelism=GROUPS
        )
        for subtask in range(2):
            own = [
                key_group_of(user, max_parallelism=GROUPS) // (GROUPS // 2) == subtask
                for user in keys
            ]
            checkpoint.acknowledge(writer.subtask(subtask).write(rows.filter(pa.array(own))))
    assert place.shown() == place.restored()
    (entry,) = place.store().checkpoint().manifest.keyed
    lost = entry.handles[0]
    place.store().parts.storage.delete(f"{entry.table.path}/{lost.path}")
    place.store().maintenance.salvage("latest")
    assert place.shown() == place.restored()
    assert len(place.shown()) == rows.num_rows - lost.rows
