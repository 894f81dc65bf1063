"""The recorded programs: each does a part of what the product does to a folder.

``python -m tests.power.subjects ROOT NAME`` runs one. Its promises are in the recorder's log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore import (
    Changes,
    CompactionRule,
    KeyGroupAssignment,
    OperatorKey,
    ParquetOptions,
    StateStore,
    key_group_of,
)
from statestore.format.names import KEY_GROUP
from statestore.interop.flink.exporting.export_state import export_savepoint
from statestore.maintenance.gc import CollectedGarbage
from tests.power.content import (
    Content,
    complete,
    content_of,
    has,
    held,
    leaving,
    may,
    purged,
    rekeying,
    sorted_rows,
    table,
)
from tests.power.recording import settle
from tests.power.tables import append_rows, create_table
from tests.syntax import ROOT

__all__ = ["STORE", "SUBJECTS", "Job", "Totals", "main"]

KEY_GROUPS = 4
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
STORE = "store"
Totals = dict[str, int]


class Job:
    """A job with totals by user and the offsets of its source, and what it has committed."""

    def __init__(self, root: Path, name: str = STORE, **options: Any) -> None:
        """Open a store in the recorded folder."""
        options = {"table_format": "parquet", "layout": "partitioned"} | options
        self.name, self._open = name, partial(StateStore.open, str(root / name), **options)
        self.store = self._open()
        self.totals: Totals = {}
        self.offset = 0
        self.known: dict[int, Content] = {}

    def replace_writer(self) -> None:
        """Open the store again, so that its next checkpoint claims the next generation."""
        self.store = self._open()

    def rows(self, totals: Totals) -> Any:
        """Return totals as the rows that are written."""
        return pa.table({"user": list(totals), "n": list(totals.values())}, schema=SCHEMA)

    def content(self) -> Content:
        """Return what the next checkpoint has."""
        rows = [{"user": user, "n": n} for user, n in self.totals.items()]
        offsets = [{"partition": 0, "offset": self.offset}]
        return {"users/totals": sorted_rows(rows), "source/offsets": offsets}

    def write(self, changes: Totals | None = None, deletes: tuple[str, ...] = ()) -> None:
        """Commit a checkpoint: all totals, or only the changes."""
        self.totals |= changes or {}
        for user in deletes:
            del self.totals[user]
        self.offset += 10
        content = self.content()
        may(self.name, content)
        with self.store.snapshot(parallelism=2) as checkpoint:
            if len(self.totals) == len(changes or self.totals):
                rows = self.rows(self.totals)
                checkpoint.write_keyed(
                    "users", "totals", rows, key="user", max_parallelism=KEY_GROUPS
                )
            else:
                rows = self.rows(changes or {})
                given = Changes(rows, [{"user": user} for user in deletes] or None)
                checkpoint.write_changes("users", "totals", given)
            checkpoint.write_union("source", "offsets", [content["source/offsets"], []])
        self.commits({checkpoint.id: content})

    def commits(self, new: Mapping[int, Content]) -> None:
        """Promise these checkpoints, in addition to the visible ones."""
        self.known |= new
        has(self.name, self.known)

    def derives(self, totals: Totals, command: Callable[[], int | None]) -> None:
        """Run a command that makes one checkpoint with these totals of the newest one."""
        self.totals = totals
        may(self.name, self.content())
        number = command()
        assert number is not None, "the command made no checkpoint"
        self.commits({number: self.content()})

    def expire(self, retain: int) -> CollectedGarbage:
        """Expire checkpoints, and collect garbage."""
        leaving(self.name)
        self.store.maintenance.expire(retain=retain)
        self.known = {number: self.known[number] for number in self.store.checkpoints()}
        has(self.name, self.known)
        return self.store.maintenance.gc(minimum_age="0")


def _users(count: int, factor: int = 1) -> Totals:
    return {f"u{i}": i * factor for i in range(count)}


def snapshot(root: Path) -> None:
    """Take two full snapshots."""
    job = Job(root)
    job.write(_users(6))
    job.write(_users(6, 7))


def delta(root: Path) -> None:
    """Take so many snapshots in Delta tables that their logs get a checkpoint."""
    job = Job(root, table_format="delta", layout="ranged")
    for factor in range(12):
        job.write(_users(3, factor))
    job.expire(retain=2)


def changes(root: Path) -> None:
    """Take incremental checkpoints, which a thread and a command compact."""
    job = Job(root, compaction=CompactionRule(merge_layers=2))
    job.write(_users(30))
    for number in range(1, 7):
        job.write({f"u{number}": 1000 + number, f"new{number}": number}, (f"u{20 + number}",))
    job.derives(dict(job.totals), lambda: _compacted(job.store))
    job.write({"u1": -1})


def _compacted(store: StateStore) -> int | None:
    return store.maintenance.compact(everything=True).new_checkpoint_id


def collect(root: Path) -> None:
    """Expire checkpoints and collect garbage around a savepoint and a pin."""
    job = Job(root)
    for factor in range(3):
        job.write(_users(8, factor + 1))
    job.store.maintenance.savepoint("keep", 1)
    pinned = job.store.maintenance.pin(2, lease="1h")
    held(job.name, {"keep": 1})
    job.write({"u1": 5})
    job.expire(retain=1)
    job.store.maintenance.unpin(pinned.token)
    job.write({"u2": 6})
    job.expire(retain=1)
    held(job.name, None)
    job.store.maintenance.delete_savepoint("keep")
    held(job.name, {})
    job.expire(retain=1)
    job.write({"u3": 7})


def claims(root: Path) -> None:
    """Replace the writer of a store, and collect the claims of the writers that were replaced."""
    job = Job(root)
    for replaced, gone in ((3, (1, 2)), (2, (3, 4))):
        job.write(_users(2, job.offset))
        for _ in range(replaced):
            job.replace_writer()
            job.write(_users(2, job.offset))
        for path in (root / STORE / "writers").iterdir():
            os.utime(path, (0, 0))  # replaced long ago
        assert job.expire(retain=1).claims == gone


def edit(root: Path) -> None:
    """Edit a base with changes, twice."""
    job = Job(root)
    job.write(_users(20))
    job.write({"u1": 100})
    keep = job.store.maintenance
    put = [{"user": "u2", "n": 200}]
    job.derives(
        job.totals | {"u2": 200},
        lambda: keep.edit("users", "totals", put=put).new_checkpoint_id,
    )
    left = {user: n for user, n in job.totals.items() if user != "u3"}
    job.derives(
        left,
        lambda: keep.edit("users", "totals", delete=["u3"]).new_checkpoint_id,
    )
    job.write({"u4": 400})


def edit_sql(root: Path) -> None:
    """Edit a base with changes in DuckDB; its database and the spilled rows are recorded, too."""
    (root / "temporary").mkdir()
    tempfile.tempdir = str(root / "temporary")
    job = Job(root, parquet=ParquetOptions(memory_bytes=2500))
    job.write(_users(60))
    job.write({"u1": 100})
    keep = job.store.maintenance
    sql = "SELECT user, n * 2 AS n FROM state WHERE n % 3 != 0 ORDER BY n DESC"
    job.derives(
        {user: n * 2 for user, n in job.totals.items() if n % 3},
        lambda: keep.edit("users", "totals", sql=sql).new_checkpoint_id,
    )
    job.write({"u1": 400})


def rekey(root: Path) -> None:
    """Rekey a base with changes in a working folder, from which a failed run resumes."""
    job = Job(root, parquet=ParquetOptions(rekey_bytes=2000))
    job.write(_users(40))
    job.write({"u1": 100})
    content = job.content()
    rekeying(job.name, "work", content, max_parallelism=6)
    done = job.store.maintenance.rekey("users", max_parallelism=6, work=root / "work")
    assert done.new_checkpoint_id is not None
    job.commits({done.new_checkpoint_id: content})
    job.write({"u4": 400})


def export(root: Path) -> None:
    """Write a checkpoint into a folder, and as a savepoint of Flink."""
    job = Job(root)
    job.write(_users(8))
    job.store.restore(parallelism=2).export(root / "rows")
    complete(root, "rows")
    export_savepoint(job.store, str(root / "savepoint"))
    complete(root, "savepoint")


def outputs(root: Path) -> None:
    """Append numbered rows to a new Delta table, and to one whose log gets checkpoints."""
    create_table(root / "out")
    settle()
    for folder, count in (("new", 2), ("out", 7)):
        rows = [number + 1 for number in range(count)]
        table(folder, -1, rows)
        for number in range(count):
            append_rows(root / folder, number, rows)
            table(folder, number, rows)


def purge(root: Path, **options: Any) -> None:
    """Purge a key from three checkpoints with changes and a savepoint; then collect."""
    job = Job(root, **options)
    job.write(_users(12))
    job.write({"u1": 100, "u5": 1})
    job.store.maintenance.savepoint("keep")
    job.write({"u2": 200})
    contents = [_without(content, "u5") for content in job.known.values()]
    for content in contents:
        may(job.name, content)
    leaving(job.name)
    job.store.maintenance.forget(OperatorKey("users", "u5"), search=False)
    job.totals.pop("u5")
    job.known = dict(zip(job.store.checkpoints(), contents, strict=True))
    has(job.name, job.known)
    held(job.name, {"keep": max(job.known) - 1})
    job.store.maintenance.gc(minimum_age="0")
    assert job.store.maintenance.find_subject(OperatorKey("users", "u5")).is_gone
    purged(job.name, "users", "u5")
    job.write({"u6": 600})


def purge_delta(root: Path) -> None:
    """Purge from Delta tables, whose logs are deleted."""
    purge(root, table_format="delta", layout="ranged")


def _without(content: Content, user: str) -> Content:
    rows = [row for row in content["users/totals"] if row["user"] != user]
    return content | {"users/totals": rows}


def copy(root: Path) -> None:
    """Copy a checkpoint with changes to another store, fork it, and continue in all of them."""
    job, other, fork = Job(root), Job(root, "copy"), Job(root, "fork")
    job.write(_users(10))
    job.write({"u1": 100})
    for target in (other, fork):
        target.offset = job.offset
    keep = job.store.maintenance
    other.derives(
        dict(job.totals), lambda: keep.copy("latest", str(root / "copy")).new_checkpoint_id
    )
    fork.derives(
        dict(job.totals),
        lambda: keep.copy("latest", str(root / "fork"), linked=True).new_checkpoint_id,
    )
    for target in (job, other, fork):
        target.write({"u2": 200})
        target.expire(retain=1)


def processes(root: Path) -> None:
    """Let two processes write the subtasks of each checkpoint."""
    job = Job(root, layout="auto")
    owners = KeyGroupAssignment(max_parallelism=KEY_GROUPS, parallelism=2)
    with ProcessPoolExecutor(2, get_context("spawn")) as workers:
        for factor in (1, 2, 3):
            job.totals, job.offset = _users(12, factor), factor * 10
            content = job.content()
            may(job.name, content)
            parts: list[list[dict[str, Any]]] = [[], []]
            for row in content["users/totals"]:
                parts[
                    owners.subtask_of(key_group_of(row["user"], max_parallelism=KEY_GROUPS))
                ].append(row)
            with job.store.snapshot(parallelism=2) as checkpoint:
                totals = checkpoint.declare_keyed(
                    "users", "totals", SCHEMA, key="user", max_parallelism=KEY_GROUPS
                )
                answers = [workers.submit(totals.subtask(i).write, parts[i]) for i in range(2)]
                for answer in answers:
                    checkpoint.acknowledge(answer.result())
                checkpoint.write_union("source", "offsets", [content["source/offsets"], []])
            job.commits({checkpoint.id: content})


def upgrade(root: Path) -> None:
    """Continue a store of the first format, whose documents get the newest one."""
    shutil.copytree(ROOT / "tests" / "golden" / "kept_v1", root / STORE)
    settle()
    store = StateStore.open(str(root / STORE))
    known = {number: content_of(store, number) for number in store.checkpoints()}
    has(STORE, known)
    for count in (1001, 1002):
        rows = store.restore(parallelism=1).keyed("golden", "totals").to_arrow(0)
        rows = rows.drop_columns([KEY_GROUP])
        place = rows.schema.get_field_index("count")
        changed = rows.set_column(place, "count", pa.array([count] * len(rows), pa.int64()))
        content = known[max(known)] | {"golden/totals": sorted_rows(changed.to_pylist())}
        may(STORE, content)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("golden", "totals", changed)
            checkpoint.carry_rest()
        known[checkpoint.id] = content
        has(STORE, known)


def command(root: Path) -> None:
    """Run the command, in processes of its own, on a store of a job."""
    job = Job(root)
    job.write(_users(8))
    job.write({"u1": 100})
    base = [sys.executable, "-m", "statestore", "--store", str(root / STORE)]
    job.totals |= {"u9": 9}
    may(STORE, job.content())
    words = ["edit", "--state", "users/totals", "--put", '{"user":"u9","n":9}']
    subprocess.run([*base, *words], check=True, capture_output=True)
    job.commits({max(job.store.checkpoints()): job.content()})
    leaving(STORE)
    subprocess.run([*base, "expire", "--retain", "1"], check=True, capture_output=True)
    job.known = {number: job.known[number] for number in job.store.checkpoints()}
    has(STORE, job.known)
    subprocess.run([*base, "gc", "--minimum-age", "0"], check=True, capture_output=True)


SUBJECTS: dict[str, Callable[[Path], None]] = {
    subject.__name__: subject
    for subject in (
        snapshot,
        changes,
        collect,
        claims,
        edit,
        edit_sql,
        rekey,
        purge,
        purge_delta,
        copy,
        export,
        outputs,
        processes,
        upgrade,
        command,
        delta,
    )
}


def main() -> None:
    """Run the subject that the command line names."""
    folder, name = sys.argv[1:]
    SUBJECTS[name](Path(folder))


if __name__ == "__main__":
    main()
