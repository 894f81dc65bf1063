"""A job stops on ForSt and continues on another state backend, after a way through a store.

Flink itself has no way out of ForSt: it refuses to take a canonical savepoint of such a job.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.interop.flink import (
    export_savepoint,
    import_savepoint,
    open_savepoint,
    repack_savepoint,
)
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]
FORST = {"state.backend.type": "forst", "parallelism": "3", "format": "NATIVE"}
CHECKPOINT = {
    "do": "checkpoint",
    "first": "30",
    "execution.checkpointing.incremental": "true",
    "state.backend.forst.memory.partitioned-index-filters": "true",
}


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


@pytest.mark.parametrize(
    ("version", "continued"),
    [("2.3.0", ["rocksdb", "repacked", "hashmap"]), ("2.1.0", ["rocksdb", "repacked"])],
)
def test_a_job_continues_on_another_backend(
    version: str, continued: list[str], tmp_path: Path
) -> None:
    """With each kind of state, timers and TTL, its output is that of a job that never stopped.

    Flink applies the TTL of an asynchronous state on ForSt alone. Other backends restore the values
    without it, except the heap of Flink 2.1, which refuses them.
    """
    flink = Flink(version, "golden.Async", "async")
    savepoint = {"do": "savepoint", "to": str(tmp_path), "events": "60", "format": "NATIVE"}
    (place,) = flink.run([savepoint | FORST | {"results": f"{tmp_path}/first"}])
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(place, store)
    done = export_savepoint(store, str(tmp_path / "exported"))
    repack_savepoint(place, str(tmp_path / "more-key-groups"), max_parallelism=720)
    step = savepoint | {"events": "120", "parallelism": "5"}
    later = {
        "rocksdb": {"from": done.savepoint},
        "hashmap": {"from": done.savepoint},
        "repacked": {"from": f"{tmp_path}/more-key-groups", "max": "720"},
        "whole": {},
    }
    steps = [
        {**step, **words, "results": f"{tmp_path}/{name}"}
        | {"state.backend.type": "hashmap" if name == "hashmap" else "rocksdb"}
        for name, words in later.items()
        if name in (*continued, "whole")
    ]
    flink.run(steps)
    whole = sorted(lines(tmp_path / "whole"))
    assert len(whole) == 120
    for name in continued:
        assert sorted(lines(tmp_path / "first") + lines(tmp_path / name)) == whole


def rows_of(place: str) -> set[tuple[str, str]]:
    """Return the rows of each state, without times of the last access."""
    operator = open_savepoint(place).operator("async")
    return {
        (rows.state.name, re.sub(r"'last_access': \d+, ", "", repr(row)))
        for rows in operator.rows()
        for row in zip(
            *(
                [None] * len(rows) if column is None else column.to_pylist()
                for column in (rows.key, rows.map_key, rows.value, rows.time)
            ),
            strict=True,
        )
    }


def test_an_incremental_checkpoint_of_forst_has_the_rows_of_a_savepoint(tmp_path: Path) -> None:
    """Its files lie where the job worked, and were written before and after another checkpoint."""
    step = FORST | {"do": "savepoint", "events": "60"}
    flink = Flink("2.3.0", "golden.Async", "async")
    places = flink.run(
        [step | {"to": f"{tmp_path}/savepoint"}, step | CHECKPOINT | {"to": f"{tmp_path}/made"}]
    )
    of_savepoint, of_checkpoint = map(rows_of, places)
    assert len(of_savepoint) == 180
    assert of_checkpoint == of_savepoint
