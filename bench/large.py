"""A store of 100 TB: what its manifests and lists of files alone cost who begins, commits, lists,
restores, plans and cleans up.

The checkpoints are made up: 200 states of 32,768 key groups each, 512 files of 1 GiB a state, every
one with the rows and the digest of each of its key groups; each checkpoint takes over what the one
before has. The data files are there by name, and empty. Each step is taken in a new process, which
says how long that took, how much memory it ever had, and how often it asked the storage. A store
that keeps a thousand checkpoints has so many manifests to list, expire and collect; here it keeps a
few, and what each of them costs is told.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.measure import Figure
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
    "begin": "store.snapshot(parallelism=512).give_up()",
    "begin, carry all, commit": """
with store.snapshot(parallelism=512) as checkpoint:
    checkpoint.carry_rest()""",
    "restore, one state": """
store.restore(parallelism=1000).keyed("operator-00", "state-00").entry.handles[0]""",
    "plan": "store.plan(parallelism=1000).size_bytes",
    "list": "[CheckpointRow.of(store.manifest(one), 0) for one in store.checkpoints()]",
    "expire": "store.maintenance.expire(retain=1)",
    "gc": "store.maintenance.gc(minimum_age_s=0)",
}
EACH = ("list", "expire", "gc")
"""Steps that read all checkpoints."""
_ROOT = Path(__file__).resolve().parent.parent

_STEP = """
import json, sys, time
from pathlib import Path
from statestore import StateStore
from statestore.cli.verbs.list import CheckpointRow
from bench.large import Asked
storage = Asked(sys.argv[1])
store = StateStore.over(storage, compaction=None)
start = time.perf_counter()
{step}
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([seconds, 1024 * int(status["VmHWM"].split()[0]) / 1e6, storage.requests]))
"""


class Asked(LocalStorage):
    """A folder that counts what it is asked: reads, puts, listings, sizes and deletions."""

    def __init__(self, url: str) -> None:
        """Take a path; nothing was asked yet."""
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
    """Return seconds, peak memory and requests of each step; ``rows`` say how many files a state
    has.
    """
    url = str(folder / "store")
    size = _store(url, rows)
    found = [_count("the lists of files", size / 1e6, "MB"), _count("checkpoints", KEPT, "")]
    for name, step in STEPS.items():
        # Expired and collected is what there is once.
        runs = [_taken(url, step) for _ in range(1 if name in ("expire", "gc") else repeats)]
        seconds, megabytes, requests = zip(*runs, strict=True)
        asked = ", ".join(f"{number} {what}" for what, number in sorted(requests[-1].items()))
        shared = KEPT if name in EACH else 1
        what = f"{name}: a checkpoint" if name in EACH else name
        found.append(_figure(what, [one / shared for one in seconds], "s", MOST_SECONDS))
        found.append(_figure(f"{name}: peak memory", megabytes, "MB", MOST_MEGABYTES))
        found.append(_count(f"{name}: {asked}", sum(requests[-1].values()), "requests"))
    return found


def _store(url: str, files: int) -> int:
    """Make the store with its manifests, and its data files by name; return the bytes of one."""
    catalog = Catalog.open(open_storage(url), create=True, table_format="parquet")
    manifest = made_up_manifest(
        catalog.store_id, STATES, states=STATES, files=files, file_bytes=FILE_BYTES
    )
    # As a snapshot puts them: each list of files once, for all checkpoints that have the files.
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
    """Return the seconds, the peak megabytes and the requests of a process that takes a step."""
    command = [sys.executable, "-c", _STEP.format(step=step), url]
    done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
    seconds, megabytes, requests = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes, requests


def _count(what: str, value: float, unit: str) -> Figure:
    return Figure(TARGET, what, value, unit, value, value)


def _figure(what: str, values: Sequence[float], unit: str, goal: float) -> Figure:
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), goal=goal)
