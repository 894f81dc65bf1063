"""Write golden stores that were imported from savepoints of Flink.

    python -m tests.golden.make_flink_import tests/golden

Existing goldens are never rewritten. Each release writes its own: the stores of ``flink_sql_v1``
are from the release before structured types, arrays, and keys without columns had columns, and
nested instants had a time zone.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest.mock import patch

from statestore import StateStore
from statestore.interop.flink import import_savepoint
from tests.interop.flink.goldens import Golden
from tests.servers.published import FLINK_SQL

# The import records the savepoint's path, so the folder is fixed.
FOLDER = Path("/tmp/golden")
OPERATORS = ("by_long", "by_tuple", "sums", "parts", "numbers")
SQL_PROGRAMS = {
    "expand": "stream-exec-expand_1/expand",
    "multi_join": "stream-exec-multi-join_1/three-way-join-with-time-attributes-with-restore",
    "temporal_sort": "stream-exec-temporal-sort_1/temporal-sort-rowtime",
}
"""The published savepoint of each store in ``flink_sql_v1``."""


def main() -> None:
    """Import some operators of a golden savepoint, and the states of three SQL queries."""
    goldens = Path(sys.argv[1])
    shutil.rmtree(FOLDER, ignore_errors=True)
    _write(Golden("2.3_heap_canonical").unpack(FOLDER), goldens / "flink_import_v1", OPERATORS)
    for name, program in SQL_PROGRAMS.items():
        source = FLINK_SQL.unpack(f"restore-tests/{program}/savepoint", FOLDER)
        _write(source, goldens / "flink_sql_v1" / name, ())


def _write(source: Path, target: Path, operators: tuple[str, ...]) -> None:
    if not target.exists():
        with patch("socket.gethostname", return_value="golden"):
            store = StateStore.open(str(target), table_format="parquet", layout="ranged")
            import_savepoint(str(source), store, operators=operators)


if __name__ == "__main__":
    main()
