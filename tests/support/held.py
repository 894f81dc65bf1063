"""How many manifests a process holds at once: a store may have very many, and each may be large."""

from __future__ import annotations

import weakref

import pytest

from statestore.catalog.catalog import Catalog
from statestore.format.manifest import Manifest

__all__ = ["count_held"]


def count_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, each time that a manifest is read, how many are held by then."""
    read, known, held = Catalog.outline, list[weakref.ref[Manifest]](), list[int]()

    def reading(self: Catalog, checkpoint_id: int) -> Manifest:
        held.append(sum(each() is not None for each in known))
        manifest = read(self, checkpoint_id)
        known.append(weakref.ref(manifest))
        return manifest

    monkeypatch.setattr(Catalog, "outline", reading)
    return held
