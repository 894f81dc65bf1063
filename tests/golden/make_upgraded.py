"""Write a golden store whose writer version was raised.

    python -m tests.golden.make_upgraded tests/golden/upgraded_v2

It is run once per release that raises the writer version, into a new folder.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from statestore import StateStore
from tests.golden.make_store import write


def main() -> None:
    """Write a checkpoint, upgrade the store, and write a second one."""
    with patch("socket.gethostname", return_value="golden"):
        store = StateStore.open(sys.argv[1], table_format="parquet")
        write(store)
        store.maintenance.upgrade()
        write(store)


if __name__ == "__main__":
    main()
