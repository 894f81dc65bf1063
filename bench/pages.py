"""The time to open pages of a store with very many checkpoints, and with a very large one.

Each page is rendered to HTML as the server does it, from a newly opened store. The floor of the
list is the same page of a store that has only the checkpoints on that page. The large checkpoint
has one hundred states of 32,768 key groups each; the floor of its page is reading its manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.measure import Figure, in_turn, times
from statestore import StateStore
from statestore.ui.checkpoint import SHOWN, checkpoint, state
from statestore.ui.pages import PageView, render
from statestore.ui.rescale import rescale
from statestore.ui.trends import timeline

__all__ = ["figures"]

STATES = 100
GROUPS = 32_768
PARALLELISM = 16


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the seconds of each page, for ``rows`` checkpoints and for one large checkpoint."""
    many, few, large = (str(folder / name) for name in ("many", "few", "large"))
    for url, number in ((few, SHOWN), (many, rows)):
        store = StateStore.open(url, table_format="parquet", layout="auto")
        for _ in range(number):
            with store.snapshot(parallelism=2) as taken:
                taken.write_keyed("u", "s", pa.table({"k": [1]}), key="k", max_parallelism=8)
    _make_large(large)
    shown, listed = f"the newest of {SHOWN} checkpoints", f"the newest of {rows:,} checkpoints"
    manifest = f"manifest of {STATES} states of {GROUPS:,} key groups"
    pages: dict[str, Callable[[StateStore], PageView]] = {
        "page of it": lambda store: checkpoint(store, store.checkpoint(1)),
        "page of a state of it": lambda store: state(store, store.checkpoint(1), "u", "s7"),
        "page of a plan of it": lambda store: rescale(store, store.checkpoint(1), 23),
    }
    seconds = in_turn(
        {
            shown: partial(_opened, few, timeline),
            listed: partial(_opened, many, timeline),
            manifest: lambda: StateStore.open(large).checkpoint().manifest.size_bytes,
            **{what: partial(_opened, large, page) for what, page in pages.items()},
        },
        repeats,
    )
    return [
        times("B29", shown, seconds),
        times("B29", listed, seconds, floor=shown),
        times("B29", manifest, seconds),
        *(times("B29", what, seconds) for what in pages),
    ]


def _opened(url: str, made: Callable[..., PageView]) -> str:
    store = StateStore.open(url)
    return render(made(store), url)


def _make_large(url: str) -> None:
    store = StateStore.open(url, table_format="parquet", layout="auto")
    keys = np.arange(4 * GROUPS)
    table = pa.table({"k": keys, "n": keys})
    with store.snapshot(parallelism=PARALLELISM) as taken:
        for number in range(STATES):
            taken.write_keyed("u", f"s{number}", table, key="k", max_parallelism=GROUPS)
