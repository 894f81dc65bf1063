"""The settings of a query that its first micro-batch fixes for the life of its checkpoint location.

Spark writes them into the plan of each micro-batch. A plan lacks the settings that did not exist
when its version of Spark was released. For these, Spark uses the oldest default instead of today's,
so that the query's behavior does not change. A query that continues from a new location can have
another provider and other sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from statestore.interop.spark.state_files import Provider

AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
GROUPS_FORMAT = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
CODEC = "spark.sql.streaming.stateStore.compression.codec"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
ROW_CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"
SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Whether sources have names; Spark then identifies them by name, not by number."""
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
"""If this is off, as for queries that were started before Spark 3.3, the rows of a key can be in
another partition than the hash of the key implies.
"""

OLDEST: Mapping[str, str] = {
    AGGREGATION_FORMAT: "1",
    GROUPS_FORMAT: "1",
    JOIN_FORMAT: "1",
    CODEC: "lz4",
    ENCODING: "unsaferow",
    ROW_CHECKSUM: "false",
    STRICT: "false",
}
"""The value of each setting in a plan that lacks it, as in Spark's ``OffsetSeqMetadata``."""


def settings_of(planned: Mapping[str, str]) -> Mapping[str, str]:
    """Return all settings of a query, from the settings in the plan of a micro-batch."""
    return {**OLDEST, **planned}


@dataclass(frozen=True, kw_only=True)
class SparkTarget:
    """The provider and the sources of the query that continues.

    A source without a name is called by its number in the plan, from 0. Sources that are not
    mentioned keep their names; numbers are given in the old order to those that are left.

    Attributes:
        provider: ``hdfs`` or ``rocksdb``; by default the provider of the query.
        renamed_sources: The new name or number of a source, by the old one; None removes it.
        added_sources: Names or numbers of sources that the query did not have.
    """

    provider: Provider | None = None
    renamed_sources: Mapping[str, str | None] = field(default_factory=dict)
    added_sources: Sequence[str] = ()

    @property
    def has_same_sources(self) -> bool:
        """Whether no source changes."""
        return not self.renamed_sources and not self.added_sources


SAME_QUERY = SparkTarget()
"""The query as it was."""
