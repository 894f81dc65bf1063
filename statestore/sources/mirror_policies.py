"""The policies for translated offsets, and the flow whose replication policy names its topics.

A policy decides to continue, to read some records again, or to refuse.

The partition's translation is judged first, and then the translated offset is compared with the
live partition of the target, as :func:`~statestore.sources.discovery.reconcile` does. Pure
functions.

The names of a flow's topics follow its replication policy: the default one puts the source's alias
in front of a topic, and the identity policy keeps the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from statestore.errors import InvalidArgumentError
from statestore.sources.discovery import (
    Case,
    Decision,
    LiveTopic,
    PartitionFinding,
    Policies,
    Reconciled,
    check_words,
    reconcile,
)
from statestore.sources.mirror_translation import Precision, Translation
from statestore.sources.offsets import SourceOffset

__all__ = [
    "MirrorFlow",
    "Place",
    "ReplicationPolicy",
    "TranslationPolicies",
    "UntranslatedPolicy",
    "reconcile_translated",
]

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
        check_words(self)

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


UntranslatedPolicy = Literal["fail", "timestamp", "earliest"]


@dataclass(frozen=True, kw_only=True)
class TranslationPolicies:
    """The reactions to offsets whose translation is not exact.

    read_again    How many records of a partition may be read a second time, and so count twice. If
                  the translation can be earlier by more records, all offsets are refused.
    untranslated  An offset without a translation. ``timestamp`` continues at the target's first
                  record that is as new as the next one of the source. Records whose timestamps are
                  not ascending can then be missed. ``earliest`` reads the whole partition.

    Raises :class:`InvalidArgumentError` for other values.
    """

    read_again: int = 0
    untranslated: UntranslatedPolicy = "fail"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if type(self.read_again) is not int or self.read_again < 0:
            raise InvalidArgumentError(
                f"read_again must be a number of records, 0 or more, not {self.read_again!r}"
            )
        check_words(self)


def reconcile_translated(
    translations: Iterable[Translation],
    live: Mapping[str, LiveTopic],
    policies: Policies,
    rules: TranslationPolicies,
) -> Reconciled:
    """Return the decision about every translated offset, and every live partition of the target.

    Args:
        translations: one for each stored partition.
        live: the existing topics of the target by name.
        policies: what to do if the translated offsets do not fit the live topics.
        rules: what to do if a translation is not exact.

    Returns:
        The decisions; each finding of a stored partition has its translation.
    """
    known = {(each.topic, each.stored.partition): each for each in translations}
    # The place of an unknown offset only shows whether its partition exists.
    stored = [SourceOffset(*place, each.offset or 0) for place, each in known.items()]
    report = reconcile(stored, live, policies).report
    return Reconciled(
        tuple(
            finding
            if (translation := known.get((finding.topic, finding.partition))) is None
            else _judged(finding, translation, rules)
            for finding in report
        )
    )


def _judged(
    finding: PartitionFinding, translation: Translation, rules: TranslationPolicies
) -> PartitionFinding:
    finding, live = replace(finding, translation=translation), finding.live
    if live is None:
        return replace(finding, stored=None)
    if translation.precision is Precision.UNKNOWN:
        finding = replace(finding, case=Case.UNTRANSLATED, stored=None)
        if rules.untranslated == "earliest":
            return replace(finding, decision=Decision.MOVED, offset=live.low)
        return _refused(finding)
    if finding.decision is not Decision.KEPT:
        return finding
    if (translation.read_again or 0) > rules.read_again:
        return _refused(replace(finding, case=Case.EARLIER))
    return replace(finding, decision=Decision.TRANSLATED)


def _refused(finding: PartitionFinding) -> PartitionFinding:
    return replace(finding, decision=Decision.REFUSED, offset=None)
