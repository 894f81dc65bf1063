"""Functions of ``statestore.spark`` that other modules find by name at run time."""

from __future__ import annotations

import importlib
import re

from tests.syntax import ROOT

LAZY = re.compile(r'spark_module\(\s*"(\w+)"\s*\)\s*\.\s*(\w+)')


def test_each_function_is_in_the_named_module() -> None:
    names = {
        match
        for path in (ROOT / "statestore").rglob("*.py")
        for match in LAZY.findall(path.read_text())
    }
    assert len(names) > 3
    missing = [
        f"{module}.{function}"
        for module, function in sorted(names)
        if not hasattr(importlib.import_module(f"statestore.spark.{module}"), function)
    ]
    assert missing == []
