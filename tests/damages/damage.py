"""Random damage to the bytes of a file, and what a subject of the search provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, Protocol

__all__ = ["Attempt", "Subject", "damage"]


@dataclass(frozen=True)
class Attempt:
    """A damaged file and one reader of it. ``read`` returns the outcome, or raises any error that
    is a failure.
    """

    description: str
    file: Path
    damaged: bytes
    read: Callable[[], str]


class Subject(Protocol):
    """Files and all readers of them. ``allowed`` are the outcomes that are no failures."""

    allowed: ClassVar[frozenset[str]]

    def __init__(self, folder: Path) -> None:
        """Write the files into a folder."""

    def draw(self, random: Random) -> Attempt:
        """Draw a file, a damage and a reader."""


def damage(random: Random, raw: bytes, first: int = 0) -> tuple[str, bytes]:
    """Return the description of random damage from byte ``first`` on, and the damaged bytes."""
    at = random.randrange(first, len(raw))
    more = min(random.choice((1, 2, 4, 8, 16, 100, 1000)), len(raw) - at)
    kinds = ("bit", "byte", "cut", "less", "more", "zeros", "swap", "noise")
    kind = random.choices(kinds, (8, 3, 1, 1, 1, 1, 1, 1))[0]
    end, replaced = at + more, raw[at : at + more]
    match kind:
        case "bit":
            bit = random.randrange(8)
            what, end, replaced = f"bit {bit} of byte {at}", at + 1, bytes([raw[at] ^ 1 << bit])
        case "byte":
            value = random.choice([value for value in range(256) if value != raw[at]])
            what, end, replaced = f"byte {at} becomes {value}", at + 1, bytes([value])
        case "cut":
            return f"cut at {at}", raw[:at]
        case "less":
            what, replaced = f"{more} bytes less at {at}", b""
        case "more":
            what, replaced = f"{more} bytes twice at {at}", replaced * 2
        case "zeros":
            what, replaced = f"{more} zeros at {at}", bytes(more)
        case "noise":
            what, replaced = f"{more} others at {at}", random.randbytes(more)
        case _:
            other = random.randrange(first, len(raw) - more + 1)
            what, swapped = f"{more} bytes of {at} and {other} swapped", bytearray(raw)
            swapped[at:end], swapped[other : other + more] = raw[other : other + more], replaced
            return (what, bytes(swapped)) if swapped != raw else damage(random, raw, first)
    damaged = raw[:at] + replaced + raw[end:]
    return (what, damaged) if damaged != raw else damage(random, raw, first)
