"""A sequence that computes its items on first access, once, and then acts like a tuple."""

from __future__ import annotations

import pickle

import pytest

from statestore.format.handles import LazySequence


def test_items_are_computed_once_and_counted_before() -> None:
    asked = list[int]()

    def find() -> tuple[str, ...]:
        asked.append(1)
        return ("a", "b")

    found = LazySequence(2, find)
    assert (len(found), repr(found), found.is_known, asked) == (2, "LazySequence(2)", False, [])
    assert (found[1], found[:1], [*found], found == ("a", "b")) == ("b", ("a",), ["a", "b"], True)
    assert (hash(found), asked, found.is_known) == (hash(("a", "b")), [1], True)
    assert found != ["a", "b"]
    assert pickle.loads(pickle.dumps(found)) == ("a", "b")


def test_a_failed_computation_is_repeated() -> None:
    answers: list[OSError | tuple[str, ...]] = [OSError("away"), ("a",)]

    def find() -> tuple[str, ...]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    found = LazySequence(1, find)
    with pytest.raises(OSError, match="away"):
        found[0]
    assert found[0] == "a"
