"""Names that differ in case alone: where a file system folds case, their folders are one.

A listing has one spelling then, and a manifest another, so that a collection would take files of
the second name for nobody's. So a name that folds to another's is refused, on any storage: a store
may be copied. Those that a store has both already go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from statestore.errors import InvalidArgumentError

__all__ = ["refuse_folded"]

Name = tuple[str, str]


def refuse_folded(new: Name, others: Iterable[Name], stored: frozenset[Name]) -> None:
    """Raise InvalidArgumentError when an operator, or a state of one, has the name of another but
    for case; ``stored`` are the (operator uid, state) that the newest checkpoint has.
    """
    operators = {uid for uid, _ in stored}
    for other in {*others, *stored}:
        if other[0] != new[0]:
            known = {other[0], new[0]} <= operators
            clash = _folded(other[0]) == _folded(new[0])
            what, a, b = "operators", other[0], new[0]
        else:
            known = {other, new} <= stored
            clash = other[1] != new[1] and _folded(other[1]) == _folded(new[1])
            what, a, b = f"states of operator {new[0]!r}", other[1], new[1]
        if clash and not known:
            raise InvalidArgumentError(
                f"{what} {a!r} and {b!r} differ in case alone, and where a file system does not "
                "tell upper from lower case, their files would lie in one folder; rename one"
            )


def _folded(name: str) -> str:
    # In a path all but ASCII is escaped, so no other letter is folded there.
    return "".join(char.lower() if char.isascii() else char for char in name)
