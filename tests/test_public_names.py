"""What ``import statestore`` offers, and what it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import statestore


def test_public_names_are_sorted_and_their_editors_know_them() -> None:
    """What a type checker sees is what there is at run time."""
    assert statestore.__file__ is not None
    [seen] = [
        node
        for node in ast.parse(Path(statestore.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    imports = [line for line in seen.body if isinstance(line, ast.ImportFrom)]
    names = {name.name for line in imports for name in line.names}
    assert statestore.__all__ == sorted({*names, "__version__"}) == dir(statestore)


def test_public_names_can_be_imported() -> None:
    """All names are imported together."""
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
        "from statestore import StateStore, partition\n"
        "print(*{'pyspark', 'py4j', 'delta', 'pandas', 's3fs', 'click', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
