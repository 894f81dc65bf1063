"""Any argument of a public method works, or raises a StateStoreError that explains the mistake."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from pathlib import Path
from random import Random

import pytest

from statestore import StateStore
from statestore.errors import StateStoreError
from tests.fuzz.calls import draw_call, made_store
from tests.fuzz.run import MEMORY

pytestmark = pytest.mark.slow

CALLS = 400


def stray(store: StateStore, folder: Path, number: int) -> str | None:
    """Return a description of any other exception that a call raises."""
    call = draw_call(store, folder, Random(number))
    try:
        call.run()
    except StateStoreError:
        return None
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{number}: {call.text} lets out {error!r}"
    return None


def test_no_error_of_another_library_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    found = []
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the libraries that create the arguments
        made_store(Path(folder, "made"))
        for number in range(CALLS):
            here = Path(folder, str(number))
            shutil.copytree(Path(folder, "made"), here)
            store = StateStore.open(str(here), table_format="parquet")
            found.append(stray(store, Path(folder), number))
            shutil.rmtree(here)
    assert [problem for problem in found if problem] == []
