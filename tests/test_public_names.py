"""What ``import statestore`` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import statestore


def test_public_names_are_complete_and_sorted() -> None:
    """Every public name that is imported there is listed, and nothing else is."""
    here = {
        name
        for name, value in vars(statestore).items()
        if not name.startswith("_")
        and name not in ("Any", "TYPE_CHECKING", "spark_module")
        and not (isinstance(value, ModuleType) and value is not statestore.errors)
    }
    assert statestore.__all__ == sorted({*here, "__version__", "spark_session"})


def test_public_names_can_be_imported() -> None:
    """All of them, at once."""
    namespace: dict[str, object] = {}
    exec("from statestore import *", namespace)
    assert set(statestore.__all__) <= set(namespace)


def test_public_names_are_documented() -> None:
    """``help()`` says something about each."""
    for name in statestore.__all__:
        value = getattr(statestore, name)
        assert isinstance(value, str) or (value.__doc__ or "").strip(), name


def test_importing_it_loads_neither_spark_nor_pandas() -> None:
    """They take a second, and a reader without Spark has no use for them."""
    code = (
        "import sys, statestore\n"
        "print(*{'pyspark', 'py4j', 'delta', 'pandas', 's3fs', 'click', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
