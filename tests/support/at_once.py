"""Threads that run at once: what a schedule or a test needs that depends on nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["ThreadAtOnce"]


class ThreadAtOnce:
    """Takes the place of ``threading.Thread``; its target runs in :meth:`start`."""

    def __init__(self, *, target: Callable[..., Any], args: Sequence[Any] = (), name: str) -> None:
        """Take what a thread takes."""
        self._target, self._arguments, self.name = target, args, name

    def start(self) -> None:
        """Run it; an error that ends the process comes out here."""
        self._target(*self._arguments)

    def is_alive(self) -> bool:
        """Return False: it has run."""
        return False

    def join(self) -> None:
        """Do nothing: it has run."""
