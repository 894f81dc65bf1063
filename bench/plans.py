"""The plan of a restore of about 10 TB: from the manifest's bytes to the reads of each subtask.

The checkpoint is synthetic: 100 states with 32,768 key groups and 800 files of 128 MB each. Every
file has the rows and the digest of each of its key groups. No data file exists, because a plan
reads none. A new process computes the plan, and reports its time and peak memory.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench.measure import Figure, output_of
from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.format.digest import combine
from statestore.format.handles import GroupIndex, KeyedStateHandle
from statestore.format.manifest import KeyedEntry, Manifest, TableRef, Writer
from statestore.format.names import keyed_table, ranged_file
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.storage import open_storage

__all__ = ["figures", "made_up_manifest", "made_up_state"]

TARGET = "B14"
STATES, KEY_GROUPS, FILES = 100, 32_768, 800
FILE_BYTES, ROW_BYTES = 128 * 2**20, 42
PARALLELISM = 1_000
MOST_SECONDS, MOST_MEGABYTES = 2.0, 500.0

# VmHWM and not ru_maxrss: in Linux a child process inherits the latter from its parent.
_PLAN = """
import json, sys, time
from pathlib import Path
from statestore import StateStore
store = StateStore.open(sys.argv[1])
start = time.perf_counter()
size = store.plan(parallelism=int(sys.argv[2])).size_bytes  # what each subtask reads
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = 1024 * int(status["VmHWM"].split()[0])
print(json.dumps([seconds, peak, size]))
"""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return time and peak memory of a plan, of 100 operators and of one operator with 100 states.

    ``rows`` has no effect here.
    """
    found = []
    for operators in (STATES, 1):
        url = str(folder / f"operators-{operators}")
        size = _store(url, operators)
        runs = [_planned(url) for _ in range(repeats)]
        what = f"{operators} operators of {STATES // operators} keyed states, {size / 1e6:.0f} MB"
        seconds, megabytes = zip(*runs, strict=True)
        found.append(_figure(f"load and plan: {what}", seconds, "s", MOST_SECONDS))
        found.append(_figure(f"peak memory: {what}", megabytes, "MB", MOST_MEGABYTES))
    return found


def made_up_manifest(
    store_id: str,
    operators: int,
    *,
    states: int = STATES,
    files: int = FILES,
    file_bytes: int = FILE_BYTES,
) -> Manifest:
    """Return a manifest of some keyed states, spread over some operators.

    Each state has this many files of about this many bytes.
    """
    numbers = np.random.default_rng(14)
    ranges = KeyGroupAssignment(max_parallelism=KEY_GROUPS, parallelism=files).ranges()
    entries = tuple(
        _entry(
            made_up_state(
                f"operator-{state % operators:02}", f"state-{state:02}", KEY_GROUPS, Layout.RANGED
            ),
            [_handle(one, file_bytes, numbers) for one in ranges],
        )
        for state in range(states)
    )
    return Manifest(
        store_id=store_id,
        checkpoint_id=1,
        parallelism=files,
        started_at_ms=1_700_000_000_000,
        created_at_ms=1_700_000_060_000,
        writer=Writer("0", "bench:1", "0" * 32),
        keyed=entries,
        operator=(),
    )


def made_up_state(uid: str, name: str, key_groups: int, layout: Layout) -> KeyedState:
    """Return a state of counts by user, of which no row exists."""
    return KeyedState(
        uid=uid,
        name=name,
        kind=StateKind.VALUE,
        schema=Schema((Field("user", "string"), Field("count", "long"))),
        key=("user",),
        key_types=("String",),
        max_parallelism=key_groups,
        hash_scheme="java",
        layout=layout,
    )


def _entry(state: KeyedState, handles: Iterable[KeyedStateHandle]) -> KeyedEntry:
    return KeyedEntry(
        state, TableRef("parquet", keyed_table(state.uid, state.name)), tuple(handles)
    )


def _handle(
    key_groups: KeyGroupRange, file_bytes: int, numbers: np.random.Generator
) -> KeyedStateHandle:
    count = len(key_groups)
    usual = file_bytes // ROW_BYTES // count
    rows = numbers.integers(usual - usual // 10, usual + usual // 10, count).tolist()
    digests = numbers.integers(0, 2**64, count, dtype=np.uint64).tolist()
    return KeyedStateHandle(
        path=ranged_file(1, key_groups.first, f"{numbers.bytes(8).hex()}-0"),
        key_groups=key_groups,
        rows=sum(rows),
        size_bytes=file_bytes + int(numbers.integers(0, 2**20)),
        row_groups=count,
        digest=combine(digests),
        sha256=numbers.bytes(32).hex(),
        index=GroupIndex.of(rows, digests),
    )


def _store(url: str, operators: int) -> int:
    """Create the store with its only manifest; return the bytes of the manifest."""
    catalog = Catalog.open(open_storage(url), create=True)
    catalog.commit(made_up_manifest(catalog.store_id, operators))
    (file,) = Path(url, "checkpoints").iterdir()
    assert StateStore.open(url).checkpoints() == (1,)
    return file.stat().st_size


def _planned(url: str) -> tuple[float, float]:
    """Plan in a new process; return its seconds and peak megabytes."""
    command = [sys.executable, "-c", _PLAN, url, str(PARALLELISM)]
    seconds, peak, planned_bytes = json.loads(output_of(command))
    assert planned_bytes > STATES * FILES * FILE_BYTES
    return seconds, peak / 1e6


def _figure(what: str, values: tuple[float, ...], unit: str, goal: float) -> Figure:
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), goal=goal)
