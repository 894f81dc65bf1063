"""File lists in separate documents: the manifest stays the same, and invalid lists are refused."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from statestore.errors import MalformedManifestError
from statestore.format.documents import document_bytes
from statestore.format.files_json import file_list_to_json
from statestore.format.handles import FileList, ListedFiles, list_of, totals_of
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.manifest_json import manifest_from_json, manifest_to_json
from statestore.format.names import file_list_path
from tests.format.test_manifest import SMALL
from tests.support.key_values import manifests


class Store:
    """The written lists by name, and how often each was read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: Counter[str] = Counter()

    def listed(self, entry: KeyedEntry, *, packed: bool = False) -> KeyedEntry:
        """Return a state whose files, including those in its layers, are in a list."""
        raw = file_list_to_json(entry, packed=packed)
        path = file_list_path(1, "0123456789abcdef" * 2, len(self.files))
        self.files[path] = raw
        sha256 = hashlib.sha256(raw).hexdigest()
        found = ListedFiles.of(
            FileList(path, len(raw), sha256, totals_of(entry.handles)), entry.handles
        )
        layers = (
            replace(layer, entry=self.listed(layer.entry, packed=True)) for layer in entry.layers
        )
        return replace(entry, handles=found, layers=tuple(layers))

    def read(self, path: str) -> bytes:
        self.reads[path] += 1
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


def listed(manifest: Manifest) -> tuple[Manifest, Store]:
    """Return a manifest in which every keyed state has a list, in the form that readers use, and
    the lists.
    """
    store = Store()
    known = replace(manifest, keyed=tuple(map(store.listed, manifest.keyed)))
    raw = manifest_to_json(known)
    return manifest_from_json(raw, name="m.json", read=store.read), store


@pytest.mark.slow
@settings(max_examples=60)
@given(manifests())
def test_files_in_lists_equal_those_in_the_manifest(manifest: Manifest) -> None:
    """I5: a manifest that is read with lists equals the one without, layers included."""
    found, _ = listed(manifest)
    assert found == manifest
    assert [*map(tuple, (part.handles for part in found.parts))] == [
        *map(tuple, (part.handles for part in manifest.parts))
    ]


def test_totals_are_known_without_reading_a_list_and_a_list_is_read_once() -> None:
    """A checkpoint is begun, listed and carried without reading them."""
    found, store = listed(SMALL)
    (entry,) = found.keyed
    assert (entry.rows, entry.size_bytes, entry.files, entry.digest) == (5, 300, 2, 4)
    assert (found.rows, found.files, len(entry.handles)) == (8, 3, 2)
    assert not store.reads
    assert entry.handles[1] is [*entry.handles][1]
    assert [*store.reads.values()] == [1]


def test_a_manifest_with_a_list_requires_a_reader_that_supports_lists() -> None:
    """It has version 3. A manifest without lists stays readable for older releases."""
    found, _ = listed(SMALL)
    assert json.loads(manifest_to_json(found))["format_version"] == 3
    assert json.loads(manifest_to_json(SMALL))["format_version"] == 1


def test_a_list_is_sent_to_another_process_as_files() -> None:
    """That process has no storage to read a list from."""
    found, _ = listed(SMALL)
    (entry,) = found.keyed
    there = pickle.loads(pickle.dumps(entry))
    assert there == entry == SMALL.keyed[0]
    assert list_of(there.handles) is None
    assert hash(there) == hash(entry)


@pytest.mark.slow
def test_every_flipped_byte_of_a_list_is_found() -> None:
    """I7: an error names the manifest and the list, for any flipped bit."""
    _, store = listed(SMALL)
    ((path, raw),) = store.files.items()
    for at in range(len(raw)):
        store.files[path] = raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :]
        refused(store, rf"m\.json: the file list {path} of state .* is damaged")


def refused(store: Store, match: str, change: Callable[[Any], object] = lambda _: None) -> None:
    """Read a manifest after a change, and all of its lists."""
    known = replace(SMALL, keyed=(Store().listed(SMALL.keyed[0]),))
    document = json.loads(manifest_to_json(known))
    del document["sha256"]
    change(document["operators"][1]["keyed"][0])
    with pytest.raises(MalformedManifestError, match=match):
        tuple(
            manifest_from_json(document_bytes(document), name="m.json", read=store.read)
            .keyed[0]
            .handles
        )


def test_a_list_that_is_missing_cut_or_of_another_table_is_refused() -> None:
    """The error explains the defect and what to do."""
    _, store = listed(SMALL)
    ((path, raw),) = store.files.items()
    store.files = {}
    refused(store, f"{path} of state 'sum' of operator 'totals' is missing; recover it")
    store.files = {path: raw[:-1]}
    refused(store, "is damaged")
    store.files = {path: raw}

    def longer(state: Any) -> None:
        state["file_list"]["size_bytes"] += 1

    def another(state: Any) -> None:
        state["file_list"]["sha256"] = "0" * 64

    refused(store, "is damaged", longer)
    refused(store, "is damaged", another)
    elsewhere = replace(
        SMALL.keyed[0], table=replace(SMALL.keyed[0].table, path="operators/a/keyed/b")
    )
    store.files = {path: file_list_to_json(elsewhere, packed=False)}

    def of_that(state: Any) -> None:
        told = state["file_list"]
        told["size_bytes"] = len(store.files[path])
        told["sha256"] = hashlib.sha256(store.files[path]).hexdigest()

    refused(store, r"\$\.table: it belongs to 'operators/a/keyed/b'", of_that)


def test_a_list_that_does_not_add_up_is_refused() -> None:
    """I7: its totals and those in the state must be equal."""
    _, store = listed(SMALL)

    def other_rows(state: Any) -> None:
        state["file_list"]["rows"] = state["rows"] = 6

    refused(store, r"\$\.files: the files add up to Totals\(files=2, rows=5", other_rows)

    def other_total(state: Any) -> None:
        state["file_list"]["rows"] = 6

    refused(store, r"\.rows: the manifest says 5, but the files add up to 6", other_total)


@pytest.mark.parametrize("path", ["statestore.json", "files/../checkpoints/0000000001.json", "/x"])
def test_a_list_is_read_only_from_the_folder_of_lists(path: str) -> None:
    """A name in a document leads to no other folder."""

    def other(state: Any) -> None:
        state["file_list"]["path"] = path

    refused(Store(), "is not a valid name for a file list", other)


def test_a_state_has_files_or_a_list() -> None:
    """A state has exactly one of them."""
    refused(Store(), "one of 'files' and 'file_list'", lambda state: state.pop("file_list"))
    whole = json.loads(manifest_to_json(SMALL))["operators"][1]["keyed"][0]["files"]

    def both(state: Any) -> None:
        state["files"] = whole

    refused(Store(), "one of 'files' and 'file_list'", both)
