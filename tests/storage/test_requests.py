"""How long a request is retried after transient failures."""

from __future__ import annotations

import random
import time

import pytest

from statestore.errors import StorageError
from statestore.storage import is_full_disk
from statestore.storage.requests import ATTEMPTS, Failure, object_errors, retry


def test_the_backoff_doubles_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)

    def busy() -> None:
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        retry(busy, ATTEMPTS, lambda error: True)
    assert waits == [1, 2, 4]


@pytest.mark.parametrize(
    ("code", "is_full"),
    [
        ("NSQuotaExceededException", True),
        ("QuotaExceeded", True),
        ("XMinioStorageFull", True),
        ("AccessDenied", False),
    ],
)
def test_an_exhausted_quota_is_a_full_disk(code: str, is_full: bool) -> None:
    """So a collection deletes files although it cannot record that first."""
    with (
        pytest.raises(StorageError, match="no room") as caught,
        object_errors("write", "s3://b/x", lambda error, action: Failure(code)),
    ):
        raise OSError("no room")
    assert is_full_disk(caught.value) == is_full
