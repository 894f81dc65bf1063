"""Decide about translated offsets: continue, read some records again, or refuse.

The partition's translation is judged first, and then the translated offset is compared with the
live partition of the target, as :func:`~statestore.sources.discovery.reconcile` does. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from statestore.errors import InvalidArgumentError
from statestore.sources.discovery import (
    Case,
    Decision,
    LiveTopic,
    PartitionFinding,
    Policies,
    Reconciled,
    reconcile,
)
from statestore.sources.mirror_translation import Precision, Translation
from statestore.sources.offsets import SourceOffset

__all__ = ["TranslationPolicies", "UntranslatedPolicy", "reconcile_translated"]

UntranslatedPolicy = Literal["fail", "timestamp", "earliest"]


@dataclass(frozen=True, kw_only=True)
class TranslationPolicies:
    """What to do with offsets whose translation is not exact.

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
        if self.untranslated not in get_args(UntranslatedPolicy):
            raise InvalidArgumentError(
                f"untranslated must be one of {', '.join(get_args(UntranslatedPolicy))}, not "
                f"{self.untranslated!r}"
            )


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
