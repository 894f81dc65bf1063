"""Write golden checkpoint locations of queries in real-time mode, with Spark 4.3.

    build/spark-4.3.0/bin/python -m tests.golden.make_real_time tests/golden/spark_real_time

Existing goldens are never rewritten.
"""

from __future__ import annotations

import sys
from pathlib import Path

from statestore.spark.session import spark_session
from tests.interop.spark.real_time import BATCHES, BEFORE, REAL_TIME, run_real_time


def main() -> None:
    """Run each query for a few micro-batches; keep no temporary files and Hadoop's checksums."""
    spark = spark_session(master="local[4]")
    for name in REAL_TIME:
        location = Path(sys.argv[1]).absolute() / name
        if not location.exists():
            run_real_time(spark, name, str(location), BEFORE, partitions=2, batches=BATCHES)
            for leftover in location.rglob(".*"):
                leftover.unlink()


if __name__ == "__main__":
    main()
