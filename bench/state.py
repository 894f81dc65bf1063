"""The measured state, computed from row numbers: equal on every machine and in both engines."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["state_rows", "state_table"]

NOTE_CHARACTERS = 58


def state_rows(spark: SparkSession, rows: int, skew: str | None = None) -> DataFrame:
    """Return ``rows`` users: a string key, count, amount, time and a note of 58 characters.

    With skew ``"zipf"`` a few users have most of the rows, so that key groups differ in size. User
    k has about 1 / k as many as the first. Then ``window``, the row's number, is a namespace.
    """
    if skew not in (None, "zipf"):
        raise ValueError(f"no skew {skew!r}; there is 'zipf'")
    number = F.col("id")
    digest = F.sha2(number.cast("string"), 256)
    user = number if skew is None else _zipf_rank(rows)
    return spark.range(0, rows, 1, 4).select(
        F.format_string("user-%09d", user).alias("user"),
        *([] if skew is None else [number.alias("window")]),
        (F.xxhash64(number) % 1000).alias("count"),
        (F.xxhash64(number) % 100_000 / 100).alias("amount"),
        F.timestamp_seconds(1_700_000_000 + number % 1_000_000).alias("last_seen"),
        F.substring(digest, 1, NOTE_CHARACTERS).alias("note"),
    )


def _zipf_rank(rows: int) -> Column:
    """Return the user of row ``id``, computed with integers, so that all machines agree.

    User 1, users 2 and 3, users 4 to 7 and so on have equal shares, spread evenly within each
    group.
    """
    octaves = max(rows.bit_length() - 1, 1)
    return F.expr(
        f"shiftleft(1L, int(id % {octaves}))"
        f" + pmod(xxhash64(id), shiftleft(1L, int(id % {octaves})))"
    )


def state_table(rows: int) -> pa.Table:
    """Return the same rows as :func:`state_rows`, without Spark."""
    number = np.arange(rows, dtype=np.int64)
    hashes = _xxhash64(number)
    seconds = 1_700_000_000 + number % 1_000_000
    digests = (hashlib.sha256(b"%d" % each).hexdigest() for each in range(rows))
    return pa.table(
        {
            "user": [f"user-{each:09d}" for each in range(rows)],
            "count": np.fmod(hashes, 1000),  # the sign belongs to the hash, as in the JVM
            "amount": np.fmod(hashes, 100_000) / 100,
            "last_seen": pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC")),
            "note": [digest[:NOTE_CHARACTERS] for digest in digests],
        }
    )


def _xxhash64(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return Spark's ``xxhash64`` of each number: XXH64 of eight bytes, with its seed 42."""
    one, two, three = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    four, five = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    word = _turned(numbers.view(np.uint64) * np.uint64(two), 31) * np.uint64(one)
    mixed = _turned(np.uint64(42 + five + 8) ^ word, 27) * np.uint64(one) + np.uint64(four)
    for shift, factor in ((33, two), (29, three), (32, 1)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed.view(np.int64)


def _turned(words: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
