"""Records of state that a checkpoint lacks: names, inheritance, and the member of the manifest."""

from __future__ import annotations

import json

import pytest

from statestore.errors import LeftOutStateError
from statestore.format.left_out import LeftOutState, refuse_left_out, still_left_out
from statestore.format.manifest_json import left_out_to_json
from statestore.jobgraph.operators import operator_id

WHOLE = LeftOutState(
    operator="totals",
    state=None,
    reason="it cannot be read",
    command="flink import",
    id=operator_id("totals"),
    name="Sum of orders",
)
PART = LeftOutState(
    operator="totals", state="sums", reason="damaged", command="salvage", first=3, last=5
)


@pytest.mark.parametrize("text", ["totals", operator_id("totals"), "Sum of orders"])
def test_an_operator_is_named_by_uid_id_or_name(text: str) -> None:
    assert WHOLE.is_named(text)
    assert not WHOLE.is_named(f"{text}x")


def test_a_part_of_a_state_is_named_with_or_without_its_key_groups() -> None:
    assert PART.label == "totals/sums:3-5"
    assert all(map(PART.is_named, ("totals", "totals/sums", "totals/sums:3-5")))
    assert not any(map(PART.is_named, ("sums", "totals/sum", "totals/sums:3-6")))


def test_an_export_is_refused_unless_all_missing_state_is_named() -> None:
    with pytest.raises(LeftOutStateError, match=r"--leave-out 'totals/sums:3-5'") as refused:
        refuse_left_out([PART], [], 7, "a job")
    assert "checkpoint 7 lacks some state of its source" in str(refused.value)
    refuse_left_out([WHOLE, PART], ["totals"], 7, "a job")


@pytest.mark.parametrize(
    ("record", "stored", "present", "rewritten", "remains"),
    [
        (WHOLE, set(), {("others", "x")}, set(), True),
        (WHOLE, set(), {("totals", "sums")}, set(), False),
        (PART, {("totals", "sums")}, {("totals", "sums")}, set(), True),
        (PART, {("totals", "sums")}, {("totals", "sums")}, {("totals", "sums")}, False),
        (PART, {("totals", "sums")}, set(), set(), False),
        (PART, set(), {("totals", "sums")}, set(), False),
    ],
)
def test_a_record_remains_until_the_state_is_written_or_dropped(
    record: LeftOutState,
    stored: set[tuple[str, str]],
    present: set[tuple[str, str]],
    rewritten: set[tuple[str, str]],
    remains: bool,
) -> None:
    found = still_left_out([record], stored=stored, present=present, rewritten=rewritten)
    assert found == ((record,) if remains else ())


def test_unknown_members_are_treated_as_missing() -> None:
    assert json.loads(json.dumps(left_out_to_json([PART]))) == [
        {
            "operator": "totals",
            "state": "sums",
            "reason": "damaged",
            "command": "salvage",
            "first": 3,
            "last": 5,
        }
    ]
