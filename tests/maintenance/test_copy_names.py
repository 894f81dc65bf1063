"""Bytes that an earlier attempt has left are found by their content, in the table of their file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from statestore.maintenance.copy import StoredFileIndex, new_name
from statestore.storage import LocalStorage
from tests.support.stores import opened


def test_leftovers_have_the_folder_the_hash_and_the_length_of_a_file(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"k": [1, 2]})
        for layout in ("ranged", "partitioned"):
            checkpoint.write_keyed("u", layout, rows, key="k", max_parallelism=1, layout=layout)
    storage = LocalStorage(store.url)
    for entry in store.checkpoint().manifest.keyed:
        [handle] = entry.handles
        name = entry.table.name_of(handle)
        left = [f"{entry.table.path}/{new_name(handle, number)}" for number in (7, 8)]
        for copy in left:
            (tmp_path / copy).write_bytes((tmp_path / name).read_bytes())
        index = StoredFileIndex(storage, [entry.table.path])
        assert sorted(index.find_leftovers(name, handle)) == left
        assert index.find_kept(name, handle) is None
        index.add_kept(store.checkpoint().manifest)
        assert index.find_kept(name, handle) == name
        for other in (replace(handle, size_bytes=1), replace(handle, sha256="0" * 64)):
            assert index.find_leftovers(name, other) == []
            assert index.find_kept(name, other) is None
        assert index.find_leftovers(f"elsewhere/{handle.path}", handle) == []
