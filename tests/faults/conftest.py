"""Folders of these tests are in memory where possible, because the tests sync thousands
of files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cases import make_store

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the whole run, in memory if the system has such a file system."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path_factory.mktemp("faults")
        return
    with tempfile.TemporaryDirectory(prefix="statestore-faults-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def fast_path(memory: Path) -> Iterator[Path]:
    """A new folder for one test."""
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def base(memory: Path) -> Path:
    """A store with checkpoint 1. Tests copy it before they change it."""
    return make_store(memory / "base")
