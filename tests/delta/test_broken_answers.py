"""A read of a table is repeated only if its answer broke off."""

from __future__ import annotations

import time

import pytest
from deltalake.exceptions import DeltaError

from statestore.delta.delta_rs import retry_broken_answers
from statestore.storage.requests import ATTEMPTS


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (DeltaError("Generic S3 error: error decoding response body"), ATTEMPTS),
        (OSError("HTTP error: request or response body error"), ATTEMPTS),
        (DeltaError("Access denied"), 1),
        (ValueError("error decoding response body"), 1),
    ],
)
def test_a_call_is_repeated_after_a_broken_answer(
    error: Exception, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    calls = []

    def read() -> None:
        calls.append(error)
        raise error

    with pytest.raises(type(error), match=str(error)):
        retry_broken_answers(read)
    assert len(calls) == attempts
