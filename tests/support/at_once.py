"""Threads that run synchronously, so that a test's schedule depends only on the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["ThreadAtOnce"]


class ThreadAtOnce:
    """A replacement of ``threading.Thread`` whose target runs in :meth:`start`."""

    def __init__(self, *, target: Callable[..., Any], args: Sequence[Any] = (), name: str) -> None:
        """Take the arguments of a thread."""
        self._target, self._arguments, self.name = target, args, name

    def start(self) -> None:
        """Run the target; an error that ends the process is raised here."""
        self._target(*self._arguments)

    def is_alive(self) -> bool:
        """Return False: the target has already run."""
        return False

    def join(self) -> None:
        """Do nothing: the target has already run."""
