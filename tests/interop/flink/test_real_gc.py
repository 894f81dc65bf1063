"""A real job takes checkpoints while old files are deleted a hundred times, and loses nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statestore.interop.flink.checkpoint_gc import CollectedFlinkFiles, collect_flink_files
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import NEWEST, ROCKSDB, comparable, dumped
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]

RUNS = 100
MINIMUM_AGE = "10s"  # above the time of a checkpoint on a busy machine, far below that of the job
INCREMENTAL = {
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.data-inline-threshold": "0b",
    "execution.checkpointing.interval": "200ms",
    "execution.checkpointing.num-retained": "2",
}
CHANGELOG = {
    "state.changelog.enabled": "true",
    "state.changelog.storage": "filesystem",
    "state.changelog.periodic-materialize.interval": "5s",
}
MERGED = {
    "execution.checkpointing.file-merging.enabled": "true",
    "execution.checkpointing.file-merging.across-checkpoint-boundary": "true",
}


@pytest.mark.parametrize(
    "settings", [{}, CHANGELOG, MERGED], ids=["incremental", "changelog", "merged"]
)
def test_a_running_job_loses_nothing(settings: Mapping[str, str], tmp_path: Path) -> None:
    """A second job claims the first one's checkpoint and uses its files, in the same folder. Its
    last checkpoint has the state of a job without deletions.
    """
    folder, flink = tmp_path / "checkpoints", Flink(NEWEST)
    folder.mkdir()
    changelog = {"state.changelog.dstl.dfs.base-path": f"file://{folder}"}
    step = {"do": "checkpoint", "to": str(folder), "parallelism": "2", "format": "CANONICAL"}
    step |= {**ROCKSDB, **INCREMENTAL, **settings, **changelog}
    runs = Counter[str]()
    first = collect_while(
        flink, step | {"first": "50", "events": "200", "pace": "250"}, folder, runs
    )
    claim = {
        "execution.state-recovery.path": first,
        "execution.state-recovery.claim-mode": "CLAIM",
    }
    last = collect_while(
        flink, {**step, **claim, "first": "210", "events": "250", "pace": "700"}, folder, runs
    )
    assert Path(last).parent != Path(first).parent
    assert runs["deleted"] >= RUNS, runs
    found = dumped(flink, tmp_path, last, ROCKSDB, parallelism=2, most=128)
    assert comparable(found) == comparable(Golden("2.3_heap_canonical").rows())


def collect_while(flink: Flink, step: Mapping[str, str], folder: Path, runs: Counter[str]) -> str:
    """Run a job, and delete files as long as it runs; return its last checkpoint.

    Each run has an old file of each kind to delete, so a run that deletes nothing is counted.
    """
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flink.run, [step])
        while not running.done():
            collected = collect_once(folder)
            if collected is None:
                time.sleep(0.2)
            else:
                runs["deleted" if collected.removed.files else "nothing"] += 1
        (last,) = running.result()
    return last


def collect_once(folder: Path) -> CollectedFlinkFiles | None:
    """Add old files to the folder of each job and collect; None before the first checkpoint."""
    newest = [*folder.glob("*/chk-*/_metadata")]
    if not newest:
        return None
    jobs = {metadata.parents[1] for metadata in newest}
    strays = {job / kind / "stray" for job in jobs for kind in ("shared", "taskowned", "dstl")}
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"old")
        os.utime(stray, (0, 0))
    collected = collect_flink_files(str(folder), minimum_age=MINIMUM_AGE, dry_run=False)
    kept = {stray.relative_to(folder).parts[0] for stray in strays if stray.exists()}
    # The last checkpoint of the first job goes when the second one has its own.
    assert kept <= {group.job for group in collected.groups if group.kept == "no checkpoint"}
    return collected
