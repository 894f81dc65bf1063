"""The metering storage behaves like the storage that it wraps, and counts every byte read."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.storage import LocalStorage, MeteredStorage, Storage
from statestore.testing.suites import StorageSuite


class TestMeteredStorage(StorageSuite):
    """Run the conformance suite."""

    races = 20

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return MeteredStorage(LocalStorage(str(tmp_path / "store")))


def test_every_read_is_counted(tmp_path: Path) -> None:
    storage = MeteredStorage(LocalStorage(str(tmp_path)))
    storage.put_if_absent("a", b"0123456789")
    assert storage.bytes_read == 0
    storage.read("a")
    storage.read_range("a", 2, 5)
    with storage.open_read("a") as file:
        file.seek(8)
        file.read()
    assert storage.bytes_read == 10 + 3 + 2
    assert storage.native_path("a") is None
