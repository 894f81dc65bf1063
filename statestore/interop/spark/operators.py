"""The supported stateful operators of Spark: the rows of their stores, and their partitions.

A row of a store belongs to the state partition ``pmod(Murmur3(shuffle key), partitions)``, as
computed by ``HashPartitioning`` with seed 42. The shuffle key consists of the grouping, join or
deduplication fields. A store's own key can have another field, which distinguishes rows with the
same shuffle key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statestore.interop.spark.location import provider_name
from statestore.interop.spark.operator_reader import Operator
from statestore.interop.spark.query_settings import (
    AGGREGATION_FORMAT,
    ENCODING,
    GROUPS_FORMAT,
    JOIN_FORMAT,
)


@dataclass(frozen=True)
class OperatorKind:
    """What an operator does, and the fields of a store's key that are not in the shuffle key.

    If ``has_variables`` is true, its store has a column family for each variable.
    """

    does: str
    entries: Mapping[str, str]
    has_variables: bool = False

    def entry(self, store: str) -> str | None:
        """Return the key field that distinguishes rows with the same shuffle key, if any."""
        return self.entries.get(store)


JOIN = "symmetricHashJoin"
_JOIN_ENTRIES = {f"{side}-keyWithIndexToValue": "index" for side in ("left", "right")}
JOIN_STORES = (*_JOIN_ENTRIES, "left-keyToNumValues", "right-keyToNumValues")
_KINDS = {
    "stateStoreSave": OperatorKind("aggregation", {}),
    "sessionWindowStateStoreSaveExec": OperatorKind(
        "aggregation by session", {"default": "sessionStartTime"}
    ),
    "StatefulStreamlineAggregate": OperatorKind("aggregation in real-time mode", {}),
    "dedupe": OperatorKind("deduplication", {}),
    "dedupeWithinWatermark": OperatorKind("deduplication within the watermark", {}),
    JOIN: OperatorKind("stream-stream join", _JOIN_ENTRIES),
    "flatMapGroupsWithState": OperatorKind("flatMapGroupsWithState", {}),
    "applyInPandasWithState": OperatorKind("applyInPandasWithState", {}),
    "globalLimit": OperatorKind("limit", {}),
    **{
        f"transformWithState{form}Exec": OperatorKind("transformWithState", {}, has_variables=True)
        for form in ("", "InPandas", "InPySpark")
    },
}

PREFIXED = frozenset({"sessionWindowStateStoreSaveExec"})
"""Operators that use prefix scans; for these RocksDB has another encoding of keys."""

NOT_REWRITTEN = frozenset({"globalLimit"})
"""Operators that Spark's own rewriter does not support."""

# Settings of a query that determine the layout of its state, and the supported values.
_FORMATS: dict[str, tuple[str, ...]] = {
    AGGREGATION_FORMAT: ("1", "2"),
    GROUPS_FORMAT: ("1", "2"),
}


def find_operator_kind(operator_name: str) -> OperatorKind | None:
    """Return the properties of an operator; None for an unsupported operator."""
    return _KINDS.get(operator_name)


def find_problem(operator: Operator, settings: Mapping[str, str]) -> str | None:
    """Return why an operator's state cannot be imported, None if it can be.

    ``settings`` are the settings of the micro-batch, as in :class:`BatchPlan`.
    """
    operator_kind = find_operator_kind(operator.name)
    if operator_kind is None:
        return f"the operator {operator.name} is not supported; supported are {', '.join(_KINDS)}"
    provider = provider_name(settings)
    if provider not in ("hdfs", "rocksdb"):
        return f"its state store provider {provider} is not one of Spark's own"
    formats = dict(_FORMATS)
    if operator.name == JOIN:
        formats[JOIN_FORMAT] = ("1", "2", "3", "4")
    for name, known in formats.items():
        version = settings[name]
        if version not in known:
            return f"its state has format {version} ({name}); supported is {' and '.join(known)}"
    encodings = ("unsaferow", "avro") if operator_kind.has_variables else ("unsaferow",)
    if settings[ENCODING] not in encodings:
        known_too = " and ".join(encodings)
        return (
            f"its rows are encoded as {settings[ENCODING]} ({ENCODING}); supported is {known_too}"
        )
    return None
