"""Print the digests of generated files.

    python -m tests.simulate.same_bytes stores pages

* ``stores``: all files of stores with a state of every kind, and of an export. The stores are
  written with the simulator's clock and ids, so that nothing in them has a reason to differ. Only
  the id and the creation time of a Delta table are delta-rs's own, and are left out.
* ``pages``: the generated pages of the documentation.

The output must be the same in every process.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from statestore import Changes, ParquetOptions, StateStore
from tests.golden import make_kept, make_store
from tests.golden.make_changes import STATES, rows
from tests.simulate.world import World

__all__ = ["generated_pages", "written_stores"]

OF_DELTA_RS = re.compile(rb'"id": "[0-9a-f-]{36}"|"createdTime": \d+')


def written_stores() -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of all files of the stores."""
    world = World("local", lambda *_: None)
    try:
        with world.replaced():
            _write(world.folder)
        for path in sorted(world.folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                if path.parent.name == "_delta_log":
                    content = OF_DELTA_RS.sub(b"", content)
                yield str(path.relative_to(world.folder)), content
    finally:
        world.close()


def generated_pages() -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the generated pages."""
    from docs import hooks, json_schema  # their packages are not in every environment
    from tests.rescaling import page

    for name, text in hooks.pages():
        yield name, text.encode()
    yield "statestore.schema.json", json_schema.schema_text().encode()
    yield "RESCALING.md", page.page().encode()


def _write(folder: Path) -> None:
    for table_format in ("parquet", "delta"):
        store = StateStore.open(str(folder / table_format), table_format=table_format)
        make_store.write(store)
        make_store.write(store)
        store.maintenance.savepoint("kept")
    parquet = ParquetOptions(list_bytes=1)
    kept = StateStore.open(str(folder / "kept"), table_format="parquet", parquet=parquet)
    make_kept.write(kept, make_store.totals())
    make_kept.write(kept, make_kept.evolved(), dropped="day")
    kept.maintenance.copy("latest", StateStore.open(str(folder / "copy")))
    kept.restore(parallelism=3).export(folder / "export")
    _write_changes(StateStore.open(str(folder / "changes"), table_format="parquet"))


def _write_changes(store: StateStore) -> None:
    options = {"key": "user", "entry": "m", "max_parallelism": 4}
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("golden", "n", rows(STATES[1]), kind="map", **options)  # type: ignore[arg-type]
    with store.snapshot(parallelism=2) as checkpoint:
        changes = Changes(rows({("u2", "x"): 20}), [{"user": "u1"}], cleared=[{"user": "u0"}])
        checkpoint.write_changes("golden", "n", changes)
    store.maintenance.compact(everything=True)


SUBJECTS = {"stores": written_stores, "pages": generated_pages}


def main(subjects: Sequence[str]) -> None:
    """Print a line for each file of the subjects."""
    for subject in subjects:
        for name, content in SUBJECTS[subject]():
            print(f"{hashlib.sha256(content).hexdigest()} {subject}/{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
