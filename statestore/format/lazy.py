"""A sequence whose length is known, and whose items are found when one of them is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar, overload

__all__ = ["LazySequence"]

T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """Items that are found together, once, and then kept; may be used from threads.

    What finding them raises comes from whatever asks for an item first: to iterate, to compare or
    to hash them, or to send them to another process, where they are a tuple.
    """

    def __init__(self, length: int, find: Callable[[], tuple[T, ...]]) -> None:
        """Take the number of items, and what finds them."""
        self._length, self._find = length, find
        self._items: tuple[T, ...] | None = None
        self._finding = Lock()

    @property
    def is_known(self) -> bool:
        """Whether the items were found already."""
        return self._items is not None

    @property
    def items(self) -> tuple[T, ...]:
        """The items."""
        if self._items is not None:  # a plan asks hundreds of thousands of times
            return self._items
        # A lock of its own, and not that of functools.cached_property, which all instances share in
        # Python 3.11: finding may read a file, and nobody else waits for that.
        with self._finding:
            if self._items is None:
                self._items = self._find()
            return self._items

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        return self.items[at]

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
