"""Everything that an error shows when it is printed, logged or pickled."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from statestore.errors import StateStoreError


def shown(error: BaseException | None) -> str:
    """Return all visible text of an error and its causes: message, notes and pickle."""
    texts = []
    while error is not None:
        texts += [*traceback.format_exception_only(error), repr(error), repr(vars(error))]
        if isinstance(error, StateStoreError):
            texts.append(repr(pickle.dumps(error)))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def failure(call: Callable[[], Any], kind: type[StateStoreError], *secrets: str) -> str:
    """Return the message of the error that a call raises, after checking it for secrets."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    for secret in secrets:
        assert secret not in shown(caught.value)
    return str(caught.value)
