"""The definition of a type without parameters; :class:`Scalar` finds it by the type's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.types.byte_cursor import Cursor, Skip
from statestore.interop.flink.types.key_hash import KeyHash
from statestore.interop.flink.types.layouts import Leaf


@dataclass(frozen=True, slots=True)
class Width:
    """The width of values that all have the same number of bytes.

    ``serializer_length`` is ``getLength`` of the serializer if it differs.
    """

    width: int
    serializer_length: int | None = None


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """A type without parameters: its short name, its column type, and the layout of its values.

    ``snapshot`` is the class of its serializer snapshot; it is None if no Java serializer has it.
    ``key_hash`` is None if keys of the type have a hash that a savepoint does not contain.
    ``single_key_hashes`` hashes keys that are a single value, if the column of ``key_hash`` cannot
    hold all of them.
    ``extent`` says where a value ends: after a fixed width, or where a function finds its end.
    """

    name: str
    snapshot: str | None
    arrow: pa.DataType
    extent: Width | Skip
    read: Callable[[Cursor], pa.Array]
    write: Callable[[pa.Array], pa.Array]
    key_hash: KeyHash | None = None
    single_key_hashes: Callable[[pa.Array], list[int]] | None = None

    @property
    def layout(self) -> Leaf:
        """The layout of the values."""
        extent = self.extent.width if isinstance(self.extent, Width) else self.extent
        return Leaf(self.arrow, extent, self.read, self.write)

    @property
    def serializer_length(self) -> int | None:
        """``getLength`` of the serializer; None if values differ in length."""
        if not isinstance(self.extent, Width):
            return None
        length = self.extent.serializer_length
        return self.extent.width if length is None else length
