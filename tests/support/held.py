"""Count the manifests that a process has in memory: a store may have many large ones."""

from __future__ import annotations

import weakref

import pytest

from statestore.catalog.catalog import Catalog
from statestore.format.manifest import Manifest

__all__ = ["count_held"]


def count_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list; each manifest that is read appends the number of manifests in memory."""
    read, known, held = Catalog.load_header, list[weakref.ref[Manifest]](), list[int]()

    def reading(self: Catalog, checkpoint_id: int) -> Manifest:
        held.append(sum(each() is not None for each in known))
        manifest = read(self, checkpoint_id)
        known.append(weakref.ref(manifest))
        return manifest

    monkeypatch.setattr(Catalog, "load_header", reading)
    return held
