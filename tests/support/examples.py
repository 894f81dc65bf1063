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


def examples(count: int, *, share: int = SHARE) -> Callable[[Test], Test]:
    """Return a decorator for this many examples in ``make nightly``, and a share otherwise.

    Args:
        count: the number of examples in ``make nightly``.
        share: what the number is divided by elsewhere.

    Returns:
        The decorator.
    """
    is_long = settings.get_current_profile_name() == LONG
    tried = count if is_long else max(count // share, min(FEWEST, count))

    def decorate(test: Test) -> Test:
        return pytest.mark.examples(settings(max_examples=tried)(test))  # type: ignore[no-any-return]

    return decorate
