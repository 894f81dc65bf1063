"""The names that MirrorMaker 2 gives to the topics of a flow from one cluster to another.

The replication policy decides: the default one puts the source's alias in front of a topic, and the
identity policy keeps the name. Pure functions of the flow's settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from statestore.errors import InvalidArgumentError

__all__ = ["MirrorFlow", "Place", "ReplicationPolicy"]

ReplicationPolicy = Literal["default", "identity"]
Place = Literal["source", "target"]

_HEARTBEATS = "heartbeats"
_SYNCS, _CHECKPOINTS, _INTERNAL = "mm2-offset-syncs", "checkpoints", "internal"


@dataclass(frozen=True, kw_only=True)
class MirrorFlow:
    """One direction of replication, with the settings of MirrorMaker that name its topics.

    source, target      The aliases of the two clusters.
    policy              ``default`` (DefaultReplicationPolicy) or ``identity``
                        (IdentityReplicationPolicy).
    separator           ``replication.policy.separator``.
    internal_separator  ``replication.policy.internal.topic.separator.enabled``: whether the
                        separator is also used in the names of MirrorMaker's own topics.
    syncs_on            ``offset-syncs.topic.location``: the cluster that has the offset syncs.

    Raises :class:`InvalidArgumentError` for an empty or repeated alias, an empty separator, and
    unknown words.
    """

    source: str
    target: str
    policy: ReplicationPolicy = "default"
    separator: str = "."
    internal_separator: bool = True
    syncs_on: Place = "source"

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        for name in ("source", "target", "separator"):
            if not getattr(self, name):
                raise InvalidArgumentError(f"the {name} of a replication flow is empty; set it")
        if self.source == self.target:
            raise InvalidArgumentError(
                f"source and target of the replication flow have the same alias {self.source!r}; "
                "use the aliases in MirrorMaker's setting 'clusters'"
            )
        for name, words in (("policy", ReplicationPolicy), ("syncs_on", Place)):
            if getattr(self, name) not in get_args(words):
                raise InvalidArgumentError(
                    f"{name} must be one of {', '.join(get_args(words))}, not "
                    f"{getattr(self, name)!r}"
                )

    def target_topic(self, topic: str) -> str:
        """Return the name at the target of a topic of the source.

        A topic that was replicated from the target to the source is the original topic there.
        """
        if self.policy == "identity" and not topic.endswith(_HEARTBEATS):
            return topic
        back = f"{self.target}{self.separator}"
        if self.policy == "default" and topic.startswith(back) and topic != back:
            return topic.removeprefix(back)
        return f"{self.source}{self.separator}{topic}"

    @property
    def syncs_topic(self) -> str:
        """The topic with the offset syncs; its name has the alias of the other cluster."""
        other = self.target if self.syncs_on == "source" else self.source
        return self._syncs_of(other)

    @property
    def checkpoints_topic(self) -> str:
        """The topic with the checkpoints, at the target."""
        own = self._own_separator
        return f"{self.source}{own}{_CHECKPOINTS}{own}{_INTERNAL}"

    def aliases_of(self, topics: Iterable[str]) -> list[str]:
        """Return the aliases for which ``topics`` has offset syncs, sorted."""
        first, last = self._syncs_of("\0").split("\0")
        return sorted(
            topic[len(first) : -len(last)]
            for topic in topics
            if topic.startswith(first) and topic.endswith(last) and len(topic) > len(first + last)
        )

    def _syncs_of(self, alias: str) -> str:
        own = self._own_separator
        return f"{_SYNCS}{own}{alias}{own}{_INTERNAL}"

    @property
    def _own_separator(self) -> str:
        return self.separator if self.internal_separator else "."
