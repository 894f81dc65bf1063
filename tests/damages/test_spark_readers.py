"""A few damaged footers with Spark's readers: the error of a task names the file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import CorruptionError
from statestore.format.state import Layout
from statestore.rows.digests import rows_digest
from tests.damages.footers import damage_footer, data_files
from tests.damages.stores import fill

pytestmark = pytest.mark.slow

STATES = ("whole", "changed")


def digests(spark: SparkSession, url: str, *, source: bool) -> list[tuple[int, int]]:
    """Return rows and digest of each state, read by a DataFrame or the data source."""
    found = []
    for name in STATES:
        if source:
            reader = spark.read.format("keyed_state").option("store", url).option("parallelism", 3)
            frame = reader.option("operator", "u").option("state", name).load()
        else:
            store = StateStore.open(url, spark=spark)
            frame = store.restore(parallelism=3).keyed("u", name).to_spark()
        rows = frame.drop("key_group").toArrow()
        found.append((rows.num_rows, rows_digest(rows)))
    return found


@pytest.mark.long_cases("dataframe-2")
@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(False, id="dataframe"),
        # its tasks read the same slices with the same reader
        pytest.param(True, id="data source", marks=pytest.mark.long),
    ],
)
def test_a_damaged_footer_causes_no_other_rows(
    spark: SparkSession, tmp_path: Path, source: bool, count: int
) -> None:
    """I5, I7: the result is right if the file is not needed. Otherwise the error names the file."""
    store = fill(tmp_path / "store", Layout.RANGED)
    expected = digests(spark, store.url, source=source)
    files = sorted(file for file in data_files(store) if "keyed" in file.parts)
    draw = Random(f"spark {source}")
    named = 0
    for _ in range(count):
        file = draw.choice(files)
        raw = file.read_bytes()
        what, damaged = damage_footer(draw, raw)
        file.write_bytes(damaged)
        try:
            found = digests(spark, store.url, source=source)
        except (PySparkException, CorruptionError) as error:
            assert file.name in str(error), what  # noqa: PT017 - not every damage is met
            named += 1
        else:
            assert found == expected, what
        file.write_bytes(raw)
    assert named > 0
    assert digests(spark, store.url, source=source) == expected
