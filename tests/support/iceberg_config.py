"""The configuration of pyiceberg, which it otherwise reads only once per process."""

from __future__ import annotations

from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config

__all__ = ["SQLITE", "configure"]

SQLITE = """
catalog:
  lake:
    type: sql
    uri: sqlite:////data/catalog.db
    warehouse: file:///data/warehouse
"""


def configure(patch: pytest.MonkeyPatch, folder: Path, text: str = SQLITE) -> None:
    """Configure catalogs as a new process would find them; ``/data`` becomes ``folder``."""
    home = folder / "pyiceberg"
    home.mkdir()
    (home / ".pyiceberg.yaml").write_text(text.replace("//data/", f"/{folder}/"))
    patch.setenv("PYICEBERG_HOME", str(home))
    patch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
