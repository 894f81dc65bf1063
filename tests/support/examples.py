"""The number of Hypothesis examples in tests where each example needs a store or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

__all__ = ["LONG", "examples"]

LONG = "long"
"""The profile of ``make nightly``."""

SHARE = 4
FEWEST = 5

Test = TypeVar("Test", bound=Callable[..., Any])


def examples(count: int) -> Callable[[Test], Test]:
    """Return a decorator for this many examples in ``make nightly``, and a quarter otherwise."""
    is_long = settings.get_current_profile_name() == LONG
    tried = count if is_long else max(count // SHARE, min(FEWEST, count))

    def decorate(test: Test) -> Test:
        return pytest.mark.examples(settings(max_examples=tried)(test))  # type: ignore[no-any-return]

    return decorate
