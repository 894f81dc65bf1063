"""Write a golden store that was imported from a savepoint of Flink.

    python -m tests.golden.make_flink_import tests/golden/flink_import_v1

Existing goldens are never rewritten.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest.mock import patch

from statestore import StateStore
from statestore.interop.flink_savepoints import import_savepoint
from tests.interop.flink_savepoints.goldens import Golden

# The import records the savepoint's path, so the folder is fixed.
FOLDER = Path("/tmp/golden")
OPERATORS = ("by_long", "by_tuple", "sums", "parts", "numbers")


def main() -> None:
    """Import some operators of a golden savepoint, with keys, windows, timers and lists."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    source = Golden("2.3_heap_canonical").unpack(FOLDER)
    with patch("socket.gethostname", return_value="golden"):
        store = StateStore.open(sys.argv[1], table_format="parquet", layout="ranged")
        import_savepoint(str(source), store, operators=OPERATORS)


if __name__ == "__main__":
    main()
