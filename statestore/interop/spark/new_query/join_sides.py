"""Find the columns of a stream-stream join's sides that a table need not contain.

A key of a join is mostly also a column of the side's rows. The mark ``matched``, which says whether
a row has been joined, has no effect in an inner join.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_JOIN_NODE = "StreamingSymmetricHashJoinExec"


@dataclass(frozen=True)
class JoinSide:
    """A side (``left`` or ``right``) of the join with this operator number.

    ``keys`` has, for each key, the position of the equal column in the side's rows, or None if the
    key is computed.
    """

    operator: int
    side: str
    keys: tuple[int | None, ...]
    is_inner: bool


def find_join_sides(plan: Any) -> tuple[JoinSide, ...]:
    """Return the sides of all joins in Spark's physical plan of a micro-batch."""
    return tuple(_find(plan))


def _find(node: Any) -> Iterator[JoinSide]:
    if node.getClass().getSimpleName() == _JOIN_NODE:
        number = int(node.stateInfo().get().operatorId())
        is_inner = str(node.joinType().toString()) == "Inner"
        for side, child, keys in (
            ("left", node.left(), node.leftKeys()),
            ("right", node.right(), node.rightKeys()),
        ):
            columns = [column.exprId() for column in _list(child.output())]
            yield JoinSide(
                number, side, tuple(_position(key, columns) for key in _list(keys)), is_inner
            )
    for child in _list(node.children()):
        yield from _find(child)


def _list(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _position(key: Any, columns: list[Any]) -> int | None:
    if key.getClass().getSimpleName() != "AttributeReference":
        return None
    return next((index for index, known in enumerate(columns) if known.equals(key.exprId())), None)
