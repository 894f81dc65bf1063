"""Progress of the jobs: on a terminal, a bar with the state that is written."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from jobs.restore import restore
from jobs.snapshot import snapshot
from tests.support.terminal import terminal

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SNAPSHOT = """
parallelism = 2
[[keyed]]
operator = "totals"
state = "sums"
key = ["k"]
max_parallelism = 4
source = {format = "json", path = "{here}/rows.json"}
"""
RESTORE = """
parallelism = 1
[[keyed]]
operator = "totals"
state = "sums"
sink = {format = "parquet", path = "{here}/out"}
"""
JOBS: tuple[tuple[click.Command, str], ...] = ((snapshot, SNAPSHOT), (restore, RESTORE))


def test_on_a_terminal_snapshot_and_restore_draw_their_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESTORE_TABLE_FORMAT", "parquet")
    (tmp_path / "rows.json").write_text('{"k": "a", "v": 1}\n')
    with terminal() as drawn:
        for job, text in JOBS:
            file = tmp_path / "settings.toml"
            file.write_text(text.replace("{here}", str(tmp_path)))
            arguments = [str(file), "--store", str(tmp_path / "store")]
            assert job.main(arguments, standalone_mode=False) == 0
    for part in ("writing totals/sums", "totals/sums: 1 rows", "committing", "restoring totals"):
        assert part in drawn[0]
