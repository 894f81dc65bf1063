"""The package of a release in this process, next to this tree's package of the same name.

A simulated world has one process. The modules of both packages have the same names, so only one
package is in ``sys.modules`` at a time. The scheduler runs one actor at a time: it exchanges the
modules when it passes control to an actor of a release, and back when it takes control again. An
import inside a function therefore finds the actor's own package.

The actors' own modules in ``tests/simulate`` are imported again for each release, because they
import the package. The scheduler and the checker exist once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from tests.versions.releases import RELEASES, Release

__all__ = ["SecondPackage", "second_package"]

PACKAGE = "statestore"
ACTORS = tuple(
    f"tests.simulate.{name}" for name in ("actors", "bucket", "disk", "live", "verbs", "world")
)


class SecondPackage:
    """All modules of a release's package, and of the actors that use it."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._modules: dict[str, ModuleType] = {}
        with self.entered():
            sys.path.insert(0, str(release.packages))
            try:
                importlib.import_module(PACKAGE)
            finally:
                sys.path.remove(str(release.packages))
            for name in ACTORS:
                importlib.import_module(name)

    def module(self, name: str) -> Any:
        """Return a module of the release, or of its actors."""
        return self._modules[name]

    @property
    def files(self) -> dict[str, str]:
        """The file of each imported module of the release's package."""
        return {
            name: str(module.__file__)
            for name, module in self._modules.items()
            if name.startswith(PACKAGE)
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Exchange the modules, so that imports in this block find the release's."""
        ours = _taken_out()
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = _taken_out()
            sys.modules.update(ours)
            _bind(ours)


def _taken_out() -> dict[str, ModuleType]:
    """Remove the modules with the names that both packages have; return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    names += [name for name in ACTORS if name in sys.modules]
    return {name: sys.modules.pop(name) for name in names}


def _bind(modules: dict[str, ModuleType]) -> None:
    """Make the actors' modules attributes of their package again, as their import did."""
    for name in ACTORS:
        parent, _, child = name.rpartition(".")
        if name in modules and parent in sys.modules:
            setattr(sys.modules[parent], child, modules[name])


@cache
def second_package(version: str) -> SecondPackage:
    """Import a release; ReleaseError if it was not built."""
    [release] = [release for release in RELEASES if release.version == version]
    return SecondPackage(release)
