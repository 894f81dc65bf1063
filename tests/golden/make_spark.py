"""Write a golden store that was imported from a Spark query, and its rows.

    python -m tests.golden.make_spark tests/golden/spark_v1

Existing goldens are never rewritten.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

from statestore import StateStore
from statestore.interop.spark import import_checkpoint
from statestore.spark.session import spark_session
from tests.interop.spark.queries import QUERIES, events, run, state_rows

# The import records the paths of source files, so the folder is fixed.
FOLDER = Path("/tmp/golden")


def main() -> None:
    """Run a query with a key of two fields, and import it."""
    spark = spark_session(master="local[2]", table_format="parquet")
    shutil.rmtree(FOLDER, ignore_errors=True)
    events(FOLDER / "events", 0, 3)
    location = str(FOLDER / "location")
    run(
        spark,
        QUERIES["session"],
        source=FOLDER / "events",
        location=location,
        provider="hdfs",
        partitions=4,
    )
    with patch("socket.gethostname", return_value="golden"):
        store = StateStore.open(sys.argv[1], table_format="parquet", layout="ranged")
        import_checkpoint(spark, location, store, max_parallelism=8)
    rows = json.dumps(state_rows(spark, location), indent=1)
    (Path(sys.argv[1]) / "rows.txt").write_text(rows)


if __name__ == "__main__":
    main()
