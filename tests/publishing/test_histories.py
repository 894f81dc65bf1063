"""Random histories of publications, crashes and collections: each snapshot stays readable (I9)."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import CommitConflictError
from tests.publishing.conftest import sql_catalog
from tests.publishing.interrupted import InterruptedCatalog, Killed, interrupted_client, stop
from tests.publishing.tables import TABLE, load, publish, rows_of, take

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.slow]

DAY_MS = 24 * 3_600_000
STEPS = st.sampled_from(
    (
        *("take", "carry", "publish", "publish one", "older", "rival"),
        *("crash before", "crash after", "collect", "collect", "day"),
    )
)


class History:
    """A store, a catalog, and what each checkpoint contains."""

    def __init__(self, folder: Path) -> None:
        self.store = StateStore.open(str(folder / "store"), table_format="parquet")
        self.catalog = sql_catalog(folder)
        self.client: InterruptedCatalog = interrupted_client(self.catalog)
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self.ahead_ms = 0
        self.take()

    def take(self) -> None:
        """Take a checkpoint with other rows, in another layout."""
        number = len(self.rows) + 1
        layout = "ranged" if number % 3 else "partitioned"
        rows = pa.table({"k": range(20 + number), "v": [number] * (20 + number)})
        self.rows[take(self.store, rows, layout=layout)] = rows.to_pylist()

    def carry(self) -> None:
        """Take a checkpoint with the same files."""
        with self.store.snapshot(parallelism=2) as checkpoint:
            checkpoint.carry("op", "totals")
        self.rows[checkpoint.id] = self.rows[max(self.rows)]

    def publish(self, **options: Any) -> None:
        """Publish a checkpoint; the clock may be ahead."""
        now_ms = self.store.parts.now_ms() + self.ahead_ms
        store = StateStore(replace(self.store.parts, now_ms=lambda: now_ms))
        publish(store, self.client, **options)

    def older(self) -> None:
        """Publish the oldest visible checkpoint."""
        self.publish(checkpoint=self.store.checkpoints()[0])

    def crash(self, **at: Callable[[], None]) -> None:
        """End a publication before or after its commit."""
        for name, function in at.items():
            setattr(self.client, name, function)
        with suppress(Killed):  # if there is nothing to commit, nothing is interrupted
            self.publish()
        self.client.before = self.client.after = lambda: None

    def rival(self) -> None:
        """Let another publisher commit a newer checkpoint just before the commit."""

        def other() -> None:
            self.client.before = lambda: None
            self.take()
            publish(self.store, self.catalog)

        self.client.before = other
        before = len(self.rows)
        try:
            self.publish()
        except CommitConflictError:
            assert len(self.rows) == before + 1
        self.client.before = lambda: None

    def collect(self) -> None:
        """Expire all checkpoints except the newest, and delete everything that is not held."""
        self.store.maintenance.expire(retain=1)
        self.store.maintenance.gc(minimum_age="0ms")

    def step(self, name: str) -> None:
        """Make one step."""
        match name:
            case "publish one":
                self.publish(retain=1)
            case "crash before":
                self.crash(before=stop(Killed()))
            case "crash after":
                self.crash(after=stop(Killed()))
            case "day":
                self.ahead_ms += DAY_MS
            case _:
                getattr(self, name)()

    def check(self) -> None:
        """Read each snapshot of the table, and compare the holds with what it needs."""
        if not self.catalog.table_exists(TABLE):
            return
        table = load(self.catalog)
        needed = set()
        for snapshot in table.metadata.snapshots:
            assert snapshot.summary is not None
            summary = snapshot.summary.additional_properties
            needed.add(summary["statestore.hold"])
            expected = self.rows[int(summary["statestore.checkpoint-id"])]
            found = rows_of(table, snapshot_id=snapshot.snapshot_id, selected_fields=("k", "v"))
            assert found == sorted(expected, key=lambda row: repr(row["k"]))
        held = {savepoint.name for savepoint in self.store.maintenance.savepoints()}
        assert needed <= held

    def check_that_nothing_stays(self) -> None:
        """Publish twice after a day: only the holds of the table's snapshots are left."""
        self.ahead_ms += 2 * DAY_MS
        for _ in range(2):
            self.take()
            self.publish()
        assert len(self.store.maintenance.savepoints()) == len(load(self.catalog).snapshots())


@given(steps=st.lists(STEPS, min_size=3, max_size=12))
def test_each_snapshot_of_the_table_stays_readable(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder))
        for step in steps:
            history.step(step)
            history.check()
        history.check_that_nothing_stays()
        history.collect()
        history.check()
