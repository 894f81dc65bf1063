"""Progress bars: drawn on stderr when that is a terminal, and nothing elsewhere."""

from __future__ import annotations

import os
import pty
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.cli.main import main
from statestore.cli.output import progress_bar


def changed(path: Path) -> str:
    """Make a store whose second checkpoint has a layer of changes."""
    store = StateStore.open(str(path), table_format="parquet")
    rows = pa.table({"k": [f"k{i}" for i in range(50)], "v": list(range(50))})
    for some in (rows, rows.slice(0, 5)):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.changes("u", "s", some, key="k", max_parallelism=8)
    return str(path)


def test_restore_and_compact_draw_a_bar_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = changed(tmp_path / "store")
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    reader = threading.Thread(target=_read, args=(ours, seen))
    reader.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        assert main(["restore", "--to", str(tmp_path / "out"), "--store", url]) == 0
        assert main(["compact", "--all", "--store", url]) == 0
    reader.join()
    os.close(ours)
    text = b"".join(seen).decode()
    for part in ("restoring", "compacting", "100%"):
        assert part in text
    assert "compacted checkpoint 2" in capsys.readouterr().out


def test_elsewhere_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("working") as bar:
        bar(1, 2, "still [working]")
        assert not bar.is_drawn
    assert capsys.readouterr() == ("", "")


def _read(terminal: int, seen: list[bytes]) -> None:
    try:
        while chunk := os.read(terminal, 4096):
            seen.append(chunk)
    except OSError:
        seen.append(b"")  # nobody writes to it any more
