"""Stand-ins for packages that the code imports and its documentation does not need.

Arrow, NumPy and Spark alone would make the environment of the site many times as large. A page
shows names, docstrings and options, which no stand-in changes.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

__all__ = ["stand_in"]

PACKAGES = {
    *("confluent_kafka", "deltalake", "duckdb", "google_crc32c", "jinja2", "numpy", "pandas"),
    *("prometheus_client", "prompt_toolkit", "py4j", "pyarrow", "pyiceberg", "pyspark", "rich"),
    *("starlette", "uvicorn", "xxhash", "zstandard"),
}


class Absent(MagicMock):
    """Any name of an absent package; a class has no part of it as a base."""

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return no base."""
        return ()


class AbsentModule(ModuleType):
    """A module with every name."""

    __path__: list[str] = []  # noqa: RUF012 - it is a package, for the names below it
    __version__ = "4.0.0"  # of a Spark that the code supports

    def __getattr__(self, name: str) -> Any:
        """Return a stand-in, except for the names that Python itself looks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name=f"{self.__name__}.{name}")


class AbsentPackages(MetaPathFinder, Loader):
    """Finds the modules of packages that are not installed."""

    def __init__(self, packages: set[str]) -> None:
        """Stand in for ``packages``."""
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module of an absent package."""
        if name.partition(".")[0] not in self.packages:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in."""
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


def stand_in() -> None:
    """Let the packages that are not installed be imported."""
    sys.meta_path.append(AbsentPackages({name for name in PACKAGES if find_spec(name) is None}))
