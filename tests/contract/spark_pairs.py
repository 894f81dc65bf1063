"""Pairs of an old and a new version of a query, with the verdict that the new one must get.

The old version reads the first file of each folder, and the new one continues with the second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import functions as F

from tests.contract.spark_versions import (
    AVRO,
    CHECKPOINT_2,
    HDFS,
    JOIN_3,
    ROCKSDB,
    WINDOW,
    Version,
    aggregate,
    distinct,
    groups,
    join,
    keeping,
    sessions,
    union,
    windows,
)
from tests.interop.spark.queries import offset_log


@dataclass(frozen=True)
class Pair:
    """An old and a new version.

    ``verdicts`` has the verdict of each name that is not ``same``. ``columns`` is the number of
    output columns that a restart of both versions has in common, None for all.
    """

    name: str
    old: Version
    new: Version
    verdicts: Mapping[str, str] = field(default_factory=dict)
    columns: int | None = None
    in_make_test: bool = False


COUNT, SUM = "count(*)", "sum(v)"
BY_K = Version(aggregate("k", n=COUNT, s=SUM))
MAX_W = Version(aggregate("k", m="max(w)"))
BY_TWO = Version(aggregate("k", "u", n=COUNT))
NULLABLE = Version(aggregate("nullif(k, '')", n=COUNT))
NOT_NULL = Version(aggregate("coalesce(k, '')", n=COUNT))
WINDOWS = Version(windows())
IN_SESSIONS = Version(sessions("1 minute", "k"), "append")
DISTINCT = Version(distinct("k"), "append")
JOIN = Version(join(["v", "w"], ["v"]), "append")
UNION = Version(union("a", "b"))
GROUPS = Version(groups("n long"))
NAMED = offset_log(2, is_named=True)
LIMIT = Version(lambda inputs: inputs.rows().select("k").limit(6), "append")
N = ("value", "n", "n long")
TWS = keeping(N)
TTL = keeping((*N, 3_600_000), time="ProcessingTime")
SAVE = "stateStoreSave-0/default"
DEDUPE = "dedupe-0/default"
TWS_N = "transformWithStateInPandasExec-0/n"
LEFT = "symmetricHashJoin-0/left-keyWithIndexToValue"
UNFIT, LOST, EMPTY, UNKNOWN, CONVERTS = (
    *("does not fit", "is lost", "begins empty", "unknown", "converts"),
)


def tws(name: str, verdict: str) -> dict[str, str]:
    """Return the verdict of a variable."""
    return {f"transformWithStateInPandasExec-0/{name}": verdict}


def avro(*columns: str) -> Version:
    """Return a processor whose value has these columns, encoded with Avro."""
    return keeping(("value", "n", ", ".join(columns)), **AVRO)


JOINED_KEY = {
    f"symmetricHashJoin-0/{side}-{store}": UNFIT
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
}

PAIRS = (
    # aggregations
    Pair("same", BY_K, BY_K, in_make_test=True),
    Pair("output renamed", BY_K, Version(aggregate("k", c=COUNT, total=SUM))),
    Pair("output after", BY_K, Version(lambda i: BY_K.build(i).withColumn("x", F.lit(1))), {}, 3),
    Pair(
        "function added", BY_K, Version(aggregate("k", n=COUNT, s=SUM, m="max(w)")), {SAVE: UNFIT}
    ),
    Pair("function removed", BY_K, Version(aggregate("k", n=COUNT)), {SAVE: UNFIT}),
    Pair("functions reordered", BY_K, Version(aggregate("k", s=SUM, n=COUNT)), {SAVE: UNFIT}),
    Pair(
        "function changed",
        MAX_W,
        Version(aggregate("k", m="min(w)")),
        {SAVE: UNFIT},
        in_make_test=True,
    ),
    Pair(
        "value widened",
        MAX_W,
        Version(aggregate("k", m="max(cast(w AS long))")),
        {SAVE: UNFIT},
    ),
    Pair("value narrowed", Version(aggregate("k", m="max(v)")), MAX_W, {SAVE: UNFIT}),
    Pair(
        "key renamed",
        BY_K,
        Version(
            lambda i: (
                i.rows().selectExpr("k AS key", "v").groupBy("key").agg(F.expr(COUNT), F.expr(SUM))
            )
        ),
        {SAVE: UNKNOWN},
    ),
    Pair("key changed", BY_K, Version(aggregate("u", n=COUNT, s=SUM)), {SAVE: UNKNOWN}),
    Pair("key of another type", BY_K, Version(aggregate("w", n=COUNT, s=SUM)), {SAVE: UNFIT}),
    Pair("key added", BY_K, Version(aggregate("k", "u", n=COUNT, s=SUM)), {SAVE: UNFIT}),
    Pair("key removed", BY_TWO, Version(aggregate("k", n=COUNT)), {SAVE: UNFIT}),
    Pair(
        "keys reordered",
        BY_TWO,
        Version(aggregate("u", "k", n=COUNT)),
        {SAVE: UNFIT},
        in_make_test=True,
    ),
    Pair("key is never null now", NULLABLE, NOT_NULL),
    Pair("key can be null now", NOT_NULL, NULLABLE, {SAVE: UNFIT}),
    Pair(
        "filter before",
        BY_K,
        Version(
            lambda i: (
                i.rows()
                .where("v >= 0")
                .groupBy("k")
                .agg(F.expr(COUNT).alias("n"), F.expr(SUM).alias("s"))
            )
        ),
    ),
    Pair("filter after", BY_K, Version(lambda i: BY_K.build(i).where("n > 0"))),
    Pair("global now", BY_K, Version(aggregate(n=COUNT, s=SUM)), {SAVE: UNFIT}),
    Pair("decimal average", BY_K, Version(aggregate("k", n=COUNT, s="avg(v)")), {SAVE: UNFIT}),
    # operators
    Pair(
        "deduplication before",
        BY_K,
        Version(
            lambda i: (
                i.rows()
                .dropDuplicates(["v"])
                .groupBy("k")
                .agg(F.expr(COUNT).alias("n"), F.expr(SUM).alias("s"))
            )
        ),
        {"dedupe-1/default": UNFIT},
        in_make_test=True,
    ),
    Pair(
        "limit after",
        Version(aggregate("k", n=COUNT), "complete"),
        Version(lambda i: i.rows().groupBy("k").agg(F.expr(COUNT).alias("n")).limit(3), "complete"),
    ),
    Pair("no state now", BY_K, Version(lambda i: i.rows().select("k", "v", "w")), {SAVE: UNFIT}),
    Pair("other operator", BY_K, Version(distinct("k")), {SAVE: UNFIT}),
    Pair("larger limit", LIMIT, Version(lambda i: i.rows().select("k").limit(7), "append"), {}, 0),
    Pair(
        "limit removed",
        LIMIT,
        Version(lambda i: i.rows().select("k"), "append"),
        {"globalLimit-0/default": UNFIT},
    ),
    # settings
    Pair("more partitions", BY_K, Version(BY_K.build, partitions=3), in_make_test=True),
    Pair("to rocksdb", BY_K, Version(BY_K.build, conf=ROCKSDB)),
    Pair("to hdfs", Version(BY_K.build, conf=ROCKSDB), Version(BY_K.build, conf=HDFS)),
    Pair(
        "aggregation format",
        BY_K,
        Version(BY_K.build, conf={"spark.sql.streaming.aggregation.stateFormatVersion": "1"}),
    ),
    Pair(
        "codec",
        BY_K,
        Version(BY_K.build, conf={"spark.sql.streaming.stateStore.compression.codec": "zstd"}),
    ),
    Pair(
        "changelogs",
        Version(BY_K.build, conf=ROCKSDB),
        Version(
            BY_K.build,
            conf={
                **ROCKSDB,
                "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            },
        ),
    ),
    Pair(
        "checkpoint format 2",
        Version(BY_K.build, conf=ROCKSDB),
        Version(BY_K.build, conf=CHECKPOINT_2),
        {"job": UNFIT},
    ),
    Pair(
        "checkpoint format 1",
        Version(BY_K.build, conf=CHECKPOINT_2),
        Version(BY_K.build, conf=ROCKSDB),
        {"job": UNFIT},
    ),
    Pair(
        "checkpoint format kept",
        Version(BY_K.build, conf=CHECKPOINT_2),
        Version(BY_K.build, conf=CHECKPOINT_2),
    ),
    Pair("offset log 2", BY_K, Version(BY_K.build, conf=offset_log(2, is_named=False))),
    # output mode, watermark, windows, sessions
    Pair("complete now", BY_K, Version(BY_K.build, "complete")),
    Pair("append now", WINDOWS, Version(WINDOWS.build, "append"), {}, 0),
    Pair("append without watermark", BY_K, Version(BY_K.build, "append"), {"job": UNFIT}),
    Pair("longer watermark", WINDOWS, Version(windows("20 minutes"))),
    Pair("watermark removed", WINDOWS, Version(windows(None))),
    Pair("watermark added", Version(windows(None)), WINDOWS),
    Pair(
        "window after key",
        WINDOWS,
        Version(windows("10 minutes", "k", WINDOW)),
        {SAVE: UNFIT},
    ),
    Pair("session gap", IN_SESSIONS, Version(sessions("2 minutes", "k"), "append"), {}, 0),
    Pair(
        "session key",
        IN_SESSIONS,
        Version(sessions("1 minute", "k", "u"), "append"),
        {"sessionWindowStateStoreSaveExec-0/default": UNFIT},
    ),
    # deduplication
    Pair(
        "other output",
        DISTINCT,
        Version(lambda i: i.rows().dropDuplicates(["k"]).select("k", "v"), "append"),
        {},
        1,
        in_make_test=True,
    ),
    Pair("column added", DISTINCT, Version(distinct("k", "u"), "append"), {DEDUPE: UNFIT}),
    Pair(
        "columns reordered",
        Version(distinct("k", "u"), "append"),
        Version(distinct("u", "k"), "append"),
        {DEDUPE: UNFIT},
    ),
    Pair(
        "within watermark",
        DISTINCT,
        Version(distinct("k", within=True, delay="1 hour"), "append"),
        {DEDUPE: UNFIT},
    ),
    Pair(
        "within a longer one",
        Version(distinct("k", within=True, delay="1 hour"), "append"),
        Version(distinct("k", within=True, delay="2 hours"), "append"),
    ),
    Pair("distinct with watermark", DISTINCT, Version(distinct("k", delay="1 hour"), "append")),
    # joins
    Pair("same join", JOIN, JOIN),
    Pair(
        "left column added",
        JOIN,
        Version(join(["v", "w", "u"], ["v"]), "append"),
        {LEFT: UNFIT},
        in_make_test=True,
    ),
    Pair("left column removed", JOIN, Version(join(["v"], ["v"]), "append"), {LEFT: UNFIT}),
    Pair(
        "columns exchanged",
        Version(join(["v", "cast(w AS long) AS x"], ["v"]), "append"),
        Version(join(["cast(w AS long) AS x", "v"], ["v"]), "append"),
        {LEFT: UNFIT},
    ),
    Pair("join key added", JOIN, Version(join(["v", "w"], [], ["k", "u"]), "append"), JOINED_KEY),
    Pair(
        "join format 3",
        Version(JOIN.build, "append", ROCKSDB),
        Version(JOIN.build, "append", JOIN_3),
    ),
    Pair(
        "join format 2",
        Version(JOIN.build, "append", JOIN_3),
        Version(JOIN.build, "append", ROCKSDB),
    ),
    Pair(
        "column added in format 3",
        Version(JOIN.build, "append", JOIN_3),
        Version(join(["v", "w", "u"], ["v"]), "append", JOIN_3),
        {LEFT: UNFIT},
    ),
    # sources
    Pair("source added", UNION, Version(union("a", "b", "c")), {"job": UNFIT}),
    Pair("source removed", UNION, Version(union("a")), {"job": UNFIT}, in_make_test=True),
    Pair(
        "sources reordered", UNION, Version(union("b", "a")), {"source 0": UNFIT, "source 1": UNFIT}
    ),
    Pair(
        "other folder",
        BY_K,
        Version(
            lambda i: i.rows("c").groupBy("k").agg(F.expr(COUNT).alias("n"), F.expr(SUM).alias("s"))
        ),
        {"source 0": UNFIT},
    ),
    Pair(
        "named source added",
        Version(union("a", "b"), conf=NAMED),
        Version(union("a", "b", "c"), conf=NAMED),
        {"source c": EMPTY},
        0,
    ),
    Pair(
        "named source removed",
        Version(union("a", "b"), conf=NAMED),
        Version(union("a"), conf=NAMED),
        {"source b": LOST},
        0,
    ),
    Pair(
        "named sources reordered",
        Version(union("a", "b"), conf=NAMED),
        Version(union("b", "a"), conf=NAMED),
    ),
    # groups with state
    Pair("same groups", GROUPS, Version(groups("n long"))),
    Pair(
        "state column added",
        GROUPS,
        Version(groups("n long, m long")),
        {"applyInPandasWithState-0/default": UNFIT},
    ),
    Pair(
        "state widened",
        Version(groups("n int")),
        GROUPS,
        {"applyInPandasWithState-0/default": UNFIT},
    ),
    Pair(
        "state renamed",
        GROUPS,
        Version(groups("m long")),
        {"applyInPandasWithState-0/default": UNKNOWN},
    ),
    Pair(
        "timeout added",
        GROUPS,
        Version(groups("n long", "ProcessingTimeTimeout")),
        {"applyInPandasWithState-0/default": UNFIT},
    ),
    # processors
    Pair(
        "variable added",
        TWS,
        keeping(N, ("value", "more", "m long")),
        tws("more", EMPTY),
        in_make_test=True,
    ),
    Pair("variable removed", keeping(N, ("value", "more", "m long")), TWS, tws("more", LOST)),
    Pair(
        "variable renamed",
        TWS,
        keeping(("value", "count", "n long")),
        tws("n", LOST) | tws("count", EMPTY),
    ),
    Pair(
        "variables reordered",
        keeping(N, ("value", "more", "m long")),
        keeping(("value", "n", "n long"), ("value", "more", "m long")),
    ),
    Pair("value to list", TWS, keeping(("list", "n", "n long")), tws("n", UNFIT)),
    Pair(
        "list to map",
        keeping(("list", "n", "n long")),
        keeping(("map", "n", "i int/n long")),
        tws("n", UNFIT),
    ),
    Pair("same list", keeping(("list", "n", "n long")), keeping(("list", "n", "n long"))),
    Pair(
        "list widened",
        keeping(("list", "n", "n int")),
        keeping(("list", "n", "n long")),
        tws("n", UNFIT),
    ),
    Pair("same map", keeping(("map", "n", "i int/n long")), keeping(("map", "n", "i int/n long"))),
    Pair(
        "map key of another type",
        keeping(("map", "n", "i int/n long")),
        keeping(("map", "n", "i string/n long")),
        tws("n", UNFIT),
    ),
    Pair("variable widened", keeping(("value", "n", "n int")), TWS, tws("n", UNFIT)),
    Pair(
        "column of variable added", TWS, keeping(("value", "n", "n long, m long")), tws("n", UNFIT)
    ),
    Pair(
        "columns of variable exchanged",
        keeping(("value", "n", "a long, b long")),
        keeping(("value", "n", "b long, a long")),
        tws("n", UNFIT),
    ),
    Pair(
        "TTL on",
        keeping(N, time="ProcessingTime"),
        keeping((*N, 3_600_000), time="ProcessingTime"),
        tws("n", UNFIT),
    ),
    Pair(
        "TTL off",
        TTL,
        keeping(N, time="ProcessingTime"),
        tws("n", UNFIT),
    ),
    Pair(
        "TTL longer",
        TTL,
        keeping((*N, 7_200_000), time="ProcessingTime"),
    ),
    Pair(
        "time mode", TWS, keeping(N, time="ProcessingTime"), {"job": UNFIT} | tws("timers", EMPTY)
    ),
    Pair("output mode", TWS, keeping(N, mode="Append"), {"job": UNFIT}),
    Pair("key of a processor", TWS, keeping(N, key="w"), tws("n", UNFIT)),
    Pair("Avro in the session", TWS, keeping(N, **AVRO)),
    Pair(
        "Avro column added",
        avro("n long"),
        avro("n long", "m long"),
        tws("n", CONVERTS),
        in_make_test=True,
    ),
    Pair("Avro widened", avro("n int"), avro("n long"), tws("n", CONVERTS)),
    Pair("Avro narrowed", avro("n long"), avro("n int"), tws("n", UNFIT)),
    Pair("Avro column removed", avro("n long", "m long"), avro("n long"), tws("n", LOST)),
    Pair("Avro column renamed", avro("n long"), avro("a long"), tws("n", LOST)),
    Pair("Avro columns reordered", avro("a long", "b long"), avro("b long", "a long")),
    Pair("Avro other type", avro("n long"), avro("n string"), tws("n", UNFIT)),
    Pair(
        "TTL on with Avro",
        keeping(N, time="ProcessingTime", **AVRO),
        keeping((*N, 3_600_000), time="ProcessingTime", **AVRO),
        tws("n", UNFIT),
    ),
)
