"""An answer that is not read to its end: its scans are closed, and no program waits for them."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.testing.counting import CountingStorage

pytestmark = pytest.mark.slow

ROWS, FILES = 200_000, 128
# Longer than any of these takes on a busy machine; one that waits does so for ever.
_FOR_EVER = 120


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Many files: a reader that goes ahead by itself has much to do when it is left."""
    path = str(tmp_path_factory.mktemp("abandoned") / "store")
    store = StateStore.open(path, table_format="parquet", layout="partitioned")
    rows = pa.table({"k": [f"key-{number}" for number in range(ROWS)], "n": range(ROWS)})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.keyed("u", "totals", rows, key="k", max_parallelism=FILES)
    assert len(entry.handles) == FILES
    return path


@pytest.mark.parametrize("runs", [4, pytest.param(12, marks=pytest.mark.long)])
def test_the_command_prints_and_ends(url: str, runs: int) -> None:
    """Each time, four at once: when there is much to do, more threads are left behind."""
    words = [sys.executable, "-m", "statestore", "--store", url, "--output", "json"]
    words += ["query", "SELECT n - n AS zero FROM totals LIMIT 2"]
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(ended, [words] * runs):
            assert (done.returncode, done.stderr) == (0, "")
            assert '"rows": [' in done.stdout


def ended(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Return what became of a command; it fails when the command does not end."""
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_FOR_EVER)


@pytest.mark.parametrize(
    "program",
    [
        "answer = store.query('SELECT * FROM totals'); answer.read_next_batch()",
        "store.query('SELECT a.n FROM totals a, totals b, totals c').read_next_batch()",
        "answer = store.query('SELECT * FROM totals LIMIT 2')",
        "with store.query('SELECT * FROM totals') as answer: answer.read_next_batch()",
        "state = store.restore().keyed('u', 'totals'); state.to_arrow(0).read_next_batch()",
    ],
    ids=["first rows", "cross product", "nothing", "left", "restore"],
)
def test_a_program_that_keeps_an_answer_ends(url: str, program: str) -> None:
    """Without a word of it."""
    opened = f"from statestore import StateStore; store = StateStore.open({url!r})\n"
    done = ended([sys.executable, "-c", f"{opened}{program}"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("streams", [1, 4])
def test_an_answer_that_is_dropped_reads_nothing_more(url: str, streams: int) -> None:
    """And holds no file open."""
    storage = CountingStorage(url, streams)
    answer = StateStore.over(storage).query("SELECT * FROM totals")
    answer.read_next_batch()
    del answer
    gc.collect()
    assert all(file.closed for file in storage.files)
    read = storage.bytes_read
    gc.collect()
    assert storage.bytes_read == read
