"""A store of 100 TB: the cost of its manifests and file lists for each kind of operation.

The operations are begin, commit, list, restore, plan and the clean-up commands. The checkpoints are
synthetic: 200 states with 32,768 key groups and 512 files of 1 GiB each. Every file has the rows
and the digest of each of its key groups. Each checkpoint carries the files of the previous one. The
data files exist by name and are empty.

Each step runs in a new process, which reports its time, its peak memory and the number of its
storage requests. A store with a thousand checkpoints has as many manifests to list, expire and
collect. This store has a few, and the figures are the cost of each.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.measure import Figure, output_of
from bench.plans import made_up_manifest
from statestore.catalog.catalog import Catalog
from statestore.format.names import FILES as LISTS
from statestore.format.names import file_list_path
from statestore.storage import LocalStorage, open_storage
from statestore.storage.base import Listed

__all__ = ["FILES", "Asked", "figures"]

TARGET = "B23"
STATES, FILES, FILE_BYTES = 200, 512, 2**30
KEPT = 4
MOST_SECONDS, MOST_MEGABYTES = 2.0, 500.0
STEPS = {
    "begin": "store.snapshot(parallelism=512).abandon()",
    "begin, carry all, commit": """
with store.snapshot(parallelism=512) as checkpoint:
    checkpoint.carry_rest()""",
    "restore, one state": """
store.restore(parallelism=1000).keyed("operator-00", "state-00").entry.handles[0]""",
    "plan": "store.plan(parallelism=1000).size_bytes",
    "list": """
catalog = store.parts.catalog()
[CheckpointSummary.read(catalog, one, 0) for one in catalog.checkpoint_ids()]""",
    "expire": "store.maintenance.expire(retain=1)",
    "gc": "store.maintenance.gc(minimum_age='0')",
}
EACH = ("list", "expire", "gc")
"""Steps that read all checkpoints."""

_STEP = """
import json, sys, time
from pathlib import Path
from statestore import StateStore
from statestore.cli.summaries import CheckpointSummary
from bench.large import Asked
storage = Asked(sys.argv[1])
store = StateStore.open(storage, compaction=None)
start = time.perf_counter()
{step}
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([seconds, 1024 * int(status["VmHWM"].split()[0]) / 1e6, storage.requests]))
"""


class Asked(LocalStorage):
    """A folder that counts requests: reads, puts, listings, sizes and deletions."""

    def __init__(self, url: str) -> None:
        """Take a path; all counts are zero."""
        super().__init__(url)
        self.requests: Counter[str] = Counter()

    def read(self, name: str) -> bytes:
        """Count, and read."""
        self.requests["reads"] += 1
        return super().read(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Count, and put."""
        self.requests["puts"] += 1
        return super().put_if_absent(name, data)

    def list(self, folder: str) -> tuple[str, ...]:
        """Count, and list."""
        self.requests["listings"] += 1
        return super().list(folder)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Count, and list."""
        self.requests["listings"] += 1
        return super().listed(folder)

    def size(self, name: str) -> int:
        """Count, and ask."""
        self.requests["sizes"] += 1
        return super().size(name)

    def delete(self, name: str) -> None:
        """Count, and delete."""
        self.requests["deletions"] += 1
        super().delete(name)


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return seconds, peak memory and requests of each step.

    ``rows`` is the number of files per state.
    """
    url = str(folder / "store")
    size = _store(url, rows)
    found = [_count("the lists of files", size / 1e6, "MB"), _count("checkpoints", KEPT, "")]
    for name, step in STEPS.items():
        # A checkpoint can be expired and collected only once.
        runs = [_taken(url, step) for _ in range(1 if name in ("expire", "gc") else repeats)]
        seconds, megabytes, requests = zip(*runs, strict=True)
        asked = ", ".join(f"{number} {what}" for what, number in sorted(requests[-1].items()))
        shared = KEPT if name in EACH else 1
        what = f"{name}: a checkpoint" if name in EACH else name
        found.append(_figure(what, [second / shared for second in seconds], "s", MOST_SECONDS))
        found.append(_figure(f"{name}: peak memory", megabytes, "MB", MOST_MEGABYTES))
        found.append(_count(f"{name}: {asked}", sum(requests[-1].values()), "requests"))
    return found


def _store(url: str, files: int) -> int:
    """Create the store with its manifests and empty data files; return a manifest's bytes."""
    catalog = Catalog.open(open_storage(url), create=True, table_format="parquet")
    manifest = made_up_manifest(
        catalog.store_id, STATES, states=STATES, files=files, file_bytes=FILE_BYTES
    )
    # As in a snapshot, each file list is put once for all checkpoints with the same files.
    listed = [
        catalog.put_list(file_list_path(1, "0" * 32, at), entry, packed=False)
        for at, entry in enumerate(manifest.keyed)
    ]
    for number in range(1, KEPT + 1):
        catalog.commit(replace(manifest, checkpoint_id=number, keyed=tuple(listed)))
    for entry in manifest.entries:
        table = Path(url, entry.table.path)
        table.mkdir(parents=True)
        for handle in entry.handles:
            (table / handle.path).touch()
    return sum(path.stat().st_size for path in Path(url, LISTS).iterdir())


def _taken(url: str, step: str) -> tuple[float, float, dict[str, int]]:
    """Run a step in a new process; return its seconds, peak megabytes and requests."""
    command = [sys.executable, "-c", _STEP.format(step=step), url]
    seconds, megabytes, requests = json.loads(output_of(command).splitlines()[-1])
    return seconds, megabytes, requests


def _count(what: str, value: float, unit: str) -> Figure:
    return Figure(TARGET, what, value, unit, value, value)


def _figure(what: str, values: Sequence[float], unit: str, goal: float) -> Figure:
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), goal=goal)
