"""A sequence with a known length, whose items are loaded on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar, overload

__all__ = ["LazySequence"]

T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """Items that are loaded together, once, and then cached; thread-safe.

    Loading errors are raised by the first operation that needs an item: iteration, comparison,
    hashing or pickling. Pickling converts it to a tuple.
    """

    def __init__(self, length: int, find: Callable[[], tuple[T, ...]]) -> None:
        """Take the number of items, and the function that loads them."""
        self._length, self._find = length, find
        self._items: tuple[T, ...] | None = None
        self._finding = Lock()

    @property
    def is_known(self) -> bool:
        """True if the items are already loaded."""
        return self._items is not None

    @property
    def items(self) -> tuple[T, ...]:
        """The items."""
        if self._items is not None:  # a fast path: a plan calls this hundreds of thousands of times
            return self._items
        # functools.cached_property has one lock for all instances in Python 3.11. Loading may read
        # a file, and other instances must not wait for that, so each instance has its own lock.
        with self._finding:
            if self._items is None:
                self._items = self._find()
            return self._items

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | LazySequence) and self.items == tuple(other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.items,)
