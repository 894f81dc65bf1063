"""Record the results of Spark's ``transformWithState`` for each processor of the tests.

    python -m tests.golden.make_processors

Run it again only if the processors or their events change.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from statestore.spark.session import spark_session
from tests.interop.spark.queries import events, settings
from tests.streaming.processors import PROCESSORS
from tests.streaming.spark_runs import (
    RECORDED_FILES,
    Pair,
    SparkRun,
    golden_file,
    is_recorded_in_pandas,
)


def main() -> None:
    """Run each processor on Spark over the same events."""
    spark = spark_session(master="local[2]", table_format="parquet")
    for name in PROCESSORS:
        with (
            tempfile.TemporaryDirectory() as folder,
            settings(spark, {"spark.sql.session.timeZone": "UTC"}),
        ):
            events(Path(folder) / "events", 0, RECORDED_FILES)
            pair = Pair(spark, Path(folder), name, is_recorded_in_pandas(name))
            emitted = pair.on_spark()
            batches = pair.planned()
            states = pair.on_spark_after(batches[-1].number)
            file = golden_file(name)
            file.parent.mkdir(exist_ok=True)
            file.write_text(SparkRun(tuple(batches), emitted, states).to_json())


if __name__ == "__main__":
    main()
