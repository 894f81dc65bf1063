"""Translated offsets against the target's live topics: every one is used, or refused by name."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.sources.discovery import (
    Case,
    Decision,
    LiveRange,
    LiveTopic,
    PartitionFinding,
    Policies,
    Reconciled,
)
from statestore.sources.mirror_policies import (
    TranslationPolicies,
    UntranslatedPolicy,
    reconcile_translated,
)
from statestore.sources.mirror_translation import Precision, Translation
from statestore.sources.offsets import SourceOffset

LOW, HIGH = 100, 110


def translation(offset: int | None, again: int | None = 0, partition: int = 0) -> Translation:
    known = Precision.EARLIER if again else Precision.EXACT
    return Translation(
        stored=SourceOffset("t", partition, 7, "old-id"),
        topic="A.t",
        precision=Precision.UNKNOWN if offset is None else known,
        offset=offset,
        read_again=None if offset is None else again,
        reason="because",
    )


def by_timestamp(offset: int) -> Translation:
    return translation(None).by_timestamp(5, (offset, 8), HIGH)


def live(*numbers: int) -> dict[str, LiveTopic]:
    return {"A.t": LiveTopic("A.t", "id", {n: LiveRange(LOW, HIGH) for n in numbers})}


def only(each: Translation, **others: Any) -> PartitionFinding:
    (finding,) = reconciled([each], live(0), **others).report
    return finding


def reconciled(
    translations: list[Translation], topics: dict[str, LiveTopic], **others: Any
) -> Reconciled:
    rules = {name: others.pop(name) for name in ("read_again", "untranslated") if name in others}
    return reconcile_translated(
        translations, topics, Policies(**others), TranslationPolicies(**rules)
    )


@pytest.mark.parametrize(
    ("found", "settings", "case", "decision", "offset", "reason"),
    [
        (translation(105), {}, Case.IN_RANGE, Decision.TRANSLATED, 105, "because"),
        (translation(110), {}, Case.IDLE, Decision.TRANSLATED, 110, "because"),
        (
            translation(105, 4),
            {},
            *(Case.EARLIER, Decision.REFUSED, None),
            "at most 4 records read again; because",
        ),
        (translation(105, 4), {"read_again": 3}, Case.EARLIER, Decision.REFUSED, None, None),
        (
            translation(105, 4),
            {"read_again": 4},
            *(Case.IN_RANGE, Decision.TRANSLATED, 105),
            "at most 4 records read again; because",
        ),
        (translation(None), {}, Case.UNTRANSLATED, Decision.REFUSED, None, "because"),
        (
            translation(None),
            {"untranslated": "earliest"},
            *(Case.UNTRANSLATED, Decision.MOVED, LOW, "because"),
        ),
        # A timestamp was tried, and there is none either.
        (
            translation(None),
            {"untranslated": "timestamp"},
            *(Case.UNTRANSLATED, Decision.REFUSED, None, "because"),
        ),
        (
            by_timestamp(103),
            {"untranslated": "timestamp"},
            *(Case.IN_RANGE, Decision.TRANSLATED, 103),
            "by timestamp: the next record is 3 ms after the source's",
        ),
        (translation(96), {}, Case.GAP, Decision.REFUSED, None, None),
        (
            translation(96),
            {"gap": "earliest"},
            *(Case.GAP, Decision.MOVED, LOW),
            "4 records deleted before they were read; because",
        ),
        (
            translation(96, 9),
            {"gap": "earliest"},
            *(Case.GAP, Decision.MOVED, LOW),
            "at most 4 records deleted before they were read; because",
        ),
        (translation(111), {}, Case.REWIND, Decision.REFUSED, None, None),
        (
            translation(111),
            {"rewind": "latest"},
            *(Case.REWIND, Decision.MOVED, HIGH),
            "the stored offset is 1 after the end; because",
        ),
    ],
)
def test_a_policy_decides_on_one_partition(
    found: Translation,
    settings: dict[str, Any],
    case: Case,
    decision: Decision,
    offset: int | None,
    reason: str | None,
) -> None:
    finding = only(found, **settings)
    assert (finding.case, finding.decision, finding.offset) == (case, decision, offset)
    assert (finding.translation, finding.topic_id) == (found, "id")
    if reason is not None:
        assert finding.reason == reason


@pytest.mark.parametrize("offset", [None, 105])
@pytest.mark.parametrize("topics", [{}, live(1)])
def test_a_partition_that_the_target_lacks(
    offset: int | None, topics: dict[str, LiveTopic]
) -> None:
    settings = {"untranslated": "earliest", "new_partitions": "latest"}
    refused = reconciled([translation(offset)], topics, **settings)
    finding = refused.report[0]
    assert (finding.case, finding.decision) == (Case.REMOVED, Decision.REFUSED)
    assert finding.reason == "the partition does not exist on the target cluster"
    with pytest.raises(IncompatibleStateError, match="the settings removed_partitions"):
        assert refused.offsets
    retired = reconciled([translation(offset)], topics, **settings, removed_partitions="retire")
    assert retired.report[0].decision is Decision.RETIRED


def test_more_partitions_at_the_target() -> None:
    stored = [translation(105)]
    added = reconciled(stored, live(0, 1))
    assert [each.decision for each in added.report] == [Decision.TRANSLATED, Decision.ADDED]
    assert added.offsets == (SourceOffset("A.t", 0, 105), SourceOffset("A.t", 1, LOW))
    assert [each.topic_id for each in added.offsets] == ["id", "id"], "not the source's id"
    refused = reconciled(stored, live(0, 1), new_partitions="fail")
    with pytest.raises(IncompatibleStateError, match="partition 1: no offset is stored"):
        assert refused.offsets


def test_a_refusal_names_the_setting() -> None:
    found = [translation(105, 4), translation(None, partition=1)]
    with pytest.raises(
        IncompatibleStateError,
        match=(
            r"topic 'A\.t' partition 0: at most 4 records read again; because; topic 'A\.t' "
            r"partition 1: because\. Choose what to do with the settings read_again, untranslated"
        ),
    ):
        assert reconciled(found, live(0, 1)).offsets


TRANSLATIONS = st.builds(
    translation,
    st.one_of(st.none(), st.integers(90, 120)),
    st.integers(0, 5),
    st.integers(0, 3),
)


@given(
    st.lists(TRANSLATIONS, max_size=4, unique_by=lambda each: each.stored.partition),
    st.sets(st.integers(0, 4)),
    st.integers(0, 5),
)
def test_no_offset_is_dropped_and_no_bound_is_exceeded(
    translations: list[Translation], partitions: set[int], read_again: int
) -> None:
    lax = {"removed_partitions": "retire", "gap": "earliest", "rewind": "earliest"}
    for word, strict in product(get_args(UntranslatedPolicy), (True, False)):
        found = reconciled(
            translations,
            live(*partitions),
            **({} if strict else lax),
            untranslated=word,
            read_again=read_again,
        )
        numbers = {each.stored.partition for each in translations} | partitions
        assert [each.partition for each in found.report] == sorted(numbers)
        for each in found.report:
            assert (each.offset is None) is (each.decision in (Decision.REFUSED, Decision.RETIRED))
            assert each.reason
            if each.decision is Decision.TRANSLATED:
                assert each.translation is not None
                assert each.offset == each.translation.offset
                assert (each.translation.read_again or 0) <= read_again


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"read_again": -1}, "read_again must be a number of records, 0 or more, not -1"),
        ({"read_again": True}, "not True"),
        ({"untranslated": "latest"}, "must be one of fail, timestamp, earliest, not 'latest'"),
    ],
)
def test_invalid_policies(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TranslationPolicies(**settings)
