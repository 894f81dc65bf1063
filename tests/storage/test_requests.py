"""How long a request is retried after transient failures."""

from __future__ import annotations

import random
import time

import pytest

from statestore.storage.requests import ATTEMPTS, retry


def test_the_backoff_doubles_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)

    def busy() -> None:
        raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        retry(busy, ATTEMPTS, lambda error: True)
    assert waits == [1, 2, 4]
