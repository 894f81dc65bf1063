"""``list --follow`` follows a store to which a job writes, in another process or in this one."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.cli.verbs.list import followed
from statestore.errors import StorageError
from statestore.format.manifest_summary import ManifestSummary
from statestore.storage import LocalStorage, Storage
from tests.support.stores import uncompacted

pytestmark = pytest.mark.slow

Run = Callable[..., Result]

ROWS = pa.table({"k": [f"k{i}" for i in range(50)], "v": list(range(50))})
FOLLOW = [sys.executable, "-m", "statestore", "list", "--follow", "50ms"]
SOON_S = 60


def take(store: StateStore, checkpoint_id: int | None = None) -> int:
    """Take a checkpoint. The first one is full, and the others contain changes."""
    with store.snapshot(parallelism=2, checkpoint_id=checkpoint_id) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            ROWS if checkpoint.planned[0] == 1 else ROWS.slice(0, 5),
            key="k",
            max_parallelism=8,
        )
    return checkpoint.id


def storage_of(store: StateStore) -> Storage:
    return store.parts.storage


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``list --follow`` of the store ``./live`` in its own process."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "COLUMNS": "120"}
        command = [*FOLLOW, "--store", str(tmp_path / "live"), *arguments]
        process = subprocess.Popen(command, text=True, env=environment, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str], stream: str) -> str:
    """Return the first line of output. ``list --follow`` prints it when it starts to wait."""
    line: str = getattr(process, stream).readline()
    return line


def test_a_missing_store_is_awaited_and_each_checkpoint_is_a_json_line(
    tmp_path: Path, following: Callable[..., subprocess.Popen[str]]
) -> None:
    process = following("--count", "3", "--output", "json")
    assert first_line(process, "stderr") == f"waiting for a store at {tmp_path / 'live'}\n"
    store = uncompacted(tmp_path / "live")
    assert [take(store) for _ in range(3)] == [1, 2, 3]
    out, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["checkpoint_id"], line["is_new"], line["error"]) for line in lines] == [
        (number, True, None) for number in (1, 2, 3)
    ]
    manifest = store.checkpoint(3).manifest
    assert manifest.metrics is not None
    last = lines[-1]
    assert last["store"] == store.url
    assert last["metrics"]["phases"] == asdict(manifest.metrics.phases)
    assert last["metrics"]["written"]["rows"] == 5
    assert last["metrics"]["changed_share"] == last["metrics"]["states"][0]["changed_share"] == 0.1
    assert (last["rows"], last["changed_rows"], last["layers"]) == (60, 10, 2)
    assert (last["files"], last["took_ms"]) == (manifest.files, manifest.metrics.duration_ms)
    assert last["age_ms"] >= 0


def test_the_newest_checkpoint_is_shown_first_and_is_not_counted(run: Run, tmp_path: Path) -> None:
    store = uncompacted(tmp_path / "live")
    take(store)
    take(store)
    writer = threading.Thread(target=lambda: take(store))
    ids: list[tuple[int, bool]] = []
    for found in followed(storage_of(store), interval_s=0, stop_after=1, on_wait=pytest.fail):
        ids.append((found.checkpoint_id, found.is_new))
        if not found.is_new:
            writer.start()
    writer.join()
    assert ids == [(2, False), (3, True)]


def test_text_lines_are_short_and_name_the_changed_share_and_holds(
    tmp_path: Path, following: Callable[..., subprocess.Popen[str]]
) -> None:
    store = uncompacted(tmp_path / "live")
    take(store)
    process = following("--count", "1")
    first = first_line(process, "stdout")
    take(store)
    out, err = process.communicate(timeout=SOON_S)
    (second,) = out.splitlines()
    assert (process.returncode, err) == (0, "")
    assert first.startswith("checkpoint 1; taken ")
    assert "phases" not in first + second
    assert max(len(first), len(second)) < 160
    assert "changed share 100%" in first
    assert second.startswith("checkpoint 2; taken ")
    assert "changed share 10%; holds 50 rows and 5 rows of changes" in second
    assert second.endswith("; 1 layer")


@pytest.mark.long
def test_ctrl_c_exits_without_a_traceback(
    tmp_path: Path, following: Callable[..., subprocess.Popen[str]]
) -> None:
    process = following()
    assert first_line(process, "stderr").startswith("waiting for a store")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON_S)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.long
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("is_written", [False, True], ids=["while it waits", "as it writes"])
def test_piped_to_head_it_exits_quietly(
    tmp_path: Path,
    following: Callable[..., subprocess.Popen[str]],
    output: str,
    is_written: bool,
) -> None:
    """The exit code is 128 + 13, as for other tools that SIGPIPE ends, even if no checkpoint
    follows.
    """
    store = uncompacted(tmp_path / "live")
    take(store)
    # The 1 h interval proves that it notices a closed pipe while it waits. If it did not, the test
    # would time out.
    interval = ("--follow", "200ms" if is_written else "1h")
    process = following("--output", output, *interval)
    assert process.stdout is not None
    head = subprocess.run(
        ["head", "-1"], stdin=process.stdout, capture_output=True, text=True, check=True
    )
    if is_written:
        take(store)
    process.stdout.close()
    assert process.wait(SOON_S) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert (json.loads(head.stdout)["checkpoint_id"] if output == "json" else head.stdout[:12]) in (
        1,
        "checkpoint 1",
    )


def test_on_a_terminal_a_screen_is_drawn(
    tmp_path: Path, following: Callable[..., subprocess.Popen[str]]
) -> None:
    store = uncompacted(tmp_path / "live")
    take(store)
    ours, theirs = pty.openpty()
    process = following("--count", "1", stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"checkpoint 1," not in seen:
        seen += os.read(ours, 4096)
    take(store)
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert process.wait(SOON_S) == 0
    text = seen.decode()
    assert "checkpoint 2," in text
    for part in ("slowest phase", "share", "layers", "100%", "10%", "phases", "50 rows and 5"):
        assert part in text, part
    assert "Traceback" not in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # all writers have exited
        return b""


def test_a_damaged_manifest_is_reported_and_following_continues(tmp_path: Path) -> None:
    store = uncompacted(tmp_path / "live")
    take(store)
    found = followed(storage_of(store), interval_s=0, stop_after=2, on_wait=pytest.fail)
    assert next(found).error is None
    (tmp_path / "live" / "checkpoints" / "0000000002.json").write_text("{")
    damaged = next(found)
    assert (damaged.checkpoint_id, damaged.rows) == (2, None)
    assert damaged.error is not None
    (tmp_path / "live" / "checkpoints" / "0000000002.json").unlink()
    take(uncompacted(tmp_path / "live"), 3)  # a store that has not seen the removed checkpoint
    assert next(found).error is None
    assert list(found) == []


class UnreliableStorage(LocalStorage):
    """A storage whose listings fail while ``is_away`` is true."""

    is_away = False

    def list(self, folder: str) -> tuple[str, ...]:
        if self.is_away:
            raise StorageError("gone away")
        return super().list(folder)


def test_an_unavailable_store_is_reported_once_and_found_again(tmp_path: Path) -> None:
    writer = uncompacted(tmp_path / "live")
    take(writer)
    storage, said = UnreliableStorage(str(tmp_path / "live")), []

    def on_wait(text: str) -> None:
        said.append(text)
        take(writer)
        storage.is_away = False

    found = followed(storage, interval_s=0, stop_after=1, on_wait=on_wait)
    next(found)
    storage.is_away = True
    assert [one.checkpoint_id for one in found] == [2]
    assert said == ["retrying after an error: gone away"]
    storage.is_away = True
    with pytest.raises(StorageError):
        next(followed(storage, interval_s=0, stop_after=1, on_wait=on_wait))


def test_following_reads_only_listings_and_new_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = uncompacted(tmp_path / "live")
    for _ in range(3):
        take(store)
    loaded: list[int] = []
    real = Catalog.summary

    def summary(self: Catalog, checkpoint_id: int) -> ManifestSummary:
        loaded.append(checkpoint_id)
        return real(self, checkpoint_id)

    monkeypatch.setattr(Catalog, "summary", summary)
    for found in followed(storage_of(store), interval_s=0, stop_after=1, on_wait=pytest.fail):
        if not found.is_new:
            take(store)
    assert loaded == [3, 4]


def test_show_prints_the_phases_and_the_json_has_the_figures(run: Run, tmp_path: Path) -> None:
    store = uncompacted(tmp_path / "live")
    take(store)
    take(store)
    text = run("show", "--store", tmp_path / "live").stdout
    assert "  phases       begin " in text
    assert "  written      5 rows, " in text
    document = json.loads(run("show", "--store", tmp_path / "live", "--output", "json").stdout)
    assert document["metrics"]["written"]["rows"] == 5
    assert document["metrics"]["changed_share"] == 0.1


def test_a_checkpoint_without_metrics_shows_none(run: Run, tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "store_v1"
    document = json.loads(run("show", "--store", golden, "--output", "json").stdout)
    assert document["metrics"] is None
    assert "phases" not in run("show", "--store", golden).stdout
    found = next(
        followed(LocalStorage(str(golden)), interval_s=0, stop_after=1, on_wait=pytest.fail)
    )
    assert (found.error, found.metrics) == (None, None)
