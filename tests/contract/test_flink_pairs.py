"""The verdicts about Flink's state, compared with what real Flink did with the same pairs."""

from __future__ import annotations

import pytest

from statestore.contract import compare
from statestore.contract.lock import parse_lock
from statestore.contract.model import Finding, Verdict
from tests.contract.flink_answers import Answer, read_answers
from tests.contract.flink_pairs import PAIRS
from tests.contract.sql_pairs import SQL_PAIRS

ORDER = (
    *(Verdict.SAME, Verdict.EMPTY, Verdict.CONVERTS),
    *(Verdict.UNKNOWN, Verdict.LOST, Verdict.UNFIT),
)
FITS = ORDER[:3]
MOST_UNKNOWN = 0.05
EXPECTED = {pair.name: pair.verdict for pair in PAIRS}
EXPECTED |= {pair.name: pair.verdict for pair in SQL_PAIRS}


def judged(answer: Answer) -> tuple[Finding, ...]:
    return compare(parse_lock(answer.old, "old"), parse_lock(answer.new, "new"))


def worst(findings: tuple[Finding, ...]) -> Verdict:
    return max((finding.verdict for finding in findings), key=ORDER.index)


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """Return the recorded answers of real Flink."""
    return read_answers()


def test_each_pair_has_an_answer(answers: dict[str, Answer]) -> None:
    assert [*answers] == sorted(EXPECTED)
    assert len(EXPECTED) == len(PAIRS) + len(SQL_PAIRS) >= 60


@pytest.mark.parametrize("name", EXPECTED)
def test_a_verdict_is_what_flink_does(name: str, answers: dict[str, Answer]) -> None:
    findings = judged(answers[name])
    assert worst(findings) == EXPECTED[name], findings
    if worst(findings) != Verdict.UNKNOWN:
        assert (worst(findings) in FITS) == answers[name].fits, findings


def test_few_verdicts_are_unknown_and_each_has_a_reason(answers: dict[str, Answer]) -> None:
    unknown = [name for name, verdict in EXPECTED.items() if verdict == Verdict.UNKNOWN]
    assert len(unknown) <= MOST_UNKNOWN * len(EXPECTED)
    for name in EXPECTED:
        for finding in judged(answers[name]):
            assert finding.reason
            assert finding.operator or finding.state is None


def reason_of(answers: dict[str, Answer], name: str) -> str:
    """Return the reason of the worst verdict of a pair."""
    findings = judged(answers[name])
    return next(each.reason for each in findings if each.verdict == worst(findings))


def test_reasons_name_field_type_and_serializer(answers: dict[str, Answer]) -> None:
    assert (
        "value.id: Integer became Long, and no serializer reads the bytes of another one"
        in reason_of(answers, "pojo field widened")
    )
    assert "the new class has no field 'name'" in reason_of(answers, "pojo field renamed")
    assert "PojoSerializer became KryoSerializer" in reason_of(answers, "pojo to kryo")
    assert "lacks the constants GREEN" in reason_of(answers, "enum constant removed")
    assert "column 0 was INT and is BIGINT" in reason_of(answers, "aggregated column widened")
    assert "give it the uid 'op'" in reason_of(answers, "uid changed")
