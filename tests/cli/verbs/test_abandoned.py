"""Query results that are not read completely: the scans are closed, and the program exits."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.testing.faults import CountingStorage

pytestmark = pytest.mark.slow

ROWS, FILES = 200_000, 128
# Longer than each command takes on a busy machine. A command that hangs never ends.
_FOR_EVER = 120


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with many files, whose prefetching readers are busy when they are abandoned."""
    path = str(tmp_path_factory.mktemp("abandoned") / "store")
    store = StateStore.open(path, table_format="parquet", layout="partitioned")
    rows = pa.table({"k": [f"key-{number}" for number in range(ROWS)], "n": range(ROWS)})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "totals", rows, key="k", max_parallelism=FILES)
    assert len(entry.handles) == FILES
    return path


@pytest.mark.long_cases("4")
@pytest.mark.parametrize("runs", [4, pytest.param(12, marks=pytest.mark.long)])
def test_the_command_prints_and_exits(url: str, runs: int) -> None:
    """Four processes run concurrently: under load, more reader threads are still active at exit."""
    words = [sys.executable, "-m", "statestore", "--store", url, "--output", "json"]
    words += ["query", "SELECT n - n AS zero FROM totals LIMIT 2"]
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(completed, [words] * runs):
            assert (done.returncode, done.stderr) == (0, "")
            assert '"rows": [' in done.stdout


def completed(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Return the completed process of a command, or fail if the command does not end."""
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_FOR_EVER)


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            "answer = store.query('SELECT * FROM totals'); answer.read_next_batch()",
            id="first rows",
        ),
        pytest.param(
            "store.query('SELECT a.n FROM totals a, totals b, totals c').read_next_batch()",
            id="cross product",
        ),
        pytest.param(
            "answer = store.query('SELECT * FROM totals LIMIT 2')",
            id="nothing",
        ),
        pytest.param(
            "with store.query('SELECT * FROM totals') as answer: answer.read_next_batch()",
            id="left",
        ),
        pytest.param(
            "state = store.restore().keyed('u', 'totals'); state.to_batches(0).read_next_batch()",
            id="restore",
        ),
    ],
)
def test_a_program_that_keeps_a_result_exits(url: str, program: str) -> None:
    """It prints nothing to stderr."""
    opened = f"from statestore import StateStore; store = StateStore.open({url!r})\n"
    done = completed([sys.executable, "-c", f"{opened}{program}"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("streams", [1, 4])
def test_a_dropped_result_stops_reading(url: str, streams: int) -> None:
    """It also holds no file open."""
    storage = CountingStorage(url, streams)
    answer = StateStore.open(storage).query("SELECT * FROM totals")
    answer.read_next_batch()
    del answer
    gc.collect()
    assert all(file.closed for file in storage.files)
    read = storage.bytes_read
    gc.collect()
    assert storage.bytes_read == read
