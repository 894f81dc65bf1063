"""The query that continues from a new location, if it differs from the previous query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from statestore.interop.spark.state_files import Provider


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
