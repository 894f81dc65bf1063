"""The layers of changes of a keyed state in a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from statestore.format.digest import digest_text
from statestore.format.documents import (
    Count,
    member_error,
    prefix_place,
)
from statestore.format.file_lists import FileListDocument, Lists, files_member, listed_files
from statestore.format.files_json import Digest, KeyedFiles, refuse_disorder
from statestore.format.foreign_names import refuse_foreign_folder
from statestore.format.layers import change_state
from statestore.format.manifest import Entry, KeyedEntry, Layer, TableRef
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange

__all__ = ["LayerDocument", "layers_json", "layers_of", "refuse_other_totals"]


def layers_json(entry: KeyedEntry) -> dict[str, Any]:
    """Return the member ``changes`` of a state; empty for a state without layers."""
    if not entry.layers:
        return {}
    return {
        "changes": [
            {
                "checkpoint": layer.checkpoint_id,
                "depth": layer.depth,
                "live": [[span.first, span.last] for span in layer.live],
                "path": layer.entry.table.path,
                "rows": layer.entry.rows,
                "digest": digest_text(layer.entry.digest),
                **files_member(layer.entry, packed=True),
            }
            for layer in entry.layers
        ]
    }


class LayerDocument(Struct, frozen=True):
    """A layer of changes."""

    checkpoint: Count
    depth: Count
    live: tuple[tuple[Count, Count], ...]
    path: str
    rows: Count
    digest: Digest
    files: KeyedFiles | None = None
    file_list: FileListDocument | None = None

    def layer(self, stored: KeyedState, lists: Lists) -> Layer:
        """Return the layer; ``stored`` is the state that its changes are stored as."""
        handles = listed_files(self.files, self.file_list, stored, self.path, lists, packed=True)
        entry = KeyedEntry(stored, TableRef("parquet", self.path), handles)
        refuse_other_totals(entry, self, ("rows", "digest"))
        with prefix_place(".live"):
            live = tuple(KeyGroupRange(first, last) for first, last in self.live)
            refuse_disorder(live, stored.max_parallelism)
        return Layer(entry, self.checkpoint, self.depth, live)


def layers_of(
    changes: Sequence[LayerDocument], state: KeyedState, lists: Lists, *, relabelled: bool
) -> tuple[Layer, ...]:
    """Return the layers of a state; ``relabelled`` is as in :func:`refuse_foreign_folder`."""
    stored = change_state(state) if changes else state
    layers = []
    for index, changed in enumerate(changes):
        with prefix_place(f".changes[{index}]"):
            refuse_foreign_folder(changed.path, "changes", state, ".path", relabelled)
            layers.append(changed.layer(stored, lists))
    return tuple(layers)


def refuse_other_totals(entry: Entry, document: object, members: Iterable[str]) -> None:
    """Refuse totals in a document that differ from the sums of its files."""
    for member in members:
        actual, recorded = getattr(entry, member), getattr(document, member)
        actual = digest_text(actual) if member == "digest" else actual
        if recorded != actual:
            raise member_error(
                f".{member}", f"the manifest says {recorded}, but the files add up to {actual}"
            )
