"""Operator ids are Flink's, bit for bit (golden/flink/operator_ids.json, operation ``uid``)."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.model.operator_id import operator_id
from tests.vectors import cases


def _uid_cases() -> list[Any]:
    # The empty uid is in the vectors (it hashes to zeros), but refused: a test of its own.
    return [case for case in cases("operator_ids", "uid") if case["in"]["uid"]]


@pytest.mark.parametrize("case", _uid_cases(), ids=lambda case: ascii(case["in"]["uid"]))
def test_the_id_of_a_uid_is_flinks(case: Any) -> None:
    """Every uid of the vectors hashes to the id that the real class gave."""
    assert operator_id(case["in"]["uid"]) == case["out"]


def test_the_vectors_hold_uids() -> None:
    """The parametrised test above did not run over an empty list."""
    assert len(_uid_cases()) == 58


def test_an_empty_uid_is_refused() -> None:
    """Flink hashes it to zeros and refuses the job later; here it never gets that far."""
    with pytest.raises(InvalidArgumentError, match="empty"):
        operator_id("")


@pytest.mark.parametrize("uid", [None, b"uid", 7])
def test_a_uid_that_is_not_a_string_is_refused(uid: Any) -> None:
    """Bytes have no defined text, so they have no id."""
    with pytest.raises(InvalidArgumentError, match="string"):
        operator_id(uid)


@pytest.mark.parametrize("code", [0xD83D, 0xDE42])
def test_a_single_surrogate_hashes_like_a_question_mark(code: int) -> None:
    """Java's encoder replaces what it cannot encode by ``?``, one for each code unit."""
    assert operator_id(f"a{chr(code)}b{chr(code)}c") == operator_id("a?b?c")


def test_a_pair_of_surrogates_hashes_like_its_character() -> None:
    """A pair is one character to Java, however Python holds it."""
    assert operator_id("\ud83d" + "\ude42") == operator_id("\U0001f642")
