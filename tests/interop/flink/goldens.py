"""Golden snapshots of real Flink, unpacked, and the rows that Flink's own restore found in them."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["GOLDENS", "Golden", "few", "serializers"]

FOLDER = Path(__file__).parents[2] / "golden" / "flink"


@dataclass(frozen=True)
class Golden:
    """A golden snapshot, by its name in ``snapshots.json``."""

    name: str

    @property
    def about(self) -> dict[str, Any]:
        """How the snapshot was written."""
        found: dict[str, Any] = json.loads((FOLDER / "snapshots.json").read_text())[self.name]
        return found

    def unpack(self, folder: Path) -> Path:
        """Unpack it into a folder; return the folder with its ``_metadata``."""
        archive = lzma.decompress((FOLDER / f"{self.name}.tar.xz").read_bytes())
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return folder / str(self.about["snapshot"])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that Flink found in it."""
        text = lzma.decompress((FOLDER / str(self.about["rows"])).read_bytes()).decode()
        return [json.loads(line) for line in text.splitlines()]


GOLDENS = tuple(Golden(name) for name in json.loads((FOLDER / "snapshots.json").read_text()))


_FEW = (
    *("2.3_heap_canonical", "2.3_rocksdb_incremental", "2.3_sql", "2.3_kafka"),
    "1.20_heap_snappy",
)


def few(goldens: Iterable[Golden], names: Iterable[str] = _FEW) -> list[Any]:
    """Return goldens as test parameters. Those with the given names run always, and the others only
    in ``make nightly``.
    """
    alone, in_each_run = (pytest.mark.flink, pytest.mark.long), set(names)
    return [
        pytest.param(golden, id=golden.name, marks=() if golden.name in in_each_run else alone)
        for golden in goldens
    ]


def serializers() -> dict[str, list[dict[str, Any]]]:
    """Return the output of Flink's serializers, by version."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in ("serializers", "user_types"):
        text = lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes())
        for version, cases in json.loads(text).items():
            found.setdefault(version, []).extend(cases)
    return found
