"""What is known of Spark's stateful operators: which rows their stores have, and who owns them.

A row of a store belongs to the state partition ``pmod(Murmur3(shuffle key), partitions)``, as
``HashPartitioning`` has it with seed 42. The shuffle key is what events were grouped, joined or
told apart by. A store's own key may have more: the place of a row among those of one shuffle key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statestore.interop.spark.location import Operator, provider_of

__all__ = ["ENCODING", "NOT_REWRITTEN", "PREFIXED", "OperatorKind", "kind_of", "problem_of"]


@dataclass(frozen=True)
class OperatorKind:
    """What an operator does, and which fields of a store's key are not of its shuffle key.

    One that ``has_variables`` has a store with a family of rows for each of them.
    """

    does: str
    entries: Mapping[str, str]
    has_variables: bool = False

    def entry(self, store: str) -> str | None:
        """Return the field of a store's key that tells rows of one shuffle key apart, if any."""
        return self.entries.get(store)


_JOIN = {f"{side}-keyWithIndexToValue": "index" for side in ("left", "right")}
_KINDS = {
    "stateStoreSave": OperatorKind("aggregation", {}),
    "sessionWindowStateStoreSaveExec": OperatorKind(
        "aggregation by session", {"default": "sessionStartTime"}
    ),
    "dedupe": OperatorKind("deduplication", {}),
    "dedupeWithinWatermark": OperatorKind("deduplication within the watermark", {}),
    "symmetricHashJoin": OperatorKind("stream-stream join", _JOIN),
    "flatMapGroupsWithState": OperatorKind("flatMapGroupsWithState", {}),
    "applyInPandasWithState": OperatorKind("applyInPandasWithState", {}),
    "globalLimit": OperatorKind("limit", {}),
    **{
        f"transformWithState{form}Exec": OperatorKind("transformWithState", {}, has_variables=True)
        for form in ("", "InPandas", "InPySpark")
    },
}

PREFIXED = frozenset({"sessionWindowStateStoreSaveExec"})
"""Operators that scan RocksDB by the beginning of a key, for which it lays keys out otherwise."""

NOT_REWRITTEN = frozenset({"globalLimit"})
"""Operators that Spark's own rewriter does not take."""

# Settings of a query that say how its state is laid out, and the values that are known.
_FORMATS: dict[str, tuple[str, ...]] = {
    "spark.sql.streaming.aggregation.stateFormatVersion": ("1", "2"),
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": ("1", "2"),
}
_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_ROW_CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"
_STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"


def kind_of(operator_name: str) -> OperatorKind | None:
    """Return what is known of an operator; None for one that is not known."""
    return _KINDS.get(operator_name)


def problem_of(operator: Operator, settings: Mapping[str, str]) -> str | None:
    """Return why an operator's state cannot be brought over, None if it can be.

    ``settings`` are those that the micro-batch was planned with.
    """
    kind = kind_of(operator.name)
    if kind is None:
        return f"the operator {operator.name} is not known; known are {', '.join(_KINDS)}"
    provider = provider_of(settings)
    if provider not in ("hdfs", "rocksdb"):
        return f"its state store provider {provider} is not one of Spark's own"
    if settings.get(_ROW_CHECKSUM, "false") != "false":
        return f"its rows have checksums ({_ROW_CHECKSUM}), which are not known here"
    if settings.get(_STRICT, "true") != "true":
        return f"its rows may lie in other partitions than their keys say ({_STRICT} is off)"
    formats = dict(_FORMATS)
    if operator.name == "symmetricHashJoin":
        formats[_JOIN_FORMAT] = ("2",)
    for name, known in formats.items():
        version = settings.get(name, known[-1])
        if version not in known:
            return f"its state has format {version} ({name}); known is {' and '.join(known)}"
    encodings = ("unsaferow", "avro") if kind.has_variables else ("unsaferow",)
    if settings.get(ENCODING, "unsaferow") not in encodings:
        known_too = " and ".join(encodings)
        return f"its rows are encoded as {settings[ENCODING]} ({ENCODING}); known is {known_too}"
    return None
