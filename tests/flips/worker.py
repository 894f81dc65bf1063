"""Run flips in one process, which prints each attempt before it runs because it can die."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from statestore import StateStore
from statestore.errors import CorruptionError
from statestore.format.state import Layout
from tests.flips.readers import READERS
from tests.flips.stores import fill, unseal

__all__ = ["damage", "data_files", "main"]

_END_BYTES = 8


def main() -> int:
    """Run some flips, and print two lines for each: the attempt, and ``right``, ``found`` or the
    failure.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--unsealed", action="store_true")
    given = parser.parse_args()
    stores = []
    for layout in Layout:
        store = fill(given.folder / layout, layout)
        stores.append(unseal(store, given.folder / f"old {layout}") if given.unsealed else store)
    expected = [{name: read(store) for name, read in READERS.items()} for store in stores]
    files = [sorted(data_files(store)) for store in stores]
    for number in range(given.first, given.first + given.count):
        draw = Random(f"{given.seed} {number}")
        at = draw.randrange(len(stores))
        file, reader = draw.choice(files[at]), draw.choice([*READERS])
        raw = file.read_bytes()
        what, damaged = damage(draw, raw)
        print(f"flip {number}: {reader}, {file.relative_to(given.folder)}, {what}", flush=True)
        file.write_bytes(damaged)
        print(_outcome(stores[at], reader, expected[at][reader]), flush=True)
        file.write_bytes(raw)
    return 0


def data_files(store: StateStore) -> Iterator[Path]:
    """Yield the files that the newest checkpoint references."""
    for entry in store.manifest().entries:
        for part in entry.parts:
            yield from (Path(store.url, part.table.path, handle.path) for handle in part.handles)


def damage(draw: Random, raw: bytes) -> tuple[str, bytes]:
    """Return the description of random damage to a footer, and the damaged file."""
    length = int.from_bytes(raw[-_END_BYTES:-4], "little") + _END_BYTES
    at = len(raw) - 1 - draw.randrange(length)
    changed = bytearray(raw)
    kind = draw.choices(("bit", "byte", "cut", "more"), (6, 2, 1, 1))[0]
    if kind == "bit":
        bit = draw.randrange(8)
        changed[at] ^= 1 << bit
        return f"bit {bit} of byte {at}", bytes(changed)
    if kind == "byte":
        changed[at] = draw.choice([value for value in range(256) if value != raw[at]])
        return f"byte {at} becomes {changed[at]}", bytes(changed)
    if kind == "cut":
        return f"cut at {at}", raw[:at]
    return f"a byte more at {at}", raw[:at] + raw[at : at + 1] + raw[at:]


def _outcome(store: StateStore, reader: str, expected: Any) -> str:
    try:
        found = READERS[reader](store)
    except CorruptionError:
        return "found"
    except Exception as error:  # noqa: BLE001 - whatever else comes out is what is looked for
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "right" if found == expected else "wrong"


if __name__ == "__main__":
    sys.exit(main())
