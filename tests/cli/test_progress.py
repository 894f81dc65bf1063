"""Progress bars: drawn on stderr if it is a terminal, and otherwise not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.cli.main import main
from statestore.cli.output import progress_bar
from tests.support.terminal import terminal


def changed(path: Path) -> str:
    """Make a store whose second checkpoint has a layer of changes."""
    store = StateStore.open(str(path), table_format="parquet")
    rows = pa.table({"k": [f"k{i}" for i in range(50)], "v": list(range(50))})
    for some in (rows, rows.slice(0, 5)):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", some, key="k", max_parallelism=8)
    return str(path)


def test_restore_and_compact_draw_a_bar_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = changed(tmp_path / "store")
    with terminal() as drawn:
        assert main(["restore", "--to", str(tmp_path / "out"), "--store", url]) == 0
        assert main(["compact", "--everything", "--store", url]) == 0
    for part in ("restoring", "compacting", "100%"):
        assert part in drawn[0]
    assert "compacted checkpoint 2" in capsys.readouterr().out


def test_a_query_draws_a_bar_on_a_terminal_unless_its_rows_appear_there(tmp_path: Path) -> None:
    url = changed(tmp_path / "store")
    for arguments in ([], ["--to", str(tmp_path / "rows.csv")], ["--format", "csv"]):
        with terminal() as drawn:
            assert main(["query", "SELECT * FROM s", *arguments, "--store", url]) == 0
        assert ("running the query" in drawn[0]) == (arguments != ["--format", "csv"])


def test_a_bar_for_zero_files_is_drawn() -> None:
    """A checkpoint can have no files."""
    with terminal() as drawn, progress_bar("verifying") as bar:
        bar(0, 0)
        assert bar.is_drawn
    assert "verifying" in drawn[0]


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("working") as bar:
        bar(1, 2, "still [working]")
        assert not bar.is_drawn
    assert capsys.readouterr() == ("", "")
